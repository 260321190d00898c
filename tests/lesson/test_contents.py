"""The texts: the same in both languages, with every number and formula there, and written properly."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwise.lesson
from headwise.lesson.contents import LANGUAGES, PLACE, filled, number, texts, tiny
from headwise.lesson.formulas import FORMULAS
from headwise.lesson.working import example, work

HOME = Path(headwise.lesson.__file__).parent
EN, ZH = (texts(language) for language in LANGUAGES)
STATE = example()
NUMBERS = work(STATE)
# Texts that are filled from the state; the others take what {name} says through str.format.
FILLED = ("title", "subtitle", "lead", "steps", "exercises")

each_language = pytest.mark.parametrize("language", LANGUAGES)


def strings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every text, with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from strings(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from strings(inner, f"{path}.{i}")
    elif isinstance(value, str):
        yield path, value


def prose(language: str) -> list[tuple[str, str]]:
    """The texts that are read, without ids, names of formulas and the other language's name."""
    return [
        (path, text)
        for path, text in strings(texts(language))
        if not path.endswith((".id", ".formula")) and path != "ui.language"
    ]


# Both languages


def test_both_languages_have_one_structure() -> None:
    def structure(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: structure(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [structure(inner) for inner in value]
        return type(value) if isinstance(value, str) and key not in ("id", "formula") else value

    assert structure(EN) == structure(ZH)
    assert list(EN["ui"]) == list(ZH["ui"])


def test_both_languages_have_the_same_places() -> None:
    english, chinese = dict(strings(EN)), dict(strings(ZH))
    for path, text in english.items():
        assert set(re.findall(r"\{[^}]*\}", text)) == set(re.findall(r"\{[^}]*\}", chinese[path])), path


def test_the_steps_are_eleven_and_each_asks() -> None:
    assert [step["id"] for step in EN["steps"]] == [
        "tokens", "qkv", "weights", "output", "scale", "masks", "places", "heads", "cuts", "model", "claims",
    ]  # fmt: skip
    assert len(EN["exercises"]) == 5
    for words in (EN, ZH):
        for step in words["steps"]:
            assert step["figure"] and step["text"].strip() and step["ask"] and step["answer"]
            assert len(set(step["choices"])) == len(step["choices"]) == 3
            assert 0 <= step["right"] < 3
    rights = [step["right"] for step in EN["steps"]]
    assert all(rights.count(i) >= 2 for i in range(3)), "the right answer stands in every place"


# Numbers and formulas


@each_language
def test_every_place_is_filled(language: str) -> None:
    for part in FILLED:
        for path, text in strings(texts(language)[part], part):
            said = filled(text, STATE, NUMBERS)
            assert not re.search(r"[{}]", said), path
            for match in PLACE.finditer(text):
                assert filled(match[0], STATE, NUMBERS) not in ("", "–"), f"{path}: {match[0]}"


def test_what_a_state_no_longer_has_is_a_dash() -> None:
    state = example()
    for name in ("tokens", "x"):
        state[name] = state[name][:1]
    state["look"] = 0
    state["wide"]["x"] = state["wide"]["x"][:1]
    numbers = work(state)
    assert filled("{state.tokens.0} {state.tokens.2}", state, numbers) == "我 –"
    assert filled("{scores.weights.2.1}", state, numbers) == "–"
    for language in LANGUAGES:
        for part in FILLED:
            for _, text in strings(texts(language)[part]):
                filled(text, state, numbers)


def test_places_ask_for_decimals_rows_and_ends() -> None:
    def said(text: str) -> str:
        return filled(text, STATE, NUMBERS)

    assert said("{scores.weights.0.0}") == "0.70"
    assert said("{scores.weights.0.0:3}") == "0.700"
    assert said("{scores.weights.look.last}") == number(NUMBERS["scores"]["weights"][1][2]) == "0.30"
    assert said("{state.tokens.look}, {state.tokens.last}, {state.tokens}") == "是, 谁, 我 是 谁"
    assert said("{counts.last.attention_multiplications}") == "8,048,000"
    assert said("{heads.difference:e}") == tiny(NUMBERS["heads"]["difference"])
    with pytest.raises(KeyError):
        said("{scores.nothing}")


@pytest.mark.parametrize(("value", "decimals", "said"), [
    (0.7, 2, "0.70"), (-0.004, 2, "0.00"), (-1.5, 1, "−1.5"), (-1234567, 2, "−1,234,567"), (3, 2, "3"),
    (0.125, 3, "0.125"), ("我", 2, "我"),
])  # fmt: skip
def test_numbers_as_the_lesson_writes_them(value: object, decimals: int, said: str) -> None:
    assert number(value, decimals) == said


@pytest.mark.parametrize(("value", "said"), [(0.0, "0"), (4.4e-16, "4e−16"), (1e-9, "1e−9"), (0.5, "5e−1")])
def test_a_tiny_number_is_its_size(value: float, said: str) -> None:
    assert tiny(value) == said


def test_every_formula_exists_and_is_used() -> None:
    assert {step["formula"] for step in EN["steps"] if "formula" in step} == set(FORMULAS)
    for formula in FORMULAS.values():
        assert formula.plain and formula.latex.count("{") == formula.latex.count("}")
        assert formula.mathml.startswith("<math") and formula.mathml.endswith("</math>")
        parts = formula.plain.split(",   ")
        assert len(parts) == len(formula.equations) == len(formula.latex.split(r", \quad "))
    assert [FORMULAS[name].number for name in ("attention", "multihead", "cut")] == ["1", "2", "3"]


# Exercises, each worked out


def answer(name: str) -> float:
    p = [math.exp(score) for score in (math.log(7), math.log(2), 0)]
    weights, column = (0.2, 0.1, 0.7), (1, 0, 2)
    return {
        "softmax": max(p) / sum(p),
        "width": 768 / 12,
        "sum": sum(w * v for w, v in zip(weights, column, strict=True)),
        "entropy": -sum(1 / 4 * math.log(1 / 4) for _ in range(4)),
        "count": 8 * 1000 * 1000,
    }[name]


@each_language
def test_the_answers_of_the_exercises(language: str) -> None:
    for exercise in texts(language)["exercises"]:
        right = answer(exercise["id"])
        assert abs(exercise["answer"] - right) <= exercise["tolerance"] / 2
        assert exercise["tolerance"] < 0.02 * right, "a guess does not pass"
        shown = number(exercise["answer"], len(str(exercise["answer"]).partition(".")[2]))
        million = ("8 million", "八百万")
        assert shown in exercise["because"] or any(one in exercise["because"] for one in million)


def test_the_exercise_on_the_sum_has_the_articles_numbers() -> None:
    assert [round(value, 1) for value in NUMBERS["scores"]["weights"][2]] == [0.2, 0.1, 0.7]
    assert [row[0] for row in NUMBERS["qkv"]["v"]] == [1, 0, 1]


# Short texts


def test_every_short_text_is_used() -> None:
    files = [
        *HOME.glob("*.py"),
        *HOME.glob("templates/*"),
        *HOME.glob("static/*.js"),
        HOME.parent / "cli" / "lesson.py",
    ]
    code = "\n".join(file.read_text("utf-8") for file in files)
    # Names that are put together: ui(`tally_${kind}`)
    made = [re.sub(r"\\\$\\\{.*?\\\}", r"\\w+", re.escape(name)) for name in re.findall(r"ui\(`([^`]*)`", code)]
    for section in ("ui", "notebook"):
        unused = [
            name
            for name in EN[section]
            if not re.search(rf"\b{name}\b", code) and not any(re.fullmatch(pattern, name) for pattern in made)
        ]
        assert unused == [], section


# Writing

SEPARATORS = ("ui.colon", "ui.list", "ui.stop")


@each_language
def test_no_text_has_stray_spaces_or_dashes(language: str) -> None:
    for path, text in strings(texts(language)):
        assert "  " not in text and "\t" not in text, path
        assert "—" not in text, path
        assert text.strip("\n") == text.strip() or path in SEPARATORS, path
        assert text.count("(") == text.count(")") and text.count("（") == text.count("）"), path
        assert text.count("“") == text.count("”"), path


def test_english_punctuation() -> None:
    for path, text in prose("en"):
        assert not re.search(r"[，。：；？！（）、《》]", text), path
        assert not re.search(r"[\"']", text), f"{path}: quotes and apostrophes are typographic"
        bare = PLACE.sub("7", text)
        assert not re.search(r" [,.:;?!](?!\w)", bare), path
        assert not re.search(r"[,;:?!][A-Za-z]", bare), path
    for step in EN["steps"]:
        assert step["ask"].endswith("?") and step["answer"].endswith(".") and step["title"][0].isupper()


HAN = r"[\u4e00-\u9fff]"


def test_chinese_punctuation() -> None:
    for path, text in prose("zh"):
        bare = PLACE.sub("7", text)
        for wrong in (
            rf"{HAN}[,.:;?!()]",
            rf"[,.:;?!()]{HAN}",
            r"[\"'‘’]",
            rf"{HAN}[A-Za-z0-9]|[A-Za-z0-9]{HAN}",  # a space parts the scripts
            r" [，。：；？！）”、]|[，。：；？！（“、] ",
        ):
            assert not re.search(wrong, bare), f"{path}: {re.search(rf'.{{0,8}}(?:{wrong}).{{0,8}}', bare)}"
    for step in ZH["steps"]:
        assert step["ask"].endswith("？") and step["answer"].endswith("。")
