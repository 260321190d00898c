"""Row measures: the worked check by hand, ranges, and what is undefined where."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headwise.call import AttentionCall, Place
from headwise.kernels import RowStatistics, row_statistics
from headwise.measures.catalogue import BY_NAME, ROW_MEASURES, Selection, select
from headwise.measures.rows import FORMULAS, counted, nonfinite
from tests.oracle import definitions as oracle

F64 = torch.float64
NAN = math.nan
LN2 = math.log(2.0)


def of_weights(rows: list[list[float]], **more: Any) -> RowStatistics:
    """The statistics of a call with exactly these weights: scores ln p, keys the identity, scale 1."""
    p = torch.tensor(rows, dtype=F64)
    k = torch.eye(p.shape[1], dtype=F64)
    return row_statistics(AttentionCall(p.log()[None, None], k[None, None], scale=1.0, **more))


def of_scores(rows: list[list[float]], **more: Any) -> RowStatistics:
    s = torch.tensor(rows, dtype=F64)
    return row_statistics(AttentionCall(s[None, None], torch.eye(s.shape[1], dtype=F64)[None, None], scale=1.0, **more))


def value(name: str, statistics: RowStatistics) -> list[float]:
    """The values of the only head's rows."""
    return FORMULAS[name](statistics).values()[0, 0].tolist()


THREE = [[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]]


@pytest.mark.parametrize(
    ("name", "expected", "digits"),
    [
        ("self_focus", 0.7, 12), ("self_lift", 2.1, 12), ("entropy", 0.80182, 5), ("entropy_ratio", 0.72985, 5),
        ("effective_keys", 2.22959, 5), ("max_weight", 0.7, 12), ("ipr", 0.54, 12), ("distance", 0.4, 12),
        ("next", 0.2, 12),
    ],
)  # fmt: skip
def test_the_worked_check(name: str, expected: float, digits: int) -> None:
    assert value(name, of_weights(THREE))[0] == pytest.approx(expected, abs=0.5 * 10**-digits * 1.02)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # row 0: 0.7 0.2 0.1 | row 1: 0.1 0.7 0.2 | row 2: 0.2 0.1 0.7
        ("self_focus", [0.7, 0.7, 0.7]),
        ("previous", [NAN, 0.1, 0.1]),
        ("next", [0.2, 0.2, NAN]),
        ("first", [NAN, 0.1, 0.2]),
        ("distance", [0.4, 0.1 + 0.2, 0.2 * 2 + 0.1]),
        # without f: 2/3 1/3 | 7/9 2/9 | 1/8 7/8
        (
            "entropy_rest",
            [
                math.log(3) - 2 / 3 * LN2,
                math.log(9) - 7 / 9 * math.log(7) - 2 / 9 * LN2,
                math.log(8) - 7 / 8 * math.log(7),
            ],
        ),
        ("max_score", [math.log(0.7)] * 3),
        ("sink_bias", [NAN, NAN, NAN]),
    ],
)
def test_the_other_measures_by_hand(name: str, expected: list[float]) -> None:
    assert value(name, of_weights(THREE)) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # scores 0 | 0, ln 3 | ln 2, 0, ln 5 under causality: weights 1 | 1/4 3/4 | 2/8 1/8 5/8
        ("self_focus", [1.0, 0.75, 0.625]),
        ("self_lift", [1.0, 1.5, 1.875]),
        ("previous", [NAN, 0.25, 0.125]),
        ("next", [NAN, NAN, NAN]),
        ("first", [NAN, 0.25, 0.25]),
        ("entropy", [0.0, 2 * LN2 - 0.75 * math.log(3), 3 * LN2 - 0.25 * LN2 - 0.625 * math.log(5)]),
        ("entropy_ratio", [NAN, 2 - 0.75 * math.log(3) / LN2, (2.75 * LN2 - 0.625 * math.log(5)) / math.log(3)]),
        ("entropy_rest", [NAN, 0.0, math.log(6) - 5 / 6 * math.log(5)]),
        ("effective_keys", [1.0, 4 / 3**0.75, 2**2.75 / 5**0.625]),
        ("max_weight", [1.0, 0.75, 0.625]),
        ("distance", [0.0, 0.25, 0.5 + 0.125]),
        ("ipr", [1.0, 10 / 16, 30 / 64]),
        ("max_score", [0.0, math.log(3), math.log(5)]),
    ],
)
def test_causal_rows_by_hand(name: str, expected: list[float]) -> None:
    ln = math.log
    s = of_scores([[0.0, 9.0, 9.0], [0.0, ln(3), 9.0], [ln(2), 0.0, ln(5)]], causal="upper_left")
    assert value(name, s) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # scores 0 and ln 2, sink logit 0: weights 1/4 1/2, p_sink 1/4
        ("sink_bias", 0.25),
        ("self_focus", 0.25),
        ("self_lift", 0.5),
        ("max_weight", 0.5),
        ("entropy", 1.5 * LN2),
        ("entropy_ratio", 1.5 * LN2 / math.log(3)),
        ("effective_keys", 2**1.5),
        ("ipr", 0.3125),
        ("distance", 0.5 / 0.75),
        # r = 3/4: shares 2/3 of key 1 and 1/3 of the sink
        ("entropy_rest", math.log(3) - 2 / 3 * LN2),
        ("max_score", LN2),
        ("next", 0.5),
    ],
)
def test_a_sink_by_hand(name: str, expected: float) -> None:
    s = of_scores([[0.0, LN2], [0.0, 0.0]], sinks=torch.zeros(1, dtype=F64))
    assert value(name, s)[0] == pytest.approx(expected, abs=1e-12)


