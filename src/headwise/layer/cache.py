"""KVCache: keys and values of earlier tokens, so that decoding computes each of them once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

SMALLEST = 16
"""Tokens that a growing cache has room for at least."""


class KVCache:
    """Keys and values that one attention layer has computed. Each layer needs its own.

    Self-attention: every call appends the keys and values of its tokens, and reads all. Cross-attention: the first
    call keeps the projected context, and later calls with the very same tensor read it. Keys are kept as they enter
    eq. 1 (after norm and position), and not repeated (GQA).

    Without autograd, memory doubles when it is full, so that n tokens cost O(n) copies; where a graph is needed, keys
    are concatenated. Tensors that it gave out are never written to. `copy.copy(cache)` gives a second cache that goes
    on by itself. Changes of a context that torch does not count (through `.data`, or in inference mode) are not seen:
    `reset()` the cache.
    """

    _k: Tensor | None  # [B, H_kv, room, d_k]
    _v: Tensor | None  # [B, H_kv, room, d_v]
    _length: int
    _layer: object
    _context: Tensor | None
    _context_version: tuple[int, ...]
    _made_of: tuple[Tensor, ...]
    _with_graph: bool

    def __init__(self) -> None:
        self.reset()

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._length

    def get_seq_length(self) -> int:
        """The same, under the name that Hugging Face's caches have: `headwise.watch` reads it."""
        return self._length

    def update(self, k: Tensor, v: Tensor, *, graph: bool = False) -> tuple[Tensor, Tensor]:
        """Append keys and values.

        Args:
            k: Keys of the new tokens `[B, H_kv, n, d_k]`.
            v: Their values `[B, H_kv, n, d_v]`.
            graph: Whether a graph will hold what is given out though these need no gradient: for that of a query, or of
                a mask.

        Returns:
            All keys `[B, H_kv, length, d_k]` and values `[B, H_kv, length, d_v]`.

        Raises:
            ValueError: The cache holds a context, or other batch size, heads, widths, dtype or device.
        """
        if self._context is not None:
            raise ValueError(
                "KVCache: it holds the projected context of cross-attention, and now came keys of self-attention: "
                "use one cache for each, or reset() it"
            )
        self._check(k, v)
        start, end = self._length, self._length + k.shape[2]
        if self._k is None or self._v is None:
            stored_k, stored_v = k[:, :, :0], v[:, :, :0]
        else:
            stored_k, stored_v = self._k, self._v
        if torch.is_grad_enabled() and (graph or any(t.requires_grad for t in (k, v, stored_k, stored_v))):
            self._k = torch.cat((stored_k[:, :, :start], k), 2)
            self._v = torch.cat((stored_v[:, :, :start], v), 2)
        else:
            self._k = _appended(stored_k, k, start)
            self._v = _appended(stored_v, v, start)
        self._length = end
        return self._k[:, :, :end], self._v[:, :, :end]

    def of_context(
        self,
        context: Tensor,
        dtype: torch.dtype,
        project: Callable[[Tensor], tuple[Tensor, Tensor]],
        parameters: Iterable[Tensor] = (),
        source: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The projected context of cross-attention.

        Args:
            context: Tokens to read `[B, M, d_context]`. While the very same, unchanged tensor is given, it is
                projected once.
            dtype: Dtype of the queries; keys in another (autocast was on, now it is off) are made anew.
            project: Makes keys `[B, H_kv, M, d_k]` and values `[B, H_kv, M, d_v]` of it.
            parameters: What `project` computes with; when they change, or others stand in their place, the context is
                projected anew.
            source: The tensor that the caller gave, where `context` is a view of it; None: `context` itself.

        Returns:
            The keys and values.

        Raises:
            ValueError: The cache holds keys of self-attention.
        """
        if self._context is None and self._length:
            raise ValueError(
                "KVCache: it holds keys of self-attention, and now came a context for cross-attention: "
                "use one cache for each, or reset() it"
            )
        source = context if source is None else source
        made_of = (source, *parameters)
        version = tuple(_version(tensor) for tensor in made_of)
        if self._k is not None and self._v is not None and self._k.dtype == dtype:
            same = len(self._made_of) == len(made_of) and all(
                a is b for a, b in zip(self._made_of, made_of, strict=True)
            )
            same = same and self._context_version == version
            # What was projected without a graph would leave the projection without a gradient.
            if same and (self._with_graph or not torch.is_grad_enabled()):
                return self._k, self._v
        self._k, self._v = project(context)
        self._length = self._k.shape[2]
        self._context, self._made_of, self._context_version = source, made_of, version
        self._with_graph = torch.is_grad_enabled()
        return self._k, self._v

    def claim(self, layer: object) -> None:
        """Note which layer fills the cache, by an object that stands for it.

        Raises:
            ValueError: Another one has filled it.
        """
        if self._layer is None or not self._length:
            self._layer = layer
        elif self._layer is not layer:
            raise ValueError(
                "KVCache: another layer has filled this cache: give each layer its own, or reset() it to use it anew"
            )

    def reorder(self, index: Tensor) -> None:
        """Put other sequences in the rows: row i becomes what row `index[i]` was (beam search).

        A projected context is forgotten: the next call projects the one it is given.

        Args:
            index: Integers `[B']`; a row can be taken several times, or not at all.

        Raises:
            ValueError: Not one dimension.
        """
        if index.dim() != 1:
            raise ValueError(
                f"KVCache: reorder: expected one dimension, a row for each new row; got {tuple(index.shape)}"
            )
        if self._context is not None:
            self._k = self._v = self._context = None
            self._length = 0
        elif self._k is not None and self._v is not None:
            index = index.to(self._k.device)
            self._k = self._k[:, :, : self._length].index_select(0, index)
            self._v = self._v[:, :, : self._length].index_select(0, index)

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens (to try another continuation).

        Raises:
            ValueError: More than there are, fewer than none, or the cache holds a context.
        """
        if self._context is not None:
            raise ValueError("KVCache: crop: it holds the projected context of cross-attention: give another context")
        if not 0 <= length <= self._length:
            raise ValueError(f"KVCache: crop: expected 0 to {self._length} tokens, as many as there are; got {length}")
        # No room is left, so the next tokens go to new memory: what was given out stays as it is.
        self._k = None if self._k is None else self._k[:, :, :length]
        self._v = None if self._v is None else self._v[:, :, :length]
        self._length = length

    def reset(self) -> None:
        """Forget everything, so that it can be used for anything."""
        self._k = self._v = self._context = self._layer = None
        self._length, self._context_version, self._made_of = 0, (), ()
        self._with_graph = False

    def __copy__(self) -> KVCache:
        if self._k is not None and self._v is not None:
            # Two caches must not write to the same room.
            self._k, self._v = self._k[:, :, : self._length], self._v[:, :, : self._length]
        twin = KVCache()
        twin.__dict__.update(self.__dict__)
        return twin

    def __getstate__(self) -> dict[str, object]:
        # A copy is filled by a copy of the layer, or by the same layer in another process.
        return {**self.__dict__, "_layer": None, "_made_of": ()}

    def __repr__(self) -> str:
        holds = "context" if self._context is not None else "tokens"
        shape = "" if self._k is None else f", batch {self._k.shape[0]}, {self._k.shape[1]} key-value heads"
        return f"KVCache({self._length} {holds}{shape})"

    def _check(self, k: Tensor, v: Tensor) -> None:
        if k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3]:
            raise ValueError(
                f"KVCache: expected keys [B, H_kv, n, d_k] and values [B, H_kv, n, d_v]; "
                f"got {tuple(k.shape)} and {tuple(v.shape)}"
            )
        for new, old in ((k, self._k), (v, self._v)):
            if old is None:
                continue
            if (*new.shape[:2], new.shape[3]) != (*old.shape[:2], old.shape[3]):
                raise ValueError(
                    f"KVCache: expected the batch, heads and width of what it holds, "
                    f"{(*old.shape[:2], self._length, old.shape[3])}; got {tuple(new.shape)}: "
                    "reorder() it to other sequences, or reset() it"
                )
            if new.dtype != old.dtype or new.device != old.device:
                raise ValueError(
                    f"KVCache: it holds {old.dtype} on {old.device}; got {new.dtype} on {new.device}: decode as it was "
                    "filled (autocast on or off), or reset() it"
                )


def _appended(stored: Tensor, new: Tensor, start: int) -> Tensor:
    """`stored` with `new` from `start` on, in the same memory if there is room."""
    end = start + new.shape[2]
    if end > stored.shape[2] or _is_closed(stored):
        room = max(end, 2 * stored.shape[2], SMALLEST)
        larger = torch.empty(*new.shape[:2], room, new.shape[3], dtype=new.dtype, device=new.device)
        larger[:, :, :start] = stored[:, :, :start]
        stored = larger
    stored[:, :, start:end] = new
    return stored


def _is_closed(tensor: Tensor) -> bool:
    """Whether it was made in inference mode and can no longer be written to."""
    # The compiler knows no inference mode.
    return not torch.compiler.is_compiling() and tensor.is_inference() and not torch.is_inference_mode_enabled()


def _version(tensor: Tensor) -> int:
    """How often a tensor was changed in place, where torch counts it."""
    return 0 if torch.compiler.is_compiling() or tensor.is_inference() else tensor._version
