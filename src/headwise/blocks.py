"""Exact weights of a call: a few rows at a time, a rectangle of one head, or pooled to a small map. Linear memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.call import AttentionCall
from headwise.errors import shown
from headwise.kernels import Geometry, Tile, weight_tile, working_dtype
from headwise.kernels.precision import full_precision, without_autocast
from headwise.kernels.tiles import visible_tile, within_limits

BLOCK_ELEMENTS = 1 << 20

Rows: TypeAlias = slice | Tensor | Sequence[int]
"""Queries: a slice, or their numbers in ascending order."""


@dataclass(frozen=True)
class WeightBlock:
    """Some rows of the weights.

    Attributes:
        batch: The sequences of the block.
        rows: Its queries: a slice of step 1, or their numbers `[R]`.
        keys: The keys that `part` holds; every other key is hidden from all rows of the block.
        part: Their weights `[b, H, R, m]`, float32 (float64 for float64 inputs); before dropout; rows that see nothing
            are 0.
        num_keys: M.
    """

    batch: slice
    rows: slice | Tensor
    keys: slice
    part: Tensor
    num_keys: int

    @cached_property
    def weights(self) -> Tensor:
        """The weights over all keys `[b, H, R, M]`, 0 at hidden ones."""
        return whole(self.part, self.keys, self.num_keys)


def whole(part: Tensor, keys: slice, num_keys: int) -> Tensor:
    """`[..., m]` over some keys put in its place among all of them, `[..., M]`, 0 elsewhere."""
    if part.shape[-1] == num_keys:
        return part
    return F.pad(part, (keys.start, num_keys - keys.stop))


def weight_blocks(
    call: AttentionCall,
    rows: Rows = slice(None),
    lse: Tensor | None = None,
    block_elements: int = BLOCK_ELEMENTS,
    *,
    geometry: Geometry | None = None,
    held: Tensor | None = None,
) -> Iterator[WeightBlock]:
    """The weights of a call by eq. 1, block by block: never more than about `block_elements` of them at once.

    Keys that causality, a window, or (where `geometry` is given) a mask hides from a whole block are not computed.

    Args:
        call: The call.
        rows: Only these queries: a slice of step 1, or numbers in ascending order (a sample of rows).
        lse: The lse `[B, H, N]` of the call's RowStatistics, where known: saves the softmax its sum.
        block_elements: How many weights a block may hold; one row of one sequence is the least.
        geometry: The call's geometry, where known.
        held: Weights `[B, H, N, M]` that the model holds itself: the blocks are cut from them, and what the call
            hides is 0 in them.

    Raises:
        ValueError: Rows out of order or range, or `lse` or `held` of another shape than the call's.
    """
    B, H, N, M = call.sizes
    _check_shape("lse", lse, (B, H, N))
    _check_shape("held", held, (B, H, N, M))
    chosen = _chosen(rows, N, call.q.device)
    count = _count(chosen)
    step = max(1, min(count, block_elements // max(1, H * M)))
    together = max(1, min(B, block_elements // max(1, H * M * step)))
    for b in range(0, B, together):
        batch = slice(b, min(B, b + together))
        for r in range(0, count, step):
            block = _part(chosen, r, min(count, r + step))
            keys = span_of(call, block, geometry)
            tile = Tile.of(block, keys, batch)
            part = weight_tile(call, tile, lse) if held is None else _held_tile(call, tile, held)
            yield WeightBlock(batch, block, keys, part, M)


@torch.no_grad()
def weights_of(
    call: AttentionCall,
    head: int,
    rows: Rows = slice(None),
    keys: slice = slice(None),
    lse: Tensor | None = None,
    *,
    batch: slice = slice(None),
) -> Tensor:
    """A rectangle of one head's weights, exactly: `[B, R, m]`, before dropout.

    With `lse` only the rectangle is computed; without it also the rest of its rows, some rows at a time.

    Args:
        call: The call.
        head: The query head, 0..H-1.
        rows: Its queries, as in `weight_blocks`.
        keys: Its keys (step 1).
        lse: As in `weight_blocks`.
        batch: Only these sequences.

    Raises:
        ValueError: No such head, rows out of order or range, a step other than 1, or `lse` of another shape.
    """
    B, H, N, M = call.sizes
    if not 0 <= head < H:
        raise ValueError(f"weights_of: expected a head from 0 to {H - 1}; got {head}")
    _check_shape("lse", lse, (B, H, N))
    chosen, across = _chosen(rows, N, call.q.device), slice(*keys.indices(M))
    if across.step != 1:
        raise ValueError(f"weights_of: expected keys with step 1; got step {across.step}")
    across = slice(across.start, max(across.start, across.stop))
    one = _one_head(call, head, batch)
    if lse is not None:
        return weight_tile(one, Tile.of(chosen, across), lse[batch, head : head + 1])[:, 0]
    b, count = one.q.shape[0], _count(chosen)
    found = one.q.new_empty(b, count, across.stop - across.start, dtype=working_dtype(call))
    step = max(1, BLOCK_ELEMENTS // max(1, b * M))
    for r in range(0, count, step):
        some = _part(chosen, r, min(count, r + step))
        seen = span_of(one, some)
        found[:, r : r + step] = whole(weight_tile(one, Tile.of(some, seen)), seen, M)[:, 0, :, across]
    return found


@torch.no_grad()
def pooled_map(
    call: AttentionCall,
    size: int | tuple[int, int],
    how: Literal["mean", "max"] = "mean",
    lse: Tensor | None = None,
    *,
    geometry: Geometry | None = None,
    held: Tensor | None = None,
    block_elements: int = BLOCK_ELEMENTS,
) -> Tensor:
    """The weights pooled to a map `[B, H, R, C]`, R = min(N, size) and C = min(M, size), or of two sizes.

    Row r of the map pools the queries from `floor(r N / R)` to `ceil((r + 1) N / R)` (exclusive), columns alike: as in
    adaptive pooling, neighbouring bins share a query where N is no multiple of R. Hidden keys count as 0.

    Args:
        call: The call.
        size: The most rows and columns: a number for both, or one for each.
        how: The "mean" of a bin, or its "max".
        lse: As in `weight_blocks`.
        geometry: As in `weight_blocks`.
        held: As in `weight_blocks`.
        block_elements: As in `weight_blocks`.

    Raises:
        ValueError: A size below 1, another `how`, or shapes as in `weight_blocks`.
    """
    most = (size, size) if isinstance(size, int) else size
    like = call.q.new_zeros((), dtype=working_dtype(call))
    blocks = weight_blocks(call, slice(None), lse, block_elements, geometry=geometry, held=held)
    return pool(blocks, call.sizes, most, how, like)


@torch.no_grad()
def pool(
    blocks: Iterable[WeightBlock],
    sizes: tuple[int, int, int, int],
    size: tuple[int, int],
    how: Literal["mean", "max"],
    like: Tensor,
) -> Tensor:
    """Blocks of weights pooled to a map, as in `pooled_map`.

    Args:
        blocks: Blocks whose rows are slices; together they hold every row once.
        sizes: B, H, N and M of all of them together.
        size: The most rows, and the most columns.
        how: The "mean" of a bin, or its "max".
        like: A tensor of the map's dtype and device.

    Raises:
        ValueError: A size below 1, or another `how`.
    """
    if len(size) != 2 or min(size) < 1 or how not in ("mean", "max"):
        raise ValueError(
            f"pooled_map: expected a size of at least 1 and how 'mean' or 'max'; got {shown(size)} and {shown(how)}"
        )
    B, H, N, M = sizes
    down, across = bins(N, min(N, size[0])), bins(M, min(M, size[1]))
    pooled = like.new_zeros(B, H, len(down), len(across))
    to_columns = _averages(across, M, pooled) if how == "mean" else None
    to_rows = _averages(down, N, pooled) if how == "mean" else None
    for block in blocks:
        rows = cast(slice, block.rows)
        # Bins that share rows with this block.
        r = slice(rows.start * len(down) // N, -(-rows.stop * len(down) // N))
        target = pooled[block.batch, :, r]
        if to_columns is not None and to_rows is not None:
            with without_autocast(like.device.type), full_precision():
                target += to_rows[r, rows] @ (block.part @ to_columns[:, block.keys].T)
            continue
        columns = _largest(block.weights, across)
        for at, (start, stop) in enumerate(down[r]):
            inside = columns[:, :, max(start, rows.start) - rows.start : min(stop, rows.stop) - rows.start]
            target[:, :, at] = torch.maximum(target[:, :, at], inside.amax(2))
    return pooled


def bins(length: int, number: int) -> list[tuple[int, int]]:
    """The bins of adaptive pooling: from `floor(i length / number)` to `ceil((i + 1) length / number)`, exclusive."""
    return [(i * length // number, -(-(i + 1) * length // number)) for i in range(number)]


def span_of(call: AttentionCall, rows: slice | Tensor, geometry: Geometry | None = None) -> slice:
    """Keys outside of which these rows see nothing; never empty. Without geometry a mask is taken to hide nothing."""
    M = call.k.shape[2]
    limited = call.causal is not None or call.window is not None or (call.mask is not None and geometry is not None)
    # Reading numbers of rows, or the spans of a mask, waits for a device.
    on_host = call.q.device.type == "cpu"
    if not limited or not (on_host or isinstance(rows, slice)):
        return slice(0, M)
    if geometry is not None and on_host:
        low, high = geometry.row_spans
        among = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
        keys = slice(min(low[i] for i in among), max(high[i] for i in among))
    elif isinstance(rows, slice):
        keys = within_limits(call, rows.start, rows.stop - 1)
    else:
        keys = within_limits(call, int(rows[0]), int(rows[-1]))
    return keys if keys.start < keys.stop else slice(0, 1)  # nothing visible: one hidden key says so


def _held_tile(call: AttentionCall, tile: Tile, held: Tensor) -> Tensor:
    part = held[tile.batch, :, tile.index, tile.keys].to(working_dtype(call))
    visible = visible_tile(call, tile)
    return part if visible is None else part.masked_fill(~visible, 0.0)


def _one_head(call: AttentionCall, head: int, batch: slice) -> AttentionCall:
    """The call of one query head and some sequences."""
    B, H, _, _ = call.sizes
    kv = head // (H // call.k.shape[1])
    tile = Tile(batch=slice(*batch.indices(B)), heads=slice(head, head + 1))
    return call.with_(
        q=call.q[batch, head : head + 1],
        k=call.k[batch, kv : kv + 1],
        v=None,
        mask=None if call.mask is None else tile.part(call.mask),
        sinks=None if call.sinks is None else call.sinks[head : head + 1],
        real=None,
    )


def _chosen(rows: Rows, num_rows: int, device: torch.device) -> slice | Tensor:
    """Rows as a slice within 0..N of step 1, or as checked numbers on the device."""
    if isinstance(rows, slice):
        start, stop, step = rows.indices(num_rows)
        if step == 1:
            return slice(start, max(start, stop))
        rows = range(num_rows)[rows]
    numbers = torch.as_tensor(rows, device=device)
    if numbers.dim() != 1 or (len(numbers) and numbers.dtype != torch.int64):
        came = f"{tuple(numbers.shape)} of {numbers.dtype}"
        raise ValueError(f"rows: expected a slice or a sequence of int64 row numbers; got {came}")
    numbers = numbers.long()
    # Rows on another device are the caller's own, and checking them would wait for it.
    if device.type == "cpu" and len(numbers):
        if int(numbers.min()) < 0 or int(numbers.max()) >= num_rows or bool((numbers.diff() <= 0).any()):
            raise ValueError(f"rows: expected ascending numbers from 0 to {num_rows - 1}; got {numbers.tolist()[:8]}")
    return numbers


def _count(chosen: slice | Tensor) -> int:
    return chosen.stop - chosen.start if isinstance(chosen, slice) else len(chosen)


def _part(chosen: slice | Tensor, first: int, last: int) -> slice | Tensor:
    """The chosen rows from the first-th to the last-th, exclusive."""
    if isinstance(chosen, slice):
        return slice(chosen.start + first, chosen.start + last)
    return chosen[first:last]


def _check_shape(name: str, x: Tensor | None, shape: tuple[int, ...]) -> None:
    if x is not None and tuple(x.shape) != shape:
        raise ValueError(f"{name}: expected {shape}, one for each row of the call; got {tuple(x.shape)}")


def _averages(cuts: list[tuple[int, int]], length: int, like: Tensor) -> Tensor:
    """`[bins, length]`: row i averages what is in bin i."""
    matrix = like.new_zeros(len(cuts), length)
    for i, (start, stop) in enumerate(cuts):
        matrix[i, start:stop] = 1 / (stop - start)
    return matrix


def _largest(weights: Tensor, cuts: list[tuple[int, int]]) -> Tensor:
    """`[..., M]` to `[..., C]`: the largest in each bin."""
    if len(cuts) == weights.shape[-1]:
        return weights
    return torch.stack([weights[..., start:stop].amax(-1) for start, stop in cuts], -1)


__all__ = [
    "BLOCK_ELEMENTS", "Rows", "WeightBlock", "bins", "pool", "pooled_map", "span_of", "weight_blocks", "weights_of",
    "whole",
]  # fmt: skip
