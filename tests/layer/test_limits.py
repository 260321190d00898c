"""Masks, padding and causality: what each means, all together, and rows that may see nothing."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.layer.masks import limits_of
from tests.layer.textbook import close, leaves, seen_by, shaken, textbook

B, H, N = 2, 4, 6
DRAW = torch.Generator().manual_seed(3)


def layer(**options: Any) -> Any:
    return shaken(hw.MultiHeadAttention(12, H, num_kv_heads=2, dtype=torch.float64, **options))


def tokens(n: int = N, batch: int = B) -> Tensor:
    return torch.randn(batch, n, 12, dtype=torch.float64)


MASKS: dict[str, Tensor | None] = {
    "none": None,
    "[N, M]": torch.rand(N, N, generator=DRAW) > 0.3,
    "[1, M]": torch.rand(1, N, generator=DRAW) > 0.3,
    "[M]": torch.rand(N, generator=DRAW) > 0.3,
    "[H, N, M]": torch.rand(H, N, N, generator=DRAW) > 0.3,
    "[B, 1, N, M]": torch.rand(B, 1, N, N, generator=DRAW) > 0.3,
    "[B, H, N, M]": torch.rand(B, H, N, N, generator=DRAW) > 0.3,
    "[B, H, N, 1]": torch.rand(B, H, N, 1, generator=DRAW) > 0.3,
    "float [N, M]": torch.randn(N, N, generator=DRAW),
    "float [H, 1, M]": torch.randn(H, 1, N, generator=DRAW),
    "float -inf [B, H, N, M]": torch.randn(B, H, N, N, generator=DRAW).masked_fill(
        torch.rand(B, H, N, N, generator=DRAW) > 0.6, -math.inf
    ),
    "float min [B, 1, N, M]": torch.zeros(B, 1, N, N).masked_fill(
        torch.rand(B, 1, N, N, generator=DRAW) > 0.6, torch.finfo(torch.float32).min
    ),
}
KEYS: dict[str, Tensor | None] = {
    "none": None,
    "bool": torch.tensor([[True] * 4 + [False] * 2, [False] * 2 + [True] * 4]),
    "int64": torch.tensor([[1] * 4 + [0] * 2, [0] * 2 + [1] * 4]),
    "nothing": torch.tensor([[0] * N, [1] * N], dtype=torch.int32),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("causal", [None, "upper_left", "lower_right"])
def test_every_combination_against_the_textbook(mask: str, keys: str, causal: Any) -> None:
    mha, x = layer(), tokens().requires_grad_()
    m, k = MASKS[mask], KEYS[keys]
    y, w = mha(x, mask=m, key_mask=k, causal=causal, return_weights=True)
    seen = torch.ones(B, H, N, N, dtype=torch.bool)
    bias = None
    if m is not None and m.dtype == torch.bool:
        seen = seen & m
    elif m is not None:
        bias = m.masked_fill(m <= -65504, 0.0)
        seen = seen & (m > -65504)
    if k is not None:
        seen = seen & k.bool()[:, None, None, :]
    if causal is not None:
        seen = seen & seen_by(N, N, causal)
    p = leaves(mha)
    y_book, w_book = textbook(mha, p, x, seen=seen, bias=bias)
    close(y, y_book, 1e-6 if m is not None and m.dtype == torch.float32 else 1e-12)
    close(w, w_book, 1e-6 if m is not None and m.dtype == torch.float32 else 1e-12)
    sees = seen.any(-1)
    assert torch.equal(w.sum(-1) > 0.5, sees)
    assert (w[~seen] == 0).all()
    weight = torch.randn_like(y)
    (mine,) = torch.autograd.grad((y * weight).sum(), x)
    (book,) = torch.autograd.grad((y_book * weight).sum(), x)
    assert mine.isfinite().all()
    close(mine, book, 1e-6)


# Causality


def test_true_is_upper_left_without_a_cache_and_lower_right_with_one() -> None:
    mha, x, c = layer(), tokens(3), tokens(5)
    assert torch.equal(mha(x, c, causal=True), mha(x, c, causal="upper_left"))
    assert not torch.allclose(mha(x, c, causal=True), mha(x, c, causal="lower_right"))
    cache, same = hw.KVCache(), hw.KVCache()
    mha(c, cache=cache, causal=True)
    mha(c, cache=same, causal=True)
    y, w = mha(x, cache=cache, causal=True, return_weights=True)
    assert torch.equal(y, mha(x, cache=same, causal="lower_right"))
    assert torch.equal(w[0, 0] > 0, torch.ones(3, 8, dtype=torch.bool).tril(5))


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (1, 4), (4, 1), (1, 1)])
@pytest.mark.parametrize("alignment", ["upper_left", "lower_right"])
def test_both_alignments_of_unequal_lengths(shape: tuple[int, int], alignment: Any) -> None:
    mha, x, c = layer(), tokens(shape[0]), tokens(shape[1])
    y, w = mha(x, c, causal=alignment, return_weights=True)
    y_book, w_book = textbook(mha, leaves(mha), x, c, seen=seen_by(*shape, alignment))
    close(y, y_book)
    close(w, w_book)


@pytest.mark.parametrize(
    ("shape", "causal", "expected"),
    [
        ((4, 4), None, (False, False)),
        ((4, 4), "upper_left", (False, True)),
        ((4, 6), "upper_left", (False, True)),
        ((4, 4), "lower_right", (False, True)),
        ((1, 6), "lower_right", (False, False)),
        ((1, 6), "upper_left", (False, True)),
        ((4, 6), "lower_right", (True, False)),
    ],
)
def test_the_fused_call_gets_the_cheapest_arguments(
    shape: tuple[int, int], causal: Any, expected: tuple[bool, bool]
) -> None:
    limits = limits_of(None, None, causal, (B, H, *shape))
    fused = limits.fused(*shape, torch.device("cpu"))
    assert (fused["attn_mask"] is not None, fused["is_causal"]) == expected


def test_a_decoding_step_with_padding_keeps_a_small_mask() -> None:
    keys = torch.ones(B, 9, dtype=torch.bool)
    limits = limits_of(None, keys, True, (B, H, 1, 9), cached=8)
    assert limits.fused(1, 9, torch.device("cpu"))["attn_mask"].shape == (B, 1, 1, 9)


# Padding


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_padded_sequence_is_itself(side: str, causal: bool) -> None:
    mha, long, short = layer(), tokens(7, 1), tokens(4, 1)
    rope = hw.RotaryEmbedding(mha.head_dim - 1)
    padding = torch.randn(1, 3, 12, dtype=torch.float64) * 50
    parts, keys = [short, padding], [1] * 4 + [0] * 3
    if side == "left":
        parts, keys = parts[::-1], keys[::-1]
    x = torch.cat((long, torch.cat(parts, 1)))
    key_mask = torch.tensor([[1] * 7, keys])
    y = mha(x, key_mask=key_mask, causal=causal, position=rope)
    close(y[0], mha(long, causal=causal, position=rope)[0])
    close(y[1][key_mask[1].bool()], mha(short, causal=causal, position=rope)[0])


def test_padding_in_the_context() -> None:
    mha, x, c = layer(), tokens(3), tokens(5)
    keys = torch.tensor([[1, 1, 0, 0, 0], [1] * 5])
    y = mha(x, c, key_mask=keys)
    close(y[0], mha(x[:1], c[:1, :2])[0])
    close(y[1], mha(x[1:], c[1:])[0])


# Rows that may see nothing


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", ["bool", "-inf", "finfo.min", "key_mask", "dropout"])
@pytest.mark.parametrize("kv", [4, 2])
def test_rows_that_see_nothing_are_0_with_finite_gradients(dtype: torch.dtype, how: str, kv: int) -> None:
    mha = hw.MultiHeadAttention(16, 4, num_kv_heads=kv, dtype=dtype, dropout=0.5 if how == "dropout" else 0.0)
    x = torch.randn(2, 5, 16).to(dtype).requires_grad_()
    seen = torch.rand(2, 1, 5, 5) > 0.4
    seen[0, 0, 2] = False
    seen[0, 0, 3] = True
    hidden = torch.finfo(dtype).min if how == "finfo.min" else -math.inf
    options: dict[str, Any] = {"mask": torch.zeros(2, 1, 5, 5, dtype=dtype).masked_fill(~seen, hidden)}
    if how in ("bool", "dropout"):
        options = {"mask": seen}
    elif how == "key_mask":
        options = {"key_mask": torch.tensor([[0] * 5, [1] * 5]), "causal": True}
    y, w, s = mha(x, **options, return_weights=True, measure=True)
    rows = slice(None) if how == "key_mask" else slice(2, 3)
    assert (y[0, rows] == 0).all()  # the bias of out_proj starts at 0
    assert (w[0, :, rows] == 0).all()
    assert (s.lse[0, :, rows] == -math.inf).all()
    assert (s.geometry.visible.expand(2, 4, 5)[0, :, rows] == 0).all()
    (y.float().pow(2).sum() + w.float().pow(2).sum()).backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() > 0
    for parameter in mha.parameters():
        assert parameter.grad.isfinite().all()


def test_such_a_row_is_the_bias_of_out_proj() -> None:
    mha = layer()
    y = mha(tokens(), mask=torch.zeros(N, N, dtype=torch.bool))
    assert torch.equal(y, mha.out_proj.bias.expand(B, N, 12))


def test_a_learned_bias_gets_gradients() -> None:
    """Relative position biases, ALiBi slopes: a float mask with requires_grad, beside hidden keys."""
    mha, x = layer(), tokens()
    bias = torch.randn(H, N, N, dtype=torch.float64, requires_grad=True)
    y, w = mha(x, mask=bias, causal=True, key_mask=KEYS["bool"], return_weights=True)
    other = bias.detach().clone().requires_grad_()
    seen = seen_by(N, N, "upper_left") & KEYS["bool"][:, None, None, :]
    y_book, w_book = textbook(mha, leaves(mha), x, seen=seen, bias=other)
    (y.pow(2).sum() + w.pow(2).sum()).backward()
    (y_book.pow(2).sum() + w_book.pow(2).sum()).backward()
    close(bias.grad, other.grad, 1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_float_mask_may_have_another_dtype(dtype: torch.dtype) -> None:
    mha, x = hw.MultiHeadAttention(16, 4, dtype=dtype), torch.randn(2, 5, 16).to(dtype)
    for other in (torch.float16, torch.float32, torch.float64):
        mask = torch.zeros(5, 5, dtype=other).masked_fill(torch.ones(5, 5).triu(1) > 0, torch.finfo(other).min)
        torch.testing.assert_close(mha(x, mask=mask), mha(x, causal=True), atol=1e-2, rtol=1e-2)
        assert torch.equal(mha(x, mask=mask, return_weights=True)[1][0, 0] > 0, torch.ones(5, 5).tril() > 0)


# Errors


TO_ADD = "a mask to be added to the scores goes into mask"


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("mask", torch.ones(7, 6) > 0, "expected a shape that broadcasts to [B, H, N, M] = (2, 4, 6, 6); got (7, 6)"),
        ("mask", torch.ones(2, 6, 6) > 0, "got (2, 6, 6): for one mask per sequence [B, N, M] use mask[:, None]"),
        ("mask", torch.ones(8, 6, 6) > 0, "(B * H, N, M), is mask.unflatten(0, (-1, 4)) here"),
        ("mask", torch.ones(2, 6) > 0, "got (2, 6): a mask over the keys of each sequence [B, M] goes into key_mask"),
        ("mask", torch.ones(1, 2, 4, 6, 6) > 0, "got (1, 2, 4, 6, 6)"),
        (
            "mask",
            torch.ones(6, 6).long(),
            "expected bool (True = may attend) or float (added to the scores); got torch.",
        ),
        ("mask", torch.ones(6, 6).long(), "torch.int64: a 0/1 mask over keys [B, M] goes into key_mask"),
        ("key_mask", torch.ones(2, 6), "expected bool or 0/1 integers (True or 1 = a real key); got torch.float32"),
        ("key_mask", torch.ones(2, 6), f"torch.float32: {TO_ADD}"),
        ("key_mask", torch.ones(2, 5) > 0, "expected [B, M] = (2, 6); got (2, 5)"),
        ("key_mask", torch.ones(6) > 0, "expected [B, M] = (2, 6); got (6,)"),
        ("key_mask", torch.ones(2, 1, 1, 6) > 0, "expected [B, M] = (2, 6); got (2, 1, 1, 6)"),
        ("causal", "left", "expected False, True, 'upper_left' or 'lower_right'; got 'left'"),
    ],
)
def test_what_does_not_fit_is_told(name: str, given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: .*{re.escape(says)}"):
        layer()(tokens(), **{name: given})


@pytest.mark.parametrize(
    ("x", "context", "says"),
    [
        ((2, 6, 11), None, "x: expected [B, N, d_model] or [N, d_model] with d_model = 12; got (2, 6, 11)"),
        ((12,), None, "x: expected [B, N, d_model] or [N, d_model] with d_model = 12; got (12,)"),
        ((1, 2, 6, 12), None, "got (1, 2, 6, 12)"),
        ((2, 6, 12), (2, 5, 11), "context: expected [2, M, 12] beside x (2, 6, 12); got (2, 5, 11)"),
        ((2, 6, 12), (3, 5, 12), "context: expected [2, M, 12] beside x (2, 6, 12); got (3, 5, 12)"),
        ((2, 6, 12), (5, 12), "context: expected [2, M, 12] beside x (2, 6, 12); got (5, 12)"),
        ((6, 12), (1, 5, 12), "context: expected [M, 12] beside x (6, 12); got (1, 5, 12)"),
    ],
)
def test_inputs_that_do_not_fit_are_told(x: tuple[int, ...], context: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        layer()(torch.zeros(x).double(), None if context is None else torch.zeros(context).double())


def test_token_ids_are_told_from_tokens() -> None:
    with pytest.raises(ValueError, match=r"x: expected floating point; got torch\.int64: token ids need an embedding"):
        layer()(torch.zeros(2, 12, dtype=torch.int64))


def test_a_layer_for_another_width_needs_its_context() -> None:
    mha = hw.MultiHeadAttention(12, 4, d_context=7)
    with pytest.raises(ValueError, match=r"d_context = 7, other than d_model = 12.* pass context \[B, M, 7\]"):
        mha(torch.zeros(2, 6, 12))


def test_key_mask_with_a_cache_covers_cached_and_new_keys() -> None:
    mha, cache = layer(), hw.KVCache()
    mha(tokens(4), cache=cache)
    says = "key_mask: expected [B, M] = (2, 5), 4 cached keys and 1 new ones; got (2, 1)"
    with pytest.raises(ValueError, match=re.escape(says)):
        mha(tokens(1), cache=cache, key_mask=torch.ones(2, 1) > 0)
    assert cache.length == 4  # a call that failed leaves nothing behind


def test_a_position_that_changes_the_shape_is_told() -> None:
    with pytest.raises(ValueError, match=r"position: expected it to return the shape it was given, \(2, 4, 6, 3\)"):
        layer()(tokens(), position=lambda x, positions: x[..., :2])


def test_the_masks_here_are_many() -> None:
    """The combinations above are what they say (a mask of no hidden key would test nothing)."""
    for name, mask in itertools.chain(MASKS.items(), KEYS.items()):
        if mask is not None and mask.dtype == torch.bool:
            assert 0 < mask.float().mean() < 1, name
