"""Both languages say the same, and nothing is said that no page shows."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwise.studies import page
from headwise.studies.page.words import noted, ranged, signed, texts


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from leaves(one, (*path, name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from leaves(one, (*path, str(number)))
    else:
        yield path, value


def test_the_languages_have_the_same_texts_with_the_same_places_for_values() -> None:
    english, chinese = dict(leaves(texts("en"))), dict(leaves(texts("zh")))
    assert english.keys() == chinese.keys()
    for path, text in english.items():
        fields = [{name for _, name, *_ in string.Formatter().parse(one) if name} for one in (text, chinese[path])]
        assert fields[0] == fields[1], path


def test_every_section_and_text_is_used() -> None:
    home = Path(page.__file__).parent
    source = "".join(file.read_text("utf-8") for file in (*home.glob("*.py"), *home.glob("templates/*")))
    found_by_name = ("sums", "words", "nav", "claims", "short", "needs", "says", "notes", "tasks", "scores", "numbers",
                     "units", "regimes", "regimes_long")  # fmt: skip
    for path, _ in leaves(texts("en")):
        if path[0] in found_by_name:
            assert f"t.{path[0]}" in source or f'"{path[0]}"' in source, path
        else:
            assert all(name in source for name in path if not name.isdecimal()), path


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [(-0.25, "+.1f", "−0.2"), (0.25, "+.2f", "+0.25"), (-0.0001, "+.2f", "0.00"), (0.0, ".1f", "0.0"), (3, ".0f", "3")],
)
def test_signs(value: float, form: str, text: str) -> None:
    assert signed(value, form) == text


def test_an_interval_that_nobody_knows_is_left_out() -> None:
    words = texts("en")
    assert ranged(-1.5, -2, 1, "+.1f", words, " nats") == "−1.5 nats [−2.0, +1.0]"
    assert ranged(-1.5, None, None, "+.1f", words, " nats") == "−1.5 nats"


def test_what_the_verdict_notes_is_said_in_chinese() -> None:
    words = texts("zh")
    assert noted(words, "fixed_width-h2-s1 (not begun)") == "fixed_width-h2-s1 （未开始）"
    assert noted(words, "its single heads could not be cut anew: none") == "其单头无法重新切分：none"
