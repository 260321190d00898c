"""Laying out text and matrices in cells: lines, blocks, what stands below what."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from headwise.lesson.layout import clipped, flow, sign, wrapped
from headwise.lesson.matrices import matrix


def test_chinese_text_is_broken_between_characters_but_not_before_a_stop() -> None:
    assert wrapped("一二三四五六七", 6) == ["一二三", "四五六", "七"]
    assert wrapped("一二三，四五", 6) == ["一二", "三，四", "五"]
    assert wrapped("一二（三四）五", 6) == ["一二", "（三", "四）五"]
    assert wrapped("矩阵 X：每个词", 8) == ["矩阵 X：", "每个词"]


def test_english_text_is_broken_at_spaces_and_formulas_are_kept() -> None:
    assert wrapped("one two three", 7) == ["one two", "three"]
    assert wrapped("it is d_k = 4 here", 9) == ["it is", "d_k = 4", "here"]
    assert wrapped("so Q Kᵀ is", 6) == ["so", "Q Kᵀ", "is"]
    assert wrapped("incomprehensibilities", 8) == ["incompre", "hensibil", "ities"]
    assert wrapped("  one\n two  ", 20) == ["one two"]
    assert wrapped("", 10) == [""]


@given(st.text(st.sampled_from("ab ，。（）“”我是谁=·×Qᵀ√_k"), max_size=60), st.integers(4, 30))
def test_wrapping_loses_nothing(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", text)


def test_labels_are_clipped_by_cells() -> None:
    assert clipped("我们大家一起来", 8) == "我们大…"
    assert clipped("abcdefgh", 8) == "abcdefgh"
    assert clipped("abcdefghi", 8) == "abcdefg…"


def test_blocks_flow_and_an_operator_begins_a_line() -> None:
    a = matrix("A", [[1.0, 2.0], [3.0, 4.0]])
    assert [line.plain for line in flow([a, sign("+"), a], 100)] == [
        "A  2 × 2       A  2 × 2",
        "⎡ 1  2 ⎤   +   ⎡ 1  2 ⎤",
        "⎣ 3  4 ⎦       ⎣ 3  4 ⎦",
    ]
    assert [line.plain for line in flow([a, sign("+"), a], 20)] == [
        "A  2 × 2", "⎡ 1  2 ⎤", "⎣ 3  4 ⎦", "", "    A  2 × 2", "+   ⎡ 1  2 ⎤", "    ⎣ 3  4 ⎦",
    ]  # fmt: skip
    # Six that do not fit are three and three, not five and one.
    lines = [line.plain for line in flow([a] * 6, 55)]
    assert [line.count("A") for line in lines if "A" in line] == [3, 3]


def test_a_matrix_shows_as_few_decimals_as_say_all() -> None:
    assert [line.plain for line in matrix("A", [[0, -0.1], [2.0, 0.3]]).lines[1:]] == [
        "⎡  0.0  −0.1 ⎤",
        "⎣  2.0   0.3 ⎦",
    ]
    assert matrix("A", [[1.0, -2.0]]).lines[1].plain == "[  1  −2 ]"
    assert matrix("A", [[1 / 3]]).lines[1].plain == "[ 0.33 ]"
