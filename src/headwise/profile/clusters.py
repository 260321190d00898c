"""Clusters: the sums of every single sequence of one group, so that two profiles can be compared text by text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Identities = NDArray[np.uint64]

UNKNOWN = 0
"""The identity of a sequence whose tokens are not known: it is the same as no other."""


class Clusters:
    """Sums per sequence. K measures, H heads, C sequences, in the order in which they ended.

    Sequences are appended one forward at a time, so they lie in one block that doubles when it is full.
    """

    def __init__(self) -> None:
        self.count = 0
        self._block: Array | None = None
        self._identities: Identities | None = None

    @property
    def numbers(self) -> int:
        """How many numbers are kept."""
        return 0 if self._block is None else self.count * self._block[0].size

    def append(self, total: Array, rows: Array, identities: Identities | None) -> None:
        """Add sequences.

        Args:
            total: Sum of each measure over the rows of each sequence `[K, H, C]`.
            rows: Those rows `[K, H, C]`; a sequence without any is left out.
            identities: Which text each is `[C]`, 0 where that is not known; None: of none.
        """
        import numpy as np

        some = rows.any((0, 1))
        new = int(some.sum())
        if not new:
            return
        first, last = self.count, self.count + new
        if self._block is None or self._identities is None or last > len(self._block):
            block = np.empty((max(16, 2 * last), 2, *total.shape[:2]))
            names = np.zeros(len(block), np.uint64)
            if self._block is not None and self._identities is not None:
                block[:first], names[:first] = self._block[:first], self._identities[:first]
            self._block, self._identities = block, names
        self._block[first:last, 0] = np.moveaxis(total[..., some], -1, 0)
        self._block[first:last, 1] = np.moveaxis(rows[..., some], -1, 0)
        self._identities[first:last] = UNKNOWN if identities is None else identities[some]
        self.count = last

    def arrays(self) -> tuple[Array, Array, Identities]:
        """Totals `[K, H, C]`, rows `[K, H, C]` and identities `[C]`; views, not copies."""
        import numpy as np

        if self._block is None or self._identities is None:
            return np.zeros((0, 0, 0)), np.zeros((0, 0, 0)), np.zeros(0, np.uint64)
        total, rows = (np.moveaxis(self._block[: self.count, i], 0, -1) for i in (0, 1))
        return total, rows, self._identities[: self.count]
