"""What holds for every layer and every input."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from tests.layer.textbook import close, shaken

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def layers(draw: Any) -> Any:
    """A layer of any widths, float64."""
    torch.manual_seed(draw(SEEDS))
    kv = draw(st.integers(1, 3))
    return shaken(
        hw.MultiHeadAttention(
            draw(st.integers(1, 9)),
            kv * draw(st.integers(1, 3)),
            num_kv_heads=kv,
            head_dim=2 * draw(st.integers(1, 3)),
            value_head_dim=draw(st.integers(1, 5)),
            d_context=draw(st.sampled_from([None, None, 4])),
            bias=draw(st.booleans()),
            qk_norm=draw(st.sampled_from([None, "rms", "layer"])),
            dtype=torch.float64,
        )
    )


def inputs(mha: Any, B: int, N: int, M: int) -> tuple[Tensor, Tensor | None, int]:
    x = torch.randn(B, N, mha.d_model, dtype=torch.float64)
    if mha.d_context == mha.d_model:
        return x, None, N
    return x, torch.randn(B, M, mha.d_context, dtype=torch.float64), M


@given(layers(), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))
def test_sequences_of_a_batch_do_not_see_each_other(mha: Any, B: int, N: int, M: int) -> None:
    x, c, keys = inputs(mha, B, N, M)
    mask = torch.rand(B, 1, N, keys) > 0.3
    y, w = mha(x, c, mask=mask, return_weights=True)
    for b in range(B):
        one = slice(b, b + 1)
        y1, w1 = mha(x[one], None if c is None else c[one], mask=mask[one], return_weights=True)
        close(y[one], y1)
        close(w[one], w1)


@given(layers(), SEEDS)
def test_permuting_heads_permutes_weights_and_leaves_the_output(mha: Any, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    groups = mha.num_heads // mha.num_kv_heads
    kv_order = torch.randperm(mha.num_kv_heads, generator=draw)
    # Query heads follow their key-value head, and may change places within the group.
    order = torch.cat([g * groups + torch.randperm(groups, generator=draw) for g in kv_order.tolist()])
    x, c, _ = inputs(mha, 2, 4, 3)
    y, w = mha(x, c, return_weights=True)

    def rows(heads: Tensor, width: int) -> Tensor:
        return (heads[:, None] * width + torch.arange(width)).flatten()

    d, dv = mha.head_dim, mha.value_head_dim
    q_rows, k_rows, v_rows = rows(order, d), rows(kv_order, d), rows(kv_order, dv)
    H, G = mha.num_heads, mha.num_kv_heads
    with torch.no_grad():
        if mha.qkv_proj is not None:
            parts = [(mha.qkv_proj, torch.cat((q_rows, H * d + k_rows, H * d + G * d + v_rows)))]
        else:
            parts = [(mha.q_proj, q_rows), (mha.kv_proj, torch.cat((k_rows, G * d + v_rows)))]
        for projection, order_of_rows in parts:
            for parameter in projection.parameters():
                parameter.copy_(parameter[order_of_rows])
        mha.out_proj.weight.copy_(mha.out_proj.weight[:, rows(order, dv)])
    y2, w2 = mha(x, c, return_weights=True)
    close(y2, y)
    close(w2, w[:, order])


@given(layers(), SEEDS)
def test_the_order_of_the_contexts_tokens_does_not_matter(mha: Any, seed: int) -> None:
    x, c, M = inputs(mha, 2, 4, 5)
    c = torch.randn(2, M, mha.d_context, dtype=torch.float64) if c is None else c
    keys = torch.rand(2, M) > 0.3
    order = torch.randperm(M, generator=torch.Generator().manual_seed(seed))
    y, w = mha(x, c, key_mask=keys, return_weights=True)
    y2, w2 = mha(x, c[:, order], key_mask=keys[:, order], return_weights=True)
    close(y2, y)
    close(w2, w[..., order])


@given(layers(), st.integers(1, 6))
def test_the_future_changes_nothing_under_causality(mha: Any, past: int) -> None:
    if mha.d_context != mha.d_model:
        return
    x = torch.randn(2, 7, mha.d_model, dtype=torch.float64)
    other = torch.cat((x[:, :past], torch.randn(2, 7 - past, mha.d_model, dtype=torch.float64)), 1)
    close(mha(other, causal=True)[:, :past], mha(x, causal=True)[:, :past])


@given(
    layers(), st.lists(st.integers(1, 4), min_size=1, max_size=6), st.booleans(), st.booleans(), st.booleans(), SEEDS
)
def test_a_cache_filled_in_any_pieces_equals_one_pass(
    mha: Any, pieces: list[int], rotary: bool, padded: bool, grad: bool, seed: int
) -> None:
    if mha.d_context != mha.d_model:
        return
    torch.manual_seed(seed)
    N = sum(pieces)
    x = torch.randn(2, N, mha.d_model, dtype=torch.float64, requires_grad=grad)
    position = hw.RotaryEmbedding(2) if rotary else None
    keys = torch.rand(2, N) > 0.3 if padded else None
    cache, outs, maps, at = hw.KVCache(), [], [], 0
    with torch.set_grad_enabled(grad):
        for n in pieces:
            part = None if keys is None else keys[:, : at + n]
            y, w = mha(
                x[:, at : at + n], causal=True, cache=cache, position=position, key_mask=part, return_weights=True
            )
            outs.append(y)
            maps.append(torch.nn.functional.pad(w, (0, N - at - n)))
            at += n
        assert cache.length == N
        whole, w = mha(x, causal=True, position=position, key_mask=keys, return_weights=True)
    close(torch.cat(outs, 1), whole)
    close(torch.cat(maps, 2), w)
    if grad:
        weight = torch.randn_like(whole)
        parameters = [x, *mha.parameters()]
        mine = torch.autograd.grad((torch.cat(outs, 1) * weight).sum(), parameters)
        expected = torch.autograd.grad((whole * weight).sum(), parameters)
        for a, b in zip(mine, expected, strict=True):
            close(a, b, 1e-10)
