"""From the rows of one attention call to the sums that a profile adds up, on the call's own device, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.kernels import RowFormula, RowStatistics, Tally, moments, tally
from headwise.measures.catalogue import OFFSETS, POSITION_BINS
from headwise.measures.rows import FORMULAS, counted, nonfinite

CHUNK_ELEMENTS = 1 << 22
"""Numbers that are held at once."""


@dataclass(frozen=True)
class Part:
    """The sums of one call. H heads, K measures (in the order asked for), C sequences, P position bins.

    Attributes:
        counts: Rows that count, fully masked, padded and non-finite rows `[4, H]`; every row is one of these.
        rows: Rows where the measure is defined `[K, H]`.
        mean: Their mean `[K, H]` (0 with no rows).
        m2: Sum of squared deviations from the mean `[K, H]`.
        low: Smallest value `[K, H]` (+inf with no rows).
        high: Largest value `[K, H]` (-inf with no rows).
        cluster_sum: Sum over the rows of each sequence `[K, H, C]`.
        cluster_rows: Rows of each sequence `[K, H, C]`.
        offsets: Histogram of self(i) - argmax `[H, 18]`: -8..8, then all others.
        bin_sum: Sum over the rows of each position bin `[K, H, P]`.
        bin_rows: Their number `[K, H, P]`.
    """

    counts: Tensor
    rows: Tensor
    mean: Tensor
    m2: Tensor
    low: Tensor
    high: Tensor
    cluster_sum: Tensor
    cluster_rows: Tensor
    offsets: Tensor
    bin_sum: Tensor
    bin_rows: Tensor


def summarise(
    s: RowStatistics, measures: tuple[str, ...], extra: Tensor | None = None, only: Tensor | None = None
) -> Part:
    """The sums of one call.

    Args:
        s: Its row statistics.
        measures: Names of row measures.
        extra: Values per row of K' further measures `[K', B, H, N]`, NaN where undefined: they come last.
        only: The rows to look at, bool `[B or 1, N]`; None: all.

    Returns:
        The part; sequence c is batch row `c // S`, packed sequence `c % S`, with S packed sequences at most
        (S = 1 when nothing is packed).
    """
    compiled = tally(s, OFFSETS, only)
    kinds = _tally(s, only) if compiled is None else compiled
    counts, bins = kinds.counted, _bins(s)
    formulas = [FORMULAS[name](s) for name in measures] + [RowFormula(x) for x in (() if extra is None else extra)]
    sums = moments(formulas, counts, bins, POSITION_BINS, s.geometry.segment)
    return Part(
        counts=kinds.counts, offsets=kinds.offsets, **(_moments(s, formulas, counts, bins) if sums is None else sums)
    )


def _moments(s: RowStatistics, formulas: list[RowFormula], counts: Tensor, bins: Tensor) -> dict[str, Tensor]:
    step = max(1, CHUNK_ELEMENTS // max(1, counts.numel()))
    some = [torch.stack([one.values() for one in formulas[i : i + step]]) for i in range(0, len(formulas), step)]
    # What keys receive, say, has no value per row.
    chunks = [_moments_of(s, x, counts, bins) for x in some or [s.max_score.new_empty(0, *counts.shape)]]
    return chunks[0] if len(chunks) == 1 else {name: torch.cat([one[name] for one in chunks]) for name in chunks[0]}


def _moments_of(s: RowStatistics, value: Tensor, counts: Tensor, bins_of_rows: Tensor) -> dict[str, Tensor]:
    value = value.double()
    defined = counts & ~torch.isnan(value)
    rows = defined.sum((1, 3)).double()
    kept = torch.where(defined, value, 0.0)
    mean = kept.sum((1, 3)) / rows.clamp(min=1)
    m2 = torch.where(defined, value - mean[:, None, :, None], 0.0).square().sum((1, 3))
    low = torch.where(defined, value, math.inf).amin((1, 3))
    high = torch.where(defined, value, -math.inf).amax((1, 3))
    present = defined.double()
    bins = torch.nn.functional.one_hot(bins_of_rows, POSITION_BINS).double()
    return {
        "rows": rows,
        "mean": mean,
        "m2": m2,
        "low": low,
        "high": high,
        "cluster_sum": _by_sequence(kept, s.geometry.segment),
        "cluster_rows": _by_sequence(present, s.geometry.segment),
        "bin_sum": _by_bin(kept, bins),
        "bin_rows": _by_bin(present, bins),
    }


def _by_sequence(x: Tensor, segment: Tensor | None) -> Tensor:
    """Sums `[K, H, C]` over the rows of each sequence of `x [K, B, H, N]`."""
    K, B, H, N = x.shape
    if segment is None:
        return x.sum(-1).transpose(1, 2)
    number = int(segment.max()) + 1
    index = segment.expand(B, N)[None, :, None].expand(K, B, H, N)
    sums = x.new_zeros(K, B, H, number).scatter_add_(-1, index, x)
    return sums.transpose(1, 2).reshape(K, H, B * number)


def _bins(s: RowStatistics) -> Tensor:
    """Position bin of each row `[b, N]`."""
    g = s.geometry
    return g.octave if max(g.own.shape[-1], g.num_keys) < 1 << POSITION_BINS else g.octave.clamp(max=POSITION_BINS - 1)


def _by_bin(x: Tensor, bins: Tensor) -> Tensor:
    """Sums `[K, H, P]` of `x [K, B, H, N]` over rows in each bin, `bins [b, N, P]` one-hot."""
    if bins.shape[0] == 1:
        return x.sum(1) @ bins[0]
    return (x @ bins).sum(1)


def _tally(s: RowStatistics, only: Tensor | None) -> Tally:
    counts = counted(s) if only is None else counted(s) & only[:, None]
    return Tally(counts, _counts(s, counts, only), _offsets(s, counts))


def _counts(s: RowStatistics, counts: Tensor, only: Tensor | None) -> Tensor:
    g = s.geometry
    shape = counts.shape
    real = g.real[:, None].expand(shape)
    masked = (real & (g.visible == 0)).expand(shape)
    broken = real & nonfinite(s)
    kinds = [counts, masked, ~real, broken]
    if only is not None:
        kinds = [counts, *(kind & only[:, None] for kind in kinds[1:])]
    return torch.stack([x.sum((0, 2)) for x in kinds]).double()


def _offsets(s: RowStatistics, counts: Tensor) -> Tensor:
    """Histogram `[H, 18]` of self(i) - argmax over the rows that count and know their own key."""
    own = s.geometry.own[:, None]
    offset = own - s.argmax
    near = (offset >= OFFSETS.start) & (offset < OFFSETS.stop)
    bins = len(OFFSETS) + 1
    index = torch.where(near, offset - OFFSETS.start, len(OFFSETS))
    H = counts.shape[1]
    index = index + torch.arange(0, H * bins, bins, device=index.device)[:, None]
    # What is not counted goes to one more bin.
    index = torch.where(counts & (own >= 0), index, H * bins)
    return torch.bincount(index.flatten(), minlength=H * bins + 1)[:-1].view(H, bins).double()
