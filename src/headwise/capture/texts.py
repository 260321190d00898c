"""Texts: the first sequences that a model read, for the page."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

from torch import Tensor

from headwise.capture.forwards import Forward, real_tokens
from headwise.profile import Profile, Sequence

KEPT_SEQUENCES = 16
KEPT_TOKENS = 4096


class Texts:
    """Keeps the first sequences: token ids, and their text where a tokenizer or the tokens were given."""

    def __init__(self, profile: Profile, tokenizer: Any, tokens: Many[Many[str]] | None) -> None:
        if tokens is not None and any(isinstance(one, str) or not isinstance(one, Many) for one in tokens):
            raise ValueError("tokens: expected a list of tokens for each sequence, as in [['we', 'are']]")
        self._profile = profile
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._waiting: list[tuple[Tensor, Tensor | None]] = []
        self._kept = 0

    def note(self, forward: Forward, real: Tensor | None) -> None:
        """Note the sequences that a forward begins."""
        if self._kept >= KEPT_SEQUENCES:
            return
        if self._tokens is not None:
            texts = [[str(token) for token in tokens] for tokens in self._tokens[: KEPT_SEQUENCES - self._kept]]
            self._kept = KEPT_SEQUENCES
            self._profile.record_sequences([Sequence(len(t), None, t[:KEPT_TOKENS]) for t in texts], 0)
            return
        found = real_tokens(forward, real)
        if found is not None:
            ids, mask = found
            kept = min(len(ids), KEPT_SEQUENCES - self._kept)
            self._kept += kept
            # Copies: the caller may reuse its tensors. They stay on their device until they are read.
            self._waiting.append((ids[:kept].detach().clone(), None if mask is None else mask[:kept].detach().clone()))

    def settle(self) -> None:
        """Turn what waits into sequences of the profile."""
        waiting, self._waiting = self._waiting, []
        for ids, mask in waiting:
            for row, numbers in enumerate(ids.tolist()):
                real = [True] * len(numbers) if mask is None else [bool(x) for x in mask[row].tolist()]
                kept = [number for number, is_real in zip(numbers, real, strict=True) if is_real]
                shown = kept[:KEPT_TOKENS]
                texts = None if self._tokenizer is None else [self._text(number) for number in shown]
                self._profile.record_sequences([Sequence(len(kept), shown, texts)], 0)

    def _text(self, number: int) -> str:
        return str(self._tokenizer.decode([number]))
