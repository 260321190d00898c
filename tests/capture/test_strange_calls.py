"""Calls that once broke the fused path, or were measured wrongly."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headwise as hw
from tests.compiled import needs_native
from tests.models_of_tests import Decoder


def ids_of(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_one_query_head_over_several_key_heads_is_not_written_beyond_its_output() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 5, 8), torch.randn(3, 2, 5, 8), torch.randn(3, 2, 5, 8)
    expected = F.scaled_dot_product_attention(q, k, v)
    for _ in range(20):
        with hw.watch(fuse=True) as profile:
            found = F.scaled_dot_product_attention(q, k, v)
        torch.testing.assert_close(found, expected)
    assert profile.layers[0].num_heads == 2


class Folded(nn.Module):
    """A one-token query that comes as (B, H_kv, H / H_kv, d), as many models' decoding does."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads = 4, 2
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


@torch.no_grad()
@pytest.mark.parametrize("groups", [2, 20])
def test_a_folded_query_gets_its_output(groups: int) -> None:
    torch.manual_seed(1)
    model = Folded()
    model.num_heads = 2 * groups
    q, k, v = torch.randn(3, 2, groups, 8), torch.randn(3, 2, 7, 8), torch.randn(3, 2, 7, 8)
    expected = model(q, k, v)
    with hw.watch(model, fuse=True) as profile:
        found = model(q, k, v)
    torch.testing.assert_close(found, expected)
    assert profile.layers[0].num_heads == 2 * groups


@needs_native
def test_the_kernel_refuses_a_place_of_another_shape() -> None:
    call = hw.AttentionCall(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))
    from headwise.kernels import fused_attention

    for place in (torch.empty(1, 1, 3, 4), torch.empty(1, 2, 3, 5), torch.empty(1, 2, 3, 4, dtype=torch.float16)):
        with pytest.raises(ValueError, match="out: expected"):
            fused_attention(call, place)


