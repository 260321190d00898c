"""P-values and their correction, against closed forms, integrals and the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.profile.significance import fdr, holm, two_sided


def p_of(t: float, df: float) -> float:
    return float(two_sided(np.array([t]), np.array([df]))[0])


def tail_by_integration(t: float, df: float) -> float:
    """Twice the integral of the density from |t|, by the trapezoidal rule in u with x = |t| + exp(u)."""
    u, step = np.linspace(-60, 140, 400_001, retstep=True)
    x = abs(t) + np.exp(u)
    log_density = (
        math.lgamma((df + 1) / 2)
        - math.lgamma(df / 2)
        - 0.5 * math.log(df * math.pi)
        - (df + 1) / 2 * np.log1p(x**2 / df)
    )
    return float(2 * np.sum(np.exp(log_density + u)) * step)


@pytest.mark.parametrize(
    ("t", "df", "p"),
    [  # the 5 % and 1 % points of the printed tables
        (12.7062047364, 1, 0.05), (4.3026527299, 2, 0.05), (2.2281388520, 10, 0.05), (2.0422724563, 30, 0.05),
        (1.9799304051, 120, 0.05), (63.6567411629, 1, 0.01), (3.1692726726, 10, 0.01), (2.6174211270, 120, 0.01),
        (1.9599639845, 1e9, 0.05),
    ],
)  # fmt: skip
def test_the_points_of_the_tables(t: float, df: float, p: float) -> None:
    assert p_of(t, df) == pytest.approx(p, rel=1e-7)
    assert p_of(-t, df) == p_of(t, df)


@given(st.floats(1e-6, 1e6))
def test_closed_forms(t: float) -> None:
    assert p_of(t, 1) == pytest.approx(2 / math.pi * math.atan2(1, t), rel=1e-11)
    root = math.sqrt(2 + t * t)
    assert p_of(t, 2) == pytest.approx(2 / (root * (root + t)), rel=1e-11)  # 1 - t / root


@pytest.mark.parametrize("df", [0.7, 1.5, 3.0, 4.4, 17.3, 250.0])
@pytest.mark.parametrize("t", [0.01, 0.6, 1.9, 4.0, 11.0])
def test_degrees_of_freedom_need_not_be_whole(t: float, df: float) -> None:
    assert p_of(t, df) == pytest.approx(tail_by_integration(t, df), rel=1e-9)


def test_many_degrees_of_freedom_are_the_normal_distribution() -> None:
    for t in (0.1, 1.0, 2.5, 5.0):
        assert p_of(t, 1e8) == pytest.approx(math.erfc(t / math.sqrt(2)), rel=1e-5)


def test_far_tails_are_no_zero() -> None:
    """A correction for a hundred thousand tests needs them; sf(40, 30 df) by the integral."""
    assert p_of(40.0, 30.0) == pytest.approx(tail_by_integration(40.0, 30.0), rel=1e-9)
    assert 0 < p_of(40.0, 30.0) < 1e-26
    assert p_of(1e9, 3.0) == pytest.approx(tail_by_integration(1e9, 3.0), rel=1e-9)


def test_certain_and_undefined() -> None:
    t = np.array([0.0, math.inf, -math.inf, math.nan, 1.0, 1.0])
    df = np.array([3.0, 3.0, 3.0, 3.0, math.nan, 0.0])
    np.testing.assert_array_equal(two_sided(t, df), [1.0, 0.0, 0.0, math.nan, math.nan, math.nan])
    assert two_sided(np.zeros((0, 2)), np.zeros((0, 2))).shape == (0, 2)


def test_one_array_gives_what_each_number_gives_alone() -> None:
    """The fraction converges at another step for each."""
    rng = np.random.default_rng(0)
    t, df = rng.normal(size=300) * 5, 10 ** rng.uniform(-1, 6, 300)
    np.testing.assert_allclose(two_sided(t, df), [p_of(*pair) for pair in zip(t, df, strict=True)], rtol=1e-12)


def test_corrections_by_hand() -> None:
    p = np.array([0.01, 0.04, math.nan, 0.03])
    # Holm: 3 x 0.01; 2 x 0.03; 0.04, no less than the one before. FDR: 3/1 x 0.01, then 3/3 x 0.04 bounds both.
    np.testing.assert_allclose(holm(p), [0.03, 0.06, math.nan, 0.06])
    np.testing.assert_allclose(fdr(p), [0.03, 0.04, math.nan, 0.04])
    np.testing.assert_allclose(holm(np.array([0.5, 0.9])), [1.0, 1.0])
    assert holm(np.array([])).tolist() == fdr(np.array([])).tolist() == []


shares = st.lists(st.floats(0, 1) | st.just(math.nan), max_size=12).map(np.array)


@given(shares, st.floats(0.001, 0.999))
def test_corrected_p_values_reject_what_the_procedures_reject(p: np.ndarray, alpha: float) -> None:
    """Holm steps down, Benjamini and Hochberg step up, as their papers say."""
    ranked = sorted((x, i) for i, x in enumerate(p) if not math.isnan(x))
    m = len(ranked)
    down: set[int] = set()
    for rank, (x, i) in enumerate(ranked):
        if x * (m - rank) > alpha:
            break
        down.add(i)
    passing = [rank for rank, (x, _) in enumerate(ranked, 1) if x * m / rank <= alpha]
    up = {i for _, i in ranked[: max(passing, default=0)]}
    assert set(np.flatnonzero(holm(p) <= alpha)) == down
    assert set(np.flatnonzero(fdr(p) <= alpha)) == up
    some = ~np.isnan(p)
    assert np.all(np.isnan(holm(p)) == np.isnan(p))
    assert np.all(p[some] <= fdr(p)[some] * (1 + 1e-12))
    assert np.all(fdr(p)[some] <= holm(p)[some] * (1 + 1e-12))
