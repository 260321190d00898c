"""Prose as HTML: paragraphs, symbols with their indices as such, and tokens that keep their own direction.

`static/words.js` does the same in the page, after each change.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from headwise.lesson.contents import PLACE, filled
from headwise.lesson.working import Numbers, State

WORD = r"[A-Za-z0-9_^ᵀ]+"
"""What a symbol is looked for in: the pattern holds in JavaScript too, and is handed to the page."""

SYMBOL = r"(?:d_(?:k|q|v|m|model)|W(?:_[hi1-9])?(?:\^[QKVO])?|[QKVZ]_[hi1-9]ᵀ?|z_[i1-9]|head_[hi1-9]|[QKVXYZPNMhip]ᵀ?)"
"""The words that are symbols: `W_i^Q` is W with the index i and the name Q above it."""

_PARTS = re.compile(r"([A-Za-z]+)(?:_([a-z0-9]+))?(?:\^([A-Z]))?(ᵀ)?")
_LONGEST = 24
_TOKEN = re.compile(r"state\.(?:tokens|target)\b|places\.reads\b")


def inline(text: str, state: State, numbers: Numbers) -> Markup:
    """One text with its numbers filled in and its symbols set."""
    made, start = Markup(), 0
    for place in PLACE.finditer(text):
        made += symbols(text[start : place.start()]) + _value(place, state, numbers)
        start = place.end()
    return made + symbols(text[start:])


def paragraphs(text: str, state: State, numbers: Numbers) -> Markup:
    """A text whose paragraphs are parted by empty lines."""
    parts = [part for part in text.strip().split("\n\n") if part]
    return Markup().join(Markup("<p>{}</p>").format(inline(part, state, numbers)) for part in parts)


def symbols(text: str) -> Markup:
    """Plain text in which `d_k` is a d with an index."""
    made, start = Markup(), 0
    # A sign does not part from its two sides at the end of a line; and Chinese type has a wide middle dot.
    text = re.sub(" ([=/×]) ", "\u00a0\\1\u00a0", text.replace(" · ", " ⋅ "))
    for word in re.finditer(WORD, text):
        if re.fullmatch(SYMBOL, word[0]):
            between = text[start : word.start()]
            root = between.endswith("√")
            made += escape("\u00a0" if between == " " and start else between.removesuffix("√"))
            made += _symbol(word[0], root=root)
            start = word.end()
    return made + escape(text[start:])


def token(text: str) -> Markup:
    """A token of the reader's: it may be empty, long, or run from right to left."""
    shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return Markup('<bdi class="token" dir="auto">{}</bdi>').format(shown if text.strip() else "∅")


def _value(place: re.Match[str], state: State, numbers: Numbers) -> Markup:
    room, _, name = place[1].partition(".")
    if room == "state" and name in ("tokens", "target"):
        return Markup(" ").join(token(one) for one in state[name])
    value = filled(place[0], state, numbers)
    return token(value) if _TOKEN.match(place[1]) else Markup('<span class="n">{}</span>').format(value)


def _symbol(word: str, *, root: bool) -> Markup:
    parts = _PARTS.fullmatch(word)
    assert parts is not None, word
    base, below, above = (_letter(parts[part]) for part in (1, 2, 3))
    transposed = Markup("<sup>T</sup>") if parts[4] else ""
    if below and above:
        indices = Markup('<span class="both"><sup>{}</sup><sub>{}</sub></span>').format(above, below)
    else:
        indices = Markup("<sub>{}</sub>").format(below) if below else Markup("<sup>{}</sup>").format(above)
        indices = indices if below or above else Markup()
    whole = Markup("{}{}{}").format(base, indices, transposed)
    if root:
        whole = Markup('√<span class="rooted">{}</span>').format(whole)
    return Markup('<span class="sym">{}</span>').format(whole)


def _letter(text: str | None) -> Markup:
    """A variable in italics; words and digits upright."""
    if not text:
        return Markup()
    return Markup("<i>{}</i>").format(text) if len(text) == 1 and text.isalpha() else escape(text)
