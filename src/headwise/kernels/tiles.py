"""Tiles: some rows of the scores or weights of a call, made when needed and never kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self, cast

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.equations import bias_of, cut, key_limits, visible_keys, weights
from headwise.kernels.precision import full_precision, without_autocast


def _everything() -> slice:
    return slice(None)


@dataclass(frozen=True)
class Tile:
    """Some sequences, the query heads of some key-value heads, some rows, and some keys.

    Rows are a slice of step 1; or `numbers` says which they are, `[R]`, int64 and ascending.
    """

    batch: slice = field(default_factory=_everything)
    heads: slice = field(default_factory=_everything)
    kv_heads: slice = field(default_factory=_everything)
    rows: slice = field(default_factory=_everything)
    keys: slice = field(default_factory=_everything)
    numbers: Tensor | None = None

    @classmethod
    def of(cls, rows: slice | Tensor, keys: slice, batch: slice | None = None) -> Self:
        """A tile of all heads."""
        batch = _everything() if batch is None else batch
        if isinstance(rows, slice):
            return cls(batch=batch, rows=rows, keys=keys)
        return cls(batch=batch, keys=keys, numbers=rows)

    @property
    def index(self) -> slice:
        """What cuts the rows out of a tensor."""
        # Numbers index as a slice does.
        return self.rows if self.numbers is None else cast(slice, self.numbers)

    def part(self, x: Tensor) -> Tensor:
        """The tile's sequences and heads of something that broadcasts to `[B, H, ...]`."""
        x = x[(None,) * (4 - x.dim())]
        x = x[self.batch] if x.shape[0] > 1 else x
        return x[:, self.heads] if x.shape[1] > 1 else x


def working_dtype(call: AttentionCall) -> torch.dtype:
    """The dtype in which a call is measured: float32 at least."""
    return torch.promote_types(call.q.dtype, torch.float32)


class Scratch:
    """Memory that tiles use one after the other.

    Asking the system for megabytes anew for each tile costs time, and the holes that are left cost memory.
    """

    def __init__(self, buffers: int, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self._buffers = [torch.empty(elements, dtype=dtype, device=device) for _ in range(buffers)]

    def __getitem__(self, which: int) -> Tensor:
        return self._buffers[which]

    def shaped(self, which: int, shape: torch.Size) -> Tensor:
        """The beginning of a buffer in a shape."""
        return self._buffers[which][: shape.numel()].view(shape)


def score_tile(call: AttentionCall, tile: Tile, buffer: Tensor | None = None) -> Tensor:
    """The tile's scores `[b, h, R, m]`, -inf at hidden keys: eq. 1 before the softmax.

    Args:
        call: The call.
        tile: The part of it.
        buffer: Flat memory to make them in, large enough; None: new memory.
    """
    M = call.k.shape[2]
    dtype = working_dtype(call)
    scale = 1 / math.sqrt(call.q.shape[-1]) if call.scale is None else call.scale
    q = call.q[tile.batch, tile.heads, tile.index].to(dtype)
    k = call.k[tile.batch, tile.kv_heads, tile.keys].to(dtype)
    b, h, R, d = q.shape
    m = k.shape[2]
    # The query heads of one key-value head lie one under the other, so that k is never repeated.
    stacked = q.reshape(b, k.shape[1], -1, d)
    out = None if buffer is None else buffer[: b * h * R * m].view(b, k.shape[1], -1, m)
    with without_autocast(q.device.type), full_precision():
        s = torch.matmul(stacked, k.transpose(-2, -1), out=out).view(b, h, R, m)
    s *= scale
    if call.softcap is not None:
        s.div_(call.softcap).tanh_().mul_(call.softcap)
    bias = None if call.mask is None else bias_of(cut(tile.part(call.mask), tile.index, tile.keys), dtype)
    if bias is not None:
        s += bias
    first, last, _ = tile.keys.indices(M)
    keys = slice(_first_hidden(call, tile, first, last), last)
    visible = visible_tile(call, replace(tile, keys=keys))
    if visible is not None:
        s[..., keys.start - first :].masked_fill_(~visible, -math.inf)
    return s


def visible_tile(call: AttentionCall, tile: Tile) -> Tensor | None:
    """Which of the tile's keys its rows may see: bool, broadcastable to `[b, h, R, m]`; None: all of them."""
    _, _, N, M = call.sizes
    mask = None if call.mask is None else tile.part(call.mask)
    visible = visible_keys(
        N, M, mask=mask, causal=call.causal, window=call.window, rows=tile.index, keys=tile.keys,
        hide_below=call.hide_below, device=call.q.device,
    )  # fmt: skip
    return None if visible is None else visible[(None,) * (4 - visible.dim())]


def within_limits(call: AttentionCall, first: int, last: int) -> slice:
    """The keys that causality and window leave to the rows from first to last; a mask may hide some. May be empty."""
    _, _, N, M = call.sizes
    left, right, offset = key_limits(N, M, call.causal, call.window)
    start = 0 if left is None else max(0, first + offset - left)
    return slice(start, M if right is None else max(start, min(M, last + offset + right + 1)))


def _first_hidden(call: AttentionCall, tile: Tile, first: int, last: int) -> int:
    """A key before which the tile hides none, `first` if that cannot be told: under causality alone, most of them."""
    if call.causal is None or call.window is not None or call.mask is not None:
        return first
    _, _, N, M = call.sizes
    offset = M - N if call.causal == "lower_right" else 0
    return min(max(tile.rows.indices(N)[0] + offset + 1, first), last)


def weight_tile(call: AttentionCall, tile: Tile, lse: Tensor | None = None) -> Tensor:
    """The tile's weights `[b, h, R, m]`: eq. 1 after the softmax, before dropout.

    Args:
        call: The call.
        tile: The part of it. Without `lse` it must hold every key that its rows may see.
        lse: The lse `[B, H, N]` of the call's rows where it is known: then a tile may hold any keys.
    """
    s = score_tile(call, tile)
    if lse is None:
        return weights(s, None, None if call.sinks is None else call.sinks[tile.heads])
    at = lse[tile.batch, tile.heads, tile.index].to(s.dtype)
    at = at.masked_fill(at == -math.inf, 0.0)  # a row that sees nothing has only scores of -inf
    return s.sub_(at[..., None]).exp_()
