"""Against torch.nn.MultiheadAttention in every mode that both have, and converted from it and back."""

from __future__ import annotations

import copy
import itertools
import math
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from tests.layer.textbook import close, shaken

B, H, N, M, D = 2, 4, 5, 7, 12


def torchs(**options: Any) -> nn.MultiheadAttention:
    options = {"batch_first": True, "dtype": torch.float64, **options}
    return shaken(nn.MultiheadAttention(D, H, **options))


def converted(module: nn.MultiheadAttention) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if not module.batch_first else "error")
        return hw.MultiHeadAttention.from_torch(module)


def pad(M: int, dtype: torch.dtype = torch.bool) -> Tensor:
    hidden = torch.zeros(B, M, dtype=torch.bool)
    hidden[0, -2:] = True
    hidden[1, 1] = True  # not the first: torch gives NaN where causality leaves nothing else
    return hidden if dtype == torch.bool else torch.zeros(B, M, dtype=dtype).masked_fill(hidden, -math.inf) - 0.5


def masks(N: int, M: int) -> dict[str, Tensor | None]:
    draw = torch.Generator().manual_seed(2)
    hidden = torch.rand(N, M, generator=draw) > 0.7
    hidden[:, 0] = hidden[:, 2] = False
    per_head = torch.rand(B * H, N, M, generator=draw) > 0.7
    per_head[..., 0] = per_head[..., 2] = False
    bias = torch.randn(N, M, generator=draw, dtype=torch.float64)
    return {
        "none": None,
        "bool": hidden,
        "float": bias,
        "-inf": bias.masked_fill(hidden, -math.inf),
        "bool of heads": per_head,
        "float of heads": torch.randn(B * H, N, M, generator=draw, dtype=torch.float64),
        "causal": nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64)[:, :1].expand(N, M)
        if N != M
        else nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64),
    }


