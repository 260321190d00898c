"""Small plans, and what two runs must have in common to be equal."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from headwise.studies import running, tasks
from headwise.studies.folders import CLOCK, RunFolder, StudyFolder
from headwise.studies.planning import planned
from headwise.studies.plans import Plan, RunKey
from headwise.studies.tasks.protocol import Task
from headwise.studies.training import train

OPTIONS = {"keys": "4", "values": "3", "queries": "3", "held_out": "3"}
SIZES: dict[str, Any] = {
    "heads": (1, 2), "seeds": 1, "d_model": 8, "num_layers": 1, "d_ff": 16, "dropout": 0.1, "steps": 6, "batch": 4,
    "length": 7, "evaluate_every": 2, "warmup": 2,
}  # fmt: skip
KEY = RunKey("fixed_width", 2, 0)


def small_plan(**changes: Any) -> Plan:
    """A study of lookup, of some steps."""
    return planned("lookup", options=changes.pop("options", OPTIONS), **{**SIZES, **changes})


def task_of(plan: Plan, folder: Path) -> Task:
    return tasks.make(plan.task, plan.settings(folder))


def trained(plan: Plan, folder: Path, key: RunKey = KEY, watching: Any = None) -> RunFolder:
    """Train one run of a plan in a folder."""
    run = StudyFolder(folder).run(key)
    train(plan, key, task_of(plan, folder), run, watching)
    return run


def finished(plan: Plan, folder: Path, but: Collection[RunKey] = ()) -> StudyFolder:
    """A study of which all runs are complete, but for some."""
    study = StudyFolder(folder)
    running.begin(plan, study)
    for key in plan.runs:
        if key not in but:
            trained(plan, folder, key)
    return study


def timeless(value: Any) -> Any:
    """A document without what a clock or the system said."""
    if isinstance(value, dict):
        return {name: timeless(item) for name, item in value.items() if name not in CLOCK}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def assert_equal_bit_by_bit(a: RunFolder, b: RunFolder) -> None:
    """Weights, optimizer, log, profiles and measurements are the same."""
    for name in ("model_file", "checkpoint_file", "start_file", "profile_file"):
        one, other = contents(getattr(a, name)), contents(getattr(b, name))
        assert one.keys() == other.keys()
        for part in one:
            assert one[part] == other[part], (name, part)
    assert timeless(a.log()) == timeless(b.log())
    assert timeless(a.final()) == timeless(b.final())


def contents(path: Path) -> dict[str, bytes]:
    """The tensors and metadata of a safetensors file; the order in which it keeps metadata is left to chance."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    parts = {name: json.dumps(timeless(_read(value))).encode() for name, value in header["__metadata__"].items()}
    return parts | {name: array.tobytes() for name, array in load_file(path).items()}


def _read(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
