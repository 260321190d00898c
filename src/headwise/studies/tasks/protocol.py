"""What a task gives to a study. A task of your own is a class in a module of yours: `--task mymodule:Recall`.

    import torch
    from headwise.studies.tasks.protocol import Architecture, Batch, Defaults, Task

    class Recall(Task):
        '''Say the first token again at every position.'''

        name, score_name = "recall", "accuracy"
        defaults = Defaults(d_model=32, num_layers=1, d_ff=64, steps=500, batch=32, length=16)

        def architecture(self):
            return Architecture("decoder", length=self.settings.length, vocab=10)

        def batch(self, seed, step):
            return self.drawn(seed, step)

        def held_out(self):
            return [self.drawn("held out", number) for number in range(4)]

        def score(self, model, *, final):
            right = [(model(**b.inputs).argmax(-1) == b.targets).float().mean().item() for b in self.held_out()]
            return {"accuracy": sum(right) / len(right)}

        def drawn(self, *name):
            ids = torch.randint(10, (self.settings.batch, self.settings.length), generator=self.generator(*name))
            return Batch({"input_ids": ids}, ids[:, :1].expand(-1, ids.shape[1]))

Whatever a task draws, it draws as a function of `(seed, step)`: so every model of one seed reads the same data in the
same order, and a run that was killed goes on without remembering anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.models.transformer import Architecture
from headwise.studies.seeding import generator

__all__ = ["IGNORED", "Architecture", "Batch", "Defaults", "Option", "Settings", "Task"]

Option: TypeAlias = bool | int | float | str

IGNORED = -100
"""The target of a position that does not count."""


@dataclass(frozen=True)
class Batch:
    """Sequences, and what the model is to answer.

    Attributes:
        inputs: Arguments of the model's forward, by name: `input_ids [B, N]`, or `vectors [B, N, features]`; for an
            encoder-decoder also `decoder_input_ids`; masks (True = a real token) where sequences are padded.
        targets: The index of the right answer at every position (`[B, N]`, `[B]`, or what the task's loss knows);
            `IGNORED` where none counts.
    """

    inputs: Mapping[str, Tensor]
    targets: Tensor

    @property
    def counted(self) -> int:
        """How many targets count."""
        return int((self.targets != IGNORED).sum())


@dataclass(frozen=True)
class Defaults:
    """The sizes of a study of this task, unless the user gives others."""

    heads: tuple[int, ...] = (1, 2, 4, 8, 16)
    seeds: int = 5
    d_model: int = 64
    num_layers: int = 2
    d_ff: int = 256
    dropout: float = 0.0
    steps: int = 2000
    batch: int = 32
    length: int = 128
    learning_rate: float = 1e-3
    warmup: int = 100
    weight_decay: float = 0.01
    evaluate_every: int = 200


@dataclass(frozen=True)
class Settings:
    """What a task is made with.

    Attributes:
        batch: Sequences of a training batch.
        length: The most positions of a sequence.
        options: The task's own options: its `options`, with what the user gave in their place.
        data: Files that the user gave.
        folder: The study's folder, where `prepare` may keep what every run needs.
    """

    batch: int
    length: int
    options: Mapping[str, Option] = field(default_factory=dict)
    data: tuple[Path, ...] = ()
    folder: Path = Path()


class Task(ABC):
    """Data, a question, and a score.

    Attributes:
        name: What tables call it.
        score_name: Which of the scores says how well it was solved.
        higher_is_better: Whether more of it is better.
        defaults: Sizes of a study.
        quick: Sizes of a demonstration that takes some seconds a run.
        options: The options it has beside these (`--option NAME=VALUE`), with their defaults.
        settings: What it was made with.
    """

    name: ClassVar[str] = ""
    score_name: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = True
    defaults: ClassVar[Defaults] = Defaults()
    quick: ClassVar[Defaults | None] = None
    options: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, settings: Settings) -> None:
        """Read the data. Every run makes its task anew, in a process of its own.

        Raises:
            InputError: The data cannot be used.
        """
        self.settings = settings

    @classmethod
    def files(cls, data: Sequence[Path]) -> list[Path]:
        """The files that it reads: what the user gave, or its own. Their checksums go into the plan.

        Raises:
            InputError: Not the files that it needs.
        """
        return list(data)

    @classmethod  # noqa: B027 - most tasks need nothing
    def prepare(cls, settings: Settings) -> None:
        """Make what every run needs, once, before the first run: files in `settings.folder`."""

    @abstractmethod
    def architecture(self) -> Architecture:
        """The model that it needs."""

    @abstractmethod
    def batch(self, seed: int, step: int) -> Batch:
        """The training batch of a step: a function of `seed` and `step` and of nothing else."""

    @abstractmethod
    def held_out(self) -> Sequence[Batch]:
        """Data that is never trained on, the same for every run."""

    def measured(self) -> Sequence[Batch]:
        """The held-out batches on which heads are measured."""
        return self.held_out()

    def tokens(self) -> list[list[str]] | None:
        """The first measured sequences as text, for the page; None: `decode` is asked, or nobody."""
        return None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some token ids."""
        return " ".join(map(str, ids))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss over the targets that count, in nats."""
        logits: Tensor = model(**batch.inputs)
        return F.cross_entropy(logits.flatten(0, -2), batch.targets.flatten(), ignore_index=IGNORED)

    @abstractmethod
    def score(self, model: nn.Module, *, final: bool) -> dict[str, float]:
        """How well the model solves the task on held-out data: `score_name`, and others if there are.

        Args:
            model: In evaluation mode, without gradients.
            final: At the end of training; before that a part of the data will do, where scoring takes long.
        """

    @staticmethod
    def generator(*name: int | str) -> torch.Generator:
        """A generator of its own for what the name says: `self.generator("training", seed, step)`."""
        return generator(*name)
