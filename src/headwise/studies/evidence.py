"""The folders of studies, read for a verdict: their numbers, and their single heads cut anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from headwise.errors import InputError
from headwise.studies.claims import REGIME
from headwise.studies.folders import StudyFolder
from headwise.studies.numbers import numbers_of
from headwise.studies.paired import LEAST_SEEDS
from headwise.studies.resplit import Cutting
from headwise.studies.verdict import Read

TOO_FEW = f"undecided because it has too few seeds; an answer takes {LEAST_SEEDS} or more (--seeds)"


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
    if 0 < len({key.seed for key in numbers.facts}) < LEAST_SEEDS:
        notes.append(TOO_FEW)
    recuts: dict[tuple[int, str, Cutting], float] = {}
    for key, facts in numbers.facts.items():
        if (key.regime, key.heads) == (REGIME, 1):
            recuts |= {(key.seed, estimand, cut): value for (estimand, cut), value in facts.recut.items()}
            if facts.recut_failed:
                notes.append(f"its single heads could not be cut anew: {facts.recut_failed}")
    return Read(numbers, recuts, tuple(dict.fromkeys(notes)))
