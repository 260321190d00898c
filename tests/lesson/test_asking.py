"""The lesson as a conversation: what is typed is checked, and the reader may leave."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from headwise.lesson.asking import Left, choice_of, converse, values_of
from headwise.lesson.contents import texts
from headwise.lesson.terminal import Lesson
from headwise.lesson.working import example


def conversation(*typed: str | BaseException, steps: Any = (2,), exercises: bool = False) -> tuple[str, list[str]]:
    out, prompts, waiting = io.StringIO(), [], list(typed)

    def read(prompt: str) -> str:
        prompts.append(prompt)
        next_one = waiting.pop(0)
        if isinstance(next_one, BaseException):
            raise next_one
        out.write(f"<{next_one}>\n")
        return next_one

    lesson = Lesson("en", example(), Console(file=out, width=100))
    try:
        converse(lesson, steps, exercises=exercises, read=read)
    finally:
        assert not waiting or isinstance(waiting[0], BaseException)
    return out.getvalue(), prompts


@pytest.mark.parametrize(("typed", "verdict"), [
    ("a", "Right."), ("A) ", "Right."), ("ａ", "Right."), ("b", "Not quite."), ("c.", "Not quite."), ("", None),
])  # fmt: skip
def test_a_question_waits_and_says_whether_it_was_right(typed: str, verdict: str | None) -> None:
    said, prompts = conversation(typed)
    before, after = said.split(f"<{typed}>")
    assert "c) all rows" in before and "W^K  4 × 4" not in before
    assert "W^K  4 × 4" in after and "a) only its own row" in after
    assert prompts == ["  a, b, c; Enter alone shows the answer > "]
    for one in ("Right.", "Not quite."):
        assert (one in said) == (one == verdict)


def test_each_step_has_its_own_right_choice() -> None:
    for n, found in enumerate(texts("en")["steps"], 1):
        for i, typed in enumerate("abc"):
            said, _ = conversation(typed, steps=(n,))
            assert ("Right." in said) == (i == found["right"]), (n, typed)


def test_what_is_no_choice_is_asked_again() -> None:
    said, prompts = conversation("z", "d", "aa", "a")
    assert len(prompts) == 4 and "Right." in said


def test_exercises_are_typed_and_checked() -> None:
    said, _ = conversation("many", "0.5", "7/10", "64", "", "1.386", "8,000,000", steps=(), exercises=True)
    assert "not a number" in said
    assert said.index("<0.5>") < said.index("Not yet.") < said.index("e to the scores") < said.index("<7/10>")
    assert said.count("Correct.") == 4
    assert "e to the scores" in said and "Equation 3." not in said
    assert all(exercise["because"][:20] in said for exercise in texts("en")["exercises"])


@pytest.mark.parametrize("cause", [EOFError(), KeyboardInterrupt()])
@pytest.mark.parametrize(
    ("typed", "at"), [((), 3), (("a",), 4), (("a", ""), "exercises"), (("a", "", "1"), "exercises")]
)
def test_a_reader_may_leave(cause: BaseException, typed: tuple[str, ...], at: int | str) -> None:
    with pytest.raises(Left) as left:
        conversation(*typed, cause, steps=(3, 4), exercises=True)
    assert left.value.at == at
    assert left.value.__cause__ is cause


@pytest.mark.parametrize(("typed", "values"), [
    ("0.7", [0.7]), (" 7/10 ", [0.7]), ("8,000,000", [8e6]), ("8e6", [8e6]), ("０．７", [0.7]), ("−1", [-1.0]),
    ("0,7", [0.7]), ("1,386", [1.386, 1386]), ("1.386", [1.386, 1386]), ("8 000 000", [8e6]), ("8.000.000", [8e6]),
    ("8’000’000", [8e6]), ("1.386,5", [1386.5]), ("1,386.5", [1386.5]), ("0,7/2", [0.35]), ("1/0", []), ("", []),
    ("nan", []), ("inf", []), ("1e999", []), ("x", []), ("1/2/3", []), ("9" * 400, []),
])  # fmt: skip
def test_numbers_that_are_typed(typed: str, values: list[float]) -> None:
    """As the page reads them: a decimal comma, and thousands with any mark."""
    assert values_of(typed) == pytest.approx(values)


def test_letters_that_are_typed() -> None:
    assert [choice_of(typed, 3) for typed in ("a", "B", " c) ", "d", "", "ab", "1")] == [
        0,
        1,
        2,
        None,
        None,
        None,
        None,
    ]
