"""Student's t over seeds: intervals, p-values, and the word that a difference earns by rules fixed beforehand.

Differences are turned so that above 0 is what the article says. For each of them, two tests:

- `p`: is the mean 0? Two-sided.
- `p_short`: is the mean as large as the smallest effect that would matter, or larger? One-sided: small where such an
  effect can be excluded, be there none, a trifling one or the opposite (a test of non-superiority; two one-sided tests,
  Schuirmann 1987, need this one alone where only one direction was claimed).

Both are corrected by Holm within their family. The word is, at the level of 5 %:

- "not supported" where the corrected `p_short` is below it: also where the effect is surely there, but surely smaller
  than what would matter;
- "supported" where the corrected `p` is below it, and the mean has the article's sign;
- "undecided" otherwise, and always with fewer than three seeds.

So where nothing is true, the chance of any "supported" in a family is 2.5 % at the most (5 % for either sign), and
where all effects matter, that of any "not supported" 5 % at the most, whatever the dependence between them. Differences
are taken to be about normal over seeds: with three seeds nobody can check that.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from headwise.profile.significance import holm, two_sided

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Word: TypeAlias = Literal["supported", "not supported", "undecided"]
SUPPORTED: Word = "supported"
NOT_SUPPORTED: Word = "not supported"
UNDECIDED: Word = "undecided"

LEVEL = 0.05
LEAST_SEEDS = 3
ROUNDING = 1e-9
"""A distance of this part of what it is between is none."""


class Moments(NamedTuple):
    """Of differences over seeds, along the last axis: their mean, standard deviation and number."""

    mean: Array
    sd: Array
    seeds: Array


def moments(differences: Array) -> Moments:
    """Mean and standard deviation (n - 1) of `[..., n]`; NaN where there are too few."""
    import numpy as np

    x = np.asarray(differences, np.float64)
    n = x.shape[-1]
    mean = x.mean(-1) if n else np.full(x.shape[:-1], np.nan)
    sd = x.std(-1, ddof=1) if n > 1 else np.full(x.shape[:-1], np.nan)
    return Moments(mean, sd, np.full(x.shape[:-1], n))


def interval(of: Moments) -> tuple[Array, Array]:
    """The 95 % t-interval of the mean, not corrected for the number of tests; NaN with one seed."""
    import numpy as np

    half = np.array([quantile(int(n) - 1) if n > 1 else np.nan for n in of.seeds.flat]).reshape(of.seeds.shape)
    half = half * of.sd / np.sqrt(of.seeds)
    return of.mean - half, of.mean + half


class Chances(NamedTuple):
    """The two p-values of every difference, not corrected; NaN (no test) with fewer than `LEAST_SEEDS` seeds."""

    p: Array
    p_short: Array


def chances(of: Moments, least: Array | float) -> Chances:
    """The tests of every difference.

    Args:
        of: The differences, above 0 where the article is right.
        least: The smallest effect that would matter, 0 or more.
    """
    import numpy as np

    enough = of.seeds >= LEAST_SEEDS
    df = np.maximum(of.seeds - 1, 1).astype(np.float64)

    def t(distance: Array) -> Array:
        # Seeds that all agree: certain, unless there is no distance but that of rounding, and then nothing was found.
        distance = np.where(np.abs(distance) <= ROUNDING * np.maximum(np.abs(of.mean), least), 0.0, distance)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = distance / (of.sd / np.sqrt(of.seeds))
        return np.where(enough, np.where((of.sd == 0) & (distance == 0), 0.0, value), np.nan)

    to_zero, to_least = t(of.mean), t(of.mean - least)
    tail = two_sided(to_least, df) / 2
    return Chances(two_sided(to_zero, df), np.where(to_least < 0, tail, 1 - tail))


def corrected(p: Array) -> Array:
    """P-values `[..., m]` by Holm within their families, the last axis."""
    import numpy as np

    return np.asarray(np.apply_along_axis(holm, -1, p), np.float64) if p.size else p


def words(mean: Array, p: Array, p_short: Array) -> NDArray[np.str_]:
    """The word of each difference, from its p-values after correction."""
    import numpy as np

    # NaN compares as false: too few seeds stay undecided.
    return np.where(p_short < LEVEL, NOT_SUPPORTED, np.where((p < LEVEL) & (mean > 0), SUPPORTED, UNDECIDED))


def effect_size(of: Moments) -> Array:
    """Cohen's d_z: the mean of paired differences in units of their standard deviation; NaN where they do not vary.

    It says how sure the sign is over seeds, not how large the effect is, and is too large on average with few seeds: by
    about `1 + 3 / (4 (n - 1) - 1)`, 1.43 times with three, 1.09 times with ten (Hedges 1981).
    """
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(of.sd > 0, of.mean / of.sd, np.nan)


@lru_cache
def quantile(df: int, level: float = LEVEL) -> float:
    """The t beyond which, on both sides together, lies `level` of Student's distribution; by bisection."""
    import numpy as np

    low, high = 0.0, 1.0
    while _beyond(high, df) > level:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _beyond(middle, df) > level else (low, middle)
    return float(np.float64(high))


def _beyond(t: float, df: int) -> float:
    import numpy as np

    return float(two_sided(np.array([t]), np.array([float(df)]))[0])
