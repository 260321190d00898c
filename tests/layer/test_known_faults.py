"""Known faults of torch.nn.MultiheadAttention (numbers of pytorch issues), and what this layer does instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import headwise as hw


def test_weights_are_those_of_every_head_not_averaged() -> None:
    """34537: averaged over heads by default."""
    mha = hw.MultiHeadAttention(16, 4)
    _, w = mha(torch.randn(2, 5, 16), return_weights=True)
    assert w.shape == (2, 4, 5, 5)
    assert not torch.allclose(w[:, 0], w[:, 1])


def test_weights_have_no_dropout_in_them() -> None:
    """33360, 42929: returned weights include dropout and do not sum to 1."""
    mha = hw.MultiHeadAttention(16, 4, dropout=0.5)
    assert mha.training
    _, w = mha(torch.randn(2, 5, 16), return_weights=True)
    assert (w > 0).all()
    torch.testing.assert_close(w.sum(-1), torch.ones(2, 4, 5))


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_fully_masked_rows_are_no_nan_on_any_path(weights: bool, training: bool, grad: bool) -> None:
    """41508, 160064, 152028: NaN on one path, 0 on another."""
    mha = hw.MultiHeadAttention(16, 4).train(training)
    x = torch.randn(2, 5, 16)
    with torch.set_grad_enabled(grad):
        out = mha(x, key_mask=torch.tensor([[0] * 5, [1] * 5]), return_weights=weights)
    y = out[0] if weights else out
    assert (y[0] == 0).all()
    assert y[1].isfinite().all()
    if grad:
        y.sum().backward()
        assert all(p.grad.isfinite().all() for p in mha.parameters())


@pytest.mark.parametrize("weights", [False, True])
def test_causal_is_no_hint_it_does_what_it_says(weights: bool) -> None:
    """99282, 172338: is_causal needs a mask beside it, is ignored or fails with need_weights."""
    mha, x = hw.MultiHeadAttention(16, 4), torch.randn(2, 5, 16)
    out = mha(x, causal=True, return_weights=weights)
    y = out[0] if weights else out
    torch.testing.assert_close(y, mha(x, mask=torch.ones(5, 5).tril() > 0))
    changed = torch.cat((x[:, :4], torch.randn(2, 1, 16)), 1)
    torch.testing.assert_close(mha(changed, causal=True)[:, :4], y[:, :4])


def test_causal_alignment_is_named_where_lengths_differ() -> None:
    """103082, 108108: which corner causality starts from."""
    mha, x, c = hw.MultiHeadAttention(16, 4), torch.randn(1, 2, 16), torch.randn(1, 4, 16)
    seen = {}
    for alignment in ("upper_left", "lower_right"):
        _, w = mha(x, c, causal=alignment, return_weights=True)
        seen[alignment] = (w[0, 0] > 0).sum(-1).tolist()
    assert seen == {"upper_left": [1, 2], "lower_right": [3, 4]}


def test_masks_of_every_kind_have_one_polarity() -> None:
    """118972, 170400: True hides in nn.MultiheadAttention, and shows in scaled_dot_product_attention."""
    mha, x = hw.MultiHeadAttention(16, 4), torch.randn(1, 3, 16)
    visible = torch.tensor([[True, False, True]])
    for options in ({"mask": visible}, {"key_mask": visible}, {"key_mask": visible.long()}):
        _, w = mha(x, **options, return_weights=True)
        assert torch.equal(w[0, 0] > 0, visible.expand(3, 3))
    q = k = v = torch.randn(1, 1, 3, 4)
    _, w = hw.attention(q, k, v, mask=visible, return_weights=True)
    assert torch.equal(w[0, 0] > 0, visible.expand(3, 3))


def test_a_width_that_does_not_divide_is_told_with_numbers() -> None:
    """28719: 'embed_dim must be divisible by num_heads', and no number."""
    with pytest.raises(ValueError, match=r"d_model = 100 does not divide into num_heads = 8 heads; .*4, 5, 10, 20, 25"):
        hw.MultiHeadAttention(100, 8)


@pytest.mark.parametrize("options", [{}, {"return_weights": True}, {"measure": True}, {"causal": True}])
@pytest.mark.parametrize("context", [False, True])
def test_hooks_run_on_every_path(options: dict[str, Any], context: bool) -> None:
    """128413: the fast path of eval() skips hooks silently."""
    mha = hw.MultiHeadAttention(16, 4, qk_norm="rms").eval()
    ran: list[str] = []
    for name, module in mha.named_modules():
        module.register_forward_hook(lambda module, args, out, name=name: ran.append(name))
        module.register_forward_pre_hook(lambda module, args, name=name: ran.append(name))
    x = torch.randn(2, 5, 16)
    for grad in (True, False):
        ran.clear()
        with torch.set_grad_enabled(grad):
            mha(x, torch.randn(2, 5, 16) if context else None, **options)
        assert set(ran) == {"", "qkv_proj", "out_proj", "q_norm", "k_norm"}


def test_a_hook_that_changes_a_projection_changes_the_output() -> None:
    mha, x = hw.MultiHeadAttention(16, 4).eval(), torch.randn(2, 5, 16)
    with torch.no_grad():
        before = mha(x)
        mha.qkv_proj.register_forward_hook(lambda module, args, out: out * 2)
        assert not torch.allclose(mha(x), before)


@pytest.mark.parametrize("training", [False, True])
def test_the_same_result_with_and_without_weights(training: bool) -> None:
    """Other kernels, other bits (and other dropout) with need_weights."""
    mha, x = hw.MultiHeadAttention(16, 4, dropout=0.1).train(training), torch.randn(2, 5, 16)
    torch.manual_seed(0)
    without = mha(x)
    torch.manual_seed(0)
    assert torch.equal(mha(x, return_weights=True)[0], without)


def test_an_encoder_of_these_layers_shows_its_weights() -> None:
    """88810: nn.TransformerEncoder exposes no weights. A layer here is asked, or watched."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(hw.MultiHeadAttention(16, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = x + layer(x)
            return x

    model = Encoder()
    with hw.watch(model) as profile:
        model(torch.randn(2, 5, 16))
    assert [layer.name for layer in profile.layers] == ["layers.0", "layers.1", "layers.2"]
