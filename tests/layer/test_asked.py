"""What can be asked for beside the output: weights and row statistics; and that asking changes no bit."""

from __future__ import annotations

import itertools
from dataclasses import fields
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import headwise as hw
from headwise.call import AttentionCall, Place
from headwise.kernels.protocol import STATISTICS
from tests.compiled import needs_native
from tests.layer.textbook import close, shaken

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "padding": {"key_mask": torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])},
    "causal padding": {"causal": True, "key_mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])},
    "bias": {"mask": torch.linspace(-2, 1, 25).view(5, 5)},
    "bool": {"mask": torch.eye(5) < 1, "causal": True},
    "rotary": {"position": hw.RotaryEmbedding(4)},
}


def layer(**options: Any) -> Any:
    return shaken(hw.MultiHeadAttention(16, 4, num_kv_heads=2, **options))


def asked(mha: Any, x: Tensor, **options: Any) -> tuple[Tensor, Tensor, hw.RowStatistics]:
    return mha(x, **options, return_weights=True, measure=True)


def test_what_comes_back() -> None:
    mha, x = layer(), torch.randn(2, 5, 16)
    assert isinstance(mha(x), Tensor)
    y, w = mha(x, return_weights=True)
    assert isinstance(w, Tensor)
    y, s = mha(x, measure=True)
    assert isinstance(s, hw.RowStatistics)
    y, w, s = mha(x, measure=True, return_weights=True)
    assert (y.shape, w.shape, s.lse.shape) == ((2, 5, 16), (2, 4, 5, 5), (2, 4, 5))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mode", ["eval", "train", "no_grad", "autocast", "float16", "float64"])
def test_the_output_is_the_same_bits_whatever_is_asked(options: str, mode: str) -> None:
    mha, x = layer(dropout=0.3), torch.randn(2, 5, 16)
    if mode == "eval":
        mha.eval()
    if mode in ("float16", "float64"):
        mha, x = mha.to(getattr(torch, mode)), x.to(getattr(torch, mode))
    outs, states, grads = [], [], []
    for measure, weights in itertools.product((False, True), repeat=2):
        torch.manual_seed(5)
        mha.zero_grad()
        with torch.set_grad_enabled(mode != "no_grad"), torch.autocast("cpu", enabled=mode == "autocast"):
            out = mha(x, **OPTIONS[options], measure=measure, return_weights=weights)
        out = out[0] if isinstance(out, tuple) else out
        outs.append(out)
        states.append(torch.get_rng_state())
        if out.requires_grad:
            out.float().sum().backward()
            grads.append(mha.qkv_proj.weight.grad.clone())
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert all(torch.equal(state, states[0]) for state in states)
    assert all(torch.equal(grad, grads[0]) for grad in grads)


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(OPTIONS)), st.booleans(), st.booleans())
def test_so_also_at_random(seed: int, options: str, measure: bool, weights: bool) -> None:
    torch.manual_seed(seed)
    mha, x = layer(dropout=0.2, qk_norm="rms"), torch.randn(2, 5, 16)
    torch.manual_seed(seed)
    plain = mha(x, **OPTIONS[options])
    torch.manual_seed(seed)
    out = mha(x, **OPTIONS[options], measure=measure, return_weights=weights)
    assert torch.equal(out[0] if isinstance(out, tuple) else out, plain)


# Weights


@pytest.mark.parametrize("dropout", [0.0, 0.9, 1.0])
def test_weights_are_before_dropout_and_sum_to_1(dropout: float) -> None:
    mha, x = layer(dropout=dropout), torch.randn(3, 5, 16)
    _, w = mha(x, causal=True, return_weights=True)
    torch.testing.assert_close(w.sum(-1), torch.ones(3, 4, 5))
    assert torch.equal(w, mha.eval()(x, causal=True, return_weights=True)[1])


