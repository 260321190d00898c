"""Summaries of one call against plain numpy over a list of its rows."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headwise.call import AttentionCall, Place
from headwise.kernels import RowStatistics, row_statistics, tally
from headwise.kernels.native.binding import library
from headwise.measures import summary
from headwise.measures.catalogue import BY_NAME
from headwise.measures.rows import FORMULAS, counted
from headwise.measures.summary import OFFSETS, POSITION_BINS, Part, summarise

F64, F32 = torch.float64, torch.float32
ALL = tuple(BY_NAME)
TRIL = torch.ones(12, 12, dtype=torch.bool).tril()


def make(B: int = 3, H: int = 4, N: int = 12, M: int | None = None, **more: Any) -> AttentionCall:
    M = N if M is None else M
    return AttentionCall(torch.randn(B, H, N, 5, dtype=F64) * 2, torch.randn(B, H, M, 5, dtype=F64), **more)


def padded(B: int = 3, M: int = 12) -> torch.Tensor:
    mask = torch.ones(B, 1, 1, M, dtype=torch.bool)
    mask[1, ..., :4] = False
    mask[2, ..., -3:] = False
    return mask


def packed() -> torch.Tensor:
    mask = torch.zeros(3, 1, 12, 12, dtype=torch.bool)
    for b, cuts in enumerate([(0, 12), (0, 5, 12), (0, 3, 7, 12)]):
        for start, end in pairwise(cuts):
            mask[b, 0, start:end, start:end] = True
    return mask


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": "upper_left"},
    "padded": {"mask": padded(), "causal": "upper_left"},
    "packed": {"mask": packed()},
    "packed causal": {"mask": packed() & TRIL},
    "sinks": {"sinks": torch.randn(4, dtype=F64, generator=torch.Generator().manual_seed(0))},
    "cross": {"M": 7, "place": Place(kind="cross")},
    "chunk": {"N": 5, "M": 12, "causal": "lower_right"},
    "holes": {"mask": torch.rand(3, 4, 12, 12, generator=torch.Generator().manual_seed(5)) > 0.75},
    "real": {"real": torch.rand(3, 12, generator=torch.Generator().manual_seed(6)) > 0.5},
}


@pytest.fixture(params=[(name, dtype) for name in CALLS for dtype in (F64, F32)], ids=str)
def statistics(request: pytest.FixtureRequest) -> RowStatistics:
    """In float64, which plain torch sums, and in float32, which the compiled kernel sums."""
    name, dtype = request.param
    call = make(**CALLS[name])
    sinks = None if call.sinks is None else call.sinks.to(dtype)
    return row_statistics(call.with_(q=call.q.to(dtype), k=call.k.to(dtype), sinks=sinks))


def listed(s: RowStatistics, name: str, h: int) -> list[tuple[float, int, int, int]]:
    """(value, batch row, sequence in it, row) of every row of head h that counts and where the measure is defined."""
    B, _, N = s.lse.shape
    values, rows = FORMULAS[name](s).values(), counted(s)
    segment = s.geometry.segment
    out = []
    for b in range(B):
        for i in range(N):
            x = float(values[b, h, i])
            if rows[b, h, i] and not math.isnan(x):
                out.append((x, b, 0 if segment is None else int(segment.expand(B, N)[b, i]), i))
    return out


def test_moments_are_those_of_the_list_of_rows(statistics: RowStatistics) -> None:
    part = summarise(statistics, ALL)
    for k, name in enumerate(ALL):
        for h in range(4):
            x = np.array([row[0] for row in listed(statistics, name, h)])
            assert part.rows[k, h] == len(x), name
            if len(x) == 0:
                assert part.mean[k, h] == part.m2[k, h] == 0
                assert part.low[k, h] == math.inf
                assert part.high[k, h] == -math.inf
                continue
            assert float(part.mean[k, h]) == pytest.approx(x.mean(), rel=1e-12, abs=1e-14)
            assert float(part.m2[k, h]) == pytest.approx(((x - x.mean()) ** 2).sum(), rel=1e-9, abs=1e-14)
            assert float(part.low[k, h]) == x.min()
            assert float(part.high[k, h]) == x.max()


def test_sequences_are_summed_apart(statistics: RowStatistics) -> None:
    part = summarise(statistics, ALL)
    segment = statistics.geometry.segment
    per_row = 1 if segment is None else int(segment.max()) + 1
    C = statistics.lse.shape[0] * per_row
    for k, name in enumerate(ALL):
        for h in range(4):
            total, number = np.zeros(C), np.zeros(C)
            for x, b, within, _ in listed(statistics, name, h):
                total[b * per_row + within] += x
                number[b * per_row + within] += 1
            assert part.cluster_rows[k, h].tolist() == number.tolist(), name
            np.testing.assert_allclose(part.cluster_sum[k, h].numpy(), total, rtol=1e-12, atol=1e-13)


def test_packed_sequences_are_six() -> None:
    part = summarise(row_statistics(make(mask=packed())), ("entropy",))
    assert part.cluster_rows[0, 0].tolist() == [12, 0, 0, 5, 7, 0, 3, 4, 5]


def test_every_row_is_counted_once_under_one_name(statistics: RowStatistics) -> None:
    part = summarise(statistics, ALL)
    B, H, N = statistics.lse.shape
    assert part.counts.sum(0).tolist() == [B * N] * H
    assert part.counts[0].tolist() == counted(statistics).sum((0, 2)).tolist()


def test_counts_by_hand() -> None:
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    mask[..., 0] = False  # key 0 is padding
    mask[0, 0, 3] = False  # row 3 sees nothing
    call = make(B=1, H=2, N=6, mask=mask)
    q = call.q.clone()
    q[0, 1, 4] = math.nan
    q[0, :, 0] = math.inf  # a padded row is padded, whatever is in it
    part = summarise(row_statistics(call.with_(q=q)), ("entropy",))
    # rows that count, masked, padded, non-finite
    assert part.counts.T.tolist() == [[4, 1, 1, 0], [3, 1, 1, 1]]
    assert part.rows.tolist() == [[4, 3]]
    assert torch.isfinite(part.mean).all()
    assert torch.isfinite(part.m2).all()


def test_offsets_histogram(statistics: RowStatistics) -> None:
    part = summarise(statistics, ("entropy",))
    B, H, N = statistics.lse.shape
    own, rows = statistics.geometry.own.expand(B, N), counted(statistics)
    for h in range(H):
        histogram = [0] * (len(OFFSETS) + 1)
        for b in range(B):
            for i in range(N):
                if rows[b, h, i] and own[b, i] >= 0:
                    offset = int(own[b, i]) - int(statistics.argmax[b, h, i])
                    histogram[offset + 8 if -8 <= offset <= 8 else 17] += 1
        assert part.offsets[h].tolist() == histogram


def test_offsets_by_hand() -> None:
    """Row i of twelve looks at key 2: offsets i - 2, and from row 11 on that is "other"."""
    q = torch.zeros(1, 1, 12, 12, dtype=F64)
    q[..., 2] = 5.0
    call = AttentionCall(q, torch.eye(12, dtype=F64)[None, None])
    histogram = summarise(row_statistics(call), ("entropy",)).offsets[0].tolist()
    assert histogram == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]


def test_position_bins(statistics: RowStatistics) -> None:
    part = summarise(statistics, ALL)
    g = statistics.geometry
    B, _, N = statistics.lse.shape
    own, first = g.own.expand(B, N), g.first.expand(B, N)
    for k, name in enumerate(ALL):
        total, number = np.zeros((4, POSITION_BINS)), np.zeros((4, POSITION_BINS))
        for h in range(4):
            for x, b, _, i in listed(statistics, name, h):
                place = i if own[b, i] < 0 else int(own[b, i] - first[b, i])
                at = next(p for p in range(POSITION_BINS) if 2**p - 1 <= place <= 2 ** (p + 1) - 2)
                total[h, at] += x
                number[h, at] += 1
        np.testing.assert_array_equal(part.bin_rows[k].numpy(), number, err_msg=name)
        np.testing.assert_allclose(part.bin_sum[k].numpy(), total, rtol=1e-12, atol=1e-13, err_msg=name)


def test_bins_of_long_rows_are_powers_of_two() -> None:
    call = AttentionCall(torch.zeros(1, 1, 1500, 1), torch.zeros(1, 1, 1500, 1), causal="upper_left")
    rows = summarise(row_statistics(call), ("self_focus",)).bin_rows[0, 0].tolist()
    assert rows[:11] == [2**b for b in range(10)] + [1500 - (2**10 - 1)]
    assert sum(rows) == 1500


def test_the_ends_of_every_bin() -> None:
    ends = [(2**b - 1, 2 ** (b + 1) - 2) for b in range(POSITION_BINS - 1)]
    own = torch.tensor([[position + 3 for pair in ends for position in pair] + [1 << 40]])
    geometry = replace(row_statistics(make(B=1)).geometry, own=own, first=torch.full_like(own, 3), num_keys=1 << 41)
    bins = summary._bins(SimpleNamespace(geometry=geometry))  # type: ignore[arg-type]
    expected = [b for b in range(POSITION_BINS - 1) for _ in range(2)]
    assert bins.tolist() == [[*expected, POSITION_BINS - 1]]


def test_order_and_choice_of_measures() -> None:
    s = row_statistics(make(causal="upper_left"))
    whole, some = summarise(s, ALL), summarise(s, ("ipr", "entropy"))
    for name in ("rows", "mean", "m2", "low", "high", "cluster_sum", "bin_sum"):
        for k, measure in enumerate(("ipr", "entropy")):
            assert torch.equal(getattr(some, name)[k], getattr(whole, name)[ALL.index(measure)])


@pytest.mark.parametrize("elements", [1, 300])
def test_chunks_of_measures_change_nothing(
    statistics: RowStatistics, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "moments", lambda *_: None)
    whole = summarise(statistics, ALL)
    monkeypatch.setattr(summary, "CHUNK_ELEMENTS", elements)
    parts = summarise(statistics, ALL)
    for name in Part.__dataclass_fields__:
        assert torch.equal(getattr(parts, name), getattr(whole, name)), name


def test_everything_is_float64_even_for_half_precision() -> None:
    call = AttentionCall(torch.randn(1, 2, 6, 4).half(), torch.randn(1, 2, 6, 4).half())
    part = summarise(row_statistics(call), ALL)
    for name in Part.__dataclass_fields__:
        assert getattr(part, name).dtype == F64, name


def test_a_call_without_rows_that_count() -> None:
    part = summarise(row_statistics(make(mask=torch.zeros(12, 12, dtype=torch.bool))), ALL)
    assert (part.rows == 0).all()
    assert part.counts[:, 0].tolist() == [0, 0, 36, 0]
    assert (part.cluster_rows == 0).all()
    assert (part.offsets == 0).all()
    assert (part.mean == 0).all()


@pytest.mark.parametrize("part", [False, True])
def test_the_compiled_tally_is_the_plain_one(statistics: RowStatistics, part: bool) -> None:
    B, _, N = statistics.lse.shape
    only = torch.arange(N)[None].expand(B, N) % 3 != 1 if part else None
    found = tally(statistics, OFFSETS, only)
    if statistics.lse.dtype == F64:
        assert found is None
        return
    if isinstance(library(), str):
        pytest.skip(f"there is no compiled kernel: {library()}")
    assert found is not None
    plain = summary._tally(statistics, only)
    assert found.counted.tolist() == plain.counted.tolist()
    assert found.counts.tolist() == plain.counts.tolist()
    assert found.offsets.tolist() == plain.offsets.tolist()
