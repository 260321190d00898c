"""Patterns of two models: a model and itself, heads that changed places, and comparing by them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.models_of_tests import Decoder


def ids_of(rows: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 50, (rows, 14), generator=torch.Generator().manual_seed(seed))


def with_heads_in_order(model: Decoder, order: list[int]) -> Decoder:
    """The same function, its heads in another order."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for layer in other.layers:
            attn = layer.attn
            index = torch.cat([torch.arange(h * attn.head_dim, (h + 1) * attn.head_dim) for h in order])
            for linear in (attn.q, attn.k, attn.v):
                linear.weight.copy_(linear.weight[index])
                linear.bias.copy_(linear.bias[index])
            attn.o.weight.copy_(attn.o.weight[:, index])
    return other


def test_a_model_and_itself() -> None:
    torch.manual_seed(0)
    model = Decoder().eval()
    found = hw.pattern_similarity(model, copy.deepcopy(model), [ids_of(2), ids_of(3, 1)])
    with torch.no_grad(), hw.watch(model, measures=["bc"]) as profile:
        model(ids_of(2))
        model(ids_of(3, 1))
    assert sorted(found) == [0, 1]
    pairs = profile.pairs("bc")
    for layer, bc in found.items():
        np.testing.assert_allclose(bc.diagonal(), 1, atol=1e-6)
        expected = pairs[pairs["layer"] == layer]["bc"].to_numpy()
        np.testing.assert_allclose(bc[np.triu_indices(4, 1)], expected, atol=1e-6)


def test_heads_that_changed_places_are_compared_with_themselves() -> None:
    torch.manual_seed(1)
    model = Decoder().eval()
    order = [2, 0, 3, 1]
    other = with_heads_in_order(model, order)
    batches = [ids_of(4, seed) for seed in range(4)]
    torch.testing.assert_close(model(batches[0]), other(batches[0]))
    profiles = []
    for one in (model, other):
        with torch.no_grad(), hw.watch(one) as profile:
            for batch in batches:
                one(batch)
        profiles.append(profile)
    similarity = hw.pattern_similarity(model, other, [{"input_ids": batch} for batch in batches])
    for bc in similarity.values():
        assert bc.argmax(1).tolist() == [order.index(h) for h in range(4)]
    by_place = hw.compare(*profiles)
    by_pattern = hw.compare(*profiles, match="pattern", similarity=similarity)
    assert not by_place.significant().empty
    assert by_pattern.significant().empty


def test_models_of_other_layers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected the same attention layers .*; got \[0, 1\] and \[0\]"):
        hw.pattern_similarity(Decoder().eval(), Decoder(layers=1).eval(), [ids_of(1)])
