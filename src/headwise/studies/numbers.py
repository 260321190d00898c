"""The numbers of a study, run by run, as a verdict takes them: by estimand, regime, number of heads and seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headwise.errors import InputError
from headwise.studies.estimands import Span, State
from headwise.studies.facts import Facts, facts_of

if TYPE_CHECKING:
    from headwise.studies.folders import RunFolder, StudyFolder
    from headwise.studies.plans import Plan, RunKey


class Where(NamedTuple):
    """Which number it is: of a run, trained or not; of a layer, or (None) of all."""

    estimand: str
    regime: str
    heads: int
    seed: int
    state: State = "trained"
    layer: int | None = None


@dataclass(frozen=True)
class Numbers:
    """What the complete runs of a study came to.

    Attributes:
        label: What tells it from other studies: its task, and what differs from the task's own settings.
        plan: Its plan.
        values: The estimands, and the numbers of `headwise.studies.facts.BESIDE`; one that is undefined is absent.
        lifts: `self_lift` by positions, of trained models.
        missing: Runs that are not complete, each with what is known of why.
        score_name: Which score; "" where no run is complete.
        higher_is_better: Whether more of it is better.
        facts: All that is known of each complete run.
    """

    label: str
    plan: Plan
    values: dict[Where, float] = field(default_factory=dict)
    lifts: dict[tuple[str, int, int], dict[Span, float]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    score_name: str = ""
    higher_is_better: bool = True
    facts: dict[RunKey, Facts] = field(default_factory=dict)

    @property
    def is_control(self) -> bool:
        """Whether it is a study with other initial weights, which is not counted among the tasks."""
        return self.plan.init != "fused"


def numbers_of(folder: StudyFolder) -> Numbers:
    """Read all complete runs of a study.

    Raises:
        InputError: There is no study.
        FileFormatError: A file is damaged.
    """
    plan = folder.plan()
    values: dict[Where, float] = {}
    lifts: dict[tuple[str, int, int], dict[Span, float]] = {}
    missing: list[str] = []
    known: dict[RunKey, Facts] = {}
    score_name, higher = "", True
    for run in folder.runs():
        if not run.is_complete:
            missing.append(f"{run.key} ({_why(run)})")
            continue
        key = run.key
        known[key] = facts = facts_of(run)
        score_name, higher = facts.score_name, facts.higher_is_better
        for number, value in facts.values.items():
            values[Where(number.estimand, key.regime, key.heads, key.seed, number.state, number.layer)] = value
        lifts[key.regime, key.heads, key.seed] = dict(facts.lifts)
    return Numbers(label_of(plan), plan, values, lifts, tuple(missing), score_name, higher, known)


def _why(run: RunFolder) -> str:
    if run.error() is not None:
        return "failed"
    return "begun" if run.log() else "not begun"


def label_of(plan: Plan) -> str:
    """What tells a study from another: `text on corpus.txt`, `lookup, asked=4`, `digits, init=per_head`."""
    from headwise.studies import tasks

    parts = [plan.task + (f" on {_files(plan)}" if plan.data else "")]
    try:
        defaults: Mapping[str, object] = tasks.find(plan.task).options
    except InputError:  # a task of the user's own, whose module is not at hand
        defaults = {}
    parts += [f"{name}={value}" for name, value in plan.options.items() if value != defaults.get(name)]
    if plan.init != "fused":
        parts.append(f"init={plan.init}")
    return ", ".join(parts)


def _files(plan: Plan) -> str:
    from pathlib import PurePath

    names = [PurePath(one.path).name for one in plan.data]
    return ", ".join(names) if len(names) <= 2 else f"{len(names)} files ({names[0]}, ...)"
