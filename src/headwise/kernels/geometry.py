"""Geometry: which keys each row sees, which key is its own, and which rows are real.

Everything here follows from the mask, the causal limit and the shapes, not from q and k, so layers that share a mask
share it. Memory is linear: the mask is read some rows at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.equations import key_limits, visible_keys

BLOCK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Geometry:
    """Where the rows of a call stand. `b` is B or 1, `h` is H or 1; all int64 but `real` and `own_visible`.

    Attributes:
        num_keys: M.
        visible: Visible keys per row, n_i `[b, h, N]`.
        own: The own key self(i) `[b, N]`; -1 where undefined (cross-attention).
        own_visible: Whether row i may see its own key `[b, h, N]`, and the same for its neighbours.
        previous_visible: Whether it may see `self(i) - 1`.
        next_visible: Whether it may see `self(i) + 1`.
        first: The first key of the row's sequence that any row may see, f `[b, N]`; -1 if there is none.
        first_visible: Whether row i may see f `[b, h, N]`.
        real: Rows that are no padding, bool `[b, N]`.
        segment: Number of the packed sequence that a row belongs to `[b, N]`, or None when nothing is packed.
        spans: First and one-past-last visible key per row `[b, h, N, 2]`; a row that sees nothing has (M, 0).
    """

    num_keys: int
    visible: Tensor
    own: Tensor
    own_visible: Tensor
    previous_visible: Tensor
    next_visible: Tensor
    first: Tensor
    first_visible: Tensor
    real: Tensor
    segment: Tensor | None
    spans: Tensor

    @cached_property
    def row_spans(self) -> tuple[list[int], list[int]]:
        """First and one-past-last key that any sequence or head sees, per row: host lists, for loops over tiles."""
        return self.spans[..., 0].amin((0, 1)).tolist(), self.spans[..., 1].amax((0, 1)).tolist()

    @cached_property
    def position(self) -> Tensor:
        """How far a row stands from the first key (cross-attention: from row 0), tokens `[b, N]`."""
        row = torch.arange(self.own.shape[-1], device=self.own.device)
        return torch.where(self.own >= 0, self.own - self.first.clamp(min=0), row).clamp(min=0)

    @cached_property
    def octave(self) -> Tensor:
        """`floor(log2(position + 1))` `[b, N]`."""
        return torch.frexp((self.position + 1).double()).exponent.long() - 1

    @cached_property
    def first_before(self) -> Tensor:
        """Whether row i may see f and stands after it; where the own key is unknown, whether it sees f `[b, h, N]`."""
        return self.first_visible & ((self.own > self.first) | (self.own < 0))[:, None]


def geometry_of(call: AttentionCall) -> Geometry:
    """The geometry of a call: see `Geometry`."""
    _, _, N, M = call.sizes
    counts, spans, seen = _scan(call)
    device = counts.device
    row = torch.arange(N, device=device)
    own, standing = _own_keys(call, counts, spans, row)
    segment = _segments(spans, counts, seen) if call.mask is not None and N == M and not call.is_cross else None
    first = _first_keys(seen, segment, N)
    if call.real is not None:
        real = call.real.to(device, torch.bool)
    elif call.mask is None:
        real = torch.ones_like(row, dtype=torch.bool)[None]
    else:
        # A key that no row may see is padding, and in self-attention so is its row.
        real = seen.gather(-1, standing.clamp(0, M - 1).expand(len(seen), N)) | (standing < 0) | (standing >= M)
    looks = [_sees(call, own + step, own >= 0) for step in (0, -1, 1)] + [_sees(call, first, first >= 0)]
    return Geometry(M, counts, own, looks[0], looks[1], looks[2], first, looks[3], real, segment, spans)


def _scan(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor]:
    """Count of visible keys and their span per row, and the keys that any row of the sequence sees `[b, M]`."""
    mask = call.mask
    if mask is None or mask.dim() < 2 or mask.shape[-2] == 1 or mask.stride(-2) == 0:
        return _scan_keys(call)
    _, _, N, M = call.sizes
    device = mask.device
    key = torch.arange(M, device=device)
    b, h = (1, 1, *mask.shape)[-4:-2]
    step = max(1, BLOCK_ELEMENTS // max(1, b * h * M))
    # Made before the blocks: what is kept between large tensors that come and go leaves holes in memory.
    count = torch.empty(b, h, N, dtype=torch.int64, device=device)
    span = torch.empty(b, h, N, 2, dtype=torch.int64, device=device)
    seen = torch.zeros(b, M, dtype=torch.bool, device=device)
    for start in range(0, N, step):
        rows = slice(start, min(N, start + step))
        visible = visible_keys(
            N, M, mask=mask, causal=call.causal, window=call.window, rows=rows, hide_below=call.hide_below
        )
        assert visible is not None
        visible = visible.expand(b, h, rows.stop - rows.start, M)
        count[:, :, rows] = visible.sum(-1)
        span[:, :, rows, 0] = torch.where(visible, key, M).amin(-1)
        span[:, :, rows, 1] = torch.where(visible, key + 1, 0).amax(-1)
        seen |= visible.any(-2).any(1)
    return count, span, seen


def _scan_keys(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor]:
    """`_scan` where the mask, if there is one, is the same for every row: in time and memory linear in N + M."""
    _, _, N, M = call.sizes
    device = call.q.device
    key = torch.arange(M, device=device)
    kept = torch.ones(1, 1, M, dtype=torch.bool, device=device)
    if call.mask is not None:
        whole = visible_keys(N, M, mask=call.mask, rows=slice(0, 1), hide_below=call.hide_below)
        assert whole is not None
        whole = whole[(None,) * (4 - whole.dim())]
        kept = whole.expand(*whole.shape[:2], 1, M)[:, :, 0]
    low, high = _limits(call, device)
    # Where the keys before key j end, and where those from key j on begin; a row's limits cut them out.
    before = torch.nn.functional.pad(kept.cumsum(-1), (1, 0))
    ends = torch.nn.functional.pad(torch.where(kept, key + 1, 0).cummax(-1).values, (1, 0))
    begins = torch.nn.functional.pad(torch.where(kept, key, M).flip(-1).cummin(-1).values.flip(-1), (0, 1), value=M)
    count = before[..., high] - before[..., low]
    some = count > 0
    span = torch.stack((torch.where(some, begins[..., low], M), torch.where(some, ends[..., high], 0)), -1)
    wide = (high > low).long()
    covered = torch.zeros(M + 1, dtype=torch.int64, device=device)
    covered.scatter_add_(0, low, wide).scatter_add_(0, high, -wide)
    return count, span, kept.any(1) & (covered.cumsum(0)[:M] > 0)


def _limits(call: AttentionCall, device: torch.device) -> tuple[Tensor, Tensor]:
    """The keys `low..high - 1` that causality and the window leave to each row, each `[N]`."""
    _, _, N, M = call.sizes
    left, right, offset = key_limits(N, M, call.causal, call.window)
    position = torch.arange(N, device=device) + offset
    low = torch.zeros_like(position) if left is None else (position - left).clamp(0, M)
    high = torch.full_like(position, M) if right is None else (position + right + 1).clamp(0, M)
    return low, torch.maximum(low, high)


def _own_keys(call: AttentionCall, counts: Tensor, spans: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """The own key self(i), and the key that stands where row i stands (hidden or not), each `[b, N]`; -1: undefined.

    self(i) is i where N == M; under a causal mask and with a single query the largest visible key; else undefined.
    """
    _, _, N, M = call.sizes
    undefined = torch.full_like(row, -1)[None]
    if call.is_cross:
        return undefined, undefined
    if N == M:
        return row[None], row[None]
    last = (spans[..., 1] - 1).amax(1)
    if call.causal is not None:
        return last, (row + (M - N if call.causal == "lower_right" else 0))[None]
    if N == 1:
        return last, last
    if call.mask is None:
        return undefined, undefined
    # A mask is causal if, from row to row, the last visible key moves on by one (or stays, on padded rows).
    steps = last.diff(dim=-1)
    empty = counts.amax(1) == 0
    moves = (steps == 1) | (steps == 0) | empty[:, :-1] | empty[:, 1:]
    # One sequence may be too short to show it; a batch shares its kind.
    causal = moves.all() & (steps == 1).any()
    # Padded rows see no further than the last real key, so the furthest reach tells where all rows stand.
    offset = torch.where(empty, -M, last - row).amax(-1, keepdim=True)
    return torch.where(causal, last, -1), torch.where(causal, row + offset, -1)


def _segments(spans: Tensor, counts: Tensor, seen: Tensor) -> Tensor | None:
    """Packed sequences, from a mask alone: position t begins a new one if no row looks across it.

    Only a mask whose rows have no holes counts as packing (a random mask isolates positions too), and not one where
    every position sees just itself.
    """
    low, high = spans[..., 0].amin(1), spans[..., 1].amax(1)
    reach_back = low.flip(-1).cummin(-1).values.flip(-1)
    reach_on = high.cummax(-1).values
    t = torch.arange(low.shape[-1], device=low.device)
    begins = (reach_back >= t) & torch.cat((reach_on.new_zeros(reach_on.shape[0], 1), reach_on[:, :-1]), -1).le(t)
    segment = begins.long().cumsum(-1) - begins[:, :1].long()
    used = seen | (counts.amax(1) > 0)
    size = torch.zeros_like(segment).scatter_add_(-1, segment, used.long())
    whole = (counts == (spans[..., 1] - spans[..., 0]).clamp(min=0)).all(-1).all(1)
    packed = whole & ((size > 0).sum(-1) > 1) & (size > 1).any(-1)
    if not bool(packed.any()):
        return None
    return torch.where(packed[:, None], segment, 0)


def _first_keys(seen: Tensor, segment: Tensor | None, num_queries: int) -> Tensor:
    """The first key per row `[b, N]`: the first key of its sequence that any row may see, -1 if there is none."""
    b, M = seen.shape
    key = torch.arange(M, device=seen.device)
    where = torch.where(seen, key, M).expand(b, M)
    if segment is not None:
        best = torch.full_like(segment, M).scatter_reduce_(-1, segment, where, "amin").gather(-1, segment)
    else:
        best = where.amin(-1, keepdim=True).expand(b, num_queries)
    return torch.where(best < M, best, -1)


def _sees(call: AttentionCall, key: Tensor, defined: Tensor) -> Tensor:
    """Whether row i may see the key `key[b, i]`, bool `[b, h, N]`, reading one mask entry per row."""
    _, _, N, M = call.sizes
    inside = defined & (key >= 0) & (key < M)
    index = key.clamp(0, M - 1)
    visible = inside[:, None]
    if call.mask is not None:
        mask = call.mask if call.mask.dim() >= 2 else call.mask[None, :]
        mask = mask[(None,) * (4 - mask.dim())]
        b = max(mask.shape[0], index.shape[0])
        mask = mask.expand(b, mask.shape[1], N, M)
        entry = mask.gather(-1, index[:, None, :, None].expand(b, mask.shape[1], N, 1)).squeeze(-1)
        visible = visible & (entry if entry.dtype == torch.bool else ~(entry <= call.hide_below))
    left, right, offset = key_limits(N, M, call.causal, call.window)
    position = torch.arange(N, device=key.device) + offset
    if right is not None:
        visible = visible & (key <= position + right)[:, None]
    if left is not None:
        visible = visible & (key >= position - left)[:, None]
    return visible
