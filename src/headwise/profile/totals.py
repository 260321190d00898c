"""Totals: sums over sequences of what is not a number per row (what keys receive, how alike two heads are).

Each sequence c counts with its total S_c over N_c; the mean is `sum S_c / sum N_c`, and its standard error is clustered
by sequence, as everywhere in a profile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwise.errors import shown
from headwise.profile.accumulators import CLUSTERS, clustered_error

if TYPE_CHECKING:
    from headwise.profile.clusters import Array


@dataclass
class Totals:
    """Sums over sequences, arrays of one shape `[..., T]`.

    Attributes:
        arrays: `sequences` (how many have any), `s` (sum S_c), `ss` (S_c^2), `sn` (S_c N_c), `n` (N_c), `nn` (N_c^2).
        open_names: Sequences that may go on; `open` are their sums so far, which a later call replaces.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    open_names: tuple[int, ...] = ()
    open: dict[str, Array] = field(default_factory=dict)

    def put(self, names: tuple[int, ...], sums: dict[str, Array]) -> None:
        """Set the sums of named sequences: those of an earlier call under the same names are replaced."""
        if names != self.open_names:
            self.close()
        self.open_names, self.open = names, sums

    def close(self) -> None:
        """No sequence goes on from here."""
        self._add(self.open)
        self.open_names, self.open = (), {}

    def closed(self) -> Totals:
        """A copy in which no sequence is open; this one is left as it is."""
        copy = Totals({name: array.copy() for name, array in self.arrays.items()})
        copy._add(self.open)
        return copy

    def merge(self, other: Totals) -> None:
        """Add the sums of other sequences; where they are longer, this one grows."""
        self.close()
        self._add(other.closed().arrays)

    def mean(self) -> Array:
        """`sum S_c / sum N_c`; NaN where there is nothing. For closed totals."""
        import numpy as np

        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.arrays["n"] > 0, self.arrays["s"] / self.arrays["n"], np.nan)

    def error(self) -> Array:
        """Standard error of the mean, clustered by sequence; NaN with fewer than two. For closed totals."""
        return clustered_error(self.arrays)

    def spread(self) -> Array:
        """Standard deviation of the sequences' means, weighted by N_c^2: of the sequences themselves where N_c = 1."""
        import numpy as np

        a, mean = self.arrays, self.mean()
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = (a["ss"] - 2 * mean * a["sn"] + mean**2 * a["nn"]) / a["nn"]
        return np.where(a["n"] > 0, np.sqrt(np.maximum(variance, 0)), np.nan)

    def freedom(self) -> Array:
        """Degrees of freedom of `error`: Kish's effective number of sequences, less one, at least 1."""
        import numpy as np

        n, squares = self.arrays["n"], self.arrays["nn"]
        return np.maximum(n**2 / np.where(n > 0, squares, 1.0) - 1, 1.0)

    def _add(self, sums: dict[str, Array]) -> None:
        import numpy as np

        for name in CLUSTERS if sums else ():
            new = sums[name]
            mine = self.arrays.get(name)
            if mine is None:
                self.arrays[name] = np.array(new, np.float64)
                continue
            short = new.shape[-1] - mine.shape[-1]
            if short > 0:
                mine = np.pad(mine, [*[(0, 0)] * (mine.ndim - 1), (0, short)])
            mine[..., : new.shape[-1]] += new
            self.arrays[name] = mine


def refuse_label(method: str, what: str, label: str | None) -> None:
    """Refuse sums of one label: a forward sums keys and pairs once, over the rows of all labels.

    Raises:
        ValueError: There is a label.
    """
    if label is not None:
        raise ValueError(
            f"{method}: {what} summed over the rows of all labels, not by label; got group={shown(label)}: "
            "watch the sequences of this label alone, or read table(group=...)"
        )