def test_a_sink_larger_than_every_score() -> None:
    s = of_scores([[0.0, 0.0], [1.0, 0.0]], sinks=torch.tensor([math.log(6)], dtype=F64))
    assert value("sink_bias", s)[0] == pytest.approx(0.75, abs=1e-12)
    assert value("max_weight", s)[0] == pytest.approx(0.125, abs=1e-12)
    assert value("max_score", s) == pytest.approx([0.0, 1.0], abs=1e-12)


def test_one_visible_key_has_no_entropy_ratio_even_with_a_sink() -> None:
    s = of_scores([[0.0, 0.0], [0.0, 0.0]], sinks=torch.zeros(1, dtype=F64), causal="upper_left")
    assert math.isnan(value("entropy_ratio", s)[0])
    assert value("entropy", s)[0] == pytest.approx(LN2, abs=1e-12)
    assert value("entropy_ratio", s)[1] == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("p_first", "defined"), [(0.9985, True), (0.9995, False)])
def test_entropy_rest_needs_more_than_a_thousandth(p_first: float, defined: bool) -> None:
    rest = (1 - p_first) / 2
    s = of_weights([[p_first, rest, rest]] * 3)
    if defined:
        assert value("entropy_rest", s) == pytest.approx([LN2] * 3, abs=1e-10)
    else:
        assert all(math.isnan(x) for x in value("entropy_rest", s))


def test_first_follows_left_padding_and_skips_its_own_row() -> None:
    mask = torch.tensor([False, True, True, True])[None, None, None]
    s = of_weights([[0.25] * 4] * 4, mask=mask)
    third = pytest.approx(1 / 3, abs=1e-12)
    assert value("first", s)[2:] == [third, third]
    assert math.isnan(value("first", s)[1])  # f itself
    assert value("previous", s)[1:] == pytest.approx([NAN, 1 / 3, 1 / 3], abs=1e-12, nan_ok=True)
    assert value("self_lift", s)[1:] == pytest.approx([1.0] * 3, abs=1e-12)
    assert not counted(s)[0, 0, 0]


def test_cross_attention_by_hand() -> None:
    s = of_weights([[0.5, 0.25, 0.25], [0.2, 0.3, 0.5]], place=Place(kind="cross"))
    for name in ("self_focus", "self_lift", "previous", "next", "distance"):
        assert all(math.isnan(x) for x in value(name, s)), name
    assert value("first", s) == pytest.approx([0.5, 0.2], abs=1e-12)  # every row
    assert value("entropy", s)[0] == pytest.approx(1.5 * LN2, abs=1e-12)
    assert counted(s).all()


def test_an_own_key_that_is_hidden_is_undefined_not_zero() -> None:
    mask = ~torch.eye(3, dtype=torch.bool)
    s = of_weights(THREE, mask=mask)
    assert all(math.isnan(x) for x in value("self_focus", s))
    assert all(math.isnan(x) for x in value("self_lift", s))
    # 0.2 and 0.1 renormalised; one key away and two keys away
    assert value("distance", s)[0] == pytest.approx(2 / 3 * 1 + 1 / 3 * 2, abs=1e-12)
    assert value("next", s)[0] == pytest.approx(2 / 3, abs=1e-12)


