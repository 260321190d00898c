"""Eq. 2 and 3: numbers by hand, and the textbook form with all gradients, in every shape a layer can have."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel

import headwise as hw
from tests.layer.textbook import close, leaves, seen_by, shaken, textbook

DOUBLE = {"dtype": torch.float64}

LAYERS: dict[str, dict[str, Any]] = {
    "plain": {"d_model": 12, "num_heads": 3},
    "one head": {"d_model": 5, "num_heads": 1},
    "no bias": {"d_model": 12, "num_heads": 4, "bias": False},
    "gqa": {"d_model": 12, "num_heads": 6, "num_kv_heads": 2},
    "mqa": {"d_model": 12, "num_heads": 4, "num_kv_heads": 1},
    "fixed head size": {"d_model": 10, "num_heads": 3, "head_dim": 7},
    "other value width": {"d_model": 10, "num_heads": 3, "head_dim": 7, "value_head_dim": 2},
    "gqa of other widths": {"d_model": 10, "num_heads": 4, "num_kv_heads": 2, "head_dim": 3, "value_head_dim": 5},
    "context": {"d_model": 12, "num_heads": 3, "d_context": 7},
    "context, gqa, widths": {
        "d_model": 9, "num_heads": 4, "num_kv_heads": 2, "head_dim": 3, "value_head_dim": 5, "d_context": 7,
        "bias": False,
    },
    "rms": {"d_model": 12, "num_heads": 3, "qk_norm": "rms"},
    "layer norm": {"d_model": 12, "num_heads": 4, "num_kv_heads": 2, "qk_norm": "layer"},
}  # fmt: skip


def made(name: str, dtype: torch.dtype = torch.float64) -> Any:
    return shaken(hw.MultiHeadAttention(**LAYERS[name], dtype=dtype))


# By hand


def test_two_heads_by_hand() -> None:
    """Head 0 reads with weights 3/4 and 1/4, head 1 evenly; W^O doubles head 0 and adds head 1."""
    mha = hw.MultiHeadAttention(2, 2, dtype=torch.float64)
    with torch.no_grad():
        queries = [[1.0, 0.0], [0.0, 0.0]]  # head 0 asks with feature 0, head 1 with nothing
        keys = [[1.0, 0.0], [0.0, 1.0]]
        values = [[0.0, 1.0], [0.0, 10.0]]  # head 0 gives feature 1, head 1 ten times it
        mha.qkv_proj.weight.copy_(torch.tensor(queries + keys + values))
        mha.out_proj.weight.copy_(torch.tensor([[2.0, 0.0], [2.0, 1.0]]))
        mha.out_proj.bias.copy_(torch.tensor([0.5, 0.0]))
    root = math.sqrt(math.log(3.0))
    x = torch.tensor([[[root, 4.0], [0.0, 8.0]]], dtype=torch.float64)
    y, w = mha(x, return_weights=True)
    # d_k = 1. Token 0, head 0: scores ln 3 and 0; token 1 asks with 0.
    close(w[0, 0], torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
    close(w[0, 1], torch.full((2, 2), 0.5))
    # head 0: 0.75 * 4 + 0.25 * 8 = 5 and 6; head 1: 60 and 60
    close(y[0], torch.tensor([[10.5, 70.0], [12.5, 72.0]]))


def test_the_scale_is_one_over_root_dk() -> None:
    mha = hw.MultiHeadAttention(4, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        mha.qkv_proj.weight.copy_(torch.eye(4).repeat(3, 1))
    x = torch.tensor([[[2 * math.log(3.0) ** 0.5, 0, 0, 0], [0.0, 0, 0, 0]]], dtype=torch.float64)
    # score 4 ln 3 / sqrt(4) = 2 ln 3 against 0
    close(mha(x, return_weights=True)[1][0, 0, 0], torch.tensor([0.9, 0.1], **DOUBLE))


@pytest.mark.parametrize(("d_model", "heads"), [(512, 8), (768, 12)])
def test_equation_3(d_model: int, heads: int) -> None:
    mha = hw.MultiHeadAttention(d_model, heads, device="meta")
    assert (mha.head_dim, mha.value_head_dim) == (64, 64)


# The textbook form


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("causal", [False, "upper_left", "lower_right"])
def test_the_textbook_form_gives_the_same_result_and_gradients(name: str, causal: Any) -> None:
    mha = made(name)
    x = torch.randn(3, 7, mha.d_model, **DOUBLE, requires_grad=True)
    context = torch.randn(3, 11, mha.d_context, **DOUBLE, requires_grad=True)
    cases = [(x, context)] if mha.d_context != mha.d_model else [(x, None), (x, context)]
    for one, other in cases:
        N, M = 7, 7 if other is None else 11
        mha.zero_grad()
        y, w = mha(one, other, causal=causal, return_weights=True)
        p = leaves(mha)
        y_book, w_book = textbook(mha, p, one, other, seen=seen_by(N, M, causal or None))
        close(y, y_book)
        close(w, w_book)
        weight = torch.randn_like(y)
        inputs = [one] if other is None else [one, other]
        names, parameters = zip(*mha.named_parameters(), strict=True)
        ours = torch.autograd.grad((y * weight).sum(), [*inputs, *parameters])
        theirs = torch.autograd.grad((y_book * weight).sum(), [*inputs, *(p[name] for name in names)])
        for got, wanted in zip(ours, theirs, strict=True):
            close(got, wanted, 1e-11)


@pytest.mark.parametrize("dims", [(1, 1, 1), (2, 63, 17), (1, 111, 63), (3, 5, 100)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_odd_shapes_against_float64(dims: tuple[int, int, int], dtype: torch.dtype) -> None:
    B, N, M = dims
    mha = shaken(hw.MultiHeadAttention(15, 3, dtype=dtype))
    x, c = torch.randn(B, N, 15).to(dtype).requires_grad_(), torch.randn(B, M, 15).to(dtype).requires_grad_()
    y = mha(x, c)
    p, x2, c2 = leaves(mha), *(t.detach().double().requires_grad_() for t in (x, c))
    y_book, _ = textbook(mha, p, x2, c2)
    weight = torch.randn(y.shape, dtype=torch.float64)
    (y.double() * weight).sum().backward()
    (y_book * weight).sum().backward()
    tolerance = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 4e-2}[dtype]

    def near(got: Tensor, wanted: Tensor) -> None:
        got, wanted = got.detach().double(), wanted.detach()
        assert float((got - wanted).abs().max()) <= tolerance * max(1.0, float(wanted.abs().max()))

    near(y, y_book)
    near(x.grad, x2.grad)
    near(c.grad, c2.grad)
    for name, parameter in mha.named_parameters():
        near(parameter.grad, p[name].grad)


@pytest.mark.parametrize("name", ["gqa of other widths", "context, gqa, widths", "rms"])
def test_gradients_by_differences(name: str) -> None:
    mha = made(name)
    x = torch.randn(2, 3, mha.d_model, **DOUBLE, requires_grad=True)
    context = torch.randn(2, 4, mha.d_context, **DOUBLE, requires_grad=True)
    assert gradcheck(lambda x, c: mha(x, c), (x, context))
    assert gradcheck(lambda x, c: mha(x, c, return_weights=True)[1], (x, context))


def test_weights_have_gradients_too() -> None:
    """A loss on the weights (to supervise alignment, say) trains the layer."""
    mha = made("gqa")
    x = torch.randn(2, 5, 12, **DOUBLE)
    target = torch.rand(2, 6, 5, 5, **DOUBLE)
    (mha(x, causal=True, return_weights=True)[1] * target).sum().backward()
    p = leaves(mha)
    (textbook(mha, p, x, seen=seen_by(5, 5, "upper_left"))[1] * target).sum().backward()
    close(mha.qkv_proj.weight.grad, p["qkv_proj.weight"].grad, 1e-11)
    assert mha.qkv_proj.weight.grad.abs().max() > 1e-3


# Heads as the paper writes them


@pytest.mark.parametrize("name", LAYERS)
def test_per_head_weights_are_those_of_equation_2(name: str) -> None:
    mha = made(name)
    H, d, dv = mha.num_heads, mha.head_dim, mha.value_head_dim
    heads = mha.per_head_weights()
    shapes = [(H, mha.d_model, d), (H, mha.d_context, d), (H, mha.d_context, dv), (H, dv, mha.d_model)]
    assert [tuple(w.shape) for w in heads[:4]] == shapes
    if mha.out_proj.bias is None:
        assert heads[4:] == (None,) * 4
        b_q = b_k = b_v = torch.zeros(H, 1, **DOUBLE)
        b_o = 0.0
    else:
        assert [tuple(b.shape) for b in heads[4:]] == [(H, d), (H, d), (H, dv), (mha.d_model,)]
        b_q, b_k, b_v, b_o = heads[4:]
    x = torch.randn(2, 5, mha.d_model, **DOUBLE)
    c = torch.randn(2, 6, mha.d_context, **DOUBLE)
    y = b_o
    for i in range(H):
        q, k, v = x @ heads.w_q[i] + b_q[i], c @ heads.w_k[i] + b_k[i], c @ heads.w_v[i] + b_v[i]
        if mha.q_norm is not None:
            q, k = mha.q_norm(q), mha.k_norm(k)
        y = y + torch.softmax(q @ k.mT / math.sqrt(d), -1) @ v @ heads.w_o[i]
    close(mha(x, c), y)


def test_per_head_weights_are_differentiable() -> None:
    mha = made("gqa")
    heads = mha.per_head_weights()
    (heads.w_k[2] * 1.0).sum().backward()  # head 2 reads key-value head 0 (of 2, for 6 heads)
    grad = mha.qkv_proj.weight.grad
    rows = slice(12, 14)
    assert torch.equal(grad[rows], torch.ones(2, 12, **DOUBLE))
    assert grad.abs().sum() == 24


def test_h_separate_projections() -> None:
    """The form that most textbooks have: h modules for each of Q, K, V, then concat, then W^O."""
    mha = made("plain")
    heads = mha.per_head_weights()
    separate = nn.ModuleList()
    for w, b in ((heads.w_q, heads.b_q), (heads.w_k, heads.b_k), (heads.w_v, heads.b_v)):
        linears = nn.ModuleList(nn.Linear(12, 4, **DOUBLE) for _ in range(3))
        for i, linear in enumerate(linears):
            linear.load_state_dict({"weight": w[i].T, "bias": b[i]})
        separate.append(linears)
    x = torch.randn(2, 6, 12, **DOUBLE)
    out = []
    for i in range(3):
        q, k, v = (linears[i](x) for linears in separate)
        out.append(torch.softmax(q @ k.mT / 2, -1) @ v)
    y = torch.cat(out, -1) @ mha.out_proj.weight.detach().T + mha.out_proj.bias.detach()
    close(mha(x), y)
    y.pow(2).sum().backward()
    mha(x).pow(2).sum().backward()
    stacked = torch.cat([linear.weight.grad for linears in separate for linear in linears])
    close(mha.qkv_proj.weight.grad, stacked, 1e-11)


# How it runs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"causal": True}, {"causal": "lower_right"}, {"key_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])},
        {"mask": torch.zeros(4, 4)}, {"mask": torch.ones(4, 1, 4) > 0},
        {"causal": True, "key_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kv", [4, 2])
def test_the_fused_kernel_runs(options: dict[str, Any], dtype: torch.dtype, kv: int) -> None:
    mha = hw.MultiHeadAttention(16, 4, num_kv_heads=kv, dtype=dtype)
    x = torch.randn(2, 4, 16, dtype=dtype, requires_grad=True)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):  # fails if it cannot
        mha(x, **options).sum().backward()


def test_one_matrix_product_makes_q_k_v() -> None:
    mha = hw.MultiHeadAttention(8, 2)
    products = []
    mha.qkv_proj.register_forward_hook(lambda module, args, out: products.append(out.shape))
    mha(torch.randn(1, 3, 8))
    assert products == [(1, 3, 24)]
    # Of x only the queries are made, of the context only keys and values.
    products.clear()
    mha(torch.randn(1, 3, 8), torch.randn(1, 5, 8))
    assert sorted(products) == [(1, 3, 8), (1, 5, 16)]


def test_dropout_is_for_training() -> None:
    mha = hw.MultiHeadAttention(16, 4, dropout=0.5)
    x = torch.randn(2, 6, 16)
    torch.manual_seed(1)
    a, b = mha(x), mha(x)
    assert not torch.equal(a, b)
    torch.manual_seed(1)
    assert torch.equal(mha(x), a)
    mha.eval()
    assert torch.equal(mha(x), mha(x))
    mha.dropout = 0.0
    mha.train()
    assert torch.equal(mha(x), mha.eval()(x))


def test_dropout_keeps_the_mean() -> None:
    mha = hw.MultiHeadAttention(4, 1, dropout=0.3, bias=False)
    x = torch.randn(1, 8, 4)
    drawn = mha(x.expand(8000, 8, 4)).mean(0)
    torch.testing.assert_close(drawn, mha.eval()(x)[0], atol=0.05, rtol=0.05)


# One sequence without a batch


@pytest.mark.parametrize("name", ["gqa", "context"])
def test_one_sequence_without_a_batch(name: str) -> None:
    mha = made(name)
    x, c = torch.randn(5, mha.d_model, **DOUBLE), torch.randn(6, mha.d_context, **DOUBLE)
    keys = torch.tensor([1, 1, 1, 0, 1, 1])
    mask = torch.rand(mha.num_heads, 5, 6) > 0.2
    y, w, s = mha(x, c, key_mask=keys, mask=mask, return_weights=True, measure=True)
    y1, w1, s1 = mha(x[None], c[None], key_mask=keys[None], mask=mask, return_weights=True, measure=True)
    assert y.shape == (5, mha.d_model)
    assert w.shape == (mha.num_heads, 5, 6)
    assert s.lse.shape == (1, mha.num_heads, 5)
    assert torch.equal(y, y1[0])
    assert torch.equal(w, w1[0])
    assert torch.equal(s.lse, s1.lse)


def test_no_tokens() -> None:
    mha = hw.MultiHeadAttention(8, 2)
    assert mha(torch.zeros(2, 0, 8)).shape == (2, 0, 8)
    assert mha(torch.zeros(0, 3, 8)).shape == (0, 3, 8)
    # No key at all: every row sees nothing.
    y, w = mha(torch.randn(2, 3, 8), torch.zeros(2, 0, 8), return_weights=True)
    assert torch.equal(y, mha.out_proj.bias.expand(2, 3, 8))
    assert w.shape == (2, 2, 3, 0)
