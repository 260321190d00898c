"""Digits: patches, the split, accuracy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headwise.errors import InputError
from headwise.studies.tasks.protocol import Settings

pytest.importorskip("sklearn", reason="digits need scikit-learn")

from headwise.studies.tasks.digits import Digits


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits(Settings(32, 16))


def test_patches_are_cut_row_by_row(digits: Digits) -> None:
    image = torch.arange(64.0).view(1, 8, 8)
    patches = digits.cut(image)
    assert patches.shape == (1, 16, 4)
    assert patches[0, 0].tolist() == [0, 1, 8, 9]
    assert patches[0, 1].tolist() == [2, 3, 10, 11]
    assert patches[0, 15].tolist() == [54, 55, 62, 63]
    assert digits.tokens()[0][:5] == ["0,0", "0,1", "0,2", "0,3", "1,0"]


def test_held_out_images_are_never_trained_on(digits: Digits) -> None:
    def named(vectors: Tensor) -> set[bytes]:
        return {one.numpy().tobytes() for one in vectors}

    held = named(torch.cat([batch.inputs["vectors"] for batch in digits.held_out()]))
    trained = set().union(*(named(digits.batch(0, step).inputs["vectors"]) for step in range(150)))
    assert len(held) == 500
    assert len(trained) > 1200
    assert not held & trained
    assert digits.vectors.aminmax() == (-1, 1)


class Knows(nn.Module):
    """Names the digits that it was told, but the last of every batch wrongly."""

    def __init__(self, digits: Digits) -> None:
        super().__init__()
        self.known = {
            one.numpy().tobytes(): int(label) for one, label in zip(digits.vectors, digits.labels, strict=True)
        }

    def forward(self, vectors: Tensor) -> Tensor:
        labels = torch.tensor([self.known[one.numpy().tobytes()] for one in vectors])
        labels[-1] = (labels[-1] + 1) % 10
        return nn.functional.one_hot(labels, 10).float()


def test_accuracy_worked_out_by_hand(digits: Digits) -> None:
    """Four batches of 125, an error in each."""
    assert digits.score(Knows(digits), final=True) == {"accuracy": 496 / 500}


def test_what_digits_refuse() -> None:
    for settings, words in (
        (Settings(4, 16, {"patch": 3}), "patch: expected 1, 2, 4 or 8 pixels, which divide 8; got 3"),
        (Settings(4, 15), "--length 15: images of 8 x 8 in patches of 2 x 2 need 16 positions"),
        (Settings(4, 16, {}, (Path("a"),)), "has its own data; leave out --data"),
    ):
        with pytest.raises(InputError) as refusal:
            Digits(settings)
        assert words in str(refusal.value)