@pytest.mark.parametrize("top", [0.0, 50.0, 400.0, 5000.0])
def test_a_largest_weight_keeps_its_digits_at_large_scores_in_float32(top: float) -> None:
    """The scores are exact in float32; weights depend only on their differences, so 5000 may cost nothing."""
    differences = torch.tensor([0.0, -0.5, -1.25, -3.0])
    q = (differences + top)[None, None, None].expand(1, 1, 4, 4)
    s = row_statistics(AttentionCall(q, torch.eye(4)[None, None], scale=1.0))
    p = differences.double().softmax(0)
    assert value("self_focus", s) == pytest.approx(p.tolist(), rel=1e-6)
    assert value("ipr", s) == pytest.approx([float(p @ p)] * 4, rel=1e-6)
    assert value("max_weight", s) == pytest.approx([float(p[0])] * 4, rel=1e-6)


def test_which_rows_count() -> None:
    q = torch.zeros(1, 1, 5, 2, dtype=F64)
    q[0, 0, 1] = NAN
    q[0, 0, 2, 0] = math.inf
    k = torch.ones(1, 1, 5, 2, dtype=F64)
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[3] = False
    real = torch.tensor([[True, True, True, True, False]])
    s = row_statistics(AttentionCall(q, k, mask=mask, real=real))
    assert counted(s)[0, 0].tolist() == [True, False, False, False, False]
    # inf * 1 + 0 * 1 = inf
    assert nonfinite(s)[0, 0].tolist() == [False, True, True, False, False]


def test_the_largest_weight_is_where_it_is() -> None:
    s = of_weights(THREE)
    assert s.argmax[0, 0].tolist() == [0, 1, 2]
    assert of_weights([[0.2, 0.1, 0.7], [0.2, 0.1, 0.7], [0.1, 0.8, 0.1]]).argmax[0, 0].tolist() == [2, 2, 1]


# The catalogue


TERMS = {
    "self_focus": ("p_{i,self(i)}", "Clark"),
    "self_lift": ("n_i p_{i,self(i)}", "headwise"),
    "previous": ("p_{i,self(i)-1}", "Clark"),
    "next": ("p_{i,self(i)+1}", "Clark"),
    "first": ("p_{i,f}", "Xiao"),
    "entropy": ("lse_i - sum_j p_ij s_ij - p_sink b_h", "Zhai"),
    "entropy_ratio": ("entropy_i / ln n_i", "headwise"),
    "entropy_rest": ("(H + p_f ln p_f + r ln r) / r", "headwise"),
    "effective_keys": ("exp(entropy_i)", "headwise"),
    "max_weight": ("exp(max_j s_ij - lse_i)", "Voita"),
    "distance": ("sum_j p_ij |self(i) - j| / sum_j p_ij", "Dosovitskiy"),
    "ipr": ("sum_j p_ij^2", "headwise"),
    "max_score": ("max_j s_ij", "Kimi K2"),
    "sink_bias": ("exp(b_h - lse_i)", "gpt-oss"),
}


def test_every_measure_has_a_formula_and_every_formula_a_measure() -> None:
    names = [measure.name for measure in ROW_MEASURES]
    assert list(FORMULAS) == names == list(BY_NAME)
    assert set(names) == set(TERMS) == set(oracle.MEASURES)
    assert len(set(FORMULAS.values())) == len(names)


@pytest.mark.parametrize("name", TERMS)
def test_docstring_and_catalogue_tell_formula_and_source(name: str) -> None:
    term, source = TERMS[name]
    doc = inspect.getdoc(FORMULAS[name]) or ""
    assert term in doc
    assert source in " ".join(doc.split())
    entry = BY_NAME[name]
    assert term.replace(" ", "") in entry.formula.replace("*", "").replace(" ", "")
    assert source in entry.source
    assert entry.summary == ("max" if name == "max_score" else "mean")
    assert entry.title
    assert entry.reading


