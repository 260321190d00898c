"""Measures between heads: row by row against plain loops, their laws, their samples, and their sums."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.call import AttentionCall
from headwise.kernels import row_statistics
from headwise.measures import pairs
from headwise.measures.catalogue import PAIR_MEASURES
from headwise.measures.pairs import PAIRS, PairSums, between, pair_sums, sample
from headwise.measures.similarity import cka
from headwise.measures.sums import ClusterSums
from tests.measures.cases import F64, Case, H, Largest, case
from tests.oracle import patterns


def by_loops(a: Case, b: Case) -> tuple[np.ndarray, np.ndarray]:
    """Totals and rows `[3, H, H, B]` of bc, hellinger and js over all rows that count in both heads."""
    B, _, N, _ = a.p.shape
    total, number = np.zeros((3, H, H, B)), np.zeros((3, H, H, B))
    for x, y, c, i in np.ndindex(H, H, B, N):
        if a.counted[c, x, i] and b.counted[c, y, i]:
            sinks = [None if one.sink is None else float(one.sink[c, h, i]) for one, h in ((a, x), (b, y))]
            values = patterns.pair_values(a.p[c, x, i], b.p[c, y, i], *sinks)
            total[:, x, y, c] += [values["bc"], values["hellinger"], values["js"]]
            number[:, x, y, c] += 1
    return total, number


@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name", ["causal", "padded causal", "window", "sinks", "softcap", "holes", "bias", "cross", "decode", "no groups"]
)
def test_patterns_of_a_call(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "CHUNK_ELEMENTS", 150)
    c = case(name, dtype, broken=name == "causal")
    found = pair_sums(c.call, c.statistics, rows=None)
    total, number = by_loops(c, c)
    assert found.total.dtype == found.rows.dtype == F64
    np.testing.assert_array_equal(found.rows[:3].numpy(), number)
    # Whatever the call's own precision: patterns are compared in float64.
    np.testing.assert_allclose(found.total[0].numpy(), total[0], atol=1e-11)
    np.testing.assert_allclose(found.total[1:3].numpy(), total[1:3], atol=1e-6)
    assert not found.rows[3].any()


@pytest.mark.parametrize("size", [0.1, 3.0, 30.0])
def test_precision_of_single_rows(size: float) -> None:
    """bc and js squared to 1e-6 (and far better) against the oracle, from float32 inputs."""
    c = case("decode", torch.float32, size=size)
    found = pair_sums(c.call, c.statistics)
    total, _ = by_loops(c, c)
    np.testing.assert_allclose(found.total[0].numpy(), total[0], atol=1e-12)
    np.testing.assert_allclose(found.total[2].numpy() ** 2, total[2] ** 2, atol=1e-12)


def test_packed_sequences_are_clusters() -> None:
    c = case("packed causal")
    out = torch.randn(3, H, 12, 6)
    found = pair_sums(c.call, c.statistics, out, rows=None)
    assert found.rows.shape == (4, H, H, 9)
    assert found.rows[0, 0, 1].tolist() == [12, 0, 0, 5, 7, 0, 3, 4, 5]
    assert found.rows[3, 0, 1].tolist() == [1, 0, 0, 1, 1, 0, 1, 1, 1]
    total, _ = by_loops(c, c)
    np.testing.assert_allclose(found.total[:3].view(3, H, H, 3, 3).sum(-1).numpy(), total, atol=1e-6)
    second = patterns.cka(out[2, 0, 3:7].double().numpy(), out[2, 1, 3:7].double().numpy())
    assert float(found.total[3, 0, 1, 7]) == pytest.approx(second, abs=1e-10)


def test_by_hand() -> None:
    """Rows 1/2 1/2 0 and 0 1/2 1/2 share half their weight; 1 0 and 0 1 share nothing."""
    p = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], dtype=F64).clamp(min=1e-300)
    call = AttentionCall(p.log()[None, :, None], torch.eye(3, dtype=F64)[None, None], scale=1.0)
    bc, hellinger, js, _ = pair_sums(call, row_statistics(call)).sums.mean[:, 0, 1].tolist()
    assert (bc, hellinger, js) == pytest.approx((0.5, math.sqrt(0.5), math.sqrt(0.5)), abs=1e-12)
    p = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=F64).clamp(min=1e-300)
    call = AttentionCall(p.log()[None, :, None], torch.eye(2, dtype=F64)[None, None], scale=1.0)
    assert pair_sums(call, row_statistics(call)).sums.mean[:3, 0, 1].tolist() == pytest.approx([0, 1, 1], abs=1e-12)


def test_a_sink_is_one_more_key() -> None:
    """Two heads that read nothing but their sinks are alike; a head without one reads elsewhere."""
    q = torch.zeros(1, 2, 1, 2, dtype=F64)
    k = torch.zeros(1, 2, 3, 2, dtype=F64)
    call = AttentionCall(q, k, sinks=torch.tensor([50.0, 60.0], dtype=F64))
    assert pair_sums(call, row_statistics(call)).sums.mean[:3, 0, 1].tolist() == pytest.approx([1, 0, 0], abs=1e-6)
    found = between(call, [0], call.with_(sinks=None), [1]).sums.mean
    assert found[:3, 0, 0].tolist() == pytest.approx([0, 1, 1], abs=1e-6)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["causal", "padded", "sinks", "window", "no groups"]))
def test_laws(seed: int, name: str) -> None:
    c = case(name, size=3.0, seed=seed)
    out = torch.randn(3, H, 12, 6, generator=torch.Generator().manual_seed(seed))
    sums = pair_sums(c.call, c.statistics, out, rows=None)
    assert torch.equal(sums.total, sums.total.transpose(1, 2)) or torch.allclose(
        sums.total, sums.total.transpose(1, 2), rtol=1e-12, atol=1e-12
    )
    bc, hellinger, js, similarity = sums.sums.mean
    for value, itself in ((bc, 1.0), (hellinger, 0.0), (js, 0.0)):
        assert (value.diagonal() == itself).all()
    assert similarity.diagonal().tolist() == pytest.approx([1.0] * H, abs=1e-9)
    for value in (bc, hellinger, js, similarity):
        assert (value >= 0).all()
        assert (value <= 1).all()
    # Jensen: (mean of h)^2 <= mean of h^2 = 1 - bc.
    assert (hellinger**2 <= 1 - bc + 1e-12).all()
    # Per row h^2 <= js <= sqrt(2) h (Topsoe 2000: h^2 <= js^2 in bits <= 2 h^2, and js <= 1).
    assert (js <= math.sqrt(2) * hellinger + 1e-9).all()
    assert (js >= hellinger**2 - 1e-9).all()


@given(st.permutations(range(H)), st.sampled_from(["causal", "sinks", "padded"]))
def test_permuting_heads_permutes_results(order: list[int], name: str) -> None:
    c = case(name)
    k = c.call.k.repeat_interleave(2, 1)
    sinks = None if c.call.sinks is None else c.call.sinks[order]
    out = torch.randn(3, H, 12, 6, generator=torch.Generator().manual_seed(2))
    a = c.call.with_(k=k, v=None)
    b = a.with_(q=a.q[:, order], k=k[:, order], sinks=sinks)
    x = pair_sums(a, row_statistics(a), out, rows=7).total[:, order][:, :, order]
    y = pair_sums(b, row_statistics(b), out[:, order], rows=7).total
    torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("elements", [1, 200, 1 << 20])
def test_the_size_of_a_piece_changes_nothing(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    c = case("padded causal", torch.float32)
    whole = pair_sums(c.call, c.statistics)
    monkeypatch.setattr(pairs, "CHUNK_ELEMENTS", elements)
    torch.testing.assert_close(pair_sums(c.call, c.statistics).total, whole.total, rtol=1e-12, atol=1e-12)


# Chosen heads of two calls


@pytest.mark.parametrize("names", [("causal", "window"), ("window", "causal"), ("sinks", "padded causal")])
def test_between_two_calls(names: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "CHUNK_ELEMENTS", 50)  # the rows of a piece see other keys in one call than in the other
    a, b = case(names[0]), case(names[1], seed=5)
    found = between(a.call, [3, 0], b.call, [1, 2, 0], rows=None)
    total, number = by_loops(a, b)
    np.testing.assert_allclose(found.total[:3].numpy(), total[:, [3, 0]][:, :, [1, 2, 0]], atol=1e-6)
    np.testing.assert_array_equal(found.rows[:3].numpy(), number[:, [3, 0]][:, :, [1, 2, 0]])
    outs = [torch.randn(3, H, 12, width) for width in (6, 4)]
    again = between(
        a.call, [3, 0], b.call, [1, 2, 0], statistics_a=a.statistics, statistics_b=b.statistics,
        out_a=outs[0], out_b=outs[1], rows=None,
    )  # fmt: skip
    assert torch.equal(again.total[:3], found.total[:3])
    for (i, x), (j, y), c in ((s, t, c) for s in enumerate([3, 0]) for t in enumerate([1, 2, 0]) for c in range(3)):
        rows = a.counted[c, x] & b.counted[c, y]
        expected = patterns.cka(outs[0][c, x][rows].double().numpy(), outs[1][c, y][rows].double().numpy())
        assert float(again.total[3, i, j, c]) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", ["causal", "sinks", "holes", "one kv head"])
def test_between_a_call_and_itself(name: str) -> None:
    c = case(name)
    out = torch.randn(3, H, 12, 6)
    whole = pair_sums(c.call, c.statistics, out)
    found = between(c.call, list(range(H)), c.call, [2, 1], out_a=out, out_b=out)
    torch.testing.assert_close(found.total, whole.total[:, :, [2, 1]], rtol=1e-6, atol=1e-6)
    assert torch.equal(found.rows, whole.rows[:, :, [2, 1]])


def test_calls_that_cannot_be_compared() -> None:
    a, b = case("plain"), case("cross")
    with pytest.raises(ValueError, match=r"the same sequences, rows and keys; got \(3, 12, 12\) and \(3, 12, 7\)"):
        between(a.call, [0], b.call, [0])
    for heads in ([4], [-1], []):
        with pytest.raises(ValueError, match="expected heads from 0 to 3; got"):
            between(a.call, heads, a.call, [0])


# Outputs


def test_similarity_is_that_of_the_sequences() -> None:
    c = case("padded causal", torch.float32)
    out = torch.randn(3, H, 12, 6)
    found = pair_sums(c.call, c.statistics, out, rows=None)
    means = found.sums.mean[3]
    for x, y in np.ndindex(H, H):
        values = []
        for b in range(3):
            rows = c.counted[b, 0]
            values.append(patterns.cka(*(out[b, h][rows].double().numpy() for h in (x, y))))
            assert float(found.total[3, x, y, b]) == pytest.approx(values[-1], abs=1e-10)
        assert float(means[x, y]) == pytest.approx(np.mean(values), abs=1e-10)


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 10))
def test_cka_knows_no_rotation_no_scale_no_shift(seed: int, factor: float) -> None:
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, 9, 5, generator=g, dtype=F64), torch.randn(3, 9, 4, generator=g, dtype=F64)
    turn = torch.linalg.qr(torch.randn(5, 5, generator=g, dtype=F64)).Q
    torch.testing.assert_close(cka(x @ turn * factor + 3, y), cka(x, y), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(cka(x, y).T, cka(y, x), rtol=1e-9, atol=1e-9)
    assert cka(x, x @ turn)[0, 0] == pytest.approx(1.0)


def test_where_similarity_is_undefined() -> None:
    assert cka(torch.randn(2, 2, 5), torch.randn(2, 2, 5)).isnan().all()
    same = torch.randn(1, 1, 5).expand(1, 9, 5)
    assert cka(same, torch.randn(1, 9, 5)).isnan().all()
    assert cka(same + 1e-9 * torch.randn(1, 9, 5, dtype=F64), torch.randn(1, 9, 5)).isnan().all()  # rounding
    assert not cka(same + 1e-3 * torch.randn(1, 9, 5), torch.randn(1, 9, 5)).isnan().any()
    c = case("decode")
    found = pair_sums(c.call, c.statistics, torch.randn(3, H, 1, 6))
    assert not found.rows[3].any()
    assert found.sums.mean[3].isnan().all()


def test_similarity_keeps_to_rows_that_count() -> None:
    c = case("causal", broken=True)
    out = torch.randn(3, H, 12, 6)
    out[1, 2, -1] = torch.nan
    assert not pair_sums(c.call, c.statistics, out).total.isnan().any()


# Samples


def test_a_sample_is_drawn_without_replacement_from_rows_that_count() -> None:
    among = torch.rand(4, 50) > 0.5
    drawn = sample(among, 30, torch.Generator().manual_seed(1))
    assert drawn.sum() == 30
    assert not (drawn & ~among).any()
    assert torch.equal(drawn, sample(among, 30, torch.Generator().manual_seed(1)))
    assert not torch.equal(drawn, sample(among, 30, torch.Generator().manual_seed(2)))
    assert torch.equal(sample(among, 1000, torch.Generator()), among)
    assert torch.equal(sample(among, None, torch.Generator()), among)


def test_every_row_is_as_likely() -> None:
    among = torch.tensor([[True, False, True, True], [True, True, False, False]])
    g = torch.Generator().manual_seed(0)
    counts: Counter[int] = Counter()
    for _ in range(2000):
        counts.update(sample(among, 2, g).flatten().nonzero().flatten().tolist())
    assert sorted(counts) == [0, 2, 3, 4, 5]
    assert all(700 < count < 900 for count in counts.values())


def test_two_hundred_and_fifty_six_rows_unless_all_are_asked_for() -> None:
    call = AttentionCall(torch.randn(2, 2, 300, 4), torch.randn(2, 2, 300, 4), causal="upper_left")
    s = row_statistics(call)
    out = torch.randn(2, 2, 300, 4)
    before = torch.get_rng_state()
    found, again = (pair_sums(call, s, out, seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert found.rows[0, 0, 1].sum() == 256
    assert torch.equal(found.total, again.total)
    assert not torch.equal(found.total, pair_sums(call, s, out, seed=4).total)
    whole = pair_sums(call, s, out, rows=None)
    assert whole.rows[0, 0, 1].tolist() == [300, 300]
    difference = (found.sums.mean - whole.sums.mean)[:3, 0, 1].abs()
    assert (difference < 0.03).all()
    # Outputs are cheap: as many rows of each sequence.
    expected = cka(out[0], out[0])
    assert float(whole.total[3, 0, 1, 0]) == pytest.approx(float(expected[0, 1]), abs=1e-12)
    assert float(found.total[3, 0, 1, 0]) == pytest.approx(float(expected[0, 1]), abs=0.05)


def test_padded_rows_are_not_drawn() -> None:
    c = case("padded causal")
    number = int(c.counted[:, 0].sum())
    assert number == 29
    for seed in range(5):
        found = pair_sums(c.call, c.statistics, torch.randn(3, H, 12, 6), rows=number - 1, seed=seed)
        assert found.rows[0, 0, 1].sum() == number - 1


def test_a_sample_of_rows_has_their_values() -> None:
    c = case("causal")
    found = pair_sums(c.call, c.statistics, rows=5, seed=11)
    drawn = sample(torch.ones(3, 12, dtype=torch.bool), 5, torch.Generator().manual_seed(11))
    bc = sum(patterns.pair_values(c.p[b, 0, i], c.p[b, 3, i])["bc"] for b, i in drawn.nonzero().tolist())
    assert float(found.total[0, 0, 3].sum()) == pytest.approx(bc, abs=1e-11)


# Sums


def test_merging_in_any_order_is_one_pass() -> None:
    c = case("padded causal")
    out = torch.randn(3, H, 12, 6)
    whole = pair_sums(c.call, c.statistics, out, rows=None).sums
    parts = []
    for b in (2, 0, 1):
        one = c.call.with_(q=c.call.q[b : b + 1], k=c.call.k[b : b + 1], v=None, mask=c.call.mask[b : b + 1])
        parts.append(pair_sums(one, row_statistics(one), out[b : b + 1], rows=None).sums)
    merged = parts[0] + parts[1] + parts[2]
    for f in fields(ClusterSums):
        torch.testing.assert_close(getattr(merged, f.name), getattr(whole, f.name), rtol=1e-12, atol=1e-12)
    assert whole.mean.shape == whole.error.shape == (4, H, H)
    assert torch.isfinite(whole.error).all()


def test_the_error_is_clustered_by_sequence() -> None:
    total = torch.tensor([3.0, 1.0, 2.0], dtype=F64).expand(4, 1, 1, 3)
    rows = torch.tensor([4.0, 2.0, 2.0], dtype=F64).expand(4, 1, 1, 3)
    sums = PairSums(total, rows).sums
    residual = [3 - 0.75 * 4, 1 - 0.75 * 2, 2 - 0.75 * 2]
    assert float(sums.mean[0]) == 0.75
    assert float(sums.error[0]) == pytest.approx(math.sqrt(1.5 * sum(r * r for r in residual)) / 8)


# Cost


@pytest.mark.parametrize("rows", [None, 64])
def test_memory_is_linear(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 800
    monkeypatch.setattr(pairs, "CHUNK_ELEMENTS", 1 << 14)
    call = AttentionCall(torch.randn(1, 4, n, 4), torch.randn(1, 2, n, 4), causal="upper_left")
    s = row_statistics(call)
    out = torch.randn(1, 4, n, 4)
    with Largest() as seen:
        pair_sums(call, s, out, rows=rows)
    assert seen.elements <= 4 * n * 14 < n * n


def test_the_catalogue_has_them() -> None:
    assert tuple(entry.name for entry in PAIR_MEASURES) == PAIRS
