"""Texts: the first sequences that a model read, for the page."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any

import torch
from torch import Tensor

from headwise.capture.forwards import Forward, real_tokens
from headwise.profile import Profile, Sequence
from headwise.profile.sequences import KEPT_SEQUENCES

KEPT_TOKENS = 4096

NO_CHARACTER = "\ufffd"
LONGEST_CHARACTER = 8
SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈"
DOTTED_CIRCLE = "\u25cc"
VARIATION_SELECTORS = range(0xFE00, 0xFE10)

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
# GPT-2's alphabet: a byte that prints stands for itself, the others for the characters from U+0100 on.
_PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_ALPHABET = {chr(byte): byte for byte in _PRINTED} | {
    chr(0x100 + place): byte for place, byte in enumerate(byte for byte in range(0x100) if byte not in _PRINTED)
}


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
            self._profile.read.unread = self._read

    def _read(self) -> None:
        """Turn what waits into sequences of the profile."""
        found = []
        with torch._C.DisableTorchFunction():
            for ids, mask in self._waiting:
                for row, numbers in enumerate(ids.tolist()):
                    real = [True] * len(numbers) if mask is None else [bool(x) for x in mask[row].tolist()]
                    kept = [number for number, is_real in zip(numbers, real, strict=True) if is_real]
                    found.append(Sequence(len(kept), kept[:KEPT_TOKENS], self._texts_of(kept)))
        self._waiting = []
        self._profile.record_sequences(found, 0)

    def _texts_of(self, ids: list[int]) -> list[str] | None:
        if self._tokenizer is None:
            return None
        return token_texts(ids[:KEPT_TOKENS], self._tokenizer.decode, bytes_of(self._tokenizer))


def token_texts(
    ids: Many[int], decode: Callable[[Many[int]], str], raw: Callable[[int], bytes | None] = lambda number: None
) -> list[str]:
    r"""The text of each token.

    A byte-level tokenizer may cut one character into several tokens, none of which is text by itself: each is shown
    as that character with its place, as in "谁₁" "谁₂". Bytes that are part of no character (a text may begin or end
    within one) are shown as bytes, as in "\xe8", where `raw` knows them. A mark that combines with the character
    before it stands on a dotted circle, for it is shown alone.

    Args:
        ids: Token ids.
        decode: Their text; U+FFFD stands for what is none.
        raw: The bytes of a token, where they are known.
    """
    texts: list[str] = []
    alone: dict[int, str] = {}
    at = 0
    while at < len(ids):
        text: str | None = alone.get(ids[at])
        if text is None:
            text = alone[ids[at]] = str(decode([ids[at]]))
        end = at + 1
        if NO_CHARACTER in (text or ""):
            text = _whole(ids[at:end], decode, raw)
            while text is None and end < min(len(ids), at + LONGEST_CHARACTER):
                end += 1
                text = _whole(ids[at:end], decode, raw)
        if text is None:
            texts.append(_broken(ids[at], decode, raw))
            at += 1
        elif end == at + 1:
            texts.append(_on_a_circle(text))
            at += 1
        else:
            texts.extend(_named(text) + SUBSCRIPTS[place] for place in range(1, end - at + 1))
            at = end
    return texts


def bytes_of(tokenizer: Any) -> Callable[[int], bytes | None]:
    """A function that knows the bytes of a token of a byte-level tokenizer, or None where they cannot be told."""
    pieces = getattr(tokenizer, "convert_ids_to_tokens", None)

    def raw(number: int) -> bytes | None:
        piece = None if pieces is None else pieces([number])[0]
        if not isinstance(piece, str):
            return None
        if byte := _BYTE.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        found = [_ALPHABET.get(sign) for sign in piece]
        return None if None in found else bytes(byte for byte in found if byte is not None)

    return raw


def _whole(ids: Many[int], decode: Callable[[Many[int]], str], raw: Callable[[int], bytes | None]) -> str | None:
    """The text of tokens that make whole characters together; None: they do not. U+FFFD itself is told by its bytes."""
    text = str(decode(ids))
    if NO_CHARACTER not in text:
        return text
    pieces = [raw(number) for number in ids]
    try:
        return None if None in pieces else b"".join(piece or b"" for piece in pieces).decode()
    except UnicodeDecodeError:
        return None


def _broken(number: int, decode: Callable[[Many[int]], str], raw: Callable[[int], bytes | None]) -> str:
    piece = raw(number)
    return str(decode([number])) if piece is None else piece.decode("utf-8", "backslashreplace")


def _named(character: str) -> str:
    """A character that is cut into tokens, so that it can be seen; one that shows nothing by its number."""
    if len(character) == 1 and (not character.isprintable() or ord(character) in VARIATION_SELECTORS):
        return f"U+{ord(character):04X}"
    return _on_a_circle(character)


def _on_a_circle(text: str) -> str:
    return DOTTED_CIRCLE + text if text and unicodedata.category(text[0]).startswith("M") else text
