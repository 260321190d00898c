"""Shows on a terminal how far a run of benchmarks has come; elsewhere it says a line a point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from headwise.benchmarks.cases import Case, Point
from headwise.benchmarks.results import Measured
from headwise.benchmarks.tables import line_of


class Shown:
    """A `runner.Watching` with a bar whose steps weigh what they cost."""

    def __init__(self, bar: Progress, console: Console) -> None:
        self._bar, self._console = bar, console
        self._task = TaskID(0)
        self._points: dict[str, Point] = {}
        self._done = self._in_point = 0.0

    def starts(self, case: Case, points: Sequence[Point]) -> None:
        """A bar for the case."""
        self._points = {point.name: point for point in points}
        self._done = self._in_point = 0.0
        total = sum(_cost(case, point) for point in points)
        self._task = self._bar.add_task(escape(case.name), total=total)

    def step(self, case: Case, point: Point, variant: str, turn: int) -> None:
        """The step before is done; this one begins."""
        which = f"run {turn + 1} of {case.turns}" if turn >= 0 else "warm-up"
        words = escape(f"{case.name}: {point.name}: {variant}, {which}")
        self._bar.update(self._task, description=words, completed=self._done + self._in_point)
        self._in_point += point.cost

    def finished(self, case: Case, measured: Measured) -> None:
        """The point's share of the bar, variants that were left out included; a line where there is no bar."""
        self._done += _cost(case, self._points[measured.name])
        self._in_point = 0.0
        self._bar.update(self._task, completed=self._done)
        if not self._console.is_terminal:
            self._console.print(line_of(case.baseline, measured), markup=False, highlight=False, soft_wrap=True)


def _cost(case: Case, point: Point) -> float:
    return point.cost * len(case.variants) * (case.turns + case.warmups)


@contextmanager
def shown(console: Console) -> Iterator[Shown]:
    """A bar while the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield Shown(bar, console)
