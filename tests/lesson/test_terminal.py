"""The lesson in a terminal: its width, its alignment in both languages, and its numbers."""

from __future__ import annotations

import io
import itertools
import re
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from headwise.lesson.contents import LANGUAGES, maps, number, texts
from headwise.lesson.matrices import heat, matrix, picture
from headwise.lesson.terminal import STEPS, Lesson, show
from headwise.lesson.working import example, work
from tests.lesson.states import states

NUMBERS = work(example())
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def printed(
    language: str = "en",
    width: int = 100,
    steps: Any = STEPS,
    state: dict[str, Any] | None = None,
    *,
    whole: bool = True,
    layer: int = 1,
    **console: Any,
) -> str:
    out = io.StringIO()
    lesson = Lesson(language, state or example(), Console(file=out, width=width, **console), layer=layer)
    show(lesson, steps, exercises=whole, whole=whole)
    return out.getvalue()


def step(n: int, language: str = "en", width: int = 100, **options: Any) -> str:
    return printed(language, width, [n], whole=False, **options)


def rows(text: str) -> list[list[str]]:
    """The numbers between brackets, line by line and matrix by matrix."""
    found = []
    for line in text.splitlines():
        found += [part.split() for part in re.findall(r"[⎡⎢⎣]([^⎤⎥⎦]*)[⎤⎥⎦]", line)]
    return found


def as_shown(values: list[float], decimals: int = 2) -> list[str]:
    return [number(float(value), decimals) for value in values]


both = pytest.mark.parametrize("language", LANGUAGES)


# Width


@both
@pytest.mark.parametrize("width", [40, 60, 73, 80, 100, 250])
def test_no_line_is_wider_than_the_terminal_nor_than_100_columns(language: str, width: int) -> None:
    lines = printed(language, width).splitlines()
    assert max(map(cell_len, lines)) <= min(max(width, 60), 100)
    assert len(lines) > 300
    if width >= 100:
        assert max(map(cell_len, lines)) == 100, "the width that there is, is used"


@both
@pytest.mark.parametrize("options", [
    {"tokens": ["a", "supercalifragilistic", "一个很长很长的词"]},
    {"heads": 4, "causal": True},
    {"heads": 1, "scale": False},
    {"look": 0, "target": ["an-even-longer-token", "b", "c", "d"]},
])  # fmt: skip
@pytest.mark.parametrize("width", [60, 100])
def test_nor_with_other_tokens_and_heads(language: str, options: dict[str, Any], width: int) -> None:
    assert max(map(cell_len, printed(language, width, state=example() | options).splitlines())) <= width


# A whole lesson is a slow example to shrink.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate], max_examples=20)
@given(states(), st.sampled_from(LANGUAGES), st.integers(60, 100))
def test_nor_with_any_state(state: dict[str, Any], language: str, width: int) -> None:
    assert max(map(cell_len, printed(language, width, state=state).splitlines())) <= width


@both
@pytest.mark.parametrize("width", [60, 80, 100])
def test_columns_of_a_matrix_stand_below_each_other(language: str, width: int) -> None:
    """In cells: a Chinese label takes two for a character."""
    for n in STEPS:
        lines = step(n, language, width).splitlines()
        for above, below in itertools.pairwise(lines):
            begun = {cell_len(above[: m.start()]) for m in re.finditer(r"[⎡⎢⎤⎥]", above)}
            going_on = {cell_len(below[: m.start()]) for m in re.finditer(r"[⎢⎣⎥⎦]", below)}
            assert begun == going_on, f"{above}\n{below}"


@both
def test_columns_of_a_table_stand_below_each_other(language: str) -> None:
    lines = step(4, language).splitlines()
    start = next(i for i, line in enumerate(lines) if "─────" in line and i > 5)
    table = [lines[start - 1], *lines[start + 1 : start + 6]]
    ends = [[cell_len(line[: m.end()]) for m in re.finditer(r"[\d,]+", line)] for line in table]
    assert len({tuple(line[-4:]) for line in ends}) == 1
    assert table[-1].split()[-4:] == ["216", "1,280", "84,800", "8,048,000"]


# Numbers