@pytest.mark.parametrize("options", OPTIONS)
def test_weights_are_those_that_made_the_output(options: str) -> None:
    mha, x = layer(dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
    caught: list[Tensor] = []
    mha.out_proj.register_forward_pre_hook(lambda module, args: caught.append(args[0]))
    _, w = mha(x, **OPTIONS[options], return_weights=True)
    v = mha.qkv_proj(x)[..., -8:].view(2, 5, 2, 4)
    out = torch.einsum("bhij,bjhd->bihd", w, v.repeat_interleave(2, 2)).flatten(2)
    close(caught[0], out)


def test_weights_of_half_precision_are_exact_to_its_digits() -> None:
    mha, x = layer(), torch.randn(2, 300, 16)
    exact = mha.double()(x.double(), return_weights=True)[1]
    for dtype in (torch.float16, torch.bfloat16):
        w = mha.to(dtype)(x.to(dtype), return_weights=True)[1]
        assert w.dtype == dtype
        torch.testing.assert_close(w.double().sum(-1), torch.ones(2, 4, 300).double(), atol=0.02, rtol=0)
        torch.testing.assert_close(w.double(), exact, atol=0.02, rtol=0)


def test_under_autocast_weights_are_of_what_the_operation_saw() -> None:
    """Scores of bfloat16 queries and keys, but computed in float32, as fused attention does."""
    mha, x = layer(), torch.randn(2, 40, 16) * 3
    with torch.autocast("cpu"):
        y, w, s = asked(mha, x)
        qkv = mha.qkv_proj(x)
    assert (y.dtype, w.dtype, s.lse.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    q, k = qkv[..., :16].double().view(2, 40, 4, 4), qkv[..., 16:24].double().view(2, 40, 2, 4)
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2)) / 2
    torch.testing.assert_close(s.lse.double(), scores.logsumexp(-1), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(w.double(), scores.softmax(-1), atol=4e-3, rtol=0)


# Statistics


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("context", [False, True])
def test_statistics_are_those_of_the_weights(options: str, context: bool) -> None:
    """Two ways from one layer: the kernel reads q and k; the reference reads the weights, as logarithms."""
    mha, x = layer(dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
    c = torch.randn(2, 5, 16, dtype=torch.float64) if context else None
    _, w, s = asked(mha, x, context=c, **OPTIONS[options])
    # q = ln w and k = 1 (one feature a key) at scale 1 have these very weights.
    call = AttentionCall(
        w.log(), torch.eye(5, dtype=torch.float64).expand(2, 4, 5, 5), mask=w > 0, scale=1.0,
        place=Place(kind="cross" if context else "self"),
    )  # fmt: skip
    reference = hw.row_statistics(call.with_(q=w.clamp(min=1e-300).log()), kernel="reference")
    for name in STATISTICS:
        if name in ("lse", "max_score"):  # these are of the scores
            continue
        torch.testing.assert_close(
            getattr(s, name), getattr(reference, name), atol=1e-9, rtol=1e-9, equal_nan=True, msg=name
        )
    sees = w.sum(-1) > 0.5
    assert torch.equal(s.argmax[sees], w.argmax(-1)[sees])
    for field in fields(s.geometry):
        mine, other = getattr(s.geometry, field.name), getattr(reference.geometry, field.name)
        if isinstance(mine, Tensor) and field.name not in ("spans", "segment"):
            assert torch.equal(*torch.broadcast_tensors(mine, other)), field.name


def test_statistics_of_a_hand_checked_row() -> None:
    """Weights 0.7 0.2 0.1 on three tokens: docs/measures.md, worked check."""
    mha = hw.MultiHeadAttention(3, 1, bias=False, dtype=torch.float64)
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]], dtype=torch.float64)
    with torch.no_grad():
        mha.qkv_proj.weight.copy_(torch.cat((p.log().T * 3**0.5, torch.eye(3), torch.eye(3))))
    _, s = mha(torch.eye(3, dtype=torch.float64), measure=True)
    assert s.own[0, 0].tolist() == pytest.approx([0.7] * 3)
    assert float(s.entropy[0, 0, 0]) == pytest.approx(0.80182, abs=1e-5)
    assert float(s.ipr[0, 0, 0]) == pytest.approx(0.54)
    assert float(s.distance[0, 0, 0]) == pytest.approx(0.4)
    assert s.argmax[0, 0].tolist() == [0, 1, 2]


