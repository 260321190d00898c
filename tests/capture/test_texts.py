"""Tokens as text, also where one character is several tokens."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.capture.texts import token_texts


def decode(ids: Sequence[int]) -> str:
    """A byte-level tokenizer: every byte is a token."""
    return bytes(ids).decode("utf-8", "replace")


def test_bytes_of_one_character_are_shown_as_that_character() -> None:
    assert token_texts(list("a谁!".encode()), decode) == ["a", "谁₁", "谁₂", "谁₃", "!"]
    assert token_texts(list("🗼".encode()), decode) == ["🗼₁", "🗼₂", "🗼₃", "🗼₄"]
    assert token_texts(list("שא".encode()), decode) == ["ש₁", "ש₂", "א₁", "א₂"]


def test_what_is_no_character_stays_as_the_tokenizer_shows_it() -> None:
    assert token_texts([0xFF, 0x61], decode) == ["\ufffd", "a"]
    assert token_texts([0x61, 0xE8], decode) == ["a", "\ufffd"]
    assert token_texts([], decode) == []
