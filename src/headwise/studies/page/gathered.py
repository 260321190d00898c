"""What the page shows beyond the verdict, read from the complete runs of a study: single heads, courses, costs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from headwise.studies.estimands import ByHead, Span, State
from headwise.studies.facts import Evaluation, Facts
from headwise.studies.folders import StudyFolder
from headwise.studies.numbers import Numbers, Where
from headwise.studies.plans import RunKey
from headwise.studies.verdict import Read

Heads: TypeAlias = Mapping[tuple[str, RunKey, State], ByHead]


class Costs(NamedTuple):
    """Of one regime and number of heads: means over seeds; None where nothing is known."""

    runs: int
    d_k: int
    parameters: int
    seconds: float | None
    bytes: float | None


@dataclass(frozen=True)
class Gathered:
    """A study as the page shows it.

    Attributes:
        name: The name of its folder, without those above it.
        read: What the verdict knows of it.
        heads: Numbers of single heads.
        course: The evaluations of each run, in order.
        costs: By regime and number of heads.
        versions: Of what trained the runs, e.g. `torch 2.5.0`.
    """

    name: str
    folder: StudyFolder
    read: Read
    heads: Heads
    course: Mapping[RunKey, list[Evaluation]]
    costs: Mapping[tuple[str, int], Costs]
    versions: tuple[str, ...]

    @property
    def numbers(self) -> Numbers:
        """The verdict's numbers."""
        return self.read.numbers

    def over_seeds(self, estimand: str, regime: str, heads: int, state: State = "trained") -> list[float]:
        """A number of all seeds that have it."""
        places = (Where(estimand, regime, heads, seed, state) for seed in self.numbers.plan.seeds)
        values = self.numbers.values
        return [values[place] for place in places if place in values]

    def lifts(self, regime: str, heads: int) -> dict[Span, list[float]]:
        """The self-lift of each position bin, over seeds."""
        found: dict[Span, list[float]] = {}
        for seed in self.numbers.plan.seeds:
            for span, value in self.numbers.lifts.get((regime, heads, seed), {}).items():
                found.setdefault(span, []).append(value)
        return dict(sorted(found.items()))

    def keys(self, regime: str, heads: int) -> Iterator[RunKey]:
        """The complete runs of a regime and a number of heads."""
        return (key for key in self.course if (key.regime, key.heads) == (regime, heads))


def gather(path: Path, read: Read) -> Gathered:
    """A study as the page shows it."""
    known = read.numbers.facts
    heads = {
        (name, key, state): of_heads for key, facts in known.items() for (name, state), of_heads in facts.heads.items()
    }
    course = {key: list(facts.course) for key, facts in known.items()}
    name = path.resolve().name
    versions = {f"{name} {version}" for facts in known.values() for name, version in facts.versions.items()}
    return Gathered(name, StudyFolder(path), read, heads, course, _costs(known), tuple(sorted(versions)))


def _costs(known: Mapping[RunKey, Facts]) -> dict[tuple[str, int], Costs]:
    together: dict[tuple[str, int], list[Facts]] = {}
    for key, facts in known.items():
        together.setdefault((key.regime, key.heads), []).append(facts)
    return {
        place: Costs(
            len(several), several[0].d_k, several[0].parameters, _mean(one.seconds for one in several),
            _mean(one.bytes for one in several),
        )
        for place, several in together.items()
    }  # fmt: skip


def _mean(several: Iterable[float | None]) -> float | None:
    known = [one for one in several if one is not None]
    return statistics.fmean(known) if known else None
