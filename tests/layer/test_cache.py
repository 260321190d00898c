"""Decoding token by token: equal to one pass, cheap, and never at the cost of tensors that were given out."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from tests.layer.textbook import close, shaken


def layer(**options: Any) -> Any:
    return shaken(hw.MultiHeadAttention(12, 4, num_kv_heads=2, **{"dtype": torch.float64, **options}))


def kv(n: int, B: int = 2, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(B, 2, n, 3, dtype=dtype), torch.randn(B, 2, n, 5, dtype=dtype)


# Decoding


@pytest.mark.parametrize("options", [{}, {"qk_norm": "rms"}, {"value_head_dim": 5}, {"head_dim": 6, "bias": False}])
@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference", "frozen"])
@pytest.mark.parametrize("rotary", [False, True])
def test_token_by_token_equals_the_full_pass(options: dict[str, Any], mode: str, rotary: bool) -> None:
    mha, x = layer(**options), torch.randn(2, 40, 12, dtype=torch.float64)
    if mode == "frozen":
        mha.requires_grad_(False)
    rope = hw.RotaryEmbedding(2) if rotary else None
    with torch.set_grad_enabled(mode in ("grad", "frozen")), torch.inference_mode(mode == "inference"):
        whole = mha(x, causal=True, position=rope)
        cache = hw.KVCache()
        steps = [mha(x[:, i : i + 1], causal=True, cache=cache, position=rope) for i in range(40)]
    close(torch.cat(steps, 1), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_a_prompt_and_padding_on_the_left(dtype: torch.dtype) -> None:
    mha, x = layer(dtype=dtype), torch.randn(2, 9, 12).to(dtype)
    keys = torch.tensor([[0] * 3 + [1] * 6, [1] * 9])
    whole = mha(x, causal=True, key_mask=keys)
    cache = hw.KVCache()
    steps = [mha(x[:, :5], causal=True, cache=cache, key_mask=keys[:, :5])]
    for i in range(5, 9):
        steps.append(mha(x[:, i : i + 1], causal=True, cache=cache, key_mask=keys[:, : i + 1]))
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=tolerance, rtol=tolerance)


def test_one_sequence_without_a_batch() -> None:
    mha, x = layer(), torch.randn(6, 12, dtype=torch.float64)
    cache = hw.KVCache()
    steps = [mha(x[:4], causal=True, cache=cache), mha(x[4:], causal=True, cache=cache, key_mask=torch.ones(6) > 0)]
    close(torch.cat(steps), mha(x, causal=True))


def test_keys_are_kept_once_for_the_heads_that_share_them() -> None:
    mha, cache = layer(), hw.KVCache()
    with torch.no_grad():
        mha(torch.randn(2, 5, 12, dtype=torch.float64), cache=cache)
    assert cache._k.shape[1] == 2
    assert repr(cache) == "KVCache(5 tokens, batch 2, 2 key-value heads)"


def test_gradients_flow_through_the_cache() -> None:
    mha, x = layer(), torch.randn(2, 6, 12, dtype=torch.float64, requires_grad=True)
    cache = hw.KVCache()
    mha(x[:, :4], causal=True, cache=cache)
    (mine,) = torch.autograd.grad(mha(x[:, 4:], causal=True, cache=cache).pow(2).sum(), x)
    (whole,) = torch.autograd.grad(mha(x, causal=True)[:, 4:].pow(2).sum(), x)
    close(mine, whole)
    assert mine[:, :4].abs().max() > 0


def test_a_prompt_without_gradients_then_tokens_with_them() -> None:
    """A frozen prompt, then training on what follows; and back to decoding."""
    mha, x = layer(), torch.randn(2, 6, 12, dtype=torch.float64)
    whole = mha(x, causal=True)
    cache = hw.KVCache()
    with torch.inference_mode():
        a = mha(x[:, :3], causal=True, cache=cache)
    b = mha(x[:, 3:5], causal=True, cache=cache)
    b.sum().backward()
    with torch.no_grad():
        c = mha(x[:, 5:], causal=True, cache=cache)
    close(torch.cat((a.clone(), b.detach(), c), 1), whole)


def test_inference_mode_ends_between_two_tokens() -> None:
    mha, x = layer(), torch.randn(1, 6, 12, dtype=torch.float64)
    cache, steps = hw.KVCache(), []
    for i in range(6):
        with torch.inference_mode(i % 2 == 0), torch.no_grad():
            steps.append(mha(x[:, i : i + 1], causal=True, cache=cache))
    with torch.inference_mode():
        close(torch.cat(steps, 1), mha(x, causal=True))


def test_autocast_keeps_what_the_operation_reads() -> None:
    mha, x = layer(dtype=torch.float32, qk_norm="layer"), torch.randn(2, 5, 12)
    cache = hw.KVCache()
    with torch.no_grad(), torch.autocast("cpu"):
        for i in range(5):
            y = mha(x[:, i : i + 1], causal=True, cache=cache)
        assert cache._k.dtype == torch.bfloat16
        torch.testing.assert_close(y, mha(x, causal=True)[:, 4:], atol=2e-2, rtol=2e-2)
    with pytest.raises(ValueError, match=r"holds torch\.bfloat16 on cpu; got torch\.float32 on cpu: .*autocast"):
        mha(x[:, :1], causal=True, cache=cache)


# The context of cross-attention


def counted(mha: Any) -> list[tuple[int, ...]]:
    """The shapes of what its projections make from now on."""
    made: list[tuple[int, ...]] = []
    for module in {mha.qkv_proj, mha.kv_proj} - {None}:
        module.register_forward_hook(lambda module, args, out: made.append(tuple(out.shape)))
    return made


@pytest.mark.parametrize("d_context", [None, 7])
def test_a_context_is_projected_once(d_context: int | None) -> None:
    mha = layer(d_context=d_context)
    x, c = (torch.randn(2, n, d, dtype=torch.float64) for n, d in ((4, 12), (9, mha.d_context)))
    keys = torch.rand(2, 9) > 0.3
    whole = mha(x, c, key_mask=keys)
    made, cache = counted(mha), hw.KVCache()
    with torch.no_grad():
        steps = [mha(x[:, i : i + 1], c, key_mask=keys, cache=cache) for i in range(4)]
        close(torch.cat(steps, 1), whole)
        wide = [shape for shape in made if shape[1] == 9]
        assert wide == [(2, 9, 6 + 6)]
        assert cache.length == 9
        # Another tensor, even with the same numbers, is another context.
        mha(x, c.clone(), cache=cache)
        assert len([shape for shape in made if shape[1] == 9]) == 2
        longer = torch.randn(2, 11, mha.d_context, dtype=torch.float64)
        close(mha(x, longer, cache=cache), mha(x, longer))
        close(mha(x, c, cache=cache), mha(x, c))


def test_a_context_that_was_changed_in_place_is_projected_anew() -> None:
    mha, x, c = layer(), *torch.randn(2, 2, 5, 12, dtype=torch.float64)
    cache = hw.KVCache()
    with torch.no_grad():
        mha(x, c, cache=cache)
        c.mul_(2)
        close(mha(x, c, cache=cache), mha(x, c))


def test_a_context_kept_without_a_graph_does_not_cost_gradients() -> None:
    mha, x, c = layer(), *torch.randn(2, 2, 5, 12, dtype=torch.float64)
    cache = hw.KVCache()
    with torch.no_grad():
        mha(x, c, cache=cache)
    mine = torch.autograd.grad(mha(x, c, cache=cache).sum(), mha.qkv_proj.weight)[0]
    whole = torch.autograd.grad(mha(x, c).sum(), mha.qkv_proj.weight)[0]
    close(mine, whole)
    assert whole[-6:].abs().max() > 0


def test_a_context_in_and_out_of_autocast() -> None:
    mha, x, c = layer(dtype=torch.float32), *torch.randn(2, 2, 5, 12)
    cache = hw.KVCache()
    with torch.no_grad():
        with torch.autocast("cpu"):
            assert torch.equal(mha(x, c, cache=cache), mha(x, c))
        assert torch.equal(mha(x, c, cache=cache), mha(x, c))


@pytest.mark.parametrize("what", [{"causal": True}, {"causal": "upper_left"}, {"position": hw.RotaryEmbedding(2)}])
def test_which_queries_read_a_kept_context_is_not_known(what: dict[str, Any]) -> None:
    mha, x, c = layer(), *torch.randn(2, 2, 5, 12, dtype=torch.float64)
    with pytest.raises(ValueError, match="with a context and a cache it is not known which queries these are"):
        mha(x, c, cache=hw.KVCache(), **what)
    assert mha(x, c, **what).shape == x.shape


# Misuse


def test_one_cache_for_self_and_cross_attention_is_refused() -> None:
    mha, x, c = layer(), *torch.randn(2, 2, 5, 12, dtype=torch.float64)
    cache = hw.KVCache()
    mha(x, cache=cache)
    with pytest.raises(ValueError, match="holds keys of self-attention, and now came a context"):
        mha(x, c, cache=cache)
    assert cache.length == 5
    cache.reset()
    mha(x, c, cache=cache)
    with pytest.raises(ValueError, match="holds the projected context of cross-attention, and now came keys of self"):
        mha(x, cache=cache)
    with pytest.raises(ValueError, match="crop: it holds the projected context"):
        cache.crop(2)


def test_one_cache_for_two_layers_is_refused() -> None:
    """Else cross-attention would silently read the other layer's keys."""
    a, b, x, c = layer(), layer(), *torch.randn(2, 2, 5, 12, dtype=torch.float64)
    for options in ({}, {"context": c}):
        cache = hw.KVCache()
        a(x, cache=cache, **options)
        with pytest.raises(ValueError, match="another layer has filled this cache: give each layer its own"):
            b(x, cache=cache, **options)
        cache.reset()
        b(x, cache=cache, **options)


