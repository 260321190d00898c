"""Printing mathematical signs and tokens on terminals whose encoding lacks some of them."""

from __future__ import annotations

import codecs
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Within matrices one sign for one, so that columns stay.
_LIKE = {
    "−": "-", "–": "-", "─": "-", "×": "x", "·": ".", "√": "sqrt ", "ᵀ": "'", "Σ": "sum", "∞": "inf", "∈": "in",
    "→": ">", "⎡": "[", "⎢": "|", "⎣": "[", "⎤": "]", "⎥": "|", "⎦": "]", "│": "|", "░": ".", "▒": ":", "▓": "*",
    "█": "#", "▀": "#", "²": "^2", "⁰": "^0", "“": '"', "”": '"', "‘": "'", "’": "'", "…": ".",
}  # fmt: skip
_HANDLER = "headwise.signs"


def can_print(text: str) -> bool:
    """Whether the encoding of standard output has every character of a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def any_encoding() -> Iterator[None]:
    """Standard output prints something like each sign that its encoding lacks; no sign makes it fail."""
    reconfigure: Callable[..., None] | None = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is None:
        yield
        return
    codecs.register_error(_HANDLER, _like)
    before = sys.stdout.errors
    reconfigure(errors=_HANDLER)
    try:
        yield
    finally:
        reconfigure(errors=before)


def _like(error: UnicodeError) -> tuple[str, int]:
    from rich.cells import cell_len

    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_LIKE.get(sign) or "?" * max(1, cell_len(sign)) for sign in lacking), error.end
