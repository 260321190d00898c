"""The folders of studies, read for a verdict: their numbers, and their single heads cut anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from headwise.errors import HeadwiseError, InputError
from headwise.studies.claims import REGIME
from headwise.studies.estimands import numbers_of
from headwise.studies.folders import StudyFolder
from headwise.studies.resplit import Cutting
from headwise.studies.verdict import Read


def read(paths: Sequence[Path], told: Callable[[str], None] = lambda _: None) -> list[Read]:
    """Everything that a verdict on some studies rests on.

    Args:
        paths: Their folders.
        told: Is told what is being read.

    Raises:
        InputError: A folder that holds no study, or is named twice.
        FileFormatError: A damaged file.
    """
    again = [path for path, times in Counter(path.resolve() for path in paths).items() if times > 1]
    if again:
        raise InputError(f"--verdict: {again[0]} is named twice; its runs would count twice")
    folders = [StudyFolder(path) for path in paths]
    for folder in folders:
        folder.plan()
    found = []
    for folder in folders:
        told(f"Reading {folder.path} ...")
        found.append(_read(folder))
    labels = Counter(one.numbers.label for one in found)
    return [
        one
        if labels[one.numbers.label] == 1
        else one._replace(numbers=replace(one.numbers, label=f"{one.numbers.label} ({path})"))
        for one, path in zip(found, paths, strict=True)
    ]


def _read(folder: StudyFolder) -> Read:
    numbers = numbers_of(folder)
    plan = numbers.plan
    notes = []
    if 1 not in plan.heads:
        notes.append("it has no runs with one head, against which the others are compared")
    if len(plan.heads) == 1 and 1 in plan.heads:
        notes.append("it has runs with one head alone")
    recuts: dict[tuple[int, str, Cutting], float] = {}
    heads = [h for h in plan.heads if h > 1 and plan.d_model % h == 0]
    if 1 in plan.heads and REGIME in plan.regimes and heads:
        try:
            recuts = _cut_anew(folder, heads)
        except (HeadwiseError, ValueError) as error:
            notes.append(f"its single heads could not be cut anew: {error}")
    return Read(numbers, recuts, tuple(notes))


def _cut_anew(folder: StudyFolder, heads: Sequence[int]) -> dict[tuple[int, str, Cutting], float]:
    """Numbers of the single heads of fixed width, by seed, estimand and cut.

    Raises:
        InputError: The data are not what they were, or are gone.
        ValueError: A layer that cannot be cut.
    """
    from headwise.studies import resplit, tasks

    plan = folder.plan()
    runs = [run for run in folder.complete() if (run.key.regime, run.key.heads) == (REGIME, 1)]
    if not runs:
        return {}
    plan.check_data()
    task = tasks.make(plan.task, plan.settings(folder.path))
    found = {}
    for run in runs:
        for (estimand, cutting), value in resplit.numbers(resplit.model_of(plan, run, task), task, heads).items():
            found[run.key.seed, estimand, cutting] = value
    return found
