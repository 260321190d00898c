"""Significance: two-sided p-values of Student's t, and their correction for the number of tests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

METHODS = ("holm", "fdr")

_TINY = 1e-300
_STEPS = 20_000


def two_sided(t: Array, df: Array) -> Array:
    """The probability that |T| of Student's distribution is at least |t|.

    It is the regularised incomplete beta function `I_x(df / 2, 1 / 2)` at `x = df / (df + t^2)`, exact to about 12
    digits, also far out in the tails, which a correction for thousands of tests needs.

    Args:
        t: Any shape; infinite is certain (0), NaN is undefined (NaN).
        df: Degrees of freedom, above 0, not necessarily whole; the same shape.

    Source: Abramowitz and Stegun 1964, 26.5.27 and 26.7.1.
    """
    import numpy as np

    t, df = np.asarray(t, np.float64), np.asarray(df, np.float64)
    p = np.full(t.shape, np.nan)
    defined = ~np.isnan(t) & (df > 0)
    p[defined] = 0.0
    finite = defined & np.isfinite(t)
    square, n = t[finite] ** 2, df[finite]
    # Both, so that neither is a difference of nearly equal numbers.
    x, rest = n / (n + square), square / (n + square)
    p[finite] = np.clip(_incomplete_beta(n / 2, x, rest), 0.0, 1.0)
    return p


def _incomplete_beta(a: Array, x: Array, rest: Array) -> Array:
    """`I_x(a, 1 / 2)`, with `rest = 1 - x`: the continued fraction on the side where it converges fast."""
    import numpy as np

    b = np.full_like(a, 0.5)
    log_beta = np.array([_log_beta(value) for value in a.tolist()])
    # The logarithm of x near 1 is that of what it lacks.
    log_x = np.where(rest < 0.5, np.log1p(-np.minimum(rest, 0.5)), np.log(np.maximum(x, _TINY)))
    front = np.exp(a * log_x + b * np.log(np.maximum(rest, _TINY)) - log_beta)
    low = x < (a + 1) / (a + b + 2)
    fraction = _fraction(np.where(low, a, b), np.where(low, b, a), np.where(low, x, rest))
    part: Array = front * fraction / np.where(low, a, b)
    return np.where(low, part, 1 - part)


def _log_beta(a: float) -> float:
    """`ln B(a, 1 / 2)`."""
    if a < 50:
        return math.lgamma(a) + math.lgamma(0.5) - math.lgamma(a + 0.5)
    # The two large logarithms would cancel: the series of their difference.
    return math.lgamma(0.5) - 0.5 * math.log(a) + 1 / (8 * a) - 1 / (192 * a**3) + 1 / (640 * a**5)


def _fraction(a: Array, b: Array, x: Array) -> Array:
    """The continued fraction of the incomplete beta function, by Lentz's method (Numerical Recipes, 6.4)."""
    import numpy as np

    def away_from_zero(value: Array) -> Array:
        return np.where(np.abs(value) < _TINY, _TINY, value)

    c = np.ones_like(x)
    d = 1 / away_from_zero(1 - (a + b) * x / (a + 1))
    value, settled = d.copy(), np.zeros(x.shape, bool)
    for m in range(1, _STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / away_from_zero(1 + term * d)
            c = away_from_zero(1 + term / c)
            value = np.where(settled, value, value * c * d)
        settled |= np.abs(c * d - 1) < 1e-14
        if settled.all():
            return value
    raise ArithmeticError(f"the incomplete beta function did not converge in {_STEPS} steps")


def holm(p: Array) -> Array:
    """P-values `[m]` corrected by Holm: the chance of any false finding among them, whatever their dependence.

    The i-th smallest of m is multiplied by m - i + 1, and is at least as large as those before it. NaN stays NaN and
    is no test. Source: Holm 1979.
    """
    import numpy as np

    order, ranked = _ranked(p)
    raised = np.maximum.accumulate(ranked * np.arange(len(ranked), 0, -1))
    return _back(p, order, np.minimum(raised, 1.0))


def fdr(p: Array) -> Array:
    """P-values `[m]` corrected by Benjamini and Hochberg: the expected share of false ones among the findings.

    The i-th smallest of m is multiplied by m / i, and is at most as large as those after it. NaN stays NaN and is no
    test. Valid for independent and positively dependent tests. Source: Benjamini and Hochberg 1995.
    """
    import numpy as np

    order, ranked = _ranked(p)
    raised = ranked * len(ranked) / np.arange(1, len(ranked) + 1)
    return _back(p, order, np.minimum(np.minimum.accumulate(raised[::-1])[::-1], 1.0))


def _ranked(p: Array) -> tuple[NDArray[np.intp], Array]:
    import numpy as np

    order = np.argsort(p, kind="stable")  # NaN comes last
    order = order[: int(np.sum(~np.isnan(p)))]
    return order, p[order]


def _back(p: Array, order: NDArray[np.intp], corrected: Array) -> Array:
    import numpy as np

    result = np.full(p.shape, np.nan)
    result[order] = corrected
    return result
