"""Step 10: the bundled maps are those of the real model, and what the text says of them is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scripts import lesson_maps

from headwise.lesson.contents import LANGUAGES, filled, maps, texts
from headwise.lesson.working import example, work
from tests.real_models import load_minilm

FOUND = maps()


@pytest.fixture(scope="module")
def weights() -> torch.Tensor:
    """The bundled weights `[layers, heads, N, N]`."""
    N = len(FOUND["tokens"])
    return torch.tensor(FOUND["thousandths"], dtype=torch.float64).unflatten(-1, (N, N)) / 1000


def test_they_are_what_the_script_computes() -> None:
    made = lesson_maps.maps()
    assert made.keys() == FOUND.keys()
    assert made["tokens"] == FOUND["tokens"]
    assert np.abs(np.subtract(made["thousandths"], FOUND["thousandths"])).max() <= 1
    for name in ("self_focus", "entropy"):
        np.testing.assert_allclose(made[name], FOUND[name], atol=2e-5)
    for name, value in FOUND["facts"].items():
        assert made["facts"][name] == (value if isinstance(value, str) else pytest.approx(value, abs=2e-5)), name


def test_the_facts_are_those_of_the_bundled_weights(weights: torch.Tensor) -> None:
    """To the thousandths in which they are bundled."""
    facts: dict[str, Any] = lesson_maps.facts(weights)
    for name, value in FOUND["facts"].items():
        assert facts[name] == (value if isinstance(value, str) else pytest.approx(value, abs=1e-3)), name
    np.testing.assert_allclose(weights.diagonal(dim1=-2, dim2=-1).mean(-1), FOUND["self_focus"], atol=1e-3)
    np.testing.assert_allclose(torch.special.entr(weights).sum(-1).mean(-1), FOUND["entropy"], atol=2e-2)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=8.5e-3)


def test_what_the_text_says_of_the_model() -> None:
    config = load_minilm()[0].config
    d_k = config.hidden_size // config.num_attention_heads
    for language in LANGUAGES:
        step = next(step for step in texts(language)["steps"] if step["id"] == "model")
        for number in (config.num_hidden_layers, config.num_attention_heads, config.hidden_size, d_k):
            assert str(number) in step["text"]
        # The question names the number of heads; the right choice is "hardly any".
        assert str(config.num_hidden_layers * config.num_attention_heads) in step["ask"]
        assert step["right"] == 2
    assert np.shape(FOUND["thousandths"])[:2] == (config.num_hidden_layers, config.num_attention_heads)
    assert FOUND["facts"]["heads"] == config.num_hidden_layers * config.num_attention_heads
    assert FOUND["facts"]["self_heads"] / FOUND["facts"]["heads"] < 0.05


def test_the_numbers_in_the_text_are_the_facts() -> None:
    facts, state = FOUND["facts"], example()
    for language in LANGUAGES:
        step = next(step for step in texts(language)["steps"] if step["id"] == "model")
        said = filled(step["after"] + step["answer"], state, work(state))
        for value in (facts["previous_head"], facts["next_head"], facts["ends_heads"], facts["heads"]):
            assert str(value) in said
        assert f"{facts['previous_weight']:.4f}" in said  # not quite 1
        for value in (facts["next_weight"], facts["mean_self_focus"]):
            assert f"{value:.2f}" in said
