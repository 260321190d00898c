"""From what a user asks for to a plan: a task's default sizes, with the user's in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headwise.errors import InputError
from headwise.layer.multi_head import Init
from headwise.studies import tasks
from headwise.studies.plans import REGIMES, Plan, Regime, data_file
from headwise.studies.tasks.protocol import Defaults, Option, Task

QUICK_STEPS = 200


def planned(
    task: str,
    *,
    data: Sequence[Path] = (),
    options: Mapping[str, str] | None = None,
    regimes: Sequence[Regime] = REGIMES,
    quick: bool = False,
    threads: int = 1,
    head_dim: int | None = None,
    init: Init = "fused",
    **sizes: Any,
) -> Plan:
    """The plan of a study.

    Args:
        task: A task of headwise, or `module:Class`.
        data: The files that the user gave.
        options: Options of the task, as text.
        regimes: Which to study.
        quick: Start from the sizes of a demonstration.
        threads: Threads of a run.
        head_dim: d_k where the head size is fixed; None: `d_model / max(heads)`.
        init: How Q, K and V are initialised.
        sizes: Any of `Defaults`; `seeds` is how many there are.

    Raises:
        InputError: Something that does not go together.
    """
    kind = tasks.find(task)
    defaults = (kind.quick or demonstration(kind.defaults)) if quick else kind.defaults
    chosen = asdict(defaults) | {name: value for name, value in sizes.items() if value is not None}
    if sizes.get("evaluate_every") is None:
        chosen["evaluate_every"] = min(chosen["evaluate_every"], max(1, chosen["steps"]))
    if sizes.get("warmup") is None:
        chosen["warmup"] = min(chosen["warmup"], chosen["steps"] // 4)
    heads = tuple(chosen.pop("heads"))
    seeds = tuple(range(chosen.pop("seeds")))
    if head_dim is None:
        most = max(heads, default=1)
        head_dim = max(1, chosen["d_model"] // most) if isinstance(most, int) and most > 0 else 1
    return Plan(
        task=task,
        options=_options(task, kind, options or {}),
        data=tuple(data_file(path) for path in kind.files(data)),
        heads=heads,
        seeds=seeds,
        regimes=tuple(regimes),
        head_dim=head_dim,
        threads=threads,
        init=init,
        **chosen,
    )


def demonstration(defaults: Defaults) -> Defaults:
    """Sizes of a demonstration for a task that names none."""
    steps = min(defaults.steps, QUICK_STEPS)
    return replace(
        defaults, heads=defaults.heads[:3], seeds=1, steps=steps, warmup=steps // 10, evaluate_every=max(1, steps // 4)
    )


def _options(task: str, kind: type[Task], given: Mapping[str, str]) -> dict[str, Option]:
    options = dict(kind.options)
    for name, text in given.items():
        if name not in options:
            known = ", ".join(options) or "none"
            raise InputError(f"--option {name}: the task {task} has no such option; it has: {known}")
        options[name] = _like(options[name], name, text)
    return options


def _like(default: Option, name: str, text: str) -> Option:
    """A text as a value of the kind that the default is of."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        return type(default)(text)
    except (ValueError, KeyError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[type(default)]
        raise InputError(f"--option {name}={text}: expected {wanted}") from None