def test_a_call_that_failed_leaves_the_cache_free() -> None:
    a, b, x = layer(), layer(), torch.randn(2, 5, 12, dtype=torch.float64)
    cache = hw.KVCache()
    with pytest.raises(RuntimeError):
        a(x.float(), cache=cache)
    close(b(x, cache=cache), b(x))


def test_a_model_and_its_cache_can_be_copied_together() -> None:
    mha, x, c = layer(), *torch.randn(2, 2, 5, 12, dtype=torch.float64)
    with torch.no_grad():
        cache, cross = hw.KVCache(), hw.KVCache()
        mha(x[:, :4], causal=True, cache=cache)
        mha(x, c, cache=cross)
        twin, cache, cross, c2 = copy.deepcopy((mha, cache, cross, c))
        close(twin(x[:, 4:], causal=True, cache=cache), mha(x, causal=True)[:, 4:])
        close(twin(x, c2, cache=cross), mha(x, c))


def test_another_batch_is_refused() -> None:
    mha, cache = layer(), hw.KVCache()
    mha(torch.randn(2, 5, 12, dtype=torch.float64), cache=cache)
    says = "expected the batch, heads and width of what it holds, (2, 2, 5, 3); got (3, 2, 1, 3): reorder() it"
    with pytest.raises(ValueError, match=re.escape(says)):
        mha(torch.randn(3, 1, 12, dtype=torch.float64), cache=cache)
    assert cache.length == 5


