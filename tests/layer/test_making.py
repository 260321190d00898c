"""Making a layer: its widths and their errors, its initial values, its size and cost."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import headwise as hw

# Widths


def test_a_width_that_does_not_divide_is_told_with_both_numbers_and_what_would_fit() -> None:
    says = "d_model = 30 does not divide into num_heads = 4 heads; head counts that fit: 1, 2, 3, 5, 6, 10, 15, 30; or"
    with pytest.raises(ValueError, match=says):
        hw.MultiHeadAttention(30, 4)
    assert hw.MultiHeadAttention(30, 4, head_dim=7).qkv_proj.out_features == 3 * 28
    with pytest.raises(ValueError, match=r"d_model = 7 .* num_heads = 8 heads; head counts that fit: 1, 7;"):
        hw.MultiHeadAttention(7, 8)


def test_key_value_heads_that_cannot_be_shared() -> None:
    says = "num_heads = 8 query heads cannot share num_kv_heads = 3 key-value heads evenly; .* that fit: 1, 2, 4, 8"
    with pytest.raises(ValueError, match=says):
        hw.MultiHeadAttention(64, 8, num_kv_heads=3)
    with pytest.raises(ValueError, match="num_kv_heads = 16"):
        hw.MultiHeadAttention(64, 8, num_kv_heads=16)


@pytest.mark.parametrize("name", ["d_model", "num_heads", "num_kv_heads", "head_dim", "value_head_dim", "d_context"])
@pytest.mark.parametrize("size", [0, -3, 2.5, True, "8"])
def test_sizes_are_positive_integers(name: str, size: Any) -> None:
    sizes: dict[str, Any] = {"d_model": 8, "num_heads": 2, name: size}
    with pytest.raises(ValueError, match=f"{name}: expected an integer of at least 1; got {size!r}"):
        hw.MultiHeadAttention(**sizes)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"qk_norm": "l2"}, "qk_norm: expected None, 'rms' or 'layer'; got 'l2'"),
        ({"init": "xavier"}, "init: expected 'fused' or 'per_head'; got 'xavier'"),
        ({"dropout": 1.5}, r"dropout: expected a probability in 0\.\.1; got 1\.5"),
        ({"dropout": -0.1}, "dropout: expected a probability"),
        ({"dropout": math.nan}, "dropout: expected a probability"),
    ],
)
def test_options_out_of_range(option: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        hw.MultiHeadAttention(8, 2, **option)


def test_what_it_says_of_itself() -> None:
    mha = hw.MultiHeadAttention(8, 4, num_kv_heads=2, dropout=0.1)
    assert (mha.num_heads, mha.num_kv_heads, mha.d_model, mha.d_context) == (4, 2, 8, 8)
    assert (mha.head_dim, mha.value_head_dim, mha.dropout) == (2, 2, 0.1)
    assert hw.MultiHeadAttention(8, 2, head_dim=5).value_head_dim == 5
    shown = "d_model=8, num_heads=4, num_kv_heads=2, head_dim=2, value_head_dim=2, d_context=8, dropout=0.1"
    assert shown in repr(mha)


# State dict


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({}, {"qkv_proj.weight": (36, 12), "qkv_proj.bias": (36,),
              "out_proj.weight": (12, 12), "out_proj.bias": (12,)}),
        ({"bias": False, "num_kv_heads": 1}, {"qkv_proj.weight": (18, 12), "out_proj.weight": (12, 12)}),
        ({"bias": False, "head_dim": 5, "value_head_dim": 2, "num_kv_heads": 2, "d_context": 7, "qk_norm": "layer"},
         {"q_proj.weight": (20, 12), "kv_proj.weight": (14, 7), "out_proj.weight": (12, 8), "q_norm.weight": (5,),
          "q_norm.bias": (5,), "k_norm.weight": (5,), "k_norm.bias": (5,)}),
        ({"bias": False, "d_context": 12, "qk_norm": "rms"},
         {"qkv_proj.weight": (36, 12), "out_proj.weight": (12, 12), "q_norm.weight": (3,), "k_norm.weight": (3,)}),
    ],
)  # fmt: skip
def test_state_dict_keys_are_the_documented_ones(options: dict[str, Any], shapes: dict[str, Any]) -> None:
    mha = hw.MultiHeadAttention(12, 4, **options)
    assert {name: tuple(value.shape) for name, value in mha.state_dict().items()} == shapes
    for name in shapes:
        assert f"`{name}" in hw.MultiHeadAttention.__doc__ or name.endswith(".bias")


# Initial values


def parts(mha: Any) -> list[torch.Tensor]:
    w = mha.widths
    return list(mha.qkv_proj.weight.detach().split((w.q, w.k, w.v)))


@pytest.mark.parametrize("heads", [2, 4, 8, 16, 32, 64])
def test_fused_layers_of_one_width_start_from_the_same_q_k_v(heads: int) -> None:
    torch.manual_seed(7)
    one = hw.MultiHeadAttention(64, 1)
    torch.manual_seed(7)
    other = hw.MultiHeadAttention(64, heads)
    assert torch.equal(one.qkv_proj.weight, other.qkv_proj.weight)
    assert torch.equal(one.out_proj.weight, other.out_proj.weight)


def test_q_k_v_o_are_drawn_in_this_order_and_nothing_else_is() -> None:
    torch.manual_seed(7)
    mha = hw.MultiHeadAttention(16, 4, num_kv_heads=2, qk_norm="rms")
    state = torch.get_rng_state()
    torch.manual_seed(7)
    drawn = [torch.empty(rows, 16).uniform_(-b, b) for rows, b in ((16, (6 / 32) ** 0.5), (8, 0.5), (8, 0.5))]
    drawn.append(torch.empty(16, 16).uniform_(-((6 / 32) ** 0.5), (6 / 32) ** 0.5))
    assert torch.equal(mha.qkv_proj.weight, torch.cat(drawn[:3]))
    assert torch.equal(mha.out_proj.weight, drawn[3])
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(7)
    mha.reset_parameters()
    assert torch.equal(mha.qkv_proj.weight, torch.cat(drawn[:3]))
    assert torch.equal(mha.out_proj.weight, drawn[3])


@pytest.mark.parametrize(
    ("init", "options", "bounds"),
    [
        ("fused", {}, [6 / 128, 6 / 128, 6 / 128, 6 / 128]),
        ("per_head", {}, [6 / 72, 6 / 72, 6 / 72, 6 / 128]),
        ("fused", {"num_kv_heads": 2, "value_head_dim": 4}, [6 / 128, 6 / 80, 6 / 72, 6 / 96]),
        ("per_head", {"num_kv_heads": 2, "value_head_dim": 4}, [6 / 72, 6 / 72, 6 / 68, 6 / 96]),
    ],
)
def test_bounds_are_xaviers(init: Any, options: dict[str, Any], bounds: list[float]) -> None:
    """sqrt(6 / (fan_in + fan_out)): of the whole matrix, or of one head's; W^O as a whole."""
    mha = hw.MultiHeadAttention(64, 8, init=init, **options)
    for weight, bound in zip([*parts(mha), mha.out_proj.weight.detach()], bounds, strict=True):
        assert float(weight.abs().max()) <= bound**0.5
        assert float(weight.abs().max()) > 0.98 * bound**0.5
        assert abs(float(weight.mean())) < 0.1 * bound**0.5
        assert float(weight.var()) == pytest.approx(bound / 3, rel=0.1)
    assert not mha.qkv_proj.bias.any()
    assert not mha.out_proj.bias.any()


