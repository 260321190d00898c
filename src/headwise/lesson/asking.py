"""The lesson as a conversation: the reader answers before the numbers are shown."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING, Any

from headwise.lesson.terminal import Lesson, letter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXERCISES = "exercises"


class Left(Exception):  # noqa: N818 - leaving is no error
    """The reader left.

    Attributes:
        at: The step, or `EXERCISES`.
    """

    def __init__(self, at: int | str) -> None:
        super().__init__(f"left at {at}")
        self.at = at


def converse(lesson: Lesson, steps: Sequence[int], *, exercises: bool, read: Callable[[str], str]) -> None:
    """Go through the lesson with a reader.

    Args:
        lesson: The lesson.
        steps: Which steps.
        exercises: Whether the exercises come after them.
        read: Shows a prompt and gives what is typed.

    Raises:
        Left: `read` raised EOFError or KeyboardInterrupt, which is the cause.
    """
    at: int | str = EXERCISES
    try:
        for at in steps:
            lesson.question(at)
            _choose(lesson, at, read)
            lesson.working(at)
        at = EXERCISES
        if exercises:
            lesson.heading(lesson.ui["exercises"])
            lesson.say(lesson.ui["exercises_ask"])
            for i, exercise in enumerate(lesson.texts["exercises"], 1):
                _solve(lesson, i, exercise, read)
    except (EOFError, KeyboardInterrupt) as cause:
        raise Left(at) from cause


def choice_of(typed: str, choices: int) -> int | None:
    """Which choice a letter means; None if it is none of them."""
    typed = _plain(typed).rstrip(").").lower()
    return next((i for i in range(choices) if typed == letter(i)), None)


def values_of(typed: str) -> list[float]:
    """What can be read in what was typed, a fraction too: "1,386" is a decimal to some and thousands to others."""
    written = re.sub(r"[\s'’]", "", _plain(typed)).replace("−", "-").replace("–", "-")
    forms = [re.sub(r"^([^,]*),([^,.]*)$", r"\1.\2", written)]
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", written):
        forms.append(written.replace(",", ""))
    if re.fullmatch(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?", written):
        forms.append(written.replace(".", "").replace(",", "."))
    return [value for form in forms if (value := _value_of(form)) is not None]


def _value_of(written: str) -> float | None:
    over, slash, under = written.partition("/")
    try:
        value = float(over) / float(under) if slash else float(over)
    except (ValueError, ZeroDivisionError):
        return None
    return value if math.isfinite(value) else None


def _choose(lesson: Lesson, step: int, read: Callable[[str], str]) -> None:
    found = lesson.texts["steps"][step - 1]
    letters = ", ".join(letter(i) for i in range(len(found["choices"])))
    while typed := read(f"  {lesson.ui['choose'].format(letters=letters)} > ").strip():
        chosen = choice_of(typed, len(found["choices"]))
        if chosen is not None:
            right = chosen == found["right"]
            lesson.say(lesson.ui["right" if right else "wrong"], "bold green" if right else "bold yellow")
            return
        lesson.say(lesson.ui["no_choice"].format(letters=letters))


def _solve(lesson: Lesson, i: int, exercise: dict[str, Any], read: Callable[[str], str]) -> None:
    lesson.exercise(i, exercise)
    while typed := read("   > ").strip():
        values = values_of(typed)
        if not values:
            lesson.say(lesson.ui["invalid"])
        elif any(abs(value - exercise["answer"]) <= exercise["tolerance"] for value in values):
            lesson.say(lesson.ui["correct"], "bold green")
            break
        else:
            lesson.say(lesson.ui["incorrect"], "bold yellow")
            lesson.hint(exercise)
    lesson.solved(exercise)


def _plain(typed: str) -> str:
    """Without full-width letters, digits and signs, which a Chinese keyboard gives."""
    return unicodedata.normalize("NFKC", typed.strip())
