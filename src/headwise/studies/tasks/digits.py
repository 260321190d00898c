"""Digits: name the digit in a small image, read as patches (Dosovitskiy et al. 2020, on a small scale).

The images are the 1797 of 8 x 8 pixels that come with scikit-learn (Alpaydin & Kaynak 1998), 16 grey levels, cut into
patches; the encoder's mean over patches answers. Held out are 500 images, the same in every study.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from headwise.errors import InputError, MissingPackageError
from headwise.studies.tasks.protocol import Architecture, Batch, Defaults, Settings, Task

SIDE, LEVELS, CLASSES = 8, 16, 10
HELD_OUT, AT_ONCE = 500, 125


class Digits(Task):
    """Images of handwritten digits, as patches."""

    name, score_name = "digits", "accuracy"
    defaults = Defaults(
        d_model=32, num_layers=2, d_ff=64, dropout=0.1, steps=1500, batch=64, length=16, learning_rate=2e-3,
        evaluate_every=150,
    )  # fmt: skip
    quick = Defaults(
        heads=(1, 2, 4), seeds=1, d_model=32, num_layers=1, d_ff=64, steps=200, batch=64, length=16,
        learning_rate=3e-3, warmup=20, evaluate_every=50,
    )  # fmt: skip
    options = {"patch": 2}  # noqa: RUF012 - a constant of the class

    def __init__(self, settings: Settings) -> None:
        """See `Task`.

        Raises:
            MissingPackageError: scikit-learn is not installed.
            InputError: A patch that does not divide the image, or files.
        """
        super().__init__(settings)
        self.patch = int(settings.options.get("patch", self.options["patch"]))
        if settings.data:
            raise InputError("the task digits has its own data; leave out --data")
        if self.patch < 1 or SIDE % self.patch:
            raise InputError(f"the task digits: patch: expected 1, 2, 4 or 8 pixels, which divide 8; got {self.patch}")
        self.patches = (SIDE // self.patch) ** 2
        if settings.length < self.patches:
            raise InputError(
                f"--length {settings.length}: images of 8 x 8 in patches of {self.patch} x {self.patch} need "
                f"{self.patches} positions"
            )
        if find_spec("sklearn") is None:
            raise MissingPackageError(
                'the task digits needs scikit-learn; install it with: pip install "headwise[study]"'
            )
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        pixels = torch.tensor(images, dtype=torch.float32).view(-1, SIDE, SIDE) / LEVELS * 2 - 1
        order = torch.randperm(len(pixels), generator=self.generator("digits", "order"))
        self.vectors = self.cut(pixels)[order]
        self.labels = torch.tensor(labels, dtype=torch.int64)[order]

    def cut(self, pixels: Tensor) -> Tensor:
        """Images `[n, 8, 8]` to patches `[n, patches, patch * patch]`, row by row."""
        p = self.patch
        return pixels.unfold(1, p, p).unfold(2, p, p).flatten(3).flatten(1, 2)

    def architecture(self) -> Architecture:
        """An encoder of vectors."""
        return Architecture("encoder", self.settings.length, features=self.patch**2, outputs=CLASSES)

    def batch(self, seed: int, step: int) -> Batch:
        """Training images, drawn with replacement."""
        rng = self.generator("digits", seed, step)
        which = torch.randint(HELD_OUT, len(self.labels), (self.settings.batch,), generator=rng)
        return Batch({"vectors": self.vectors[which]}, self.labels[which])

    def held_out(self) -> Sequence[Batch]:
        """500 images."""
        return self._held_out

    @cached_property
    def _held_out(self) -> list[Batch]:
        return [
            Batch({"vectors": vectors}, labels)
            for vectors, labels in zip(
                self.vectors[:HELD_OUT].split(AT_ONCE), self.labels[:HELD_OUT].split(AT_ONCE), strict=True
            )
        ]

    def measured(self) -> Sequence[Batch]:
        """A quarter of them."""
        return self.held_out()[:1]

    def score(self, model: nn.Module, *, final: bool) -> dict[str, float]:
        """`accuracy`: images that are named rightly."""
        right = sum(int((model(**batch.inputs).argmax(-1) == batch.targets).sum()) for batch in self.held_out())
        return {"accuracy": right / HELD_OUT}

    def tokens(self) -> list[list[str]]:
        """The patches by row and column."""
        per_side = SIDE // self.patch
        return [[f"{row},{column}" for row in range(per_side) for column in range(per_side)]] * AT_ONCE
