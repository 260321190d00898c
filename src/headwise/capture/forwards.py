"""Forwards of the root module: their tokens, masks and sequences, and when one ends and the next begins."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headwise.capture.modules import Running, bind
from headwise.kernels import Geometry

if TYPE_CHECKING:
    from headwise.capture.sequences import Identity

CACHES = ("past_key_values", "cache", "past_key_value", "past", "kv_cache")
"""Arguments that carry a key-value cache of a form of its own; a Hugging Face Cache is known under any name."""


@dataclass
class Forward:
    """One forward of a root module.

    Attributes:
        arguments: What it was called with, by name.
        encoder_decoder: Whether the root has a decoder with a mask of its own.
        past: Tokens in the cache before this forward; None where that cannot be told.
        cache: The key-value cache that it was given.
        sequences: A number for each sequence of the batch; one that a cache continues keeps its number.
        identity: Which texts those are; None where that cannot be told.
        ids: The tokens that its cache and its inputs hold `[B, L]`, once they are asked for (see token_ids.py).
        calls: Attention calls so far in each module.
        geometries: Geometry by mask, with the mask itself, so that its memory is not taken for another's.
        rows: Real rows, by where they are asked for.
        labelled: Rows of each label (see labels.py), by where they are asked for.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    encoder_decoder: bool = False
    past: int | None = None
    cache: object = None
    sequences: tuple[int, ...] = ()
    identity: Identity | None = None
    ids: Tensor | None = None
    calls: Counter[int] = field(default_factory=Counter)
    geometries: dict[tuple[Any, ...], tuple[Geometry, Any]] = field(default_factory=dict)
    rows: dict[tuple[Any, ...], Tensor | None] = field(default_factory=dict)
    labelled: dict[tuple[Any, ...], dict[str, Tensor]] = field(default_factory=dict)

    @property
    def batch(self) -> int | None:
        """Sequences in the batch, where the inputs tell."""
        for name in ("decoder_input_ids", "input_ids", "inputs_embeds", "pixel_values", "input_features"):
            value = self.arguments.get(name)
            if isinstance(value, Tensor) and value.dim() >= 2:
                return value.shape[0]
        for value in self.arguments.values():
            if isinstance(value, Tensor) and value.dim() >= 2:
                return value.shape[0]
        return None

    def real_rows(
        self, name: str, batch: int, num_queries: int, num_keys: int, cross: bool, told: Tensor | None
    ) -> Tensor | None:
        """Real rows `[B, N]` of an attention in module `name`; None: unknown.

        As the caller told, else by the model's own mask argument: the decoder's in a decoder. Layers that ask the
        same get the same tensor.
        """
        in_decoder = self.encoder_decoder and (cross or "decoder" in name.split("."))
        key = (in_decoder, batch, num_queries, num_keys, cross)
        if key not in self.rows:
            mask = self.arguments.get("decoder_attention_mask" if in_decoder else "attention_mask")
            told = mask if told is None else told
            self.rows[key] = rows_of(told, batch, num_queries, num_keys, cross, self.past)
        return self.rows[key]


def rows_of(
    mask: object, batch: int, num_queries: int, num_keys: int, cross: bool, past: int | None = None
) -> Tensor | None:
    """The part of a mask over tokens `[B, L]` that belongs to the queries, or None where it does not fit them.

    `past` tokens stand in a cache before them (None: unknown).
    """
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[0] != batch:
        return None
    length = mask.shape[1]
    if length == num_queries:
        return mask != 0
    # With a cache the mask also covers earlier tokens, and with one of a fixed size room behind them; where it is not
    # known how many came before, the queries are the last ones. Cross-attention's keys are another sequence's, so there
    # only a longer mask over the same tokens can be meant.
    if length > num_queries and (cross or length <= num_keys):
        first = length - num_queries if past is None else past
        if first + num_queries <= length:
            return mask[:, first : first + num_queries] != 0
    return None


