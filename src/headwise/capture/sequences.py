"""Sequences: which rows of different forwards belong to the same text."""

from __future__ import annotations

from contextlib import suppress
from weakref import WeakKeyDictionary

from headwise.capture.forwards import Forward


class Sequences:
    """Numbers the sequences of forwards.

    A forward that continues a key-value cache, or decodes what an encoder has read, goes on with the sequences of the
    forward before: of the one that filled this cache where it is known, else of the last one.
    """

    def __init__(self) -> None:
        self._next = 1
        self._last: tuple[int, ...] = ()
        self._of_cache: WeakKeyDictionary[object, tuple[int, ...]] = WeakKeyDictionary()

    def number(self, forward: Forward, batch: int) -> int:
        """Number the sequences of a forward that have no number yet; returns how many are new."""
        batch = forward.batch or batch
        known = self._continued(forward)
        new = 0
        if known and batch % len(known) == 0:
            # Beam search reads every sequence several times.
            forward.sequences = tuple(number for number in known for _ in range(batch // len(known)))
        else:
            forward.sequences = tuple(range(self._next, self._next + batch))
            self._next += batch
            new = batch
        self._last = forward.sequences
        if forward.cache is not None:
            with suppress(TypeError):  # a cache that cannot be referred to weakly
                self._of_cache[forward.cache] = forward.sequences
        return new

    def _continued(self, forward: Forward) -> tuple[int, ...]:
        if forward.past:
            try:
                return self._of_cache.get(forward.cache, self._last)
            except TypeError:
                return self._last
        return self._last if forward.arguments.get("encoder_outputs") is not None else ()
