"""What is measured on the held-out data of a run: its loss, and what every head does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headwise.capture import watch
from headwise.profile import Profile
from headwise.profile.files import packed as packed
from headwise.profile.writing import json_value
from headwise.studies.tasks.protocol import Task

KEPT = "all"
"""The measures of the profiles that a run keeps."""

PLACE = ("layer", "head", "label", "name", "kind", "call", "phase")


def heldout_loss(model: nn.Module, task: Task) -> float:
    """The mean loss over all held-out targets that count, in nats."""
    total = counted = 0.0
    for batch in task.held_out():
        total += task.loss(model, batch).item() * batch.counted
        counted += batch.counted
    return total / counted


def profile_of(model: nn.Module, task: Task, measures: str | list[str] = "default") -> Profile:
    """The profile of a model in evaluation mode on the batches that the task has for measuring.

    Args:
        model: The model.
        task: Gives the batches, and the text of its tokens for the page.
        measures: As `headwise.watch` takes them.
    """
    with torch.no_grad(), watch(model, measures=measures, tokenizer=_Tokenizer(task), tokens=task.tokens()) as profile:
        for batch in task.measured():
            model(**batch.inputs)
    # A time, or what else the process happens to have loaded, would make two runs that are equal differ.
    for fact in ("created", "transformers"):
        profile.info.pop(fact, None)
    return profile


class _Tokenizer:
    """What `headwise.watch` asks for the text of tokens."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def decode(self, ids: Any) -> str:
        return self._task.decode([int(one) for one in ids])


def heads_of(profile: Profile) -> list[dict[str, Any]]:
    """Every head with the value of every row measure; None where a measure is undefined."""
    table = profile.table()[[*PLACE, *profile.measures]]
    return [
        {name: json_value(value) for name, value in zip(table.columns, row, strict=True)}
        for row in table.itertuples(index=False)
    ]
