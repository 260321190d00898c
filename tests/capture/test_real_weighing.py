"""What needs the weights, of every head of real models, against whole eager weights; and what is known of them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.measures.delimiters import delimiters_of
from tests.capture.test_real_models import EQUALLY_LONG, TEXTS
from tests.oracle import patterns
from tests.oracle.definitions import own_keys
from tests.oracle.eager import eager_calls
from tests.real_models import load_minilm, load_smollm2

DOUBLE = torch.float64

MODELS = [
    pytest.param(load_minilm, False, id="minilm"),
    pytest.param(load_smollm2, True, id="smollm2", marks=pytest.mark.slow),
]


@torch.no_grad()
@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize(("load", "causal"), MODELS)
def test_every_measure_equals_eager(load: Any, causal: bool, padding: str) -> None:
    eager, tokenizer = load("eager", DOUBLE)
    texts = EQUALLY_LONG if padding == "none" else TEXTS
    batch = tokenizer(
        texts, return_tensors="pt", **({} if padding == "none" else {"padding": True, "padding_side": padding})
    )
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with eager_calls(eager) as calls:
        eager(**batch)
    model, _ = load("sdpa", DOUBLE)
    with hw.watch(model, measures="all", tokenizer=tokenizer, seed=3) as profile:
        model(**batch)
    names = {module: name for name, module in eager.named_modules()}
    table, ids, real = profile.table(), batch["input_ids"].numpy(), batch["attention_mask"].numpy() > 0
    listed = delimiters_of(tokenizer).numpy()[ids] & real
    for call in calls if causal is False else calls[::6]:  # plain loops over thirty layers would take minutes
        p = np.where(call.visible, call.weights, 0.0)
        B, H, N, _ = p.shape
        seen = np.broadcast_to(call.visible, p.shape)
        own, counted = own_keys(seen, causal=causal), np.broadcast_to(real[:, None], (B, H, N))
        rows = table[table["name"] == names[call.module]].sort_values("head")
        expected = {"delimiter": patterns.on_keys(p, listed)}
        expected |= patterns.token_values(p, seen, own, ids, real)
        for name, values in expected.items():
            kept = np.where(counted, values, np.nan).transpose(1, 0, 2).reshape(H, -1)
            known = [one[~np.isnan(one)] for one in kept]
            means = [one.mean() if len(one) else np.nan for one in known]
            np.testing.assert_allclose(rows[name], means, atol=1e-6, err_msg=name)
        alphas = patterns.alphas(p, seen, counted)
        keys = profile.keys()
        for head in range(H):
            label = rows["label"].iloc[head]
            mine = keys[keys["label"] == label].set_index("position")["alpha"]
            for position in (0, 1, 5):
                known = [one[position] for one in alphas[head] if position in one]
                assert mine[position] == pytest.approx(np.mean(known), abs=1e-6), (label, position)
        # Fewer than 256 rows: all of them were compared.
        assert real.sum() <= 256
        for a, b in ((0, 1), (2, H - 1)):
            sums = [patterns.pair_values(p[c, a, i], p[c, b, i]) for c in range(B) for i in range(N) if real[c, i]]
            for name in ("bc", "hellinger", "js"):
                found = profile.pairs(name)
                pair = found[(found["a"] == rows["label"].iloc[a]) & (found["b"] == rows["label"].iloc[b])]
                wanted = np.mean([one[name] for one in sums])
                # A distance near 0 is the root of a rounding: its square is what holds to 1e-6.
                assert pair[name].item() == pytest.approx(wanted, abs=1e-6 if name == "bc" else 1e-5), name


def windows(tokenizer: Any, text: str, length: int, number: int) -> Tensor:
    ids = tokenizer(text)["input_ids"][: length * number]
    return torch.tensor(ids[: len(ids) // length * length]).view(-1, length)


def randomised(model: Any) -> Any:
    """The same architecture with the weights that it would begin training with."""
    torch.manual_seed(0)
    return type(model)(copy.deepcopy(model.config)).eval()


@torch.no_grad()
@pytest.mark.slow
def test_smollm2_has_sinks_that_hold_little_value_and_induction_heads() -> None:
    import argparse
    import inspect

    model, tokenizer = load_smollm2()
    ids = windows(tokenizer, inspect.getsource(argparse), 64, 100)
    assert ids.shape == (100, 64)
    # Gu et al. 2024: eps 0.3, 64 tokens, 100 sequences; 77 to 99 % of the heads of large models.
    with hw.watch(model, measures=["alpha_first", "first", "value_first"]) as profile:
        for batch in ids.split(20):
            model(batch, use_cache=False)
    rate, table = profile.sink_rate(0.3), profile.table()
    assert 0.4 < rate <= 1, rate
    sinks = table[table["alpha_first"] > 0.3]
    # What they write is less of the first token than where they look: 0.38 beside 0.61 at the median.
    assert (sinks["value_first"] < sinks["first"]).mean() > 0.9
    assert sinks["value_first"].median() < 0.75 * sinks["first"].median()
    scores = hw.induction_scores(model, length=64, batch=4)
    assert scores["induction"].max() > 0.6
    roles = profile.roles(induction=scores)
    assert {"sink", "induction"} <= set(roles["role"])

    untrained = randomised(model)
    with hw.watch(untrained, measures=["alpha_first"]) as profile:
        untrained(ids[:20], use_cache=False)
    assert profile.sink_rate(0.3) == 0
    assert hw.induction_scores(untrained, length=64, batch=2)["induction"].max() < 0.1


@torch.no_grad()
def test_minilm_has_heads_mostly_on_delimiters_and_a_random_copy_has_none() -> None:
    model, tokenizer = load_minilm()
    batch = tokenizer(TEXTS * 4, return_tensors="pt", padding=True)
    with hw.watch(model, measures=["delimiter"], tokenizer=tokenizer) as profile:
        model(**batch)
    trained = profile.table()["delimiter"]
    untrained = randomised(model)
    with hw.watch(untrained, measures=["delimiter"], tokenizer=tokenizer) as profile:
        untrained(**batch)
    random = profile.table()["delimiter"]
    assert (trained > 0.6).sum() >= 3, trained.max()
    assert (random > 0.5).sum() == 0, random.max()
