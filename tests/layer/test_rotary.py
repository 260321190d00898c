"""Rotary position embedding: by hand, the law it is made for, and Llama's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from tests.layer.textbook import close, leaves, seen_by, shaken, textbook


@pytest.mark.parametrize("interleaved", [False, True])
def test_by_hand(interleaved: bool) -> None:
    """Four features, base 100: the pairs turn by i and i / 10."""
    rope = hw.RotaryEmbedding(4, base=100.0, interleaved=interleaved)
    x = torch.tensor([1.0, 0.0, 1.0, 0.0] if interleaved else [1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    a, b, c, d = math.cos(3), math.sin(3), math.cos(0.3), math.sin(0.3)
    expected = [a, b, c, d] if interleaved else [a, c, b, d]
    close(rope(x.view(1, 1, 1, 4), torch.tensor([3])).flatten(), torch.tensor(expected, dtype=torch.float64))


@given(st.integers(0, 500), st.integers(0, 500), st.integers(-400, 1000), st.booleans(), st.integers(1, 8))
def test_a_score_depends_on_the_distance_only(i: int, j: int, shift: int, interleaved: bool, half: int) -> None:
    rope = hw.RotaryEmbedding(2 * half, interleaved=interleaved)
    q, k = torch.randn(2, 1, 1, 1, 2 * half + 3, dtype=torch.float64)

    def score(a: int, b: int) -> float:
        return float((rope(q, torch.tensor([a])) * rope(k, torch.tensor([b]))).sum())

    assert score(i, j) == pytest.approx(score(i + shift, j + shift), abs=1e-9)
    assert score(i, i) == pytest.approx(float((q * k).sum()), abs=1e-9)


def test_lengths_stay_and_positions_differ() -> None:
    rope = hw.RotaryEmbedding(8)
    x = torch.randn(2, 3, 1, 8, dtype=torch.float64).expand(2, 3, 50, 8)
    y = rope(x, torch.arange(50))
    close(y.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(y[:, :, 0], x[:, :, 0])
    assert (torch.cdist(y[0, 0], y[0, 0]) + torch.eye(50) > 1e-3).all()


def test_only_the_first_features_are_turned() -> None:
    x = torch.randn(1, 2, 5, 10)
    y = hw.RotaryEmbedding(6)(x, torch.arange(5))
    assert torch.equal(y[..., 6:], x[..., 6:])
    assert torch.equal(y[..., :6], hw.RotaryEmbedding(6)(x[..., :6], torch.arange(5)))


def test_interleaved_is_a_permutation_of_the_features() -> None:
    x = torch.randn(1, 2, 5, 8)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    y = hw.RotaryEmbedding(8, interleaved=True)(x, torch.arange(5))
    torch.testing.assert_close(y[..., order], hw.RotaryEmbedding(8)(x[..., order], torch.arange(5)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_llamas(dtype: torch.dtype) -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1)
    theirs = llama.LlamaRotaryEmbedding(config)
    q, k = torch.randn(2, 4, 30, 16).to(dtype), torch.randn(2, 2, 30, 16).to(dtype)
    positions = torch.arange(7, 37)[None]
    cos, sin = theirs(q.float(), positions)
    expected = llama.apply_rotary_pos_emb(q.float(), k.float(), cos, sin)
    rope = hw.RotaryEmbedding(16)
    for x, wanted in zip((q, k), expected, strict=True):
        out = rope(x, positions[0])
        assert out.dtype == dtype
        torch.testing.assert_close(out, wanted.to(dtype), atol=2e-6, rtol=2e-6 if dtype == torch.float32 else 8e-3)


def test_each_sequence_may_count_its_own_way() -> None:
    rope, x = hw.RotaryEmbedding(4), torch.randn(2, 3, 5, 4)
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 7, 9, 20, 0]])
    y = rope(x, positions)
    for b in range(2):
        assert torch.equal(y[b : b + 1], rope(x[b : b + 1], positions[b]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_angles_are_exact_in_half_precision(dtype: torch.dtype) -> None:
    """At position 4001 a bfloat16 position would be 4000: an angle off by 1."""
    x = torch.ones(1, 1, 1, 2).to(dtype)
    y = hw.RotaryEmbedding(2)(x, torch.tensor([4001]))
    expected = [math.cos(4001) - math.sin(4001), math.cos(4001) + math.sin(4001)]
    torch.testing.assert_close(y.flatten().float(), torch.tensor(expected), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("context", [False, True])
def test_in_a_layer(context: bool) -> None:
    mha = shaken(hw.MultiHeadAttention(12, 4, num_kv_heads=2, head_dim=6, dtype=torch.float64))
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    c = torch.randn(2, 7, 12, dtype=torch.float64) if context else None
    rope = hw.RotaryEmbedding(4)
    y, w = mha(x, c, causal=True, position=rope, return_weights=True)
    y_book, w_book = textbook(
        mha, leaves(mha), x, c, seen=seen_by(5, 7 if context else 5, "upper_left"), position=rope
    )  # fmt: skip
    close(y, y_book)
    close(w, w_book)
    assert not torch.allclose(y, mha(x, c, causal=True))


def test_what_a_position_is_called_with() -> None:
    mha = hw.MultiHeadAttention(12, 4, num_kv_heads=2)
    calls: list[tuple[Any, ...]] = []

    def position(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        calls.append((tuple(x.shape), positions.dtype, positions.tolist()))
        return x

    cache = hw.KVCache()
    mha(torch.randn(2, 3, 12), cache=cache, position=position)
    mha(torch.randn(2, 2, 12), cache=cache, position=position)
    mha(torch.randn(2, 2, 12), torch.randn(2, 3, 12), position=position)
    i = torch.int64
    assert calls == [
        ((2, 4, 3, 3), i, [0, 1, 2]), ((2, 2, 3, 3), i, [0, 1, 2]),
        ((2, 4, 2, 3), i, [3, 4]), ((2, 2, 2, 3), i, [3, 4]),
        ((2, 4, 2, 3), i, [0, 1]), ((2, 2, 3, 3), i, [0, 1, 2]),
    ]  # fmt: skip


def test_it_holds_nothing() -> None:
    rope = hw.RotaryEmbedding(4)
    assert not list(rope.parameters())
    assert not list(rope.buffers())
    assert not rope.state_dict()
    with torch.device("meta"):
        rope = hw.RotaryEmbedding(4)
    rope.to_empty(device="cpu")
    x = torch.randn(1, 1, 5, 4)
    assert torch.equal(rope(x, torch.arange(5)), hw.RotaryEmbedding(4)(x, torch.arange(5)))
    assert repr(rope) == "RotaryEmbedding(dim=4, base=10000, interleaved=False)"


@pytest.mark.parametrize("dim", [0, 3, -2, 2.0, True])
def test_odd_widths_are_refused(dim: Any) -> None:
    with pytest.raises(ValueError, match="dim: expected an even number of features, 2 or more; got"):
        hw.RotaryEmbedding(dim)


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(ValueError, match="base: expected a positive, finite number; got 0"):
        hw.RotaryEmbedding(4, base=0)
    rope = hw.RotaryEmbedding(8)
    with pytest.raises(ValueError, match=r"turns dim = 8 features, but the heads are 3 wide: use RotaryEmbedding\(he"):
        hw.MultiHeadAttention(12, 4)(torch.randn(2, 3, 12), position=rope)
    with pytest.raises(ValueError, match=r"positions: expected \[N\] or \[B, N\] with N = 5; got \(4,\)"):
        rope(torch.randn(1, 1, 5, 8), torch.arange(4))