@torch.no_grad()
@pytest.mark.parametrize("fuse", [False, True])
def test_tensors_that_are_negated_when_read(fuse: bool) -> None:
    torch.manual_seed(2)
    q = torch.imag(torch.complex(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)).conj())
    k, mask = torch.randn(1, 2, 5, 8), torch.imag(torch.complex(torch.zeros(5, 5), torch.randn(5, 5)).conj())
    assert q.is_neg()
    with hw.watch(fuse=fuse) as profile:
        found = F.scaled_dot_product_attention(q, k, k, attn_mask=mask)
    with hw.watch() as plain:
        expected = F.scaled_dot_product_attention(q.clone(), k, k, attn_mask=mask.clone())
    torch.testing.assert_close(found, expected)
    pd.testing.assert_frame_equal(profile.table(), plain.table(), rtol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("size", [1e8, 1e10, 1e30, 3e38])
def test_a_huge_bias(size: float) -> None:
    torch.manual_seed(3)
    q = torch.randn(1, 2, 5, 8)
    mask = torch.zeros(5, 5).fill_diagonal_(size)
    expected = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    with hw.watch(fuse=True) as profile:
        found = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    torch.testing.assert_close(found, expected)
    np.testing.assert_allclose(profile.table()["self_focus"], 1)


@torch.no_grad()
def test_an_outer_watch_sees_what_an_inner_one_would_fuse() -> None:
    model, ids = Decoder().eval(), ids_of(2, 6)
    with hw.watch(model) as outer, hw.watch(model, fuse=True) as inner:
        model(ids)
    assert outer.table()["rows"].eq(12).all()
    assert inner.table()["rows"].eq(12).all()


def llama(**more: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        vocab_size=12, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation="sdpa", bos_token_id=0, eos_token_id=None, pad_token_id=1, **more,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@torch.no_grad()
def test_a_prompt_read_in_parts_is_as_one_that_is_read_whole() -> None:
    import inspect

    from transformers import DynamicCache

    model = llama()
    ids = torch.randint(2, 12, (3, 16), generator=torch.Generator().manual_seed(5))
    cache = DynamicCache(config=model.config)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with hw.watch(model, measures="all") as parts:
        model(ids[:, :8], **{name: cache}, use_cache=True)
        model(ids[:, 8:], **{name: cache}, use_cache=True)
    with hw.watch(model, measures="all") as whole:
        model(ids, use_cache=False)
    names = ["alpha_first", "duplicate", "induction", "entropy", "output_norm"]
    pd.testing.assert_frame_equal(parts.table()[names], whole.table()[names], rtol=1e-5)
    keys = ["label", "position", "alpha"]
    pd.testing.assert_frame_equal(parts.keys()[keys], whole.keys()[keys], rtol=1e-5)
    pd.testing.assert_frame_equal(parts.pairs("bc"), whole.pairs("bc"), rtol=1e-5)


@torch.no_grad()
def test_beam_search_moves_rows_and_their_tokens_go_with_them() -> None:
    """Decode rows by hand: the ids moved with the cache, against what is measured."""
    model = llama()
    prompt = torch.randint(2, 12, (1, 6), generator=torch.Generator().manual_seed(6))
    moved: list[Tensor] = []
    from transformers import DynamicCache

    class Cache(DynamicCache):
        def reorder_cache(self, beam_idx: Tensor) -> None:
            moved.append(beam_idx.clone())
            super().reorder_cache(beam_idx)

    truth: list[Tensor] = []
    history: list[Tensor] = [prompt.expand(3, -1)]

    def follow(module: nn.Module, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids.shape[1] == 1:
            order = moved[-1] if moved else torch.arange(3)
            history.append(torch.cat((history[-1][order], ids), 1))

    def weights(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        truth.append(history[-1])

    model.register_forward_pre_hook(follow, with_kwargs=True)
    model.register_forward_hook(weights, with_kwargs=True)
    seen: list[tuple[Tensor, Tensor]] = []
    hw.measure("read", lambda block: _note(block, seen), needs=["tokens"])
    try:
        with warnings.catch_warnings(), hw.watch(model, measures=["read"]):
            warnings.simplefilter("ignore")
            model.generate(
                prompt, max_new_tokens=10, num_beams=3, do_sample=False, past_key_values=Cache(config=model.config)
            )
    finally:
        hw.unregister("read")
    assert any((order != torch.arange(len(order))).any() for order in moved), "no beam moved"
    decoded = [ids for ids in truth if ids.shape[1] > 6]
    found = [keys for keys in seen if keys.shape[1] > 6][:: model.config.num_hidden_layers]
    assert len(found) == len(decoded)
    for ours, real in zip(found, decoded, strict=True):
        assert torch.equal(ours, real)


def _note(block: Any, seen: list[Tensor]) -> Tensor:
    seen.append(block.tokens.keys)
    return block.weights.sum(-1)


def test_a_transformed_model_is_unseen_and_does_not_break_the_watch() -> None:
    model = Decoder().eval()
    with warnings.catch_warnings(), hw.watch(model, measures="all") as profile:
        warnings.simplefilter("ignore")
        torch.vmap(lambda ids: model(ids))(torch.randint(0, 50, (3, 1, 6)))
    assert profile.layers == []
    assert "torch.func" in profile.unseen[0].reason


@torch.no_grad()
def test_real_of_another_shape_is_told() -> None:
    model = Decoder().eval()
    with hw.watch(model, real=torch.ones(2, 9)) as profile:
        model(ids_of(2, 6))
    assert profile.notes == ["real: of shape (2, 9), which fits no sequences of 2 x 6 tokens: it was not used"]


@torch.no_grad()
def test_token_labels_go_on_while_a_model_generates() -> None:
    model = llama()
    prompt = torch.randint(2, 12, (2, 6))
    labels = [["p"] * 6 + ["g"] * 3] * 2
    with hw.watch(model, groups=labels) as profile:
        model.generate(prompt, max_new_tokens=4, do_sample=False)
    assert profile.table(group="p")["rows"].eq(12).all()
    assert profile.table(group="g")["rows"].eq(6).all()
    assert profile.notes == []
