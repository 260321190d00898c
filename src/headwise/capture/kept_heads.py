"""One head of what was kept: its exact weights, what it gives, and a small map of it, in linear memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from headwise.blocks import BLOCK_ELEMENTS, WeightBlock, pool, weight_blocks, weights_of
from headwise.call import Alignment, AttentionCall
from headwise.capture.quiet import quiet
from headwise.kernels.tiles import Tile, visible_tile, within_limits

if TYPE_CHECKING:
    from headwise.profile.kept import Held
    from headwise.profile.kept_reading import Looked, Place

HOST = torch.device("cpu")


class Part(NamedTuple):
    """Some rows of one place of a head.

    Attributes:
        call: A call of one sequence and one head that has these rows, and perhaps others.
        rows: Which of the call's rows they are.
        start: Number of the call's first row among all rows of the head.
        place: The place.
    """

    call: AttentionCall
    rows: slice
    start: int
    place: Place


def weights(looked: Looked, rows: list[int]) -> Tensor:
    """The weights of these rows `[len(rows), M]`, float32 (float64 of float64 inputs)."""
    return _gathered(looked, rows, values=False)


def output(looked: Looked, rows: list[int]) -> Tensor:
    """Weights times values of these rows `[len(rows), d_v]`."""
    return _gathered(looked, rows, values=True)


def pooled(looked: Looked, size: tuple[int, int], how: str) -> Tensor:
    """The head's weights pooled to a map of at most `size` rows and columns: see `headwise.blocks.pooled_map`."""

    def blocks() -> Iterator[WeightBlock]:
        for part in _parts(looked):
            for block in weight_blocks(part.call, part.rows):
                rows = cast(slice, block.rows)
                yield WeightBlock(
                    block.batch, slice(part.start + rows.start, part.start + rows.stop), block.keys, block.part, M
                )

    M = looked.num_keys
    with quiet(HOST):
        like = torch.zeros((), dtype=_dtype(looked))
        return pool(blocks(), (1, 1, looked.num_rows, M), size, cast(Literal["mean", "max"], how), like)[0, 0]


def bounds_of(looked: Looked) -> tuple[list[int], list[bool]]:
    """The keys that rows of the call that began the text may see, by number; and for each key whether any row may."""
    with quiet(HOST):
        seen = torch.zeros(looked.num_keys, dtype=torch.bool)
        for place in looked.places:
            mine = _seen(looked, place)
            seen[: len(mine)] |= mine
        first = None if looked.first is None else _seen(looked, looked.first)
    return [] if first is None else first.nonzero()[:, 0].tolist(), seen.tolist()


def own_keys(looked: Looked) -> list[int | None]:
    """The key where each row stands; None where that is not known (cross-attention)."""
    found: list[int | None] = []
    for place in looked.places:
        call, N, M = place.call, place.num_rows, place.call.num_keys
        if call.group.kind == "cross" or not (N in (1, M) or call.causal is not None):
            found += [None] * N
        elif N == M:
            found += range(N)
        elif call.causal is not None:
            offset = M - N if call.causal == "lower_right" else 0
            found += [row + offset if 0 <= row + offset < M else None for row in range(N)]
        else:
            with quiet(HOST):  # a cache may be larger than what stands in it
                visible = _seen(looked, place).nonzero()
            found.append(int(visible[-1]) if len(visible) else None)
    return found


def _gathered(looked: Looked, rows: list[int], values: bool) -> Tensor:
    order = sorted(set(rows))
    at = {row: i for i, row in enumerate(order)}
    width = looked.kept.keys[looked.places[0].call.keys].v[0].array.shape[3] if values else looked.num_keys
    with quiet(HOST):
        found = torch.zeros(len(order), width, dtype=_dtype(looked))
        for part in _parts(looked, order):
            into = _within(order, part.start + part.rows.start, part.start + part.rows.stop)
            p = weights_of(part.call, 0, [row - part.start for row in order[into]])[0]
            if values:
                found[into] = p @ _values(looked, part.place).to(p.dtype)
            else:
                found[into, : p.shape[1]] = p
        return found if order == rows else found[[at[row] for row in rows]]