@pytest.mark.parametrize(
    ("k", "v", "says"),
    [
        (kv(1, dtype=torch.float32)[0], kv(1)[1], "holds torch.float64 on cpu; got torch.float32 on cpu"),
        (kv(1)[0], kv(2)[1], "got (2, 2, 1, 3) and (2, 2, 2, 5)"),
        (kv(1)[0][0], kv(1)[1][0], "got (2, 1, 3) and (2, 1, 5)"),
        (kv(1)[1], kv(1)[1], "got (2, 2, 1, 5)"),
        (kv(1)[0].to("meta"), kv(1)[1].to("meta"), "got torch.float64 on meta"),
    ],
)
def test_keys_that_do_not_fit_are_refused(k: Tensor, v: Tensor, says: str) -> None:
    cache = hw.KVCache()
    cache.update(*kv(4))
    with pytest.raises(ValueError, match=re.escape(says)):
        cache.update(k, v)
    assert cache.length == 4


# The cache alone


def test_growing_copies_each_token_a_few_times_at_most() -> None:
    cache, memory = hw.KVCache(), set()
    for _ in range(1000):
        k, _ = cache.update(*kv(1, B=1))
        memory.add(k.data_ptr())
    assert len(memory) <= 8  # 16, 32, ..., 1024
    assert cache.length == 1000


@pytest.mark.parametrize("change", ["crop", "copy", "reorder", "reset", "grad"])
def test_what_was_given_out_is_never_written_to(change: str) -> None:
    cache = hw.KVCache()
    cache.update(*kv(3))
    out = cache.update(*kv(2))  # there is room for more behind them
    before = [t.clone() for t in out]
    twin = copy.copy(cache) if change == "copy" else cache
    if change == "crop":
        cache.crop(1)
    elif change == "reorder":
        cache.reorder(torch.tensor([1, 0]))
    elif change == "reset":
        cache.reset()
    new = kv(4)
    mine = cache.update(new[0].requires_grad_(change == "grad"), new[1])
    kept = [t.detach().clone() for t in mine]
    twin.update(*kv(4))
    for got, wanted in zip((*out, *mine), (*before, *kept), strict=True):
        assert torch.equal(got, wanted)


def test_a_graph_through_the_cache_outlives_what_is_added_without_one() -> None:
    cache, (k, v) = hw.KVCache(), kv(3)
    losses = [cache.update(k.requires_grad_(), v)[0].pow(2).sum()]
    losses += [cache.update(*kv(1))[0].pow(2).sum() for _ in range(3)]
    sum(losses).backward()
    close(k.grad, 4 * 2 * k.detach())