@both
def test_the_numbers_are_those_of_the_working(language: str) -> None:
    found = {n: rows(step(n, language)) for n in STEPS}
    x = [as_shown(row, 0) for row in example()["x"]]
    assert found[1] == x
    for name, decimals in (("q", 0), ("k", 1), ("v", 0)):
        for row in NUMBERS["qkv"][name]:
            assert as_shown(row, decimals) in found[2]
    for name, decimals in (("products", 1), ("scores", 2), ("weights", 2)):
        for row in NUMBERS["scores"][name]:
            assert as_shown(row, decimals) in found[3]
    assert ["0.70", "0.20", "0.10"] in found[3] and ["0.20", "0.10", "0.70"] in found[3]
    for row in (*NUMBERS["output"]["z"], *NUMBERS["output"]["parts"]):
        assert as_shown(row) in found[4]
    assert "  ".join(as_shown(NUMBERS["output"]["sum"])) in step(4, language)
    for weights in NUMBERS["masks"].values():
        for row in weights:
            assert any(_seen(shown) == as_shown([v for v in row if v]) for shown in found[6])
    for row in NUMBERS["places"]["cross"]:
        assert as_shown(row) in found[7]
    for head in NUMBERS["heads"]["heads"]:
        for name in ("weights", "z"):
            assert all(as_shown(row) in found[8] for row in head[name])
    assert sum(row == as_shown(NUMBERS["heads"]["out"][0]) for row in found[8]) == 2, "separate and fused"
    for cut in NUMBERS["cuts"]:
        for weights in cut["weights"]:
            assert all(as_shown(row) in found[9] for row in weights)
    for row in NUMBERS["cuts"][0]["sum"]:
        assert as_shown(row) in found[9]


def _seen(row: list[str]) -> list[str]:
    return [cell for cell in row if "░" not in cell]


@both
def test_self_focus_and_entropy_stand_beside_the_weights(language: str) -> None:
    ui = texts(language)["ui"]
    text = step(9, language)
    said = re.findall(rf"{ui['self_focus']} (\d\.\d\d)", text)
    assert sorted(said) == sorted(number(value) for cut in NUMBERS["cuts"] for value in cut["self_focus"])
    said = re.findall(rf"{ui['entropy']} (\d\.\d\d)", text)
    assert sorted(said) == sorted(number(value) for cut in NUMBERS["cuts"] for value in cut["entropy"])
    for value in NUMBERS["scores"]["self_focus"]:
        assert re.search(rf"⎤|⎥|⎦ +{number(value)} ", step(3, language))


@both
def test_the_table_of_step_5(language: str) -> None:
    text = step(5, language)
    for kind in ("scaled", "unscaled"):
        for name in ("deviation", "entropy", "largest", "gradient"):
            values = [number(one[kind][name]) for one in NUMBERS["random"]]
            label = re.escape(texts(language)["ui"][name])
            assert re.search(rf"{label} +{' +'.join(values)}\n", text), (kind, name)


@both
def test_every_text_of_a_step_is_printed(language: str) -> None:
    def words(text: str) -> str:
        return re.sub(r"\s", "", text)

    for n, found in enumerate(texts(language)["steps"], 1):
        said = words(step(n, language))
        for name in ("title", "figure", "ask", "answer", "note"):
            plain = [part for part in re.split(r"\{[^}]*\}", found.get(name, "")) if part.strip()]
            assert all(words(part) in said for part in plain), (n, name)
        for name in ("text", "after"):
            plain = [part for part in re.split(r"\{[^}]*\}", found.get(name, "")) if part.strip()]
            assert all(words(part) in said for part in plain), (n, name)
        assert all(words(choice) in said for choice in found["choices"])
        # The numbers stand between the question and its answer.
        assert said.index(words(found["choices"][-1])) < said.rindex(words(texts(language)["ui"]["answer"]))


@both
def test_the_exercises_come_with_hints_and_their_answers_at_the_end(language: str) -> None:
    text = printed(language, steps=[1])
    ui, exercises = texts(language)["ui"], texts(language)["exercises"]
    end = text[text.rindex(f"\n{ui['answer']}\n") :]
    before = text[: -len(end)]
    squeezed = re.sub(r"\s", "", before)
    for exercise in exercises:
        assert re.sub(r"\s", "", exercise["ask"]) in squeezed
        assert re.sub(r"\s", "", exercise["hint"]) in squeezed
        assert re.sub(r"\s", "", exercise["because"]) not in squeezed
        assert re.sub(r"\s", "", exercise["because"]) in re.sub(r"\s", "", end)
    assert [line.split()[1] for line in end.splitlines() if re.match(r"  \d\.", line)] == [
        "0.7", "64", "1.6", "1.386", "8,000,000",
    ]  # fmt: skip


