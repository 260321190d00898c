"""Lookup: what it asks, that two heads made by hand solve it, that one head cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.errors import InputError
from headwise.models.transformer import Decoder, Sizes
from headwise.studies.tasks.lookup import Lookup
from headwise.studies.tasks.protocol import IGNORED, Settings
from headwise.studies.training import one_step
from headwise.studies.transformer import build


def task(length: int = 9, batch: int = 8, **options: int) -> Lookup:
    return Lookup(Settings(batch, length, {"keys": 5, "values": 3, "queries": 3, **options}))


def test_answers_are_the_values_of_the_keys_that_were_asked_for() -> None:
    """Read back from the ids: facts (key, 5 + value), queries (8 + key, 13 + key)."""
    lookup = task()
    numbers = set()
    for step in range(30):
        batch = lookup.batch(0, step)
        ids, targets = batch.inputs["input_ids"], batch.targets
        facts = ids.shape[1] - 3
        numbers.add(facts)
        assert ids.shape == (8, facts + 3, 2)
        assert (targets[:, :facts] == IGNORED).all()
        for sequence, answers in zip(ids.tolist(), targets.tolist(), strict=True):
            known = {key: value - 5 for key, value in sequence[:facts]}
            assert len(known) == facts
            for (first, second), answer in zip(sequence[facts:], answers[facts:], strict=True):
                assert answer == [known[first - 8], known[second - 13]]
                assert first - 8 != second - 13
    assert numbers == {2, 3, 4, 5}


def test_held_out_data_have_every_number_of_facts() -> None:
    lengths = {batch.targets.shape[1] - 3 for batch in task().held_out()}
    assert lengths == {2, 3, 4, 5}


def test_batches_depend_on_seed_and_step_alone() -> None:
    a, b = task().batch(1, 2), task().batch(1, 2)
    assert torch.equal(a.inputs["input_ids"], b.inputs["input_ids"])
    for other in (task().batch(2, 1), task().batch(1, 3)):
        same = other.inputs["input_ids"].shape == a.inputs["input_ids"].shape
        assert not same or not torch.equal(other.inputs["input_ids"], a.inputs["input_ids"])


def made_by_hand(lookup: Lookup) -> Decoder:
    """Two heads: head r looks for the r-th key that is asked for, and writes its value into the r-th place.

    Every vector stands twice, the second time with the opposite sign, so that its mean is 0 and the norm only scales.
    """
    keys, values = lookup.keys, lookup.values
    vocab = keys + values + 2 * keys + 1
    half = vocab + 2 * values
    model = build(lookup.architecture(), Sizes(2 * half, 1, 0, num_heads=2, head_dim=keys), 0)
    assert isinstance(model, Decoder)
    attention = model.blocks[0].attention
    assert attention.qkv_proj is not None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for norm in (model.norm, model.blocks[0].attention_norm):
            nn.init.ones_(norm.weight)
        for token in range(vocab - 1):
            model.embedded.tokens.weight[token, token] = 1
            model.embedded.tokens.weight[token, half + token] = -1
        q, k, v = attention.qkv_proj.weight.split(2 * keys)
        for head in range(2):
            for key in range(keys):
                q[head * keys + key, keys + values + head * keys + key] = 10
                k[head * keys + key, key] = 1
            for value in range(values):
                v[head * keys + value, keys + value] = 1
                out = vocab + head * values + value
                attention.out_proj.weight[out, head * keys + value] = 1
                attention.out_proj.weight[half + out, head * keys + value] = -1
                model.readout.weight[head * values + value, out] = 1
    return model.eval()


@torch.no_grad()
def test_two_heads_made_by_hand_solve_it() -> None:
    lookup = task(length=8, keys=5)
    assert lookup.score(made_by_hand(lookup), final=True) == {"accuracy": 1.0, "place_accuracy": 1.0}


@torch.no_grad()
def test_without_one_of_the_two_heads_only_one_place_is_right() -> None:
    """Its place is answered with the first of equal logits: right for one value in three."""
    lookup = task(length=8, batch=64)
    model = made_by_hand(lookup)
    model.blocks[0].attention.out_proj.weight[:, lookup.keys :] = 0
    score = lookup.score(model, final=True)
    assert score["accuracy"] == pytest.approx(1 / 3, abs=0.05)
    assert score["place_accuracy"] == pytest.approx((1 + score["accuracy"]) / 2)


def learned(heads: int, steps: int) -> dict[str, float]:
    lookup = task(length=10, batch=32, keys=6, values=4, queries=4)
    model = build(lookup.architecture(), Sizes(32, 1, 0, num_heads=heads, head_dim=32 // heads), 0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, betas=(0.9, 0.98))
    for step in range(steps):
        one_step(model, optimizer, lookup, 0, step, 1.0)
    with torch.no_grad():
        return lookup.score(model.eval(), final=True)


def test_two_heads_learn_what_one_cannot() -> None:
    """One head: a place and a guess of 4 values, 1/4 of the answers; it may do a little better where facts are few."""
    assert learned(2, 150)["accuracy"] > 0.98
    one = learned(1, 300)
    assert one["accuracy"] < 0.45
    assert one["place_accuracy"] < 0.72


def test_tokens_as_text() -> None:
    lookup = task()
    text = lookup.tokens()[0]
    ids = lookup.held_out()[0].inputs["input_ids"][0].tolist()
    assert text[0] == f"k{ids[0][0]}={ids[0][1] - 5}"
    assert text[-1] == f"k{ids[-1][0] - 8},k{ids[-1][1] - 13}?"


def test_three_facts_can_be_asked_for() -> None:
    lookup = task(asked=3)
    batch = lookup.batch(0, 0)
    assert batch.inputs["input_ids"].shape[2] == batch.targets.shape[2] == 3
    model = build(lookup.architecture(), Sizes(12, 1, 0, num_heads=3, head_dim=4), 0)
    assert lookup.loss(model, batch).item() == pytest.approx(1.1, abs=0.8)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(4, 4, {"queries": 3}), "--length 4: the task lookup needs room for 3 queries and at least 2 facts"),
        (Settings(4, 20, {"asked": 1}), "expected asked >= 2"),
        (Settings(4, 20, {}, (Path("a"),)), "makes its own data; leave out --data"),
    ],
)
def test_what_lookup_refuses(settings: Settings, words: str) -> None:
    with pytest.raises(InputError) as refusal:
        Lookup(settings)
    assert words in str(refusal.value)