Steps = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.integers(0, 20)),
        st.tuples(st.just("crop"), st.floats(0, 1)),
        st.tuples(st.just("reorder"), st.lists(st.integers(0, 1), min_size=2, max_size=2)),
        st.tuples(st.just("copy"), st.just(0)),
        st.tuples(st.just("grad"), st.integers(1, 3)),
        st.tuples(st.just("inference"), st.integers(1, 3)),
    ),
    max_size=14,
)


@given(Steps, st.integers(0, 2**32 - 1))
def test_it_holds_what_a_list_would_and_what_was_given_out_stays(steps: list[tuple[str, Any]], seed: int) -> None:
    torch.manual_seed(seed)
    caches = [hw.KVCache()]
    lists = [kv(0)]
    given_out: list[tuple[Tensor, Tensor]] = []
    for number, (step, how) in enumerate(steps):
        which = number % len(caches)
        cache, (k, v) = caches[which], lists[which]
        if step in ("update", "grad", "inference"):
            new = kv(how)
            if step == "grad":
                new = (new[0].requires_grad_(), new[1])
            with torch.inference_mode(step == "inference"), torch.set_grad_enabled(step == "grad"):
                out = cache.update(*new)
            lists[which] = tuple(torch.cat((a, b.detach()), 2) for a, b in zip((k, v), new, strict=True))
            for got, wanted in zip(out, lists[which], strict=True):
                assert torch.equal(got, wanted)
                given_out.append((got, wanted.clone()))
        elif step == "crop":
            cache.crop(int(how * cache.length))
            lists[which] = (k[:, :, : cache.length], v[:, :, : cache.length])
        elif step == "reorder":
            cache.reorder(torch.tensor(how))
            lists[which] = (k[how], v[how])
        else:
            caches.append(copy.copy(cache))
            lists.append((k, v))
        assert [c.length for c in caches] == [one[0].shape[2] for one in lists]
        for got, wanted in given_out:
            assert torch.equal(got, wanted)


def test_crop_tries_another_continuation() -> None:
    mha, x = layer(), torch.randn(2, 8, 12, dtype=torch.float64)
    cache = hw.KVCache()
    with torch.no_grad():
        mha(x[:, :6], causal=True, cache=cache)
        cache.crop(4)
        other = torch.cat((x[:, :4], x[:, 6:]), 1)
        close(mha(x[:, 6:], causal=True, cache=cache), mha(other, causal=True)[:, 4:])
    for length in (7, -1):
        with pytest.raises(ValueError, match=rf"crop: expected 0 to 6 tokens.*got {length}"):
            cache.crop(length)


def test_reorder_is_beam_search() -> None:
    mha, x, c = layer(), torch.randn(3, 5, 12, dtype=torch.float64), torch.randn(3, 4, 12, dtype=torch.float64)
    index = torch.tensor([2, 0, 0, 1])
    cache, cross = hw.KVCache(), hw.KVCache()
    with torch.no_grad():
        mha(x[:, :4], causal=True, cache=cache)
        cache.reorder(index)
        close(mha(x[index, 4:], causal=True, cache=cache), mha(x[index], causal=True)[:, 4:])
        mha(x, c, cache=cross)
        cross.reorder(torch.tensor([2, 0, 0]))
        close(mha(x, c[[2, 0, 0]], cache=cross), mha(x, c[[2, 0, 0]]))
    with pytest.raises(ValueError, match=r"reorder: expected one dimension.*got \(1, 4\)"):
        cache.reorder(index[None])
    hw.KVCache().reorder(index)  # nothing to do


def test_an_empty_cache_and_reset() -> None:
    cache = hw.KVCache()
    assert cache.length == cache.get_seq_length() == 0
    assert repr(cache) == "KVCache(0 tokens)"
    cache.crop(0)
    cache.update(*kv(3))
    cache.reset()
    assert cache.length == 0
    cache.update(*kv(2, B=5, dtype=torch.float32))
    assert cache.length == 2


def test_copies_and_pickles_go_on_by_themselves() -> None:
    mha, x = layer(), torch.randn(2, 5, 12, dtype=torch.float64)
    with torch.no_grad():
        whole = mha(x, causal=True)
        for duplicate in (copy.copy, copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))):
            cache = hw.KVCache()
            mha(x[:, :4], causal=True, cache=cache)
            twin = duplicate(cache)
            mha(torch.randn(2, 1, 12, dtype=torch.float64), causal=True, cache=twin)
            close(mha(x[:, 4:], causal=True, cache=cache), whole[:, 4:])
            assert (cache.length, twin.length) == (5, 5)
