"""Shows how far the runs of a study have come: a bar with the time left on a terminal, a line a run elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from headwise.studies.plans import Plan, RunKey

SPEED_PERIOD = 300.0
"""Seconds over which the speed is averaged: runs begin and end, and evaluations take their time."""


class Shown:
    """A `running.Watching` with a bar over all steps of all runs."""

    def __init__(self, bar: Progress, console: Console, plan: Plan, complete: int) -> None:
        self._bar, self._console, self._plan = bar, console, plan
        self._total, self._over = len(plan.runs), complete
        self._steps: dict[RunKey, int] = {}
        self._active: list[RunKey] = []
        self._total_steps = (self._total - complete) * plan.steps
        self._task: TaskID = bar.add_task("", total=self._total_steps)
        self._say()

    def begins(self, key: RunKey) -> None:
        """It is named on the bar."""
        self._active.append(key)
        self._say()

    def step(self, key: RunKey, step: int) -> None:
        """The bar moves."""
        done = step - self._steps.get(key, 0)
        if key not in self._steps:
            # What an earlier process did says nothing of the speed of this one.
            self._total_steps -= step
            self._bar.update(self._task, total=self._total_steps)
        else:
            self._bar.advance(self._task, done)
        self._steps[key] = step

    def finished(self, key: RunKey, final: dict[str, Any]) -> None:
        """A line, where there is no bar."""
        self._ends(key)
        if not self._console.is_terminal:
            score = final["score"][final["score_name"]]
            told = "undefined" if score is None else f"{score:.4g}"
            self._line(f"{key}: {final['score_name']} {told} ({self._count()})")

    def failed(self, key: RunKey, why: str) -> None:
        """A line in any case."""
        # Its other steps will not be done: they say nothing of the time that is left.
        self._total_steps -= self._plan.steps - self._steps.get(key, 0)
        self._bar.update(self._task, total=self._total_steps)
        self._leaves(key)
        self._line(f"{key} failed: {why}")

    def _ends(self, key: RunKey) -> None:
        self.step(key, self._plan.steps)
        self._leaves(key)

    def _leaves(self, key: RunKey) -> None:
        self._active.remove(key)
        self._over += 1
        self._say()

    def _count(self) -> str:
        return f"{self._over} of {self._total} runs"

    def _say(self) -> None:
        words = ", ".join([self._count(), *map(str, self._active)])
        self._bar.update(self._task, description=escape(words))

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def shown(console: Console, plan: Plan, complete: int) -> Iterator[Shown]:
    """A bar while the block runs.

    Args:
        console: Where to show it.
        plan: The plan whose runs are shown.
        complete: How many of its runs are complete already.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=SPEED_PERIOD
    ) as bar:
        yield Shown(bar, console, plan, complete)
