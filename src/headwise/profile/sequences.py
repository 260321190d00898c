"""The sequences that a profile has read: how many, and the first of them."""

from __future__ import annotations

from collections.abc import Callable

from headwise.profile.records import Sequence

KEPT_SEQUENCES = 16


class ReadSequences:
    """The first sequences, and how many there were.

    Attributes:
        total: How many were read.
        unread: Records those whose text nobody has asked for yet: a tokenizer takes longer for it than all sums of a
            short forward.
    """

    def __init__(self) -> None:
        self.total = 0
        self.unread: Callable[[], None] | None = None
        self._kept: list[Sequence] = []

    def record(self, sequences: list[Sequence], total: int) -> None:
        """`total` were read; the first few of `sequences` are kept, after those that are unread."""
        if sequences:
            self.settle()
        self._kept.extend(sequences[: max(0, KEPT_SEQUENCES - len(self._kept))])
        self.total += total

    def kept(self) -> list[Sequence]:
        """Those that are kept, with their texts."""
        self.settle()
        return list(self._kept)

    def settle(self) -> None:
        """Leave none unread."""
        unread, self.unread = self.unread, None
        try:
            if unread is not None:
                unread()
        except BaseException:
            self.unread = unread  # a tokenizer that failed is asked again, not forgotten
            raise
