"""Corners of the layer: masks that an operation rounds, caches of a context, gradients through a cache."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw


def alibi(length: int, heads: int) -> Tensor:
    """A bias `[H, N, N]` that grows with the distance (Press et al. 2022), hundreds where it is far."""
    far = torch.arange(length)[:, None] - torch.arange(length)
    return -far.abs() * torch.tensor([2.0 ** -(1 + h) for h in range(heads)])[:, None, None]


@pytest.mark.parametrize("autocast", [False, True])
def test_a_float_mask_is_one_and_the_same_for_all(autocast: bool) -> None:
    """Half precision rounds it for the operation: weights and statistics are of what the operation saw."""
    mha = hw.MultiHeadAttention(32, 4)
    mha = mha if autocast else mha.bfloat16()
    x = torch.randn(1, 300, 32, dtype=torch.float32 if autocast else torch.bfloat16)
    mask = alibi(300, 4) + 100
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y, weights = mha(x, mask=mask, causal=True, return_weights=True)
        measured, statistics = mha(x, mask=mask, causal=True, measure=True)
        with hw.watch(mha, verify=True) as profile:
            again = mha(x, mask=mask, causal=True)
    assert torch.equal(y, again)
    assert profile.passed
    torch.testing.assert_close(measured, y, rtol=0.02, atol=0.02)
    torch.testing.assert_close(statistics.entropy.mean((0, 2)), mean_of(profile, "entropy"), rtol=1e-5, atol=1e-5)
    own = weights.float().diagonal(dim1=-2, dim2=-1).mean((0, 2))
    torch.testing.assert_close(own, mean_of(profile, "self_focus"), rtol=5e-3, atol=1e-3)


def mean_of(profile: hw.Profile, measure: str) -> Tensor:
    return torch.tensor(profile.table()[measure].to_numpy(), dtype=torch.float32)


# A context in a cache


def test_a_norm_of_the_keys_that_changed_projects_anew() -> None:
    mha = hw.MultiHeadAttention(16, 2, qk_norm="rms").eval()
    x, context, cache = torch.randn(1, 2, 16), torch.randn(1, 5, 16), hw.KVCache()
    with torch.no_grad():
        mha(x, context, cache=cache)
        assert mha.k_norm is not None
        mha.k_norm.weight.mul_(3)
        assert torch.equal(mha(x, context, cache=cache), mha(x, context))


def test_other_parameters_in_the_same_place_project_anew() -> None:
    mha, other = hw.MultiHeadAttention(16, 2).eval(), hw.MultiHeadAttention(16, 2).eval()
    x, context, cache = torch.randn(1, 2, 16), torch.randn(1, 5, 16), hw.KVCache()
    with torch.no_grad():
        mha(x, context, cache=cache)
        mha.load_state_dict(other.state_dict(), assign=True)
        assert torch.equal(mha(x, context, cache=cache), mha(x, context))


@pytest.mark.parametrize("batched", [True, False])
def test_a_context_is_projected_once(batched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mha = hw.MultiHeadAttention(16, 2).eval()
    calls: list[Any] = []
    project = hw.KVCache.of_context

    def counting(self: hw.KVCache, context: Tensor, dtype: torch.dtype, made: Any, *rest: Any) -> Any:
        return project(self, context, dtype, lambda c: (calls.append(c), made(c))[1], *rest)

    monkeypatch.setattr(hw.KVCache, "of_context", counting)
    x, context, cache = torch.randn(1, 2, 16), torch.randn(1, 5, 16), hw.KVCache()
    if not batched:
        x, context = x[0], context[0]
    with torch.no_grad():
        for _ in range(4):
            y = mha(x, context, cache=cache)
        assert len(calls) == 1
        assert torch.equal(y, mha(x, context))
        twin = copy.deepcopy(cache)
        assert torch.equal(mha(x, context, cache=twin), y)


# Gradients through a cache


def test_a_gradient_of_a_mask_through_a_cache() -> None:
    mha = hw.MultiHeadAttention(16, 2).requires_grad_(False).eval()
    x, bias, cache = torch.randn(1, 3, 16), torch.zeros(3, requires_grad=True), hw.KVCache()
    total = sum(mha(x[:, i : i + 1], cache=cache, mask=bias[: i + 1]).sum() for i in range(3))
    total.backward()  # type: ignore[union-attr]
    cached = bias.grad
    whole = torch.zeros(3, requires_grad=True)
    mha(x, mask=whole.expand(3, 3), causal=True).sum().backward()
    torch.testing.assert_close(cached, whole.grad)


def test_a_gradient_of_a_query_through_a_cache() -> None:
    """Of a layer in which the queries' norm alone is trained."""
    mha = hw.MultiHeadAttention(16, 2, qk_norm="rms").requires_grad_(False).eval()
    assert mha.q_norm is not None
    mha.q_norm.weight.requires_grad_()
    x, cache = torch.randn(1, 3, 16), hw.KVCache()
    found = []
    for cached in (True, False):
        if cached:
            sum(mha(x[:, i : i + 1], cache=cache).sum() for i in range(3)).backward()
        else:
            mha(x, causal=True).sum().backward()
        assert mha.q_norm.weight.grad is not None
        found.append(mha.q_norm.weight.grad.clone())
        mha.q_norm.weight.grad = None
    torch.testing.assert_close(*found)