def test_statistics_are_detached_and_leave_no_graph() -> None:
    mha, x = layer(), torch.randn(2, 5, 16, requires_grad=True)
    bias = torch.randn(5, 5, requires_grad=True)
    _, s = mha(x, mask=bias, measure=True)
    assert not any(getattr(s, f.name).requires_grad for f in fields(s) if isinstance(getattr(s, f.name), Tensor))


def test_cross_attention_has_no_own_key() -> None:
    mha, x = layer(), torch.randn(2, 5, 16)
    assert (mha(x, torch.randn(2, 5, 16), measure=True)[1].geometry.own == -1).all()
    assert torch.equal(mha(x, measure=True)[1].geometry.own[0], torch.arange(5))


def test_the_row_of_a_decoding_step_is_the_last() -> None:
    mha, cache, x = layer(), hw.KVCache(), torch.randn(2, 5, 16)
    mha(x[:, :3], cache=cache, causal=True)
    _, s = mha(x[:, 3:4], cache=cache, causal=True, measure=True)
    assert s.geometry.own.tolist() in ([[3]], [[3], [3]])
    _, s = mha(x[:, 3:], cache=cache, causal=True, measure=True)  # two more, after the four
    assert s.geometry.own[0].tolist() == [4, 5]
    assert s.geometry.visible[0, 0].tolist() == [5, 6]


def test_the_precision_of_products_is_put_back() -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        layer()(torch.randn(1, 4, 16), measure=True)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(one, Tensor) and one._base is None:
                self.numel = max(self.numel, one.untyped_storage().nbytes() // one.element_size())
        return out


def test_measuring_holds_no_n_by_n_weights() -> None:
    N = 1500
    mha, x = hw.MultiHeadAttention(16, 4), torch.randn(1, N, 16)
    with torch.no_grad(), Largest() as largest:
        mha(x, causal=True, measure=True)
    assert largest.numel < 4 * N * N / 4
    with torch.no_grad(), Largest() as largest:
        mha(x, causal=True, return_weights=True)
    assert largest.numel >= 4 * N * N  # that the test can see it


def test_measuring_what_holds_no_numbers_is_refused() -> None:
    mha = hw.MultiHeadAttention(16, 4, device="meta")
    with pytest.raises(ValueError, match="measure=True: meta tensors hold no numbers"):
        mha(torch.empty(2, 5, 16, device="meta"), measure=True)
    mha = layer()
    with pytest.raises(ValueError, match=r"inside a torch\.func transform"):
        torch.func.grad(lambda x: mha(x, measure=True)[0].sum())(torch.randn(3, 5, 16))


@needs_native
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"key_mask": torch.arange(7) < 5}, {"return_weights": True}])
def test_without_gradients_one_kernel_gives_output_and_statistics(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mha, x = hw.MultiHeadAttention(16, 4, num_kv_heads=2).eval(), torch.randn(2, 7, 16)
    if "key_mask" in options:
        options = {"key_mask": options["key_mask"].expand(2, 7)}
    with_gradients = mha(x, measure=True, **options)
    ran: list[Any] = []
    operation = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **o: ran.append(o) or operation(*a, **o))
    with torch.no_grad():
        y, *_, statistics = mha(x, measure=True, **options)
        assert ran == []
        torch.testing.assert_close(y, with_gradients[0], rtol=0, atol=1e-5)
        for name in STATISTICS:
            torch.testing.assert_close(
                getattr(statistics, name), getattr(with_gradients[-1], name), rtol=0, atol=1e-6, equal_nan=True
            )
        with hw.watch(mha) as profile:
            mha(x, measure=True, **options)
        assert len(profile.table()) == 4
    assert len(ran) == 1
