"""The page's texts in both languages, and how numbers stand in them."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Any

from headwise.studies.findings import Spread
from headwise.studies.telling import Language

MINUS = "\u2212"


@lru_cache
def texts(language: Language) -> dict[str, Any]:
    """All texts of a language, as `texts/<language>.toml` has them."""
    return tomllib.loads((files("headwise.studies.page") / "texts" / f"{language}.toml").read_text("utf-8"))


def named(words: dict[str, Any], section: str, name: str) -> str:
    """The text for a name; a name that no language knows (a score of one's own) stays as it is."""
    return str(words[section].get(name, name))


def noted(words: dict[str, Any], note: str) -> str:
    """A note or a missing run in the language; what an error said stays as it is."""
    for known, text in words["notes"].items():
        if note.startswith(known) or (known.startswith("(") and note.endswith(known)):
            note = note.replace(known, text)
    return note


def ranged(mean: float, low: float | None, high: float | None, form: str, words: dict[str, Any], unit: str = "") -> str:
    """A number with its unit, and its interval where there is one; each in this form, as in `+.1f`."""
    told = signed(mean, form) + unit
    if low is None or high is None:
        return told
    return str(words["interval"].format(mean=told, low=signed(low, form), high=signed(high, form)))


def signed(value: float, form: str) -> str:
    """A number with a true minus sign; none that rounds to zero has one."""
    text = format(value, form)
    if not text.strip("+-0.,"):
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def of_spread(one: Spread | None, form: str, words: dict[str, Any]) -> str:
    """A mean with its interval; a dash for nothing."""
    return "–" if one is None else ranged(one.mean, one.low, one.high, form, words)
