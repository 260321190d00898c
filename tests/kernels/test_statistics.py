"""The portable and the native kernel against the oracle of definitions and against the reference kernel."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.call import AttentionCall, Place
from headwise.kernels import RowStatistics, geometry, geometry_of, portable, row_statistics
from headwise.kernels.protocol import STATISTICS
from headwise.measures.rows import FORMULAS, counted
from tests.compiled import HERE
from tests.oracle import definitions as oracle

INF = math.inf
F64 = torch.float64


def make(
    B: int = 2,
    H: int = 4,
    N: int = 9,
    M: int | None = None,
    d: int = 8,
    kv: int | None = None,
    dtype: torch.dtype = F64,
    by: float = 1.0,
    **more: Any,
) -> AttentionCall:
    M, kv = N if M is None else M, H if kv is None else kv
    q = (by * torch.randn(B, H, N, d, dtype=F64)).to(dtype)
    return AttentionCall(q, torch.randn(B, kv, M, d, dtype=F64).to(dtype), **more)


def numpy(x: Tensor | None) -> np.ndarray | None:
    return None if x is None else (x if x.dtype == torch.bool else x.double()).numpy()


def expected(call: AttentionCall, causal_mask: bool = False) -> tuple[dict[str, np.ndarray], np.ndarray, float]:
    """Every measure by its definition, the rows that may count, and the largest rounding error of a score."""
    shape = call.sizes
    mask, sinks = numpy(call.mask), numpy(call.sinks)
    seen = oracle.seen_keys(shape, mask, call.causal, call.window, call.hide_below)
    s = oracle.scores_of(numpy(call.q), numpy(call.k), call.scale, call.softcap, mask)
    p, p_sink = oracle.weights_of(s, seen, sinks)
    own = oracle.own_keys(seen, causal=causal_mask or call.causal is not None, cross=call.is_cross)
    values = oracle.row_values(p, s, seen, own, oracle.first_keys(seen), p_sink, sinks)
    rows = oracle.finite_rows(s, seen) & seen.any(-1)
    large = oracle.scores_of(np.abs(numpy(call.q)), np.abs(numpy(call.k)), call.scale)
    size = float(large[seen & np.isfinite(large)].max(initial=1.0))
    return values, rows, size


def compare(statistics: RowStatistics, call: AttentionCall, tolerance: float, **how: Any) -> None:
    values, rows, size = expected(call, **how)
    real = statistics.geometry.real[:, None].expand(call.sizes[:3]).numpy()
    assert np.array_equal(counted(statistics).numpy(), rows & real)
    working = torch.finfo(statistics.lse.dtype).eps
    # A score carries the rounding of its d_k products, and a weight that of its score.
    tolerance = max(tolerance, 4 * working * size)
    assert rows.any()
    for name, formula in FORMULAS.items():
        found = formula(statistics).values().double().numpy()[rows]
        wanted = values[name][rows]
        assert np.array_equal(np.isnan(found), np.isnan(wanted)), name
        some = ~np.isnan(wanted)
        error = np.abs(found - wanted)[some] / np.maximum(1.0, np.abs(wanted[some]))
        assert error.max(initial=0.0) <= tolerance, (name, error.max(), tolerance)


def check(call: AttentionCall, tolerance: float | None = None, **how: Any) -> None:
    """Every kernel that runs the call against the oracle, and every raw statistic against the reference kernel."""
    double = call.q.dtype == F64
    tolerance = (1e-11 if double else 1e-5) if tolerance is None else tolerance
    reference = row_statistics(call, "reference")
    compare(reference, call, 1e-11, **how)
    _, rows, size = expected(call, **how)
    where = torch.from_numpy(rows)
    for kernel in ("portable", "native") if HERE and not double else ("portable",):
        found = row_statistics(call, kernel)
        assert found.lse.dtype == (F64 if double else torch.float32)
        compare(found, call, tolerance, **how)
        bound = max(tolerance, 4 * torch.finfo(found.lse.dtype).eps * size)
        for name in STATISTICS:
            a, b = getattr(found, name)[where].double(), getattr(reference, name)[where]
            if name == "distance":
                known = (found.geometry.own >= 0)[:, None].expand(where.shape)[where]
                a, b = a[known], b[known]
            if name == "entropy_rest":
                left = reference.rest[where] > 1e-3
                a, b = a[left], b[left]
            torch.testing.assert_close(
                a, b, rtol=bound, atol=bound, msg=lambda m, where=f"{kernel} {name}": f"{where}: {m}"
            )
        best = found.max_score[where].double() - reference.max_score[where]
        assert (best.abs() <= bound * (1 + size)).all()


def key_padding(B: int, M: int, side: str) -> Tensor:
    """Every sequence but the first is padded, by 1, 2, ... keys."""
    mask = torch.ones(B, 1, 1, M, dtype=torch.bool)
    for b in range(1, B):
        n = min(b * 2, M - 1)
        if n:
            mask[b, ..., slice(None, n) if side == "left" else slice(M - n, None)] = False
    return mask


# Shapes and dtypes


@pytest.mark.parametrize("N", [1, 2, 63, 111])
@pytest.mark.parametrize("d", [1, 24, 100])
@pytest.mark.parametrize("causal", [None, "upper_left"])
def test_odd_shapes(N: int, d: int, causal: Any) -> None:
    small = N <= 2
    check(make(B=2 if small else 1, H=3, N=N, d=d, causal=causal))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [None, "upper_left"])
@pytest.mark.parametrize("kv", [1, 2, 4])
def test_dtypes_and_grouped_queries(dtype: torch.dtype, causal: Any, kv: int) -> None:
    check(make(N=21, d=24, kv=kv, dtype=dtype, causal=causal, scale=0.3))


@pytest.mark.parametrize("alignment", ["upper_left", "lower_right"])
@pytest.mark.parametrize(("N", "M"), [(5, 12), (12, 5), (1, 9), (9, 1), (7, 7)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_causal_alignments(alignment: Any, N: int, M: int, dtype: torch.dtype) -> None:
    check(make(N=N, M=M, causal=alignment, dtype=dtype))


@pytest.mark.parametrize("window", [1, 3, (2, 0), (0, 4), (None, 2), (3, None)])
@pytest.mark.parametrize("causal", [None, "upper_left", "lower_right"])
def test_windows(window: Any, causal: Any) -> None:
    check(make(N=13, window=window, causal=causal))
    if causal is not None:
        check(make(N=6, M=13, window=window, causal=causal))


@pytest.mark.parametrize(("N", "M", "kind"), [(6, 11, "cross"), (8, 8, "cross"), (1, 9, "cross"), (6, 11, "self")])
def test_calls_without_own_keys(N: int, M: int, kind: Any) -> None:
    call = make(N=N, M=M, place=Place(kind=kind))
    check(call)
    statistics = row_statistics(call)
    for name in ("self_focus", "self_lift", "previous", "next", "distance"):
        assert torch.isnan(FORMULAS[name](statistics).values()).all(), name


# Masks


SHAPES = [
    (2, 4, 9, 9),
    (2, 1, 9, 9),
    (1, 4, 9, 9),
    (1, 1, 9, 9),
    (4, 9, 9),
    (9, 9),
    (2, 1, 1, 9),
    (9,),
    (2, 4, 9, 1),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["bool", "float", "-inf", "finfo.min"])
@pytest.mark.parametrize("causal", [None, "upper_left"])
def test_masks_of_every_kind(shape: tuple[int, ...], kind: str, causal: Any) -> None:
    seen = torch.rand(shape) > 0.35
    seen[..., 0] = True
    bias = torch.randn(shape, dtype=F64)
    low = -INF if kind == "-inf" else torch.finfo(F64).min
    mask = {"bool": seen, "float": bias}.get(kind, bias.masked_fill(~seen, low))
    call = make(N=9, kv=2, mask=mask, causal=causal)
    # A random mask is causal for nobody; where a column is hidden from all rows, its row is padding.
    check(call)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_alibi(dtype: torch.dtype) -> None:
    """A float bias for each head, as ALiBi adds it: -m_h |i - j|, with causality in the mask."""
    N, H = 33, 4
    distance = (torch.arange(N)[:, None] - torch.arange(N)).double()
    slopes = 2.0 ** -torch.arange(1, H + 1).double()
    bias = -slopes[:, None, None] * distance.abs()
    bias = bias.masked_fill(distance < 0, -INF).to(dtype)
    check(make(N=N, H=H, mask=bias[None], dtype=dtype))
    check(make(N=N, H=H, mask=bias, dtype=dtype, kv=2))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [None, "upper_left"])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_key_padding(side: str, causal: Any, kind: str, dtype: torch.dtype) -> None:
    mask = key_padding(3, 12, side)
    if kind == "float":
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    call = make(B=3, N=12, mask=mask, causal=causal, dtype=dtype)
    statistics = row_statistics(call)
    # 0, 2 and 4 padded rows
    assert (~statistics.geometry.real).expand(3, 12).sum(-1).tolist() == [0, 2, 4]
    check(call)


def test_a_chunk_of_a_static_cache() -> None:
    """Four queries at positions 3..6 of a cache of 10 with 7 filled: a causal bool mask, no flag."""
    mask = torch.arange(10) <= torch.arange(3, 7)[:, None]
    check(make(N=4, M=10, mask=mask[None, None]), causal_mask=True)


def test_a_threshold_of_its_own() -> None:
    mask = torch.zeros(2, 1, 1, 9, dtype=F64)
    mask[1, ..., :3] = -1e4
    check(make(N=9, mask=mask))
    check(make(N=9, mask=mask, hide_below=-9e3))
    assert row_statistics(make(N=9, mask=mask, hide_below=-9e3)).geometry.first[1, -1] == 3


# Softcap, sinks, size


@pytest.mark.parametrize("causal", [None, "upper_left"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_softcap_and_sinks(causal: Any, dtype: torch.dtype) -> None:
    sinks = torch.tensor([-INF, -3.0, 0.5, 40.0], dtype=F64).to(dtype)
    check(make(N=17, by=3.0, causal=causal, softcap=4.0, dtype=dtype))
    check(make(N=17, by=3.0, causal=causal, sinks=sinks, dtype=dtype, kv=2))
    check(
        make(
            N=17,
            by=3.0,
            causal=causal,
            sinks=sinks,
            softcap=4.0,
            mask=key_padding(2, 17, "left"),
            dtype=dtype,
        )
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("causal", [None, "upper_left"])
def test_large_scores(dtype: torch.dtype, causal: Any) -> None:
    check(make(N=40, d=24, by=100.0, causal=causal, dtype=dtype))
    check(make(N=40, d=24, by=100.0, causal=causal, dtype=dtype, sinks=torch.randn(4).to(dtype)))


@pytest.mark.parametrize("sink", [-1e4, -200.0, 85.0, 120.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sinks_far_from_every_score(sink: float, dtype: torch.dtype) -> None:
    call = make(H=1, N=6, dtype=dtype, sinks=torch.tensor([sink], dtype=dtype))
    s = row_statistics(call)
    torch.testing.assert_close(s.sink, torch.full_like(s.sink, float(sink > 0)), rtol=1e-12, atol=1e-12)
    for name in ("lse", "entropy", "own", "first", "rest", "ipr"):
        assert torch.isfinite(getattr(s, name)).all(), name
    if sink < 100:  # beyond, no key has a weight in float32, and the distance is unknown
        check(call)


def one_row(scores: list[float], dtype: torch.dtype = torch.float32) -> AttentionCall:
    """A call whose last row has these scores: k is the identity, and scale 1."""
    n = len(scores)
    q = torch.zeros(1, 1, n, n, dtype=dtype)
    q[0, 0, -1] = torch.tensor(scores, dtype=dtype)
    return AttentionCall(q, torch.eye(n, dtype=dtype)[None, None], scale=1.0)


@pytest.mark.parametrize("top", [6.0, 6.5, 20.0, 60.0])
def test_what_a_dominant_first_key_leaves_is_exact_in_float32(top: float) -> None:
    """rest = 1 - p_f would have lost its digits."""
    call = one_row([top, 0.0, 1.0, -0.5])
    s = row_statistics(call)
    others = [1.0, math.e, math.exp(-0.5)]
    total = math.exp(top) + sum(others)
    torch.testing.assert_close(float(s.rest[0, 0, 3]), sum(others) / total, rtol=1e-5, atol=0)
    shares = [x / sum(others) for x in others]
    entropy_of_rest = -sum(x * math.log(x) for x in shares)
    assert float(s.entropy_rest[0, 0, 3]) == pytest.approx(entropy_of_rest, rel=1e-5)
    assert math.isnan(float(FORMULAS["entropy_rest"](s).values()[0, 0, 3])) == (sum(others) / total <= 1e-3)


def test_scores_far_below_the_top_have_no_weight_and_no_nan() -> None:
    s = row_statistics(one_row([0.0, -3e4, -3e38, 0.0]))
    assert float(s.entropy[0, 0, 3]) == pytest.approx(math.log(2), rel=1e-6)
    assert float(s.own[0, 0, 3]) == 0.5
    assert float(s.max_score[0, 0, 3]) == 0.0


def test_uniform_rows_are_uniform() -> None:
    call = AttentionCall(torch.zeros(1, 2, 300, 4), torch.randn(1, 2, 300, 4), causal="upper_left")
    s = row_statistics(call)
    n = torch.arange(1.0, 301.0)
    torch.testing.assert_close(s.entropy[0, 0], n.log(), rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(s.own[0, 0], 1 / n, rtol=1e-6, atol=0)
    torch.testing.assert_close(s.distance[0, 0], (n - 1) / 2, rtol=1e-5, atol=1e-6)


# Rows that see nothing, NaN and inf


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("sink", [False, True])
def test_fully_masked_rows_leave_no_nan_in_the_weights(dtype: torch.dtype, sink: bool) -> None:
    mask = torch.rand(2, 4, 9, 9) > 0.4
    mask[:, :, [0, 4]] = False
    mask[1, 2] = False
    call = make(N=9, mask=mask, dtype=dtype, sinks=torch.randn(4).to(dtype) if sink else None)
    check(call)
    s = row_statistics(call)
    for name in ("own", "previous", "next", "first", "ipr"):
        empty = getattr(s, name)[:, :, [0, 4]]
        assert (empty == 0).all(), name
    assert (s.max_score[:, :, 4] == -INF).all()
    assert not counted(s)[:, :, [0, 4]].any()
    assert not counted(s)[1, 2].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_masked_row_under_a_sink_logit_of_minus_infinity(dtype: torch.dtype) -> None:
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[3] = False
    s = row_statistics(make(N=9, mask=mask, dtype=dtype, sinks=torch.full((4,), -INF, dtype=dtype)))
    assert (s.lse[:, :, 3] == -INF).all()
    for name in ("own", "first", "largest", "ipr", "sink", "rest"):
        assert (getattr(s, name)[:, :, 3] == 0).all(), name


def test_every_row_masked() -> None:
    s = row_statistics(make(N=5, mask=torch.zeros(5, 5, dtype=torch.bool)))
    assert not counted(s).any()
    assert (s.geometry.visible == 0).all()


@pytest.mark.parametrize("poison", [math.nan, INF, -INF])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("causal", [None, "upper_left"])
@pytest.mark.parametrize("sink", [False, True])
def test_what_stands_behind_a_mask_does_not_matter(poison: float, kind: str, causal: Any, sink: bool) -> None:
    mask = key_padding(2, 11, "right")
    if kind == "float":
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    call = make(N=11, kv=2, mask=mask, causal=causal, dtype=torch.float32, sinks=torch.randn(4) if sink else None)
    k = call.k.clone()
    k[1, :, -2:] = poison
    clean, dirty = row_statistics(call, "portable"), row_statistics(call.with_(k=k), "portable")
    for name in (*STATISTICS, "argmax"):
        torch.testing.assert_close(getattr(dirty, name), getattr(clean, name), rtol=0, atol=0, equal_nan=True)
    compare(dirty, call.with_(k=k), 1e-5)
    compare(row_statistics(call.with_(k=k)), call.with_(k=k), 1e-5)


@pytest.mark.parametrize("poison", [math.nan, INF])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_that_see_nan_or_inf_are_not_counted(poison: float, dtype: torch.dtype) -> None:
    call = make(N=8, causal="upper_left", dtype=dtype)
    q, k = call.q.clone(), call.k.clone()
    q[0, 1, 3] = poison
    k[1, 2, 5] = poison
    broken = call.with_(q=q, k=k)
    check(broken)
    rows = counted(row_statistics(broken))
    assert not rows[0, 1, 3]
    assert rows[0, 1, 4]
    assert rows[0, 0].all()
    assert rows[1, 2, :5].all()
    if math.isnan(poison):
        assert not rows[1, 2, 5:].any()


def test_a_score_of_minus_infinity_is_a_weight_of_zero() -> None:
    call = one_row([0.0, 1.0, -INF, 0.5], F64)
    k = call.k.clone()
    q = call.q.clone()
    q[0, 0, -1] = torch.tensor([1.0, 1.0, 1.0, 1.0], dtype=F64)
    k[0, 0] = torch.diag(torch.tensor([0.0, 1.0, 0.0, 0.5], dtype=F64))
    k[0, 0, 2, 2] = -INF
    s = row_statistics(call.with_(q=q[:, :, -1:], k=k))
    p = torch.tensor([0.0, 1.0, 0.5], dtype=F64).softmax(-1)
    assert float(s.entropy) == pytest.approx(float(-(p * p.log()).sum()), rel=1e-12)
    assert float(s.own) == pytest.approx(float(p[2]), rel=1e-12)
    assert counted(s).all()


# Tiles


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": "upper_left", "kv": 2},
    "lower right": {"causal": "lower_right", "N": 7, "M": 19, "kv": 1},
    "window": {"causal": "upper_left", "window": 4},
    "padded": {"mask": key_padding(3, 13, "left"), "kv": 2},
    "bias": {"mask": torch.randn(4, 13, 13, dtype=F64, generator=torch.Generator().manual_seed(1))},
    "holes": {"mask": torch.rand(3, 1, 13, 13, generator=torch.Generator().manual_seed(2)) > 0.8},
    "sinks": {"sinks": torch.tensor([0.0, 1.0, -2.0, 3.0], dtype=F64), "softcap": 3.0},
    "cross": {"M": 21, "place": Place(kind="cross")},
}


@pytest.mark.parametrize("elements", [1, 37, 300])
@pytest.mark.parametrize("name", CALLS)
def test_many_tiles_give_what_one_tile_gives(name: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    call = make(**{"B": 3, "N": 13, **CALLS[name]})
    whole = row_statistics(call)
    monkeypatch.setattr(portable, "TILE_ELEMENTS", elements)
    monkeypatch.setattr(geometry, "BLOCK_ELEMENTS", elements)
    tiles = list(portable._tiles(call, geometry_of(call)))
    assert len(tiles) >= (2 if elements == 300 else 20)
    if elements == 1:
        assert len(tiles) == 3 * call.k.shape[1] * call.sizes[2]
    parts = row_statistics(call)
    for what in (
        "visible",
        "own",
        "first",
        "real",
        "spans",
        "own_visible",
        "previous_visible",
        "first_visible",
    ):
        assert torch.equal(getattr(parts.geometry, what), getattr(whole.geometry, what)), what
    rows = counted(whole)
    assert torch.equal(counted(parts), rows)
    assert torch.equal(parts.argmax[rows], whole.argmax[rows])
    for formula in FORMULAS.values():
        found, expected = (formula(s).values()[rows] for s in (parts, whole))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_every_row_lies_in_exactly_one_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, elements in itertools.product(CALLS, (1, 50, 333, 1 << 20)):
        monkeypatch.setattr(portable, "TILE_ELEMENTS", elements)
        call = make(**{"B": 3, "N": 13, **CALLS[name]})
        hits = torch.zeros(call.sizes[:3], dtype=torch.int64)
        for tile in portable._tiles(call, geometry_of(call)):
            hits[tile.batch, tile.heads, tile.rows] += 1
        assert (hits == 1).all(), (name, elements)


@given(st.integers(0, 2**32 - 1), st.sampled_from([(4, 4), (4, 2), (6, 3)]), st.booleans())
def test_permuting_heads_permutes_statistics(seed: int, heads: tuple[int, int], causal: bool) -> None:
    torch.manual_seed(seed)
    H, kv = heads
    call = make(H=H, kv=kv, N=6, causal="upper_left" if causal else None, mask=torch.randn(1, H, 6, 6, dtype=F64))
    call = call.with_(sinks=torch.randn(H, dtype=F64))
    order = torch.randperm(kv)
    queries = (order[:, None] * (H // kv) + torch.arange(H // kv)).flatten()
    assert call.mask is not None
    assert call.sinks is not None
    other = call.with_(q=call.q[:, queries], k=call.k[:, order], mask=call.mask[:, queries], sinks=call.sinks[queries])
    a, b = row_statistics(call), row_statistics(other)
    for name in STATISTICS:
        torch.testing.assert_close(
            getattr(b, name), getattr(a, name)[:, queries], rtol=1e-12, atol=1e-12, equal_nan=True
        )


@given(
    seed=st.integers(0, 2**32 - 1),
    N=st.integers(1, 7),
    M=st.integers(1, 7),
    d=st.integers(1, 5),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2)]),
    causal=st.sampled_from([None, "upper_left", "lower_right"]),
    window=st.sampled_from([None, 2, (1, 0), (None, 1)]),
    density=st.sampled_from([None, 0.2, 0.6, 0.95]),
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
    cross=st.booleans(),
)
def test_any_call(
    seed: int, N: int, M: int, d: int, heads: tuple[int, int], causal: Any, window: Any, density: float | None,
    softcap: float | None, sinks: bool, cross: bool,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    H, kv = heads
    mask = None if density is None else torch.rand(2, 1, N, M) < density
    call = make(
        H=H, kv=kv, N=N, M=M, d=d, causal=causal, window=window, mask=mask, softcap=softcap,
        sinks=torch.randn(H, dtype=F64) if sinks else None, place=Place(kind="cross" if cross else "self"),
    )  # fmt: skip
    values, rows, _ = expected(call)
    found = row_statistics(call)
    geometry = found.geometry
    if geometry.segment is not None or (causal is None and N not in (1, M) and mask is not None):
        return  # a random mask that happens to be block-diagonal or causal: test_geometry has those
    for name, formula in FORMULAS.items():
        value = formula(found).values().numpy()
        np.testing.assert_allclose(value[rows], values[name][rows], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("kernel", ["portable", "reference"])
def test_layout_in_memory_does_not_matter(kernel: str) -> None:
    q, k = torch.randn(2, 9, 4, 8, dtype=F64).transpose(1, 2), torch.randn(2, 1, 9, 8, dtype=F64).expand(2, 4, 9, 8)
    mask = (torch.rand(9, 9) > 0.3).T.expand(2, 1, 9, 9)
    strided = AttentionCall(q, k, mask=mask)
    dense = AttentionCall(q.contiguous(), k.contiguous(), mask=mask.contiguous())
    before = q.clone(), k.clone()
    a, b = row_statistics(strided, kernel), row_statistics(dense, kernel)
    for name in STATISTICS:
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=1e-12, atol=1e-12, equal_nan=True)
    assert torch.equal(q, before[0])
    assert torch.equal(k, before[1])


def test_inputs_are_left_as_they_are() -> None:
    sinks, mask = torch.randn(4, dtype=F64), torch.randn(1, 4, 9, 9, dtype=F64)
    call = make(mask=mask, sinks=sinks, softcap=2.0, causal="upper_left")
    before = [x.clone() for x in (call.q, call.k, sinks, mask)]
    row_statistics(call)
    for x, y in zip((call.q, call.k, sinks, mask), before, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("kernel", ["portable", "reference"])
def test_statistics_are_without_autograd(kernel: str) -> None:
    """A graph would hold every tile, N x M in all."""
    call = make(causal="upper_left", dtype=torch.float32)
    call = call.with_(q=call.q.requires_grad_(), k=call.k.requires_grad_())
    s = row_statistics(call, kernel)
    assert not any(getattr(s, name).requires_grad for name in STATISTICS)


# Memory


class LargestTensor(TorchDispatchMode):
    """Records the most elements that any tensor made by an operation really holds (views hold what they view)."""

    def __init__(self, given: list[Tensor | None]) -> None:
        super().__init__()
        self.given = {t.untyped_storage().data_ptr() for t in given if t is not None}
        self.largest, self.operation = 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in self.given:
                held = t.untyped_storage().nbytes() // t.element_size()
                if held > self.largest:
                    self.largest, self.operation = held, str(func)
        return out


@pytest.mark.parametrize(
    ("case", "N"),
    [
        ("causal", 2048), ("causal", 4096), ("key padding", 2048), ("causal and key padding", 2048), ("plain", 2048),
        ("window", 2048),
    ],
)  # fmt: skip
def test_no_tensor_of_n_by_m(case: str, N: int) -> None:
    mask = None
    if "padding" in case:
        mask = torch.ones(1, 1, 1, N, dtype=torch.bool)
        mask[..., :100] = False
    call = make(
        B=1, H=1, N=N, d=4, dtype=torch.float32, mask=mask, causal="upper_left" if "causal" in case else None,
        window=64 if case == "window" else None,
    )  # fmt: skip
    with LargestTensor([call.q, call.k, call.mask]) as seen:
        row_statistics(call)
    assert seen.largest >= N  # it watched something
    assert seen.largest < N * N, seen.operation
