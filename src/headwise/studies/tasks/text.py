"""Text: say the next byte (a language model without a tokenizer).

The data are files, read as bytes; without any, the modules of Python's standard library, which are present wherever
Python is. Held out is the last tenth of every file.
"""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.errors import InputError
from headwise.studies.tasks.protocol import Architecture, Batch, Defaults, Settings, Task

BYTES = 256
TENTH = 10
WINDOWS, AT_ONCE, MEASURED = 256, 16, 32
"""Held-out windows, how many the model reads at once, and on how many heads are measured."""


class Text(Task):
    """Files, byte by byte."""

    name, score_name, higher_is_better = "text", "bits_per_byte", False
    defaults = Defaults(
        d_model=128, num_layers=2, d_ff=512, steps=3000, batch=16, length=128, learning_rate=2e-3, evaluate_every=300
    )
    quick = Defaults(
        heads=(1, 2, 4), seeds=1, d_model=32, num_layers=2, d_ff=128, steps=150, batch=8, length=64,
        learning_rate=3e-3, warmup=20, evaluate_every=50,
    )  # fmt: skip

    def __init__(self, settings: Settings) -> None:
        """See `Task`.

        Raises:
            InputError: A file is empty, too small or cannot be read.
        """
        super().__init__(settings)
        training, held_out = [], []
        for path in settings.data:
            content = self.read(path)
            cut = len(content) - len(content) // TENTH
            training.append(content[:cut])
            held_out.append(content[cut:])
        self.training = _bytes(b"".join(training))
        self.kept = _bytes(b"".join(held_out))
        window = settings.length + 1
        if len(self.kept) < window:
            total = len(self.training) + len(self.kept)
            raise InputError(
                f"--data: {total:,} bytes are too few: the last tenth is held out, and must hold a window of "
                f"{window} bytes; give {window * TENTH:,} bytes or more, or a smaller --length"
            )

    @staticmethod
    def read(path: Path) -> bytes:
        """What a file holds.

        Raises:
            InputError: Nothing, or it cannot be read.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"--data {path}: cannot be read: {error.strerror or error}") from None
        if not content:
            raise InputError(f"--data {path}: is empty; give files with text")
        return content

    @classmethod
    def files(cls, data: Sequence[Path]) -> list[Path]:
        """The given files, or the top-level modules of the standard library."""
        if data:
            return list(data)
        found = sorted(path for path in Path(sysconfig.get_path("stdlib")).glob("*.py") if path.stat().st_size)
        if not found:
            raise InputError("the source of Python's standard library is not installed here; give --data FILE")
        return found

    def architecture(self) -> Architecture:
        """A decoder of bytes."""
        return Architecture("decoder", self.settings.length, vocab=BYTES)

    def batch(self, seed: int, step: int) -> Batch:
        """Windows from anywhere in the training part."""
        last = len(self.training) - self.settings.length
        starts = torch.randint(last, (self.settings.batch,), generator=self.generator("text", seed, step))
        return self.windows(self.training, starts)

    def windows(self, content: Tensor, starts: Tensor) -> Batch:
        """The windows of `length + 1` bytes from these starts on: all but the last are read, all but the first said."""
        places = starts[:, None] + torch.arange(self.settings.length + 1)
        ids = content[places].long()
        return Batch({"input_ids": ids[:, :-1]}, ids[:, 1:])

    def held_out(self) -> Sequence[Batch]:
        """At most 256 windows, evenly spread over the held-out bytes, without overlap."""
        return self._held_out

    @cached_property
    def _held_out(self) -> list[Batch]:
        room = (len(self.kept) - 1) // self.settings.length
        count = min(WINDOWS, room)
        starts = torch.tensor([number * room // count * self.settings.length for number in range(count)])
        return [self.windows(self.kept, part) for part in starts.split(AT_ONCE)]

    def measured(self) -> Sequence[Batch]:
        """Some of the held-out windows, from everywhere."""
        batches = self.held_out()
        return batches[:: max(1, len(batches) * AT_ONCE // MEASURED)]

    def score(self, model: nn.Module, *, final: bool) -> dict[str, float]:
        """`bits_per_byte` of all held-out windows."""
        nats = counted = 0.0
        for batch in self.held_out():
            logits = model(**batch.inputs)
            nats += F.cross_entropy(logits.flatten(0, -2), batch.targets.flatten(), reduction="sum").item()
            counted += batch.counted
        return {"bits_per_byte": nats / counted / math.log(2)}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some bytes."""
        return bytes(ids).decode("utf-8", "replace")


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)
