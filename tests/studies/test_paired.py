"""Differences over seeds: numbers worked out by hand, and how often words are wrong, by simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from headwise.studies import paired

FAMILIES, TESTS = 4000, 8


def assessed(differences: Any, least: float) -> Any:
    """Words of families `[..., m, n]`."""
    of = paired.moments(differences)
    chances = paired.chances(of, least)
    return paired.words(of.mean, paired.corrected(chances.p), paired.corrected(chances.p_short))


def at_most(rate: float) -> float:
    """What a rate of this size stays below in so many families, but for 1 case in 10,000."""
    return rate + 3.8 * math.sqrt(rate * (1 - rate) / FAMILIES)


@pytest.mark.parametrize(("df", "t"), [(1, 12.706205), (2, 4.302653), (4, 2.776445), (9, 2.262157), (100, 1.983972)])
def test_quantiles_are_those_of_the_tables(df: int, t: float) -> None:
    assert paired.quantile(df) == pytest.approx(t, abs=1e-6)


def test_differences_by_hand() -> None:
    """1, 2, 3: mean 2, standard deviation 1; with 2 degrees of freedom P(|T| > t) = 1 - t / sqrt(t^2 + 2)."""
    of = paired.moments(np.array([1.0, 2.0, 3.0]))
    assert (of.mean, of.sd, of.seeds) == (2, 1, 3)
    low, high = paired.interval(of)
    assert (low, high) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-6)
    p, p_short = paired.chances(of, 1.0)
    assert p == pytest.approx(1 - math.sqrt(12 / 14))
    assert p_short == pytest.approx(1 - (1 - math.sqrt(3 / 5)) / 2), "the mean is above 1: no sign of less"
    assert paired.chances(of, 3.0).p_short == pytest.approx((1 - math.sqrt(3 / 5)) / 2)
    assert paired.effect_size(of) == 2


@pytest.mark.parametrize(
    ("differences", "least", "word"),
    [
        ([1.0, 1.1, 0.9], 0.1, "supported"),
        ([-1.0, -1.1, -0.9], 0.1, "not supported"),  # the opposite
        ([0.01, -0.01, 0.0], 0.5, "not supported"),  # nothing that would matter
        ([0.20, 0.21, 0.19], 0.5, "not supported"),  # surely there, and surely less than what would matter
        ([0.40, 0.60, 0.50], 0.5, "supported"),
        ([1.0, -1.0, 0.5], 0.1, "undecided"),
        ([1.0, 1.1], 0.1, "undecided"),  # too few seeds
        ([1.0], 0.1, "undecided"),
        ([0.0, 0.0, 0.0], 0.1, "not supported"),  # all seeds agree
        ([0.0, 0.0, 0.0], 0.0, "undecided"),  # nothing was found, and anything would matter
        ([0.5, 0.5, 0.5], 0.1, "supported"),
        ([-0.5, -0.5, -0.5], 0.0, "not supported"),
        ([0.94 - 0.93] * 3, 0.01, "supported"),  # below 0.01 by rounding alone
        ([0.96 - 0.95] * 3, 0.01, "supported"),  # above it by rounding alone
    ],
)
def test_the_word_of_a_difference(differences: list[float], least: float, word: str) -> None:
    assert assessed([differences], least)[0] == word


def test_one_seed_has_no_interval_and_equal_seeds_no_effect_size() -> None:
    one = paired.moments(np.array([1.0]))
    assert np.isnan(paired.interval(one)).all()
    assert np.isnan(paired.effect_size(paired.moments(np.array([1.0, 1.0, 1.0]))))


def test_words_are_corrected_within_their_family() -> None:
    """A p between 0.025 and 0.05 alone is a finding; among three it is not, unless the others are findings too."""
    clear, plain = [1.0, 1.001, 0.999], [1.0, 1.32, 0.68]
    at = float(paired.chances(paired.moments(np.array(plain)), 0.0).p)
    assert 0.025 < at < 0.05
    nothing = [1.0, -1.0, 0.1]
    assert assessed([plain], 0.0)[0] == "supported"
    assert assessed([plain, nothing, nothing], 0.0)[0] == "undecided"
    assert list(assessed([plain, clear, clear], 0.0)) == ["supported"] * 3
    # The opposite is no support, also where the other correction, in which it comes first, leaves it open.
    opposite = [-value for value in plain]
    assert list(assessed([opposite, clear, clear, clear], 0.0)) == ["undecided", *["supported"] * 3]


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("shared", [0.0, 0.7])
def test_without_an_effect_a_family_has_a_supported_claim_in_2_5_percent(seeds: int, shared: float) -> None:
    """Also where the tests depend on each other, as they do by the common h = 1."""
    rng = np.random.default_rng(seeds)
    common = rng.normal(size=(FAMILIES, 1, seeds))
    own = rng.normal(size=(FAMILIES, TESTS, seeds))
    words = assessed(math.sqrt(shared) * common + math.sqrt(1 - shared) * own, 0.5)
    rate = (words == paired.SUPPORTED).any(-1).mean()
    assert rate <= at_most(0.025)
    if shared == 0:
        assert rate > 0.015, "so strict that nothing would be found"


def test_what_is_true_is_called_not_supported_in_5_percent() -> None:
    """All effects are just what would matter."""
    rng = np.random.default_rng(0)
    words = assessed(0.5 + rng.normal(size=(FAMILIES, TESTS, 5)), 0.5)
    rate = (words == paired.NOT_SUPPORTED).any(-1).mean()
    assert 0.03 < rate <= at_most(0.05)


def test_effects_beside_nothing_make_nothing_true() -> None:
    rng = np.random.default_rng(1)
    effects = np.repeat([3.0, 0.0], TESTS // 2)[:, None]
    words = assessed(effects + rng.normal(size=(FAMILIES, TESTS, 10)), 0.5)
    assert (words[:, TESTS // 2 :] == paired.SUPPORTED).any(-1).mean() <= at_most(0.025)
    assert (words[:, : TESTS // 2] == paired.SUPPORTED).mean() > 0.99


@pytest.mark.parametrize(("effect", "seeds"), [(1.0, 5), (1.0, 10), (2.0, 5), (3.0, 3)])
def test_a_planted_effect_is_found_as_often_as_it_should_be(effect: float, seeds: int) -> None:
    """Alone: the power of the t-test. Among eight with nothing else: between that at 0.05 / 8 and that at 0.05."""
    rng = np.random.default_rng(2)
    draws = rng.normal(size=(FAMILIES, TESTS, seeds))
    draws[:, 0] += effect
    alone = (assessed(draws[:, :1], 0.01) == paired.SUPPORTED).mean()
    expected = power(effect, seeds, 0.05)
    assert alone == pytest.approx(expected, abs=at_most(expected) - expected)
    among = (assessed(draws, 0.01)[:, 0] == paired.SUPPORTED).mean()
    low = power(effect, seeds, 0.05 / TESTS)
    assert 2 * low - at_most(low) <= among <= at_most(min(expected, low * 1.5 + 0.02))


def power(effect: float, seeds: int, level: float) -> float:
    """The chance that t is beyond its two-sided quantile, above: an integral over the standard deviation found."""
    df = seeds - 1
    s = np.linspace(1e-6, 6, 20001)
    log_density = (df - 1) * np.log(s) - df * s**2 / 2
    density = np.exp(log_density - log_density.max())
    bar = effect * math.sqrt(seeds) - paired.quantile(df, level) * s
    above = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in bar])
    return float((above * density).sum() / density.sum())
