"""What a benchmark is made of: a case, its points, its variants, and the workload that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["attention", "model", "length"]
Value: TypeAlias = str | int
Parameters: TypeAlias = Mapping[str, Value]

Operation: TypeAlias = Callable[[], Mapping[str, float] | None]
"""What is timed. It may return further numbers of the run, such as `html_bytes`."""

Workload: TypeAlias = Callable[[Parameters], Callable[[str], Operation]]
"""Takes a point's parameters, makes what all variants share, and gives a variant's operation, warm and ready to run."""


class NotRunError(Exception):
    """A variant cannot run here, or is not worth it; the message says why. It stands in the result."""


@dataclass(frozen=True)
class Variant:
    """One way to do what a case measures.

    Attributes:
        name: A short name.
        about: What it is, in a line.
        peer: The key in `peers.PEERS` of the project that it needs, or None.
    """

    name: str
    about: str
    peer: str | None = None


@dataclass(frozen=True)
class Point:
    """One size at which all variants run.

    Attributes:
        name: `2048 x 64, causal`.
        parameters: What the workload takes; they stand in the result.
        cost: About how long it takes, in any unit that the points of a case share: for the time left.
    """

    name: str
    parameters: Parameters
    cost: float = 1.0


@dataclass(frozen=True)
class Case:
    """A benchmark.

    Attributes:
        name: Its name, and that of its result file.
        level: What is measured: one attention call, a whole model, or one layer at great length.
        about: What is measured, in a line.
        points: The sizes.
        variants: What is compared.
        baseline: The variant that ratios are taken to.
        workload: `module:function`, a `Workload`: a fresh process imports it.
        turns: Samples of each variant.
        warmups: Turns before them that are not kept.
        repeats: Runs of a sample, one after the other: its time is their median, its memory that of the first.
        fresh: Whether each sample has a process of its own.
        prepare: Called once before the first point; what it returns joins the parameters, but not the result
            (where a model lies on this machine).
    """

    name: str
    level: Level
    about: str
    points: tuple[Point, ...]
    variants: tuple[Variant, ...]
    baseline: str
    workload: str
    turns: int
    warmups: int = 0
    repeats: int = 1
    fresh: bool = False
    prepare: Callable[[], Parameters] | None = None

    def __post_init__(self) -> None:
        """Check what the runner relies on.

        Raises:
            ValueError: Names are not unique, the baseline is no variant, or there is nothing to run.
        """
        names = [variant.name for variant in self.variants]
        points = [point.name for point in self.points]
        if len(set(names)) != len(names) or len(set(points)) != len(points):
            raise ValueError(f"case {self.name}: names of variants and points must be unique; got {names}, {points}")
        if self.baseline not in names:
            raise ValueError(f"case {self.name}: the baseline must be one of {names}; got {self.baseline!r}")
        if not points or self.turns < 1 or self.repeats < 1:
            got = f"{len(points)}, {self.turns} and {self.repeats}"
            raise ValueError(f"case {self.name}: expected points, turns and repeats; got {got}")


def load_workload(path: str) -> Workload:
    """The function that `module:function` names."""
    module, _, function = path.partition(":")
    workload: Workload = getattr(import_module(module), function)
    return workload