def test_a_context_of_another_width_has_its_own_fan_in() -> None:
    mha = hw.MultiHeadAttention(64, 8, d_context=16)
    k, v = mha.kv_proj.weight.detach().split((64, 64))
    for weight in (k, v):
        assert float(weight.abs().max()) == pytest.approx((6 / 80) ** 0.5, rel=0.02)
    mha = hw.MultiHeadAttention(64, 8, d_context=16, init="per_head")
    assert float(mha.kv_proj.weight.detach().abs().max()) == pytest.approx((6 / 24) ** 0.5, rel=0.02)


@pytest.mark.parametrize(("heads", "times"), [(1, 1.0), (8, (1024 / 576) ** 2), (64, (1024 / 520) ** 2)])
def test_per_head_multiplies_the_variance_of_the_scores(heads: int, times: float) -> None:
    """3.2 times at h = 8: ((d_model + d_model) / (d_model + d_k))^2, exactly, from one seed."""
    scores = {}
    x = torch.randn(1, 64, 512, dtype=torch.float64)
    for init in ("fused", "per_head"):
        torch.manual_seed(3)
        mha = hw.MultiHeadAttention(512, heads, init=init, dtype=torch.float64)
        q, k, _ = mha.qkv_proj(x).split(512, -1)
        q, k = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k))
        scores[init] = q @ k.mT / math.sqrt(512 // heads)
    ratio = float((scores["per_head"].var() / scores["fused"].var()).detach())
    assert ratio == pytest.approx(times, rel=1e-6)
    if heads == 8:
        assert round(ratio, 1) == 3.2


def test_fused_scores_vary_alike_whatever_the_head_count() -> None:
    x, variances = torch.randn(1, 64, 512), []
    for heads in (1, 8, 64):
        torch.manual_seed(3)
        mha = hw.MultiHeadAttention(512, heads)
        q, k, _ = mha.qkv_proj(x).split(512, -1)
        q, k = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k))
        variances.append(float((q @ k.mT / math.sqrt(512 // heads)).var().detach()))
    assert max(variances) < 1.3 * min(variances)


# Size and cost


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({}, 4 * 512 * 513),  # 1,050,624
        ({"bias": False}, 4 * 512 * 512),
        ({"num_kv_heads": 2}, 2 * 512 * 513 + 2 * 128 * 513),
        ({"num_kv_heads": 1, "bias": False}, 2 * 512 * 512 + 2 * 64 * 512),
        ({"head_dim": 128}, 3 * 1024 * 513 + 512 * 1025),
        ({"value_head_dim": 32, "bias": False}, 2 * 512 * 512 + 2 * 256 * 512),
        ({"d_context": 100, "bias": False}, 2 * 512 * 512 + 2 * 512 * 100),
        ({"qk_norm": "rms", "bias": False}, 4 * 512 * 512 + 128),
    ],
)
def test_the_number_of_parameters(options: dict[str, Any], parameters: int) -> None:
    mha = hw.MultiHeadAttention(512, 8, device="meta", **options)
    assert mha.num_parameters == parameters


def test_flops_by_hand() -> None:
    mha = hw.MultiHeadAttention(512, 8, device="meta")
    assert mha.num_parameters == 1_050_624
    assert mha.flops_per_token == 2 * 4 * 512 * 512 == 2_097_152
    assert mha.flops_per_pair == 2 * (512 + 512) == 2_048
    # 100 tokens: 209,715,200 of projections, 20,480,000 of eq. 1
    assert mha.flops(100) == 230_195_200
    assert mha.flops(100, batch=3) == 690_585_600
    # One new token that reads 100 others whose keys are made too
    assert mha.flops(1, 100) == 2 * 2 * 512 * 512 + 100 * 2 * 2 * 512 * 512 + 100 * 2_048
    mha = hw.MultiHeadAttention(512, 8, num_kv_heads=2, value_head_dim=32, d_context=100, device="meta")
    assert mha.flops_per_token == 2 * (512 * 512 + 100 * (128 + 64) + 256 * 512)
    assert mha.flops_per_pair == 2 * 8 * (64 + 32)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_kv_heads": 2}, {"head_dim": 5, "value_head_dim": 3}, {"d_context": 7, "bias": False}, {"num_heads": 1}],
)
def test_flops_are_those_that_torch_counts(options: dict[str, Any]) -> None:
    mha = hw.MultiHeadAttention(**{"d_model": 16, "num_heads": 4, **options})
    x, c = torch.randn(3, 6, 16), torch.randn(3, 9, mha.d_context)
    with FlopCounterMode(display=False) as counter, sdpa_kernel([SDPBackend.MATH]):
        mha(x, c)
    assert mha.flops(6, 9, batch=3) == counter.get_total_flops()
    if mha.d_context == 16:
        with FlopCounterMode(display=False) as counter, sdpa_kernel([SDPBackend.MATH]):
            mha(x, causal=True)
        assert mha.flops(6, batch=3) == counter.get_total_flops()


def test_as_many_parameters_as_torchs() -> None:
    theirs = nn.MultiheadAttention(96, 6)
    assert hw.MultiHeadAttention(96, 6).num_parameters == sum(p.numel() for p in theirs.parameters())