def test_select() -> None:
    everything = tuple(BY_NAME)
    assert select("default") == Selection(everything)
    assert select("all", ("delimiter", "mine")) == Selection(everything, ("delimiter", "mine"), keys=True, pairs=True)
    assert select("entropy") == Selection(("entropy",))
    assert select(["ipr", "first", "self_focus", "ipr"]) == Selection(("self_focus", "first", "ipr"))
    assert select(["mine", "value_own", "ipr"], ("mine",)) == Selection(("ipr",), ("value_own", "mine"))
    assert select(["alpha_first"]) == Selection((), keys=True)
    assert select("js") == Selection((), pairs=True)
    assert select(["ipr", "mine"], ("mine",)).columns == ("ipr", "mine")
    with pytest.raises(ValueError, match=r"among self_focus, .*sink_bias, .*alpha_first.*; got 'focus', 'x'"):
        select(["entropy", "focus", "x"])
    with pytest.raises(ValueError, match="got an empty list"):
        select([])


# Ranges


@st.composite
def calls(draw: st.DrawFn) -> AttentionCall:
    torch.manual_seed(draw(st.integers(0, 2**32 - 1)))
    N, M = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    size = draw(st.sampled_from([0.0, 0.1, 1.0, 10.0, 300.0]))
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    q = (torch.randn(2, 2, N, 3, dtype=F64) * size).to(dtype)
    density = draw(st.sampled_from([None, 0.3, 0.8]))
    return AttentionCall(
        q,
        torch.randn(2, 2, M, 3, dtype=F64).to(dtype),
        mask=None if density is None else torch.rand(2, 1, N, M) < density,
        causal=draw(st.sampled_from([None, "upper_left", "lower_right"])),
        sinks=draw(st.sampled_from([None, torch.tensor([0.0, 4.0], dtype=dtype)])),
        softcap=draw(st.sampled_from([None, 5.0])),
        place=Place(kind=draw(st.sampled_from(["self", "cross"]))),
    )


@given(calls())
def test_every_value_is_in_its_range(call: AttentionCall) -> None:
    s = row_statistics(call)
    rows = counted(s)
    n = s.geometry.visible.expand(rows.shape).to(s.lse.dtype)
    choices = n + int(s.has_sinks)
    M = torch.full_like(n, call.sizes[3])
    tops: dict[str | None, Tensor] = {
        "1": torch.ones_like(n), "M": M, "ln n_i": choices.log(), "n_i": choices, None: torch.full_like(n, math.inf),
    }  # fmt: skip
    slack = 1e-5 if s.lse.dtype == torch.float32 else 1e-12
    for measure in ROW_MEASURES:
        values = FORMULAS[measure.name](s).values()
        known = rows & ~torch.isnan(values)
        low = -math.inf if measure.low is None else measure.low
        assert (values[known] >= low - slack).all(), measure.name
        assert (values[known] <= tops[measure.high][known] * (1 + slack) + slack).all(), measure.name


@given(calls())
def test_laws_between_measures(call: AttentionCall) -> None:
    s = row_statistics(call)
    rows = counted(s)
    slack = 1e-5 if s.lse.dtype == torch.float32 else 1e-12
    get = {name: formula(s).values()[rows] for name, formula in FORMULAS.items()}
    sink = torch.nan_to_num(get["sink_bias"])
    for name in ("self_focus", "previous", "next", "first"):
        part = torch.nan_to_num(get[name])
        assert (part <= get["max_weight"] * (1 + slack) + slack).all(), name
        assert (part + sink <= 1 + slack).all()
    # largest weight <= ipr^(1/2); ipr <= largest weight; min-entropy <= entropy
    assert (get["ipr"] <= get["max_weight"] + slack).all()
    assert (get["max_weight"] ** 2 <= get["ipr"] + slack).all()
    largest = torch.maximum(get["max_weight"], sink)
    assert (-largest.log() <= get["entropy"] + slack).all()
    torch.testing.assert_close(get["effective_keys"].log(), get["entropy"], rtol=1e-4, atol=max(slack, 1e-6))


@given(calls(), st.floats(-50, 50))
def test_a_bias_common_to_a_row_changes_only_the_scores(call: AttentionCall, shift: float) -> None:
    call = call.with_(sinks=None, mask=None, q=call.q.double(), k=call.k.double())
    a = row_statistics(call)
    b = row_statistics(call.with_(mask=torch.full((1,), shift, dtype=F64)))
    rows = counted(a)
    assert torch.equal(counted(b), rows)
    for name, formula in FORMULAS.items():
        x, y = (formula(s).values()[rows] for s in (a, b))
        x = x + shift if name == "max_score" else x
        torch.testing.assert_close(y, x, rtol=1e-9, atol=1e-9, equal_nan=True, msg=name)
