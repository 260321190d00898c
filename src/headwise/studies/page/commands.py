"""The command that trains a study again, from its plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from headwise.errors import InputError
from headwise.studies import tasks
from headwise.studies.plans import REGIMES, Plan, flag
from headwise.studies.tasks.protocol import Option

_SIZES = ("d_model", "num_layers", "d_ff", "dropout", "steps", "batch", "length", "learning_rate", "weight_decay")


def command(plan: Plan, out: str) -> str:
    """`headwise study ...`, with what differs from the defaults of the task; data by their names alone.

    Args:
        plan: The plan.
        out: The name of the folder.
    """
    return shlex.join(["headwise", "study", "--task", plan.task, *_differing(plan), "--out", out])


def _differing(plan: Plan) -> Iterator[str]:
    default, options, names = _defaults(plan)
    for name, value in plan.options.items():
        if options.get(name) != value:
            yield from ("--option", f"{name}={str(value).lower() if isinstance(value, bool) else value}")
    own = [PurePath(one.path).name for one in plan.data]
    if own != names:
        yield from ("--data", *own)
    if plan.heads != default.get("heads"):
        yield from ("--heads", ",".join(map(str, plan.heads)))
    if plan.regimes != REGIMES:
        yield from ("--regimes", ",".join(plan.regimes))
    if len(plan.seeds) != default.get("seeds"):
        yield from ("--seeds", str(len(plan.seeds)))
    for name in _SIZES:
        if getattr(plan, name) != default.get(name):
            yield from (flag(name), str(getattr(plan, name)))
    # What these are by default depends on the number of steps.
    for name, most in (("warmup", plan.steps // 4), ("evaluate_every", plan.steps)):
        if getattr(plan, name) != min(default.get(name, -1), most):
            yield from (flag(name), str(getattr(plan, name)))
    if "fixed_head_size" in plan.regimes and plan.head_dim != max(1, plan.d_model // max(plan.heads)):
        yield from ("--head-dim", str(plan.head_dim))
    if plan.threads != 1:
        yield from ("--threads", str(plan.threads))
    if plan.init != "fused":
        yield from ("--init", plan.init)


def _defaults(plan: Plan) -> tuple[dict[str, Any], Mapping[str, Option], list[str]]:
    """A task's sizes, its options, and the names of the files that it reads unless it is given others."""
    try:
        kind = tasks.find(plan.task)
    except InputError:  # a task of the user's own, whose module is not at hand
        return {}, {}, []
    try:
        names = [path.name for path in kind.files(())]
    except InputError:  # it has none of its own
        names = []
    return asdict(kind.defaults), kind.options, names
