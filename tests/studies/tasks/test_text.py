"""Text: windows, what is held out, bits per byte."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.errors import InputError
from headwise.studies.tasks.protocol import Settings
from headwise.studies.tasks.text import Text


def files(folder: Path, *contents: bytes) -> tuple[Path, ...]:
    paths = []
    for number, content in enumerate(contents):
        paths.append(folder / f"{number}.txt")
        paths[-1].write_bytes(content)
    return tuple(paths)


def test_the_last_tenth_of_every_file_is_held_out(tmp_path: Path) -> None:
    task = Text(Settings(4, 3, data=files(tmp_path, b"a" * 90 + b"x" * 10, b"b" * 45 + b"y" * 5)))
    assert bytes(task.training.tolist()) == b"a" * 90 + b"b" * 45
    assert bytes(task.kept.tolist()) == b"x" * 10 + b"y" * 5
    read = {int(one) for step in range(20) for one in task.batch(0, step).inputs["input_ids"].flatten()}
    assert read == {ord("a"), ord("b")}
    held = {int(one) for batch in task.held_out() for one in batch.targets.flatten()}
    assert held == {ord("x"), ord("y")}


def test_a_window_says_the_byte_after_each(tmp_path: Path) -> None:
    task = Text(Settings(64, 4, data=files(tmp_path, bytes(range(200)))))
    batch = task.batch(5, 7)
    assert torch.equal(batch.inputs["input_ids"] + 1, batch.targets)
    assert batch.targets.shape == (64, 4)
    # Every place of the training part can be read, the last one too: 180 bytes, windows of 5.
    starts = {int(one) for step in range(60) for one in task.batch(5, step).inputs["input_ids"][:, 0]}
    assert (min(starts), max(starts)) == (0, 175)
    kept = torch.cat([batch.inputs["input_ids"].flatten() for batch in task.held_out()])
    assert kept.tolist() == list(range(180, 196)), "held-out windows do not overlap"


class Constant(nn.Module):
    """Says one byte with probability p, all others with equal ones."""

    def __init__(self, byte: int, p: float) -> None:
        super().__init__()
        self.logits = torch.full((256,), math.log((1 - p) / 255))
        self.logits[byte] = math.log(p)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(*input_ids.shape, 256)


def test_bits_per_byte_worked_out_by_hand(tmp_path: Path) -> None:
    """A byte that is said with probability 1/8 costs 3 bits; all with equal probability cost 8."""
    task = Text(Settings(4, 3, data=files(tmp_path, b"a" * 200)))
    assert task.score(Constant(ord("a"), 1 / 8), final=True)["bits_per_byte"] == pytest.approx(3, abs=1e-5)
    assert task.score(Constant(ord("b"), 1 / 256), final=True)["bits_per_byte"] == pytest.approx(8, abs=1e-5)
    assert not task.higher_is_better


def test_without_files_it_reads_pythons_own_source() -> None:
    paths = Text.files([])
    assert {"argparse.py", "typing.py"} <= {path.name for path in paths}
    assert paths == sorted(paths)


def test_bytes_as_text() -> None:
    task = object.__new__(Text)
    assert task.decode("é".encode()) == "é"
    assert task.decode("é".encode()[:1]) == "\ufffd"


def test_what_text_refuses(tmp_path: Path) -> None:
    empty, tiny = files(tmp_path, b"", b"a" * 100)
    for data, words in (
        ((empty,), "0.txt: is empty; give files with text"),
        ((tiny,), "100 bytes are too few: the last tenth is held out, and must hold a window of 17 bytes; give 170"),
        ((tmp_path / "no.txt",), "no.txt: cannot be read: No such file"),
        ((tmp_path,), "cannot be read: Is a directory"),
    ):
        with pytest.raises(InputError) as refusal:
            Text(Settings(4, 16, data=data))
        assert words in str(refusal.value)
