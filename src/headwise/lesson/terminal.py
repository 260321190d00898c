"""The lesson as text in a terminal, in 60 to 100 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from headwise.lesson.boards import Board, drawn
from headwise.lesson.contents import filled, number, texts
from headwise.lesson.formulas import FORMULAS
from headwise.lesson.layout import wrapped
from headwise.lesson.working import State, work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

NARROWEST, WIDEST = 60, 100
_PROSE = 84
_INDENT = 2

STEPS = range(1, 12)


class Lesson:
    """The lesson on a console.

    Args:
        language: One of `contents.LANGUAGES`.
        state: The state whose numbers it shows.
        console: Where it is printed; its width is kept within 60 and 100 columns.
        layer: The layer of the real model that step 10 shows.
    """

    def __init__(self, language: str, state: State, console: Console, *, layer: int = 1) -> None:
        self.texts = texts(language)
        self.ui: dict[str, str] = self.texts["ui"]
        self.state, self.numbers = state, work(state)
        self.console = console
        self.width = console.width = min(max(console.width, NARROWEST), WIDEST)
        colour = console.color_system is not None and not console.no_color and console.encoding.startswith("utf")
        self.board = Board(state, self.numbers, self.ui, self.width - _INDENT, colour, layer)

    # Its parts

    def opening(self) -> None:
        """Title and lead."""
        self._line(Text(self.texts["title"], "bold"))
        self._prose(self.texts["subtitle"], style="dim")
        self._paragraphs(self.texts["lead"])

    def question(self, step: int) -> None:
        """A step up to its question.

        Args:
            step: 1 .. 11.
        """
        found = self._step(step)
        self.heading(f"{self.ui['step'].format(n=step)} · {found['title']}", found["figure"])
        self._paragraphs(found["text"])
        if "formula" in found:
            self._formula(found["formula"])
        self._line()
        self._label(self.ui["ask"], "magenta")
        self._prose(found["ask"], indent=_INDENT)
        for i, choice in enumerate(found["choices"]):
            self._prose(choice, indent=_INDENT + 2, first=f"{letter(i)}) ")

    def working(self, step: int) -> None:
        """A step from its numbers to its end.

        Args:
            step: 1 .. 11.
        """
        found = self._step(step)
        lines = drawn(found["id"], self.board)
        if lines:
            self._line()
        for line in lines:
            for part in self._table(line) if isinstance(line, Table) else [line]:
                self._line(part, _INDENT)
        if "after" in found:
            self._paragraphs(found["after"])
        self._line()
        right = found["right"]
        self._label(self.ui["answer"], "green")
        self._prose(found["choices"][right], indent=_INDENT, first=f"{letter(right)}) ", style="bold")
        self._prose(found["answer"], indent=_INDENT)
        if "note" in found:
            self._line()
            self._label(self.ui["note"], "yellow")
            self._prose(found["note"], indent=_INDENT)

    def exercises(self) -> None:
        """The exercises with their hints, and their answers below them."""
        self.heading(self.ui["exercises"])
        for i, exercise in enumerate(self.texts["exercises"], 1):
            self.exercise(i, exercise)
            self.hint(exercise)
        self._line()
        self._label(self.ui["answer"], "green")
        for i, exercise in enumerate(self.texts["exercises"], 1):
            self.solved(exercise, f"{i}. ")

    def exercise(self, i: int, exercise: dict[str, Any]) -> None:
        """One exercise's question.

        Args:
            i: Its number, from 1.
            exercise: Its texts.
        """
        self._line()
        self._prose(exercise["ask"], first=f"{i}. ")

    def hint(self, exercise: dict[str, Any]) -> None:
        """What helps with an exercise."""
        self._prose(exercise["hint"], first=f"{self.ui['hint']}  ", indent=_INDENT + 1, style="dim")

    def solved(self, exercise: dict[str, Any], mark: str = "") -> None:
        """An exercise's answer and why."""
        indent = _INDENT if mark else _INDENT + 1
        self._prose(exercise["because"], indent=indent, first=f"{mark}{solution(exercise)}  ")

    def closing(self) -> None:
        """Where it goes on."""
        self._line()
        self._prose(self.ui["terminal_next"], style="dim")

    def say(self, text: str, style: str = "") -> None:
        """A remark on what the reader typed."""
        self._prose(text, indent=_INDENT, style=style)

    # How it is printed

    def _step(self, step: int) -> dict[str, Any]:
        found: dict[str, Any] = self.texts["steps"][step - 1]
        return found

    def heading(self, title: str, figure: str = "") -> None:
        """A title across the width.

        Args:
            title: The title.
            figure: The article's figure, at its end or below it.
        """
        *above, last = wrapped(title, self.width - 6)
        line = Text("── ", "dim").append(last, "not dim bold").append(" ")
        end = f" {figure} ──" if figure else ""
        if self.width - line.cell_len - cell_len(end) < 2:
            end = ""
        line.append("─" * (self.width - line.cell_len - cell_len(end)) + end)
        self._line()
        for part in above:
            self._line(Text(part, "bold"), 3)
        self._line(line)
        if figure and not end:
            self._prose(f"{self.ui['article']}{self.ui['colon']}{figure}", style="dim")

    def _table(self, table: Table) -> list[Text]:
        lines = self.console.render_lines(table, self.console.options.update_width(self.width - _INDENT), pad=False)
        return [Text.assemble(*((part.text, part.style or "") for part in line)) for line in lines]

    def _formula(self, name: str) -> None:
        formula = FORMULAS[name]
        mark = f"   ({formula.number})" if formula.number else ""
        lines = [f"{formula.plain}{mark}"]
        if cell_len(lines[0]) > self.width - 2 * _INDENT:
            parts = formula.plain.split(",   ")
            lines = [f"{part}," for part in parts[:-1]] + [f"{parts[-1]}{mark}"]
        self._line()
        for line in lines:
            self._line(Text(line, "bold"), 2 * _INDENT)

    def _paragraphs(self, text: str) -> None:
        for paragraph in filled(text.strip(), self.state, self.numbers).split("\n\n"):
            self._line()
            self._prose(paragraph)

    def _label(self, text: str, colour: str) -> None:
        self._line(Text(text, f"bold {colour}"))

    def _prose(self, text: str, *, indent: int = 0, first: str = "", style: str = "") -> None:
        """Text within the width, its first line after a mark, the others under it."""
        full = filled(text, self.state, self.numbers)
        margin = indent + cell_len(first)
        for i, line in enumerate(wrapped(full, min(self.width, _PROSE) - margin)):
            self._line(Text(f"{'' if i else first}{line}", style), margin if i else indent)

    def _line(self, line: Text | None = None, indent: int = 0) -> None:
        shown = Text(" " * indent if line else "").append_text(line or Text())
        shown.rstrip()
        self.console.print(shown, no_wrap=True, overflow="ignore", crop=False)


def letter(choice: int) -> str:
    """The letter of a choice: a, b, c."""
    return "abcdefgh"[choice]


def solution(exercise: dict[str, Any]) -> str:
    """An exercise's answer as it is written: 0.7, 1.386, 8,000,000."""
    answer = exercise["answer"]
    return number(answer, len(str(answer).partition(".")[2]))


def show(lesson: Lesson, steps: Sequence[int] = STEPS, *, exercises: bool = True, whole: bool = True) -> None:
    """Print the lesson.

    Args:
        lesson: The lesson.
        steps: Which steps.
        exercises: Whether the exercises come after them.
        whole: Whether with its opening and closing.
    """
    if whole:
        lesson.opening()
    for step in steps:
        lesson.question(step)
        lesson.working(step)
    if exercises:
        lesson.exercises()
    if whole:
        lesson.closing()
