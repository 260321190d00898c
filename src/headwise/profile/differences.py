"""Differences: what two groups of attention calls differ by, head by head, and how sure that is.

A head's value is a ratio, the total of a measure over all rows by their number. Rows of one sequence are no independent
samples, so sequences are: c has the total S_c and N_c rows. With m = sum S_c / sum N_c, what c contributes to the error
of m is, to first order (Taylor linearisation of a ratio, Cochran 1977, chapter 6), `e_c = (S_c - m N_c) / sum N_c`.

- Other sequences on the two sides: `se^2 = se_a^2 + se_b^2`, each `C / (C - 1) sum e_c^2`, as the profile's `_se`;
  degrees of freedom by Welch 1947 and Satterthwaite 1946.
- The same sequences on both: `se^2 = C / (C - 1) sum (e_c of b - e_c of a)^2`. What a text does to both sides cancels.

The degrees of freedom of one sum of squares are those of Bell and McCaffrey 2002 (Imbens and Kolesar 2016) for equally
spread sequence means: C - 1 where all sequences have the same length, fewer where a few long ones carry the mean. With
C - 1 throughout, unequal lengths give several times too many small p-values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.measures.catalogue import CATALOGUE
from headwise.profile.clusters import UNKNOWN, Clusters
from headwise.profile.significance import two_sided

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from headwise.profile.accumulators import Accumulator
    from headwise.profile.clusters import Array, Identities
    from headwise.profile.totals import Totals

    Notes = NDArray[np.object_]

ROUNDING = 1e-5
"""A difference up to this, relative to the larger value or to 1, is rounding: kernels agree to about it in float32."""

PAIRED, PARTLY, APART, UNKNOWN_TEXTS, NO_SUMS = "paired", "partly", "apart", "unknown", "no sums"

NO_ERROR_OF_A_MAXIMUM = "a maximum has no standard error"
NO_ERROR_OF_AN_EXTREME = "an extreme over heads has no standard error"
ONE_SEQUENCE = "with one sequence there is no standard error; record several"
NO_SEQUENCE_SUMS = "without sums of single sequences a mean over heads has no standard error"
NO_TOTALS_BY_SEQUENCE = "sums of what keys receive and of pairs of heads are not kept for single sequences"
WITHIN_ROUNDING = "equal within rounding"


@dataclass(frozen=True)
class Side:
    """One profile's numbers of one group. K measures, X heads (or summaries of a layer), C distinct sequences.

    Attributes:
        value: What the table says `[K, X]`; NaN = undefined.
        std: Standard deviation of the rows `[K, X]`.
        variance: Of `value` `[K, X]`; NaN with fewer than two sequences, and for a maximum.
        df: Its degrees of freedom `[K, X]`.
        why: Why `variance` is NaN `[K, X]`, "" where it is not.
        residuals: e_c `[K, X, C]`; None where the sums of each sequence were not kept.
        shares: `N_c / sum N_c` `[K, X, C]`.
        identities: Which text each sequence is `[C]`; 0 = not known.
    """

    value: Array
    std: Array
    variance: Array
    df: Array
    why: Notes
    residuals: Array | None
    shares: Array | None
    identities: Identities

    def heads(self, index: Sequence[int]) -> Side:
        """These heads, in this order."""

        def chosen(array: Array) -> Array:
            return array[:, list(index)]

        return Side(
            chosen(self.value),
            chosen(self.std),
            chosen(self.variance),
            chosen(self.df),
            self.why[:, list(index)],
            None if self.residuals is None else chosen(self.residuals),
            None if self.shares is None else chosen(self.shares),
            self.identities,
        )

    def over_heads(self) -> Side:
        """The mean, the least and the most over heads; heads where a measure is undefined are left out."""
        import numpy as np

        some = ~np.isnan(self.value)
        number = np.maximum(some.sum(1, keepdims=True), 1)
        none = ~some.any(1, keepdims=True)

        def mean(array: Array) -> Array:
            over = some.reshape(*some.shape, *[1] * (array.ndim - 2))
            total = np.where(over, array, 0.0).sum(1, keepdims=True)
            return np.where(
                none.reshape(-1, *[1] * (array.ndim - 1)), np.nan, total / number.reshape(-1, *[1] * (array.ndim - 1))
            )

        least = np.where(none, np.nan, np.where(some, self.value, np.inf).min(1, keepdims=True))
        most = np.where(none, np.nan, np.where(some, self.value, -np.inf).max(1, keepdims=True))
        std = np.repeat(np.sqrt(mean(self.std**2)), 3, 1)
        values = np.concatenate([mean(self.value), least, most], 1)
        residuals = shares = None
        variance = df = np.full_like(values, np.nan)
        why = np.full(values.shape, NO_ERROR_OF_AN_EXTREME, dtype=object)
        why[:, 0] = NO_SEQUENCE_SUMS
        if self.residuals is not None and self.shares is not None:
            unknown = np.full_like(self.residuals[:, :1], np.nan)
            residuals, shares = (np.concatenate([mean(x), unknown, unknown], 1) for x in (self.residuals, self.shares))
            variance, df = _variance(residuals, shares)
            why[:, 0] = np.where(np.isnan(variance[:, 0]), ONE_SEQUENCE, "")
        # A measure that is a maximum in every head stays one without an error.
        maximum = (self.why == NO_ERROR_OF_A_MAXIMUM).any(1)
        variance[maximum, 0], why[maximum, 0] = np.nan, NO_ERROR_OF_A_MAXIMUM
        return Side(values, std, variance, df, why, residuals, shares, self.identities)


@dataclass(frozen=True)
class Difference:
    """b - a, each `[K, X]`: see `headwise.profile.comparing` for what the columns mean."""

    difference: Array
    size: Array
    se: Array
    t: Array
    df: Array
    p: Array
    note: Notes
    pairing: str
    shared: int


MAXIMA = tuple(name for name, measure in CATALOGUE.items() if measure.summary == "max")


def side_of(sums: Accumulator, measures: Sequence[str], of: Sequence[str], maxima: Sequence[str] = MAXIMA) -> Side:
    """The numbers of one group.

    Args:
        sums: Its accumulator.
        measures: The names of its measures.
        of: Those that are wanted, in the order wanted.
        maxima: Those whose value for a head is the maximum over rows.
    """
    import numpy as np

    index = [measures.index(name) for name in of]
    clusters, closed = sums.by_sequence(), sums.closed()
    columns = closed.columns(["max" if name in maxima else "mean" for name in measures])
    value, std, se = (np.stack([columns[k][name] for k in index]) for name in ("", "_std", "_se"))
    is_maximum = np.array([name in maxima for name in of])
    residuals = shares = None
    identities = np.zeros(0, np.uint64)
    if clusters is None or not clusters.count:
        n, squares = closed.arrays["n"][index], closed.arrays["nn"][index]
        # Lengths are known by their sum of squares alone: Kish's effective number of sequences, less one.
        variance, df = se**2, np.maximum(n**2 / np.where(n > 0, squares, 1.0) - 1, 1.0)
    else:
        total, rows, identities = _distinct(clusters, index)
        n = np.maximum(rows.sum(-1, keepdims=True), 1)
        residuals = (total - total.sum(-1, keepdims=True) / n * rows) / n
        shares = rows / n
        variance, df = _variance(residuals, shares)
        variance[is_maximum] = np.nan
    why = np.where(np.isnan(variance), ONE_SEQUENCE, "").astype(object)
    why[is_maximum] = NO_ERROR_OF_A_MAXIMUM
    return Side(value, std, variance, df, why, residuals, shares, identities)


def side_of_totals(totals: Totals, *index: int | Sequence[int]) -> Side:
    """The numbers of what is kept as sums over all sequences, not of each: one measure, `[1, X]`.

    Args:
        totals: What keys receive, or how alike pairs of heads are; closed.
        index: Which of its numbers, as numpy indexes them.
    """
    import numpy as np

    value, std, error, df = (
        np.atleast_1d(array[index])[None]
        for array in (totals.mean(), totals.spread(), totals.error(), totals.freedom())
    )
    why = np.where(np.isnan(error), ONE_SEQUENCE, "").astype(object)
    return Side(value, std, error**2, df, why, None, None, np.zeros(0, np.uint64))


def difference(a: Side, b: Side) -> Difference:
    """What b has more than a."""
    import numpy as np

    found = b.value - a.value
    union, pairing, shared = _union(a, b)
    why = np.where(a.why == "", b.why, a.why)
    se, df = np.sqrt(a.variance + b.variance), _welch(a, b)
    note = why.copy()
    if union is not None:
        e, w = union
        if pairing == PAIRED:
            variance, df = _variance(e, w)
        else:
            # The smaller side limits what can be known of the error, however many sequences the other has.
            count = np.minimum(_count(a.shares), _count(b.shares))
            with np.errstate(divide="ignore", invalid="ignore"):
                variance = np.where(count >= 2, count / (count - 1) * (e**2).sum(-1), np.nan)
            df = np.minimum(a.df, b.df)
        se = np.where(why == "", np.sqrt(variance), np.nan)
    size_of_values = np.maximum(1.0, np.maximum(np.abs(a.value), np.abs(b.value)))
    rounding = np.abs(found) <= ROUNDING * size_of_values
    spread = np.sqrt((a.std**2 + b.std**2) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(rounding & ~np.isnan(se), 0.0, found / se)
        size = np.where(rounding, 0.0, found / spread)
    # Rows do not spread about a maximum.
    size[why == NO_ERROR_OF_A_MAXIMUM] = np.nan
    note[rounding & (note == "")] = WITHIN_ROUNDING
    for missing, where in (
        (np.isnan(a.value), "undefined in a"),
        (np.isnan(b.value), "undefined in b"),
        (np.isnan(a.value) & np.isnan(b.value), "undefined in both"),
    ):
        note[missing] = where
    gone = np.isnan(found)
    se, t, df, size = (np.where(gone, np.nan, array) for array in (se, t, df, size))
    df = np.where(np.isnan(se), np.nan, df)
    return Difference(found, size, se, t, df, two_sided(t, df), note, pairing, shared)


def _distinct(clusters: Clusters, index: Sequence[int]) -> tuple[Array, Array, Identities]:
    """Totals and rows of measures `index` by text: one that was read several times is one sample, not several."""
    import numpy as np

    total, rows, identities = clusters.arrays()
    # Those that are not known are each their own.
    names, place = np.unique(identities, return_inverse=True)
    known = identities != UNKNOWN
    if (~known).any():
        place = np.where(known, place - 1, len(names) - 1 + np.cumsum(~known) - 1)
        names = np.concatenate([names[1:], np.zeros(int((~known).sum()), np.uint64)])
    sums = []
    for array in (total[list(index)], rows[list(index)]):
        grouped = np.zeros((*array.shape[:2], len(names)))
        for c, at in enumerate(place.tolist()):
            grouped[..., at] += array[..., c]
        sums.append(grouped)
    return sums[0], sums[1], names


def _variance(residuals: Array, shares: Array) -> tuple[Array, Array]:
    """The variance `C / (C - 1) sum e_c^2` and its degrees of freedom, from e_c and shares w_c `[K, X, C]`."""
    import numpy as np

    count = _count(shares)
    w = np.where(shares > 0, shares, 0.0)
    u, s2, s3 = w**2, (w**2).sum(-1), (w**3).sum(-1)
    uu = (u * u).sum(-1)
    # With M = I - 1 w', A = M' W^2 M is the quadratic form of the sum of squares; df = (tr A)^2 / tr A^2.
    trace = s2 - 2 * s3 + s2**2
    square = uu + 2 * (uu * s2 + s3**2) + s2**4 - 4 * (u * u * w).sum(-1) + 2 * s2 * (u * u).sum(-1) - 4 * s2**2 * s3
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.where(count >= 2, count / (count - 1) * (np.nan_to_num(residuals) ** 2).sum(-1), np.nan)
        df = np.where(count >= 2, trace**2 / square, np.nan)
    return variance, np.clip(df, 1.0, np.maximum(count - 1, 1))


def _count(shares: Array | None) -> NDArray[np.intp]:
    """Sequences that have rows `[K, X]`."""
    import numpy as np

    return np.asarray(np.sum(np.nan_to_num(shares) > 0, -1)) if shares is not None else np.zeros((), np.intp)


def _welch(a: Side, b: Side) -> Array:
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        df = (a.variance + b.variance) ** 2 / (a.variance**2 / a.df + b.variance**2 / b.df)
    return np.where(np.isnan(df), np.minimum(a.df, b.df), df)


def _union(a: Side, b: Side) -> tuple[tuple[Array, Array] | None, str, int]:
    """Residuals of b - a and mean shares over the texts of both sides `[K, X, C]`, how they are paired, shared texts.

    None where no text is known to be in both.
    """
    import numpy as np

    if a.residuals is None or b.residuals is None or a.shares is None or b.shares is None:
        return None, NO_SUMS, 0
    known = [side.identities[side.identities != UNKNOWN] for side in (a, b)]
    shared = np.intersect1d(*known)
    if not len(shared):
        return None, APART if all(map(len, known)) else UNKNOWN_TEXTS, 0
    same = len(shared) == len(a.identities) == len(b.identities)
    order = [np.argsort(side.identities, kind="stable") for side in (a, b)]
    both = [o[np.isin(side.identities[o], shared)] for side, o in zip((a, b), order, strict=True)]
    alone = [o[~np.isin(side.identities[o], shared)] for side, o in zip((a, b), order, strict=True)]
    e = [b.residuals[..., both[1]] - a.residuals[..., both[0]], -a.residuals[..., alone[0]], b.residuals[..., alone[1]]]
    w = [a.shares[..., both[0]] + b.shares[..., both[1]], a.shares[..., alone[0]], b.shares[..., alone[1]]]
    union = np.concatenate(e, -1), np.concatenate(w, -1) / 2
    return union, PAIRED if same else PARTLY, len(shared)