@pytest.mark.parametrize("mask", masks(N, N))
@pytest.mark.parametrize("padding", [None, torch.bool, torch.float64])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_outputs_weights_and_gradients(mask: str, padding: Any, cross: bool, training: bool) -> None:
    theirs = torchs().train(training)
    ours = converted(theirs)
    x = torch.randn(B, N, D, dtype=torch.float64, requires_grad=True)
    c = torch.randn(B, M, D, dtype=torch.float64, requires_grad=True) if cross else x
    keys = M if cross else N
    attn_mask = masks(N, keys)[mask]
    key_padding = None if padding is None else pad(keys, padding)
    options = hw.MultiHeadAttention.masks_from_torch(attn_mask, key_padding, num_heads=H)
    y, w = ours(x, c if cross else None, **options, return_weights=True)
    inputs = [x, c] if cross else [x]
    weight = torch.randn_like(y)
    mine = torch.autograd.grad((y * weight).sum(), [*inputs, *ours.parameters()], retain_graph=True)
    for need_weights in (True, False):
        y2, w2 = theirs(
            x, c, c, attn_mask=attn_mask, key_padding_mask=key_padding, need_weights=need_weights,
            average_attn_weights=False,
        )  # fmt: skip
        close(y, y2)
        if need_weights:
            close(w, w2)
        parameters = [theirs.in_proj_weight, theirs.in_proj_bias, *theirs.out_proj.parameters()]
        for a, b in zip(mine, torch.autograd.grad((y2 * weight).sum(), [*inputs, *parameters]), strict=True):
            close(a, b, 1e-10)
    with torch.no_grad():  # where torch takes its fast path
        y2, _ = theirs(x, c, c, attn_mask=attn_mask, key_padding_mask=key_padding, need_weights=False)
        close(ours(x, c if cross else None, **options), y2)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_separate_projections_become_d_context(bias: bool, dtype: torch.dtype) -> None:
    theirs = torchs(kdim=9, vdim=9, bias=bias, dtype=dtype)
    ours = converted(theirs)
    assert ours.d_context == 9
    x, c = torch.randn(B, N, D).to(dtype), torch.randn(B, M, 9).to(dtype)
    y, w = theirs(x, c, c, average_attn_weights=False)
    y2, w2 = ours(x, c, return_weights=True)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    close(y2, y, tolerance)
    close(w2, w, tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_0_and_causality_as_a_hint(dtype: torch.dtype) -> None:
    theirs = torchs(dtype=dtype)
    ours, x = converted(theirs), torch.randn(B, N, D).to(dtype)
    causal = nn.Transformer.generate_square_subsequent_mask(N, dtype=dtype)
    y, _ = theirs(x, x, x, attn_mask=causal, is_causal=True, need_weights=False)
    close(ours(x, causal=True), y, 1e-5 if dtype == torch.float32 else 6e-2)


def test_one_sequence_without_a_batch() -> None:
    theirs = torchs()
    ours, x = converted(theirs), torch.randn(N, D, dtype=torch.float64)
    hidden = torch.tensor([False, False, True, False, True])
    per_head = torch.rand(H, N, N) > 0.7
    per_head[..., 0] = False
    for attn_mask in (None, per_head):
        y, w = theirs(x, x, x, key_padding_mask=hidden, attn_mask=attn_mask, average_attn_weights=False)
        options = hw.MultiHeadAttention.masks_from_torch(attn_mask, hidden, H)
        y2, w2 = ours(x, **options, return_weights=True)
        close(y2, y)
        close(w2, w)
    y, _ = theirs(x, x, x, key_padding_mask=pad(N, torch.float64)[0])
    close(ours(x, **hw.MultiHeadAttention.masks_from_torch(None, pad(N, torch.float64)[0])), y)


def test_time_first_is_converted_with_a_warning() -> None:
    theirs = torchs(batch_first=False)
    with pytest.warns(UserWarning, match=r"batch_first=False .*headwise takes \[B, N, d_model\]"):
        ours = hw.MultiHeadAttention.from_torch(theirs)
    x = torch.randn(B, N, D, dtype=torch.float64)
    t = x.transpose(0, 1)
    close(ours(x), theirs(t, t, t)[0].transpose(0, 1))
    close(ours.to_torch(batch_first=False)(t, t, t)[0], theirs(t, t, t)[0])


# What is taken over


def test_everything_is_taken_over_and_nothing_is_shared() -> None:
    theirs = torchs(dropout=0.25, dtype=torch.float32).eval()
    theirs.in_proj_weight.requires_grad_(False)
    theirs.out_proj.bias.requires_grad_(False)
    state = torch.get_rng_state()
    ours = converted(theirs)
    assert torch.equal(torch.get_rng_state(), state)
    assert (ours.dropout, ours.training, ours.out_proj.weight.dtype) == (0.25, False, torch.float32)
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    assert frozen == {"qkv_proj.weight", "out_proj.bias"}
    assert torch.equal(ours.qkv_proj.weight, theirs.in_proj_weight)
    with torch.no_grad():
        theirs.in_proj_weight.zero_()
    assert ours.qkv_proj.weight.any()
    back = ours.to_torch()
    assert (back.dropout, back.training, back.batch_first) == (0.25, False, True)
    assert not back.in_proj_weight.requires_grad
    assert back.in_proj_bias.requires_grad
    assert not back.out_proj.bias.requires_grad
    assert torch.equal(back.in_proj_weight, ours.qkv_proj.weight)


def test_a_device_is_taken_over() -> None:
    ours = hw.MultiHeadAttention.from_torch(nn.MultiheadAttention(D, H, batch_first=True, device="meta"))
    assert {p.device.type for p in ours.parameters()} == {"meta"}
    assert {p.device.type for p in ours.to_torch().parameters()} == {"meta"}


@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"kdim": 9, "vdim": 9}, {"kdim": 9, "vdim": 9, "bias": False}, {"kdim": D}]
)
def test_there_and_back_is_the_same(options: dict[str, Any]) -> None:
    theirs = torchs(**options)
    back = converted(theirs).to_torch()
    assert back.state_dict().keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], value)
    assert (back.kdim, back.vdim) == (theirs.kdim, theirs.vdim)


@pytest.mark.parametrize("kv", [1, 2, 4])
@pytest.mark.parametrize("d_context", [None, 9])
def test_shared_keys_are_written_out_for_torch(kv: int, d_context: int | None) -> None:
    ours = shaken(hw.MultiHeadAttention(D, H, num_kv_heads=kv, d_context=d_context, dtype=torch.float64))
    x, c = (torch.randn(B, n, d, dtype=torch.float64) for n, d in ((N, D), (M, ours.d_context)))
    y, w = ours.to_torch()(x, c, c, average_attn_weights=False)
    y2, w2 = ours(x, c, return_weights=True)
    close(y2, y)
    close(w2, w)


def test_a_converted_model_trains_as_before() -> None:
    theirs = torchs()
    ours = converted(theirs)
    x = torch.randn(B, N, D, dtype=torch.float64)
    for module, run in ((theirs, lambda: theirs(x, x, x)[0]), (ours, lambda: ours(x))):
        step = torch.optim.SGD(module.parameters(), lr=1e-3)
        for _ in range(3):
            step.zero_grad()
            run().pow(2).sum().backward()
            step.step()
    close(ours.qkv_proj.weight, theirs.in_proj_weight, 1e-10)
    close(ours(x), theirs(x, x, x)[0], 1e-10)