class Forwards:
    """Tells which forward of which root is running.

    A root that is known gets a hook when watching begins; another is found at its first attention call, and hooked
    then, so that its next forward is told from this one. Hooks of the root alone: layers run as if unwatched.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.current: Forward | None = None
        self.number = 0
        self._on_end = on_end
        self._hooked: dict[int, nn.Module] = {}
        self._handles: list[RemovableHandle] = []
        self._depth = 0
        self._root: nn.Module | None = None
        self._thread: int | None = None

    def attach(self, root: nn.Module) -> None:
        """Follow the forwards of a root, as they run in this thread."""
        self._thread = threading.get_ident()
        if id(root) in self._hooked:
            return
        self._hooked[id(root)] = root
        self._handles.append(root.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True))
        self._handles.append(root.register_forward_hook(self._after, always_call=True))

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """No hooks for a while; which forward is running stays known."""
        roots = list(self._hooked.values())
        self._remove_hooks()
        try:
            yield
        finally:
            for root in roots:
                self.attach(root)

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked.clear()

    def detach(self) -> None:
        """Take every hook away."""
        self._remove_hooks()
        self.current, self._root = None, None
        self._depth = 0

    def at(self, root: Running | None) -> Forward:
        """The forward in which attention is being called; outside any module, each call is one of its own."""
        if root is None:
            return self._begin(Forward())
        if self.current is None or id(root.module) not in self._hooked:
            self.attach(root.module)
            # A cache that it was given may have grown already, so what was in it before cannot be told.
            arguments = root.arguments()
            empty = cache_of(arguments, _number_of(root.module)) == (0, None)
            return self._begin(_forward(root.module, arguments, past=0 if empty else None))
        return self.current

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # The compiler must not trace us, and other threads are not watched.
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        # The same root again: its last forward was broken off (by Ctrl-C, which runs no hook).
        self._depth = 1 if module is self._root else self._depth + 1
        if self._depth == 1:
            self._root = module
            # Looking at the inputs is nothing that a function mode of the caller should see.
            with torch._C.DisableTorchFunction():
                arguments = bind(module, args, kwargs)
                past, cache = cache_of(arguments, _number_of(module))
                self._begin(_forward(module, arguments, past, cache))

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            # Its inputs, masks and cache are not ours to keep.
            self.current = self._root = None
            with torch._C.DisableTorchFunction():
                self._on_end()

    def _begin(self, forward: Forward) -> Forward:
        self.number += 1
        self.current = forward
        return forward


def cache_of(arguments: dict[str, Any], layer: int = 0) -> tuple[int | None, object]:
    """Tokens in the key-value cache that a forward was given (0 without one, None where it does not tell), and it.

    A cache is known by what it can do, also where a model is given one for each layer. It is asked for those of one
    layer: where single layers run, those before it have filled theirs already.
    """
    for value in arguments.values():
        first = _first(value)
        length = getattr(first, "get_seq_length", None)
        if callable(length):
            try:
                return int(length(layer) if layer else length()), first
            except Exception:  # noqa: BLE001 - a cache that must be asked in another way; the model must run all the same
                return None, first
    for name in CACHES:
        cache = arguments.get(name)
        if isinstance(cache, (tuple, list)) and cache:
            key = cache[0][0] if isinstance(cache[0], (tuple, list)) and cache[0] else None
            return (key.shape[-2] if isinstance(key, Tensor) and key.dim() == 4 else None), None
        if cache is not None and not isinstance(cache, (tuple, list)):
            return None, None
    return 0, None


def _number_of(root: nn.Module) -> int:
    """The number of the first layer in a root, as caches count them; 0 where no layer has one."""
    for module in root.modules():
        number = getattr(module, "layer_idx", None)
        if isinstance(number, int):
            return max(0, number)
    return 0


def _first(value: object) -> object:
    """What stands first in lists within lists: of the caches of all layers that of the first."""
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value


def _forward(root: nn.Module, arguments: dict[str, Any], past: int | None, cache: object = None) -> Forward:
    config = getattr(root, "config", None)
    encoder_decoder = bool(getattr(config, "is_encoder_decoder", False)) or "decoder_input_ids" in arguments
    return Forward(arguments, encoder_decoder, past, cache)


WHOLE_NUMBERS = (torch.int64, torch.int32)


def are_ids(value: object) -> TypeGuard[Tensor]:
    """Whether something is a tensor of token ids `[B, L]` whose numbers can be read."""
    if type(value) is not Tensor or value.dim() != 2 or value.dtype not in WHOLE_NUMBERS:
        return False
    return value.device.type != "meta" and not torch._C._functorch.is_functorch_wrapped_tensor(value)


def real_tokens(forward: Forward, real: Tensor | None) -> tuple[Tensor, Tensor | None] | None:
    """Token ids `[B, L]` of a forward and which of them are real (None: all), or None where it has no ids."""
    ids = forward.arguments.get("input_ids")
    if not are_ids(ids):
        return None
    mask = real if real is not None else forward.arguments.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and forward.past == 0:
        mask = mask[:, : ids.shape[1]]  # behind it is the room of a cache of a fixed size
    fits = isinstance(mask, Tensor) and mask.shape == ids.shape
    return ids, mask if fits else None