def test_the_state_changes_what_is_printed() -> None:
    state = example() | {"causal": True, "scale": False, "tokens": ["I", "am", "who"], "heads": 4}
    text = step(3, state=state)
    numbers = work(state)["scores"]
    assert re.search(r"^ +I +am +who", text, re.MULTILINE)
    assert "√d_k = " not in "".join(line for line in text.splitlines() if "3 × 3" in line)
    for row, seen in zip(numbers["weights"], (1, 2, 3), strict=True):
        assert any(_seen(shown) == as_shown(row[:seen]) and len(shown) == 3 for shown in rows(text))
    assert "W_4^Q" in step(8, state=state)
    assert "encode I, spend 1.00" in " ".join(text.split())


# What a mask hides, colours, maps


def test_what_is_hidden_is_no_zero() -> None:
    shown = rows(step(6))
    padded, first = ["0.70", "0.20", "0.10", "░░░░░"], ["1.00", "░░░░░", "░░░░░", "░░░░░"]
    assert [shown.count(row) for row in (padded, first)] == [1, 2], "padding mask; causal mask, and both"
    assert shown.count(["0.20", "0.10", "0.70", "░░░░░"]) == 3, "the last word, under each of the masks"
    assert [sum(cell == "░░░░░" for row in shown[i : i + 8] for cell in row) for i in (0, 8)] == [4, 13]
    assert ["1.00", "0.00", "0.00"] in rows(step(9)), "a visible weight that rounds to 0"
    block = matrix("P", [[1.0, 0.0]], seen=[[True, False]], weights=True)
    assert block.lines[1].plain == "[ 1.00  ░░░░ ]"


def test_without_colour_there_is_none_and_with_colour_weights_have_a_ground() -> None:
    assert "\x1b" not in printed()
    coloured = step(3, force_terminal=True, color_system="truecolor")
    assert re.search(r"\x1b\[[0-9;]*48;2;\d+;\d+;\d+m 0\.70 ", coloured)
    assert ANSI.sub("", coloured) == step(3)
    plain = step(3, force_terminal=True, no_color=True, color_system="truecolor")
    assert not re.search(r"\x1b\[[0-9;]*(3[0-9]|4[0-9])[;m]", plain)
    assert ANSI.sub("", plain) == step(3)


@given(st.floats(0, 1))
def test_numbers_are_readable_on_their_ground(weight: float) -> None:
    style = heat(weight)
    assert style.color and style.bgcolor

    def luminance(color: Any) -> float:
        parts = [c / 255 for c in color.triplet]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(style.color), luminance(style.bgcolor)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5  # WCAG 2, AA


def test_brighter_is_more() -> None:
    grounds = [heat(i / 20).bgcolor for i in range(21)]
    brightness = [
        0.2126 * c.triplet.red + 0.7152 * c.triplet.green + 0.0722 * c.triplet.blue for c in grounds if c and c.triplet
    ]
    assert brightness == sorted(brightness) and len(set(brightness)) == 21


@both
@pytest.mark.parametrize("layer", [0, 5])
def test_the_maps_of_the_real_model(language: str, layer: int) -> None:
    found, ui = maps(), texts(language)["ui"]
    text = step(10, language, layer=layer)
    assert re.findall(r"L\d+H\d+", text.partition(ui["layer"])[2])[:12] == [f"L{layer}H{head}" for head in range(12)]
    said = re.findall(rf"{ui['self_focus']} (\d\.\d\d)", text)
    assert said == [number(value) for value in found["self_focus"][layer]]
    said = re.findall(rf"{ui['entropy']} (\d\.\d\d)", text)
    assert said == [number(value) for value in found["entropy"][layer]]
    assert " ".join(found["tokens"]) in text
    # L0H2 reads the token before: its shades are a diagonal.
    lines = text.splitlines()
    if layer == 0:
        start = next(i for i, line in enumerate(lines) if "L0H2" in line and "L0H3" in line)
        column = lines[start].index("L0H2")
        assert [lines[start + 1 + i][column : column + 16].find("█") for i in range(16)] == [0, *range(15)]


def test_a_map_is_two_rows_a_line_in_colour_and_a_shade_a_weight_without() -> None:
    weights = [[1.0, 0.0], [0.3, 0.05], [0.5, 0.2]]
    plain = picture("A", weights, colour=False)
    assert [line.plain for line in plain.lines] == ["A", "█ ", "▒░", "▓▒"]
    coloured = picture("A", weights, colour=True)
    assert [line.plain for line in coloured.lines] == ["A", "▀▀", "▀▀"]
    first = coloured.lines[1].spans[0].style
    assert not isinstance(first, str) and first.color == heat(1.0).bgcolor
