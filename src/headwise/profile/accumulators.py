"""Accumulators: host float64 sums of one group of attention calls. Merging adds them; the order does not matter.

A group is (layer, call, phase, kind). Means and squared deviations are merged as Chan, Golub and LeVeque (1983) do,
so nothing is lost to cancellation. The sums per sequence give standard errors clustered by sequence: rows of one text
are no independent samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwise.profile.clusters import Clusters

if TYPE_CHECKING:
    from headwise.profile.clusters import Array, Identities

COUNTS = ("rows", "masked_rows", "padded_rows", "nonfinite_rows")
MOMENTS = ("rows", "mean", "m2", "low", "high")
CLUSTERS = ("sequences", "s", "ss", "sn", "n", "nn")
ADDED = ("counts", "offsets", "bin_sum", "bin_rows")


@dataclass
class PartSums:
    """The sums of one attention call, as numpy arrays. H heads, K measures, C sequences, P position bins.

    Attributes:
        counts: rows that count, masked, padded, non-finite `[4, H]`.
        rows: Rows where the measure is defined `[K, H]`; then their mean, squared deviations and extremes.
        cluster_sum: `[K, H, C]` per sequence, and the rows of each in `cluster_rows`.
        sequences: A name for each of the C sequences: rows that come later under the same name belong to it.
        identities: Which text each of them is `[C]`, the same number in every profile; 0 or None: not known.
        offsets: Histogram `[H, 18]` of own key minus argmax.
        bin_sum: `[K, H, P]` per position bin, and its rows in `bin_rows`.
    """

    counts: Array
    rows: Array
    mean: Array
    m2: Array
    low: Array
    high: Array
    cluster_sum: Array
    cluster_rows: Array
    offsets: Array
    bin_sum: Array
    bin_rows: Array
    sequences: tuple[int, ...] = ()
    identities: Identities | None = None


@dataclass
class Accumulator:
    """The sums of one group of calls.

    Attributes:
        arrays: `counts [4, H]`, `offsets [H, 18]`, `bin_sum` and `bin_rows [K, H, P]`; per measure and head `[K, H]`
            `rows`, `mean`, `m2`, `low`, `high`, and the sums over sequences: `sequences` (their number), `s`
            (sum S_c), `ss` (S_c^2), `sn` (S_c N_c), `n` (N_c), `nn` (N_c^2).
        open_names: Sequences that may go on (decoding adds rows to them); `open_sum` and `open_rows [K, H, C]` are
            their sums so far, not squared yet.
        clusters: The sums of each sequence that has ended; None where they are not kept.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    open_names: tuple[int, ...] = ()
    open_sum: Array | None = None
    open_rows: Array | None = None
    open_identities: Identities | None = None
    clusters: Clusters | None = field(default_factory=Clusters)

    def add(self, part: PartSums) -> None:
        """Add the rows of one call."""
        import numpy as np

        if part.sequences != self.open_names:
            self.close()
        shape = part.cluster_sum.shape
        if self.open_sum is None or self.open_rows is None or self.open_sum.shape != shape:
            self.open_sum, self.open_rows = np.zeros(shape), np.zeros(shape)
        self.open_names, self.open_identities = part.sequences, part.identities
        self.open_sum += part.cluster_sum
        self.open_rows += part.cluster_rows
        self._combine({name: getattr(part, name) for name in (*ADDED, *MOMENTS)})

    def close(self) -> None:
        """No sequence goes on from here."""
        if self.open_names and self.open_sum is not None and self.open_rows is not None:
            self._combine(_cluster_sums(self.open_sum, self.open_rows))
            if self.clusters is not None:
                self.clusters.append(self.open_sum, self.open_rows, self.open_identities)
            # Kept for the next sequences.
            self.open_sum[...] = 0
            self.open_rows[...] = 0
        self.open_names = ()

    def closed(self) -> Accumulator:
        """A copy of the sums in which no sequence is open, without those of each; this one is left as it is."""
        copy = Accumulator({name: array.copy() for name, array in self.arrays.items()}, clusters=None)
        if self.open_names and self.open_sum is not None and self.open_rows is not None:
            copy._combine(_cluster_sums(self.open_sum, self.open_rows))
        return copy

    def by_sequence(self) -> Clusters | None:
        """The sums of each sequence, also of those that are open; None where they are not kept."""
        if self.clusters is None or not self.open_names or self.open_sum is None or self.open_rows is None:
            return self.clusters
        copy = Clusters()
        if self.clusters.count:
            copy.append(*self.clusters.arrays())
        copy.append(self.open_sum, self.open_rows, self.open_identities)
        return copy

    def merge(self, other: Accumulator) -> None:
        """Add everything of another accumulator of the same group."""
        self.close()
        theirs = other.by_sequence()
        if theirs is None:
            self.clusters = None
        elif self.clusters is not None and theirs.count:
            self.clusters.append(*theirs.arrays())
        self._combine(other.closed().arrays)

    def _combine(self, new: dict[str, Array]) -> None:
        import numpy as np

        mine = self.arrays
        first = "rows" not in mine
        for name, array in new.items():
            if name not in mine:
                mine[name] = np.zeros(array.shape)
        if "rows" in new:
            if first:
                mine["low"][...], mine["high"][...] = np.inf, -np.inf
            rows, delta = mine["rows"] + new["rows"], new["mean"] - mine["mean"]
            share = new["rows"] / np.maximum(rows, 1)
            mine["m2"] += new["m2"] + delta**2 * mine["rows"] * share
            mine["mean"] += delta * share
            mine["rows"][...] = rows
            np.minimum(mine["low"], new["low"], out=mine["low"])
            np.maximum(mine["high"], new["high"], out=mine["high"])
        for name in (*ADDED, *CLUSTERS):
            if name in new:
                mine[name] += new[name]

    def columns(self, summaries: Sequence[str]) -> list[dict[str, Array]]:
        """For each measure its columns, one value per head: value, `_std`, `_min`, `_max`, `_se`.

        The standard deviation is that of the rows themselves (division by their number). The standard error is of
        the mean, clustered by sequence; with one sequence, and for a maximum, it is NaN. For a closed accumulator.

        Args:
            summaries: What stands for each measure, in their order: its "mean" or its "max".
        """
        import numpy as np

        a = self.arrays
        some = a["rows"] > 0  # [K, H]
        mean, low, high = (np.where(some, a[name], np.nan) for name in ("mean", "low", "high"))
        std = np.where(some, np.sqrt(np.maximum(a["m2"], 0) / np.maximum(a["rows"], 1)), np.nan)
        is_max = np.array([summary == "max" for summary in summaries])[:, None]
        value, error = np.where(is_max, high, mean), np.where(is_max, np.nan, clustered_error(a))
        columns = {"": value, "_std": std, "_min": low, "_max": high, "_se": error}
        return [{part: values[k] for part, values in columns.items()} for k in range(len(summaries))]


def _cluster_sums(total: Array, rows: Array) -> dict[str, Array]:
    """The sums over sequences of their totals S_c and rows N_c, each `[K, H, C]`."""
    import numpy as np

    return {
        "sequences": np.sum(rows > 0, axis=-1, dtype=np.float64),
        "s": total.sum(-1),
        "ss": (total**2).sum(-1),
        "sn": (total * rows).sum(-1),
        "n": rows.sum(-1),
        "nn": (rows**2).sum(-1),
    }


def clustered_error(sums: dict[str, Array]) -> Array:
    """Standard error of the ratio sum S_c / sum N_c: residuals S_c - mean N_c, with the C / (C - 1) correction."""
    import numpy as np

    count, n = sums["sequences"], sums["n"]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = sums["s"] / n
        residual = np.maximum(sums["ss"] - 2 * mean * sums["sn"] + mean**2 * sums["nn"], 0)
        error: Array = np.sqrt(residual * count / (count - 1)) / n
    return np.where(count >= 2, error, np.nan)