# What is refused, with the reason


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"add_bias_kv": True}, "bias_k and bias_v (add_bias_kv=True) append a learned key and value"),
        ({"add_zero_attn": True}, "add_zero_attn=True appends a key and a value of zeros"),
        ({"kdim": 8, "vdim": 9}, "kdim = 8 and vdim = 9 differ: keys and values are made of one context"),
        ({"vdim": 9}, "kdim = 12 and vdim = 9 differ"),
    ],
)
def test_what_cannot_be_converted_from_torch(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"from_torch: {says}")):
        hw.MultiHeadAttention.from_torch(torchs(**options))


def test_a_forward_of_its_own_cannot_be_converted() -> None:
    class Other(nn.MultiheadAttention):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    from torch.ao.nn.quantizable import MultiheadAttention as Quantizable

    with pytest.raises(ValueError, match="Other has a forward of its own"):
        hw.MultiHeadAttention.from_torch(Other(D, H))
    with pytest.raises(ValueError, match=r"torch\.ao\.nn\.quantizable.*MultiheadAttention has a forward of its own"):
        hw.MultiHeadAttention.from_torch(Quantizable(D, H))
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.MultiheadAttention; got Linear"):
        hw.MultiHeadAttention.from_torch(nn.Linear(2, 2))

    class Named(nn.MultiheadAttention):
        """A mere name."""

    assert hw.MultiHeadAttention.from_torch(Named(D, H, batch_first=True)).num_heads == H


def test_half_frozen_parameters_cannot_become_one() -> None:
    theirs = torchs(kdim=9, vdim=9)
    theirs.k_proj_weight.requires_grad_(False)
    with pytest.raises(ValueError, match="some are frozen"):
        hw.MultiHeadAttention.from_torch(theirs)
    ours = hw.MultiHeadAttention(D, H, d_context=9)
    ours.q_proj.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="some are frozen"):
        ours.to_torch()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"qk_norm": "rms"}, "no norm of queries and keys (qk_norm)"),
        ({"head_dim": 5}, "no heads of any width: num_heads * head_dim = 4 * 5 = 20 must be d_model = 12"),
        ({"value_head_dim": 2}, "no values of another width than keys: value_head_dim = 2, head_dim = 3"),
    ],
)
def test_what_torch_has_not(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"to_torch: torch.nn.MultiheadAttention has {says}")):
        hw.MultiHeadAttention(D, H, **options).to_torch()


# Masks


def test_masks_from_torch_by_hand() -> None:
    hidden = torch.tensor([[False, True], [False, False]])
    convert = hw.MultiHeadAttention.masks_from_torch
    assert convert() == {}
    assert convert(hidden)["mask"].tolist() == [[True, False], [True, True]]
    assert convert(None, hidden)["key_mask"].tolist() == [[True, False], [True, True]]
    both = convert(hidden, torch.tensor([[0.0, -1.0]]))
    assert list(both) == ["mask"]
    assert both["mask"].tolist() == [[[[0.0, -math.inf], [0.0, -1.0]]]]
    six = torch.rand(6, 2, 2) > 0.5
    assert torch.equal(convert(six, num_heads=3)["mask"], ~six.view(2, 3, 2, 2))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((torch.ones(2, 2).long(),), "attn_mask: expected bool or float, as torch does; got torch.int64"),
        ((None, torch.ones(2, 2).long()), "key_padding_mask: expected bool or float"),
        ((torch.ones(6, 2, 2) > 0,), "attn_mask (6, 2, 2) is (B * num_heads, N, M): give num_heads to split it"),
        ((torch.ones(6, 2, 2) > 0, None, 4), "expected (B * num_heads, N, M) with num_heads = 4; got (6, 2, 2)"),
    ],
)
def test_masks_that_cannot_be_converted(given: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        hw.MultiHeadAttention.masks_from_torch(*given)


# A whole encoder, layer by layer


@pytest.mark.parametrize("norm_first", [False, True])
def test_in_an_encoder_layer_of_torch(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(
        D, H, 24, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    attention = converted(layer.self_attn)
    x, hidden = torch.randn(B, N, D, dtype=torch.float64), pad(N)

    def forward(x: Tensor) -> Tensor:
        mixed = layer.norm1(x) if norm_first else x
        x = x + attention(mixed, key_mask=~hidden)
        x = x if norm_first else layer.norm1(x)
        mixed = layer.norm2(x) if norm_first else x
        x = x + layer.linear2(torch.relu(layer.linear1(mixed)))
        return x if norm_first else layer.norm2(x)

    close(forward(x), copy.deepcopy(layer)(x, src_key_padding_mask=hidden))


def test_every_mask_is_used() -> None:
    """The modes above differ from each other, so agreeing in each says something."""
    theirs = torchs()
    x = torch.randn(B, N, D, dtype=torch.float64)
    outs = [theirs(x, x, x, attn_mask=mask)[0] for mask in masks(N, N).values()]
    assert all(not torch.allclose(a, b) for a, b in itertools.combinations(outs, 2))
