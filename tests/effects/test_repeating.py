"""Induction scores: on a model made to do it, on one that cannot, and what the call leaves behind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headwise as hw
from tests.models_of_tests import Decoder

WORDS = 30


class Induction(nn.Module):
    """One head that looks at what followed the current token before, and one that looks at its own position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WORDS)
        self.dropout = nn.Dropout(0.5)

    def forward(self, ids: Tensor) -> Tensor:
        word = F.one_hot(ids, WORDS).float()
        before = F.pad(word[:, :-1], (0, 0, 1, 0))
        q = torch.stack((word, word), 1) * 60
        k = torch.stack((before, word), 1)
        return F.scaled_dot_product_attention(q, k, k, is_causal=True)


def test_a_head_made_for_induction_is_found() -> None:
    model = Induction()
    before = torch.get_rng_state()
    scores = hw.induction_scores(model, length=12, batch=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert scores["label"].tolist() == ["L0H0", "L0H1"]
    assert scores["induction"][0] > 0.99
    assert scores["induction"][1] < 0.01
    assert scores["rows"].eq(3 * 24).all()
    assert model.training
    assert model.dropout.training


def test_a_random_model_has_no_induction_heads() -> None:
    torch.manual_seed(0)
    scores = hw.induction_scores(Decoder(), length=20, batch=4)
    assert scores["induction"].max() < 0.3
    assert scores["induction"].is_monotonic_decreasing


def test_tokens_repeat_and_are_drawn_from_the_range_asked_for() -> None:
    read: list[Tensor] = []

    class Reader(Induction):
        def forward(self, ids: Tensor) -> Tensor:
            read.append(ids)
            return super().forward(ids)

    hw.induction_scores(Reader(), length=6, repeats=3, batch=2, vocab=(5, 12), begin=1)
    (ids,) = read
    assert ids.shape == (2, 19)
    assert ids[:, 0].eq(1).all()
    assert torch.equal(ids[:, 1:7], ids[:, 7:13])
    assert torch.equal(ids[:, 1:7], ids[:, 13:])
    assert ids[:, 1:].ge(5).all()
    assert ids[:, 1:].lt(12).all()
    assert all(len(set(row[1:7].tolist())) == 6 for row in ids)
    read.clear()
    hw.induction_scores(Reader(), length=6, batch=2, seed=1)
    assert not torch.equal(read[0][0, :6], read[0][1, :6])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 1}, "expected 2 repeats"),
        ({"length": 31}, "expected 31 different ids; the vocabulary has 30"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hw.induction_scores(Induction(), **options)


def test_a_model_that_does_not_tell_its_vocabulary() -> None:
    with pytest.raises(ValueError, match="give vocab="):
        hw.induction_scores(nn.Linear(2, 2))
