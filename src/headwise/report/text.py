"""Strings that are not ours (names, tokens, labels), as a page may show them."""

from __future__ import annotations

_CONTROL_PICTURES = {c: 0x2400 + c for c in range(0x20) if c not in (0x09, 0x0A)} | {0x7F: 0x2421}
# White space that a reader of tokens wants to see, in signs that most fonts have.
_TOKEN_SIGNS = {0x09: "\u21e5", 0x0A: "\u21b5", 0x0D: "\u240d"}


def plain(text: object) -> str:
    """Text that can be written as UTF-8 and shown: lone surrogates become "?", controls their pictures."""
    encodable = str(text).encode("utf-8", "replace").decode("utf-8")
    return encodable.translate(_CONTROL_PICTURES)


def shown_token(token: str) -> str:
    """A token as plain text, its line breaks and tabs as signs."""
    return plain(token.translate(_TOKEN_SIGNS))
