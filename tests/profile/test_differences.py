"""Differences and their errors: by hand, and at the rates that they promise when chance is simulated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.profile import differences
from headwise.profile.accumulators import Accumulator
from headwise.profile.differences import Difference, Side, difference, side_of
from headwise.profile.significance import fdr, holm, two_sided
from tests.profile.simulating import drawn, sums_of


def side(total: Any, rows: Any, texts: Any = None, kept: bool = True, measure: str = "entropy") -> Side:
    """One measure of one head (or `[K, H, C]`)."""
    total = np.asarray(total, float)
    total = total[None, None] if total.ndim == 1 else total
    sums = sums_of(total, rows, texts)
    if not kept:
        sums.close()
        sums.clusters = None
    names = [measure] if len(total) == 1 else [f"{measure}{k}" for k in range(len(total))]
    return side_of(sums, names, names)


def numbers(found: Difference) -> tuple[float, float, float, float, float]:
    return tuple(float(getattr(found, n)[0, 0]) for n in ("difference", "se", "t", "df", "p"))  # type: ignore[return-value]


# By hand


@pytest.mark.parametrize("kept", [True, False])
def test_other_texts_by_hand(kept: bool) -> None:
    """a: means 1 and 3 of 2 rows each: mean 2, e = (-1/2, 1/2), variance 2 x 1/2 = 1. b: 6, 8, 10: 8, 4/3 on 2 df."""
    a = side([2.0, 6.0], 2, [1, 2], kept)
    b = side([12.0, 16.0, 20.0], 2, [3, 4, 5], kept)
    found = difference(a, b)
    # Welch: (1 + 4/3)^2 / (1 / 1 + (4/3)^2 / 2) = 49/9 / (17/9)
    assert numbers(found)[:4] == pytest.approx((6.0, math.sqrt(7 / 3), 6 / math.sqrt(7 / 3), 49 / 17), rel=1e-12)
    p = two_sided(np.array([6 / math.sqrt(7 / 3)]), np.array([49 / 17]))[0]
    assert numbers(found)[4] == pytest.approx(p, rel=1e-12)
    assert found.pairing == (differences.APART if kept else differences.NO_SUMS)


def test_the_same_texts_by_hand() -> None:
    """b is a plus 1, 2 and 3 in three texts: mean 2, se = 1 / sqrt(3), as of three plain differences."""
    a, b = side([10.0, 0.0, 50.0], 1, [7, 8, 9]), side([52.0, 11.0, 3.0], 1, [9, 7, 8])
    found = difference(a, b)
    assert found.pairing == differences.PAIRED
    assert numbers(found)[:4] == pytest.approx((2.0, 1 / math.sqrt(3), 2 * math.sqrt(3), 2.0), rel=1e-12)
    apart = difference(a, side([52.0, 11.0, 3.0], 1, [1, 2, 3]))
    assert numbers(apart)[1] > 30 * numbers(found)[1]


def test_texts_of_other_lengths_by_hand() -> None:
    """N = 1, 3: a sums 1, 9 (mean 2.5), b sums 2, 15 (4.25); e_a = (-1.5, 1.5)/4, e_b = (-2.25, 2.25)/4."""
    found = difference(side([1.0, 9.0], [1, 3], [1, 2]), side([2.0, 15.0], [1, 3], [1, 2]))
    d = (2.25 - 1.5) / 4
    assert numbers(found)[:4] == pytest.approx((1.75, math.sqrt(2 * 2 * d * d), 1.75 / (2 * d), 1.0), rel=1e-12)


def test_the_error_of_one_side_is_that_of_the_table() -> None:
    rng = np.random.default_rng(3)
    S, N = drawn(rng, (2, 3, 9))
    for kept in (True, False):
        sums = sums_of(S, N, range(1, 10))
        names = ["entropy", "self_focus"]
        expected = [columns["_se"] for columns in sums.closed().columns(["mean", "mean"])]
        if not kept:
            sums.close()
            sums.clusters = None
        np.testing.assert_allclose(np.sqrt(side_of(sums, names, names).variance), expected, rtol=1e-9)
        np.testing.assert_allclose(np.sqrt(side_of(sums, names, names[::-1]).variance), expected[::-1], rtol=1e-9)


def test_degrees_of_freedom() -> None:
    """C - 1 for equal lengths, and never more; the definition (tr A)^2 / tr A^2 for others."""
    assert side(np.arange(12.0), 5).df[0, 0] == pytest.approx(11, rel=1e-9)
    N = np.array([40.0, 3, 5, 9, 1, 2])
    w = N / N.sum()
    M = np.eye(6) - w
    A = M.T @ np.diag(w**2) @ M
    df = np.trace(A) ** 2 / np.trace(A @ A)
    assert side(N * np.arange(6), N).df[0, 0] == pytest.approx(df, rel=1e-9)
    assert 1 <= df < 2
    assert side(N * np.arange(6), N, kept=False).df[0, 0] == pytest.approx(1 / (w**2).sum() - 1, rel=1e-9)
    assert side([1.0, 2.0], [1e6, 1]).df[0, 0] == pytest.approx(1.0)
    assert side([1.0, 2.0], [1e6, 1], kept=False).df[0, 0] == 1.0


def test_a_text_that_was_read_twice_is_one_sample() -> None:
    twice = side([1.0, 4.0, 2.0, 1.0, 4.0, 2.0], 1, [1, 2, 3, 1, 2, 3])
    once = side([1.0, 4.0, 2.0], 1, [1, 2, 3])
    assert twice.variance[0, 0] == pytest.approx(once.variance[0, 0], rel=1e-12)
    assert twice.df[0, 0] == pytest.approx(2.0)
    found = difference(twice, side([2.0, 6.0, 5.0], 1, [1, 2, 3]))
    assert found.pairing == differences.PAIRED
    # differences 1, 2, 3
    assert numbers(found)[:4] == pytest.approx((2.0, 1 / math.sqrt(3), 2 * math.sqrt(3), 2.0), rel=1e-12)
    unknown = side([1.0, 4.0, 1.0, 4.0], 1, [0, 0, 0, 0])
    assert unknown.df[0, 0] == pytest.approx(3.0)


def test_texts_of_which_some_are_shared() -> None:
    """Two of three are shared: their residuals subtract, the others stand alone; df of the smaller side."""
    a, b = side([1.0, 4.0, 7.0], 1, [1, 2, 3]), side([2.0, 6.0, 10.0, 6.0], 1, [1, 2, 8, 9])
    found = difference(a, b)
    assert (found.pairing, found.shared) == (differences.PARTLY, 2)
    ea, eb = np.array([-3, 0, 3]) / 3, np.array([-4, 0, 4, 0]) / 4
    squares = (eb[0] - ea[0]) ** 2 + (eb[1] - ea[1]) ** 2 + ea[2] ** 2 + eb[2] ** 2 + eb[3] ** 2
    assert numbers(found)[1] == pytest.approx(math.sqrt(1.5 * squares), rel=1e-12)
    assert numbers(found)[3] == pytest.approx(2.0)


def test_texts_that_are_not_known_are_never_paired() -> None:
    found = difference(side([1.0, 2.0, 4.0], 1, [0, 0, 0]), side([1.0, 2.0, 4.0], 1, [0, 0, 0]))
    assert found.pairing == differences.UNKNOWN_TEXTS
    assert difference(side([1.0, 2.0], 1), side([1.0, 2.0], 1, [1, 2])).pairing == differences.UNKNOWN_TEXTS
    half = difference(side([1.0, 2.0, 5.0], 1, [1, 0, 0]), side([1.0, 2.0, 5.0], 1, [1, 0, 0]))
    assert (half.pairing, half.shared) == (differences.PARTLY, 1)


# Where nothing can be divided


def test_the_same_numbers_differ_by_nothing() -> None:
    for texts in ([1, 2, 3], None):
        found = difference(side([1.0, 2.0, 3.0], 1, texts), side([1.0, 2.0, 3.0], 1, texts))
        assert numbers(found)[0] == numbers(found)[2] == 0.0
        assert numbers(found)[4] == 1.0
        assert found.note[0, 0] == differences.WITHIN_ROUNDING
        assert found.size[0, 0] == 0.0
    flat = difference(side([2.0, 2.0], 1), side([2.0, 2.0], 1))
    assert (numbers(flat)[1], numbers(flat)[4]) == (0.0, 1.0)


def test_rounding_is_no_difference_and_what_is_above_it_is() -> None:
    x = np.array([100.0, 200.0, 300.0, 150.0])
    for shift, p in ((1e-9, 1.0), (1.5e-3, 1.0), (0.1, 0.0)):
        found = difference(side(x, 1, [1, 2, 3, 4]), side(x + shift, 1, [1, 2, 3, 4]))
        assert numbers(found)[4] == pytest.approx(p, abs=1e-12), shift
    small = difference(side([1e-9, 2e-9], 1, [1, 2]), side([3e-9, 4e-9], 1, [1, 2]))
    assert numbers(small)[4] == 1.0


def test_a_difference_without_spread_is_certain() -> None:
    found = difference(side([1.0, 1.0], 1), side([3.0, 3.0], 1))
    assert numbers(found)[:3] == (2.0, 0.0, math.inf)
    assert numbers(found)[4] == 0.0


@pytest.mark.parametrize("texts", [None, [1]])
def test_one_sequence_tells_nothing_of_its_error(texts: list[int] | None) -> None:
    found = difference(side([4.0], 2, texts), side([5.0], 2, texts))
    assert found.difference[0, 0] == 0.5
    assert all(math.isnan(x) for x in numbers(found)[1:])
    assert found.note[0, 0] == differences.ONE_SEQUENCE
    assert found.size[0, 0] == 0.5
    lopsided = difference(side([4.0], 2, [1]), side([5.0, 3.0, 4.0], 2, [2, 3, 4]))
    assert math.isnan(numbers(lopsided)[4])
    assert lopsided.note[0, 0] == differences.ONE_SEQUENCE


def test_a_maximum_has_a_difference_and_no_error() -> None:
    found = difference(
        side([2.0, 6.0], 2, [1, 2], measure="max_score"), side([8.0, 6.0], 2, [1, 2], measure="max_score")
    )
    assert found.difference[0, 0] == 1.5  # of the maxima: mean + 1 in simulating.py
    assert all(math.isnan(x) for x in numbers(found)[1:])
    assert math.isnan(found.size[0, 0])
    assert found.note[0, 0] == differences.NO_ERROR_OF_A_MAXIMUM


def test_what_is_undefined_says_where() -> None:
    gone, there = side([0.0, 0.0], 0, [1, 2]), side([1.0, 2.0], 1, [1, 2])
    for a, b, where in ((gone, there, "in a"), (there, gone, "in b"), (gone, gone, "in both")):
        found = difference(a, b)
        assert all(math.isnan(x) for x in numbers(found))
        assert found.note[0, 0] == f"undefined {where}"


# Layers


def test_a_mean_over_heads_knows_that_heads_read_the_same_texts() -> None:
    """Two heads whose errors cancel: their mean is certain, whatever each of them is."""
    x = np.array([1.0, 4.0, 2.0, 9.0])
    both = side(np.stack([x, 10 - x])[None], 1, [1, 2, 3, 4]).over_heads()
    assert both.value[0].tolist() == [5.0, 4.0, 6.0]
    assert both.variance[0, 0] == pytest.approx(0.0, abs=1e-25)
    same = side(np.stack([x, x])[None], 1, [1, 2, 3, 4])
    assert same.over_heads().variance[0, 0] == pytest.approx(same.variance[0, 0], rel=1e-12)
    assert np.isnan(same.over_heads().variance[0, 1:]).all()
    assert same.over_heads().why[0, 1] == differences.NO_ERROR_OF_AN_EXTREME


def test_a_head_where_a_measure_is_undefined_is_no_part_of_the_mean() -> None:
    x = np.array([1.0, 4.0, 2.0, 9.0])
    N = np.stack([np.ones(4), np.zeros(4), np.ones(4)])[None]
    three = side(np.stack([x, 0 * x, x + 2])[None], N, [1, 2, 3, 4])
    two = side(np.stack([x, x + 2])[None], 1, [1, 2, 3, 4])
    np.testing.assert_allclose(three.over_heads().value, two.over_heads().value)
    np.testing.assert_allclose(three.over_heads().variance, two.over_heads().variance)
    none = side(np.zeros((1, 2, 3)), 0, [1, 2, 3]).over_heads()
    assert np.isnan(none.value).all()


def test_a_mean_over_heads_needs_the_sums_of_sequences() -> None:
    alone = side(np.ones((1, 2, 3)), 1, kept=False).over_heads()
    assert np.isnan(alone.variance).all()
    assert alone.why[0, 0] == differences.NO_SEQUENCE_SUMS
    maximum = side(np.ones((1, 2, 3)), 1, [1, 2, 3], measure="max_score").over_heads()
    assert maximum.why[0, 0] == differences.NO_ERROR_OF_A_MAXIMUM
    assert np.isnan(maximum.variance).all()


# Chance: every row of these arrays is one comparison of H heads.

SIMULATIONS, HEADS = 1000, 12


def found_in(a: tuple[Any, Any, Any], b: tuple[Any, Any, Any]) -> Difference:
    return difference(side(*a), side(*b))


def most(share: float, of: int = SIMULATIONS) -> float:
    """The rate that a true rate of `share` exceeds once in a thousand times."""
    return share + 3.09 * math.sqrt(share * (1 - share) / of)


@pytest.mark.parametrize("C", [(8, 8), (12, 30)])
@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_without_a_difference_holm_finds_one_at_most_at_its_rate(C: tuple[int, int], spread: float) -> None:
    """Rows of a sequence are strongly correlated, lengths differ by a factor of ten."""
    rng = np.random.default_rng(1)
    a, b = (drawn(rng, (SIMULATIONS, HEADS, c), spread=spread) for c in C)
    found = found_in((*a, range(1, C[0] + 1)), (*b, range(101, 101 + C[1])))
    corrected = np.array([holm(p) for p in found.p])
    rate = float((corrected <= 0.05).any(1).mean())
    assert rate <= most(0.05)
    assert (found.p <= 0.05).mean() <= most(0.05, SIMULATIONS * HEADS)
    if spread == 0:  # equal lengths: exact, so not below the rate either, and uniform
        assert rate >= 0.02
        for level in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9):
            assert float((found.p <= level).mean()) == pytest.approx(level, abs=0.02)


def test_without_a_difference_pairs_find_one_at_most_at_its_rate() -> None:
    rng = np.random.default_rng(2)
    shared = 5 * rng.normal(size=(SIMULATIONS, HEADS, 10))
    _, N = drawn(rng, (SIMULATIONS, HEADS, 10))
    a, b = (((shared + rng.normal(size=N.shape)) * N, N, range(1, 11)) for _ in range(2))
    found = found_in(a, b)
    assert found.pairing == differences.PAIRED
    assert float((np.array([holm(p) for p in found.p]) <= 0.05).any(1).mean()) <= most(0.05)
    assert 0.02 <= (found.p <= 0.05).mean() <= most(0.05, SIMULATIONS * HEADS)


def test_rows_taken_for_independent_would_find_differences_everywhere() -> None:
    """What clustering is for: the error of rows as such is many times too small."""
    rng = np.random.default_rng(4)
    S, N = drawn(rng, (200, HEADS, 12))
    clustered = side(S, N, range(1, 13)).variance
    naive = 1.09 / N.sum(-1)
    assert np.median(clustered / naive) > 10


def test_a_planted_effect_is_found_at_the_power_of_the_t_test() -> None:
    """C = 20 equal sequences a side, shift 1.5 at sd 1: t has the noncentral mean 1.5 / sqrt(2 / 20) = 4.74."""
    rng = np.random.default_rng(5)
    a, b = (drawn(rng, (SIMULATIONS, HEADS, 20), spread=0.0, within=0.0) for _ in range(2))
    b[0][:, 3] += 1.5 * b[1][:, 3]
    found = found_in((*a, range(1, 21)), (*b, range(101, 121)))
    corrected = np.array([holm(p) for p in found.p])
    # Holm's bound for the largest of 12 is 0.05 / 12: |t| > 3.04 on 38 df; P(t' > 3.04) = 0.95.
    draws = rng.normal(4.743, 1, 200_000) / np.sqrt(rng.chisquare(38, 200_000) / 38)
    expected = float((draws > 3.04).mean())
    assert float((corrected[:, 3] <= 0.05).mean()) == pytest.approx(expected, abs=0.025)
    others = np.delete(corrected, 3, 1)
    assert float((others <= 0.05).any(1).mean()) <= most(0.05)


def test_the_false_discovery_rate_is_held_and_finds_more() -> None:
    """A third of the heads differ; of what is found at 10 %, a tenth at most is false on average."""
    rng = np.random.default_rng(6)
    a, b = (drawn(rng, (SIMULATIONS, HEADS, 15)) for _ in range(2))
    b[0][:, :4] += 1.5 * b[1][:, :4]
    found = found_in((*a, range(1, 16)), (*b, range(101, 116)))
    by_fdr = np.array([fdr(p) for p in found.p]) <= 0.1
    by_holm = np.array([holm(p) for p in found.p]) <= 0.1
    false = by_fdr[:, 4:].sum(1) / np.maximum(by_fdr.sum(1), 1)
    assert false.mean() <= 0.1 + 3.09 * false.std() / math.sqrt(SIMULATIONS)
    assert by_fdr[:, :4].mean() > by_holm[:, :4].mean() + 0.05
    assert by_fdr[:, :4].mean() > 0.4


def test_pairs_find_what_stays_hidden_between_other_texts() -> None:
    """Texts differ by 1, the effect is 0.2, and its own noise 0.1."""
    rng = np.random.default_rng(7)
    S, N = drawn(rng, (200, HEADS, 12))
    changed = S + (0.2 + 0.1 * rng.normal(size=S.shape)) * N
    paired = found_in((S, N, range(1, 13)), (changed, N, range(1, 13)))
    apart = found_in((S, N, range(1, 13)), (changed, N, range(101, 113)))
    np.testing.assert_allclose(paired.difference, apart.difference)
    assert (paired.p <= 0.05).mean() > 0.8
    assert (apart.p <= 0.05).mean() < 0.1
    assert np.median(apart.se / paired.se) > 5


@given(st.integers(0, 2**32 - 1), st.floats(-3, 3), st.floats(0.1, 10))
def test_what_does_not_matter(seed: int, shift: float, factor: float) -> None:
    """The order of texts, swapping the sides, and the units of a measure."""
    rng = np.random.default_rng(seed)
    (S, N), (T, M) = (drawn(rng, (1, 2, 7)) for _ in range(2))
    names = rng.permutation(7) + 1
    one = found_in((S, N, names), (T, M, names))
    order = rng.permutation(7)
    again = found_in((S[..., order], N[..., order], names[order]), (T, M, names))
    np.testing.assert_allclose(again.p, one.p, rtol=1e-9)
    swapped = found_in((T, M, names), (S, N, names))
    np.testing.assert_allclose(swapped.t, -one.t, rtol=1e-9)
    moved = found_in((factor * S + shift * N, N, names), (factor * T + shift * M, M, names))
    np.testing.assert_allclose(moved.difference, factor * one.difference, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(moved.se, factor * one.se, rtol=1e-6, atol=1e-9)


def test_an_accumulator_without_rows() -> None:
    empty = Accumulator()
    empty.add(sums_part_without_rows())
    found = difference(side_of(empty, ["entropy"], ["entropy"]), side([1.0, 2.0], 1))
    assert found.note[0, 0] == "undefined in a"


def sums_part_without_rows() -> Any:
    from tests.profile.simulating import part_of

    return part_of(np.zeros((1, 1, 2)), 0, [1, 2])
