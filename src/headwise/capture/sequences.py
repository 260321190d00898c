"""Sequences: which rows of different forwards belong to the same text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Many
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor

from headwise.capture.forwards import Forward, are_ids, cache_of, real_tokens

if TYPE_CHECKING:
    from headwise.profile.clusters import Identities


class Sequences:
    """Numbers the sequences of forwards.

    A forward that continues a key-value cache, or decodes what an encoder has read, goes on with the sequences of the
    forward before: of the one that filled this cache where it is known, else of the last one, if the cache holds as
    many tokens as that one ended with.
    """

    def __init__(self) -> None:
        self._next = 1
        self._last: tuple[tuple[int, ...], Identity | None] = ((), None)
        self._end = 0  # tokens in the cache when the last forward had ended
        self._of_cache: WeakKeyDictionary[object, tuple[tuple[int, ...], Identity | None]] = WeakKeyDictionary()

    def number(self, forward: Forward, batch: int, num_queries: int) -> int:
        """Number the sequences of a forward that have no number yet; returns how many are new.

        Args:
            forward: The forward, whose first call is being measured.
            batch: Sequences of that call.
            num_queries: Its queries: the tokens that the forward adds.
        """
        batch = forward.batch or batch
        known, identity = self._continued(forward)
        new = 0
        if known and batch % len(known) == 0:
            # Beam search reads every sequence several times.
            forward.sequences = tuple(number for number in known for _ in range(batch // len(known)))
            forward.identity = identity
        else:
            forward.sequences = tuple(range(self._next, self._next + batch))
            forward.identity = _identity(forward, self._next, batch)
            self._next += batch
            new = batch
        self._last, self._end = (forward.sequences, forward.identity), (forward.past or 0) + num_queries
        if forward.cache is not None:
            with suppress(TypeError):  # a cache that cannot be referred to weakly
                self._of_cache[forward.cache] = self._last
        return new

    def _continued(self, forward: Forward) -> tuple[tuple[int, ...], Identity | None]:
        if forward.past:
            # A cache that nobody has seen may be a copy of one, with the beginning of another text.
            last = self._last if forward.past == self._end else ((), None)
            try:
                return self._of_cache.get(forward.cache, last)
            except TypeError:
                return last
        return self._last if forward.arguments.get("encoder_outputs") is not None else ((), None)


class Identity:
    """Which texts a forward begins: a number for each, the same wherever the same tokens are read.

    Tokens wait on their device until a number is asked for, so that a forward never waits for them.
    """

    def __init__(self, first: int, tokens: list[tuple[Tensor, Tensor | None]]) -> None:
        """Of the sequences numbered from `first`, by their ids and which of those are real (None: all)."""
        self._first = first
        # Copies: the caller may reuse its tensors.
        self._tokens = [(ids.detach().clone(), None if m is None else m.detach().clone()) for ids, m in tokens]
        self._digests: Identities | None = None

    def of(self, numbers: Many[int]) -> Identities:
        """The identities `[C]` of numbered sequences; of a text read whole it is that of its real tokens."""
        if self._digests is None:
            texts = [
                (ids.cpu().numpy().astype("<i8"), None if mask is None else mask.cpu().numpy() != 0)
                for ids, mask in self._tokens
            ]
            self._digests = np.array([_digest(texts, row) for row in range(len(texts[0][0]))], np.uint64)
            self._tokens = []
        known: Identities = self._digests[np.asarray(numbers) - self._first]
        return known


def parts_of(identities: Identities, clusters: int, per_row: int) -> Identities:
    """Identities `[clusters]` where every sequence lies in several rows (windows) or every row holds several.

    Args:
        identities: Of the sequences `[B]`.
        clusters: Rows that the attention saw, times packed sequences in each.
        per_row: Packed sequences in each row, at most.
    """
    per_sequence = clusters // max(1, len(identities))
    part = np.arange(clusters) % max(1, per_sequence)
    place = ((part // per_row) << 20) + part % per_row
    # The finaliser of splitmix64: it leaves 0 as it is, so the first part of a text is named as the text is.
    x = place.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    whole = np.repeat(identities, per_sequence)
    return np.where(whole == 0, whole, whole ^ x ^ (x >> np.uint64(31)))


def _identity(forward: Forward, first: int, batch: int) -> Identity | None:
    """What tells the texts that a forward begins; None where it was given no ids, or goes on with an older text."""
    past = cache_of(forward.arguments)[0] if forward.past is None else forward.past
    if past != 0:
        return None
    tokens = _tokens(forward)
    return Identity(first, tokens) if tokens and all(ids.shape[0] == batch for ids, _ in tokens) else None


def _tokens(forward: Forward) -> list[tuple[Tensor, Tensor | None]]:
    """Token ids `[B, L]` that a forward was given, each with which of them are real (None: all)."""
    found = []
    real = real_tokens(forward, None)
    if real is not None:
        ids, mask = real
        # What attention itself took for real also holds what the caller of the watch said.
        told = [rows for rows in forward.rows.values() if rows is not None and rows.shape == ids.shape]
        found.append((ids, told[0] if told else mask))
    target = forward.arguments.get("decoder_input_ids")
    if are_ids(target):
        mask = forward.arguments.get("decoder_attention_mask")
        found.append((target, mask if isinstance(mask, Tensor) and mask.shape == target.shape else None))
    if found:
        return found
    others = [value for value in forward.arguments.values() if are_ids(value)]
    return [(others[0], None)] if len(others) == 1 else []


def _digest(texts: list[tuple[Any, Any]], row: int) -> int:
    """A number in 1..2^64 - 1 of the tokens of one row."""
    digest = hashlib.blake2b(digest_size=8)
    for ids, real in texts:
        kept = ids[row] if real is None else ids[row][real[row]]
        digest.update(len(kept).to_bytes(8, "little") + kept.tobytes())
    return int.from_bytes(digest.digest(), "little") or 1
