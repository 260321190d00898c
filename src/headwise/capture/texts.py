"""Texts: the first sequences that a model read, for the page."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any

from torch import Tensor

from headwise.capture.forwards import Forward, real_tokens
from headwise.profile import Profile, Sequence
from headwise.profile.profiles import KEPT_SEQUENCES

KEPT_TOKENS = 4096

NO_CHARACTER = "\ufffd"
LONGEST_CHARACTER = 8
SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈"


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
                texts = None if self._tokenizer is None else token_texts(shown, self._tokenizer.decode)
                self._profile.record_sequences([Sequence(len(kept), shown, texts)], 0)


def token_texts(ids: Many[int], decode: Callable[[Many[int]], str]) -> list[str]:
    """The text of each token.

    A byte-level tokenizer may cut one character into several tokens, none of which is text by itself: each is shown
    as that character with its place, as in "谁₁" "谁₂".
    """
    texts: list[str] = []
    at = 0
    while at < len(ids):
        text = alone = str(decode([ids[at]]))
        end = at + 1
        while NO_CHARACTER in text and end < min(len(ids), at + LONGEST_CHARACTER):
            end += 1
            text = str(decode(ids[at:end]))
        if end == at + 1 or NO_CHARACTER in text:
            texts.append(alone)
            at += 1
        else:
            texts.extend(text + SUBSCRIPTS[place] for place in range(1, end - at + 1))
            at = end
    return texts
