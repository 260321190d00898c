"""What the lesson says: the texts of a language, and the numbers inside them."""

from __future__ import annotations

import json
import re
import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Any

from headwise.lesson.working import Numbers, State

LANGUAGES = ("en", "zh")

PLACE = re.compile(r"\{([\w.]+)(?::(\d|e))?\}")
"""A number's place in a text."""

_DECIMALS = 2
_MISSING = "–"


@lru_cache
def texts(language: str) -> dict[str, Any]:
    """The texts of one of `LANGUAGES`: `title`, `lead`, `steps`, `exercises`, `ui` and so on."""
    return tomllib.loads((files("headwise.lesson") / "texts" / f"{language}.toml").read_text("utf-8"))


@lru_cache
def maps() -> dict[str, Any]:
    """The attention maps of a real model (step 10): see scripts/lesson_maps.py."""
    found: dict[str, Any] = json.loads((files("headwise.lesson") / "static" / "maps.json").read_text("utf-8"))
    return found


def filled(text: str, state: State, numbers: Numbers) -> str:
    """The text with its numbers: `{scores.weights.0.0}` is `numbers["scores"]["weights"][0][0]`.

    `{state.tokens}` is a part of the state, `{model.heads}` a fact of the real model. In a path, `look` is the row
    that the reader looks at and `last` the last entry. What an edited state no longer has is a dash.

    Args:
        text: With places in braces; `:3` in one asks for three decimals instead of two, `:e` for a power of ten.
        state: The state.
        numbers: What `work` made of it.
    """
    everything = {"state": state, "model": maps()["facts"], **numbers}

    def value(match: re.Match[str]) -> str:
        found: Any = everything
        for part in match[1].split("."):
            if isinstance(found, list):
                index = {"look": int(state["look"]), "last": len(found) - 1}.get(part)
                index = int(part) if index is None else index
                if index >= len(found):
                    return _MISSING
                found = found[index]
            else:
                found = found[part]
        return tiny(found) if match[2] == "e" else number(found, int(match[2] or _DECIMALS))

    return PLACE.sub(value, text)


def number(value: object, decimals: int = _DECIMALS) -> str:
    """A number as the lesson writes it: whole ones whole, others with so many decimals, a true minus sign.

    Text stays as it is; of a list, all entries stand side by side.
    """
    if isinstance(value, list):
        return " ".join(number(one, decimals) for one in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    text = f"{value:.{decimals}f}"
    # No minus sign before a rounded zero.
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def tiny(value: float) -> str:
    """A number that is 0 but for rounding: `0`, or its size as `4e-16`."""
    return "0" if value == 0 else re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.0e}").replace("-", "−")