def _parts(looked: Looked, only: list[int] | None = None) -> Iterator[Part]:
    """The head's rows, some at a time; those of `only` (ascending) alone are looked at."""
    start = 0
    for place in looked.places:
        N, M = place.num_rows, place.call.num_keys
        # Without limits that depend on where a row stands, a call can be cut; then of its mask too only a part is made.
        free = place.call.causal is None and place.call.window is None
        step = max(1, BLOCK_ELEMENTS // M)
        call: AttentionCall | None = None
        for r in range(0, N, step):
            rows = slice(r, min(N, r + step))
            within = slice(0, 1) if only is None else _within(only, start + rows.start, start + rows.stop)
            if within.start == within.stop:
                continue
            if free:
                cut = _call(looked, place, rows)
                yield Part(cut, slice(0, rows.stop - r), start + r, place)
            else:
                call = call or _call(looked, place, slice(0, N))
                yield Part(call, rows, start, place)
        start += N


def _within(rows: list[int], first: int, last: int) -> slice:
    """Where the numbers from `first` to `last` (exclusive) stand in an ascending list."""
    return slice(bisect_left(rows, first), bisect_left(rows, last))


def _call(looked: Looked, place: Place, rows: slice) -> AttentionCall:
    """Rows of a kept call, of one sequence and one head."""
    call, head, b = place.call, looked.head, place.row
    H = call.q.array.shape[1]
    return AttentionCall(
        q=tensor(call.q, (slice(b, b + 1), slice(head, head + 1), rows)),
        k=_of_cache(looked.kept.keys[call.keys].k, b, head, H, call.num_keys),
        mask=None if call.mask is None else _mask(looked.kept.masks[call.mask], b, head, rows, call.num_keys),
        causal=cast("Alignment | None", call.causal),
        scale=call.scale,
        softcap=call.softcap,
        sinks=None if call.sinks is None else tensor(call.sinks, (slice(head, head + 1),)),
        window=call.window,
        hide_below=call.hide_below,
    )


def _values(looked: Looked, place: Place) -> Tensor:
    """The values that a head of one sequence reads `[M, d_v]`."""
    call = place.call
    H = call.q.array.shape[1]
    return _of_cache(looked.kept.keys[call.keys].v, place.row, looked.head, H, call.num_keys)[0, 0]


def _of_cache(pieces: list[Held], b: int, head: int, H: int, num_keys: int) -> Tensor:
    """The first keys or values that a head of one sequence reads `[1, 1, M, d]`."""
    kv = head // (H // pieces[0].array.shape[1])
    found = [tensor(piece, (slice(b, b + 1), slice(kv, kv + 1))) for piece in pieces]
    return torch.cat(found, 2)[:, :, :num_keys].clone(memory_format=torch.contiguous_format)


def _mask(mask: Held, b: int, head: int, rows: slice, num_keys: int) -> Tensor:
    """A part of a mask `[1, 1, n, m]`."""
    sizes = mask.array.shape
    places = (slice(b, b + 1) if sizes[0] > 1 else slice(None), slice(head, head + 1) if sizes[1] > 1 else slice(None))
    index = (*places, rows if sizes[2] > 1 else slice(None))
    if mask.dtype != "bits":
        return tensor(mask, index)
    return torch.from_numpy(np.unpackbits(mask.array[index], axis=-1, count=num_keys).astype(bool))


def tensor(held: Held, index: tuple[slice, ...]) -> Tensor:
    """A copy of a part of what is held, as a tensor of its dtype."""
    found = torch.from_numpy(np.array(held.array[index], order="C"))
    return found.view(torch.bfloat16) if held.dtype == "bfloat16" else found


def _dtype(looked: Looked) -> torch.dtype:
    return torch.float64 if any(place.call.q.dtype == "float64" for place in looked.places) else torch.float32


def _seen(looked: Looked, place: Place) -> Tensor:
    """The keys that some row of a place may see, bool `[M]`."""
    call, N = place.call, place.num_rows
    seen = torch.zeros(call.num_keys, dtype=torch.bool)
    one = _call(looked, place, slice(0, 1)).with_(causal=None, window=None) if call.mask is not None else None
    if call.mask is None or looked.kept.masks[call.mask].array.shape[2] == 1:
        limits = within_limits(_call(looked, place, slice(0, N)), 0, N - 1)
        visible = None if one is None else visible_tile(one, Tile())
        seen[limits] = True if visible is None else visible.expand(1, 1, 1, call.num_keys)[0, 0, 0, limits]
        return seen
    for part in _parts(replace(looked, places=[place])):
        visible = visible_tile(part.call, Tile.of(part.rows, slice(None)))
        seen |= torch.ones_like(seen) if visible is None else visible.expand(1, 1, -1, len(seen)).any(2)[0, 0]
    return seen
