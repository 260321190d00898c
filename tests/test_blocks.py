"""Blocks: exact weights, some rows at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.blocks import weight_blocks
from headwise.call import AttentionCall
from headwise.equations import attention

F64 = torch.float64
B, H, N, M = 3, 4, 7, 9


def make(kv: int = 2, dtype: torch.dtype = F64, N: int = N, M: int = M, **more: Any) -> AttentionCall:
    q, k = torch.randn(B, H, N, 5, dtype=F64), torch.randn(B, kv, M, 5, dtype=F64)
    return AttentionCall(q.to(dtype), k.to(dtype), **more)


def by_equation(call: AttentionCall) -> Tensor:
    """Eq. 1 in float64, whole."""
    q, k = call.q.double(), call.k.double()
    mask = call.mask if call.mask is None or call.mask.dtype == torch.bool else call.mask.double()
    sinks = None if call.sinks is None else call.sinks.double()
    _, p = attention(
        q, k, k, mask=mask, causal=call.causal, scale=call.scale, softcap=call.softcap, sinks=sinks,
        window=call.window, return_weights=True,
    )  # fmt: skip
    return p


def together(call: AttentionCall, rows: slice = slice(None), block_elements: int = 1 << 22) -> Tensor:
    """All blocks put in their places; every place must be written once."""
    out = torch.full((B, *call.sizes[1:]), float("nan"), dtype=torch.promote_types(call.q.dtype, torch.float32))
    for block in weight_blocks(call, rows, block_elements):
        place = out[block.batch, :, block.rows]
        assert block.weights.shape == place.shape
        assert block.weights.dtype == out.dtype
        assert torch.isnan(place).all(), "a block came twice"
        out[block.batch, :, block.rows] = block.weights
    return out


SHAPES = [
    (B, H, N, M),
    (B, 1, N, M),
    (1, H, N, M),
    (H, N, M),
    (N, M),
    (B, 1, 1, M),
    (1, 1, 1, M),
    (M,),
    (B, H, N, 1),
]


@pytest.mark.parametrize("elements", [1, 100, 500, 1 << 22])
@pytest.mark.parametrize("kind", ["none", "bool", "float", "-inf"])
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_are_those_of_equation_one(shape: tuple[int, ...], kind: str, elements: int) -> None:
    seen = torch.rand(shape) > 0.3
    bias = torch.randn(shape, dtype=F64)
    mask = {"none": None, "bool": seen, "float": bias, "-inf": bias.masked_fill(~seen, -torch.inf)}[kind]
    call = make(mask=mask)
    torch.testing.assert_close(together(call, block_elements=elements), by_equation(call), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "limits",
    [
        {"causal": "upper_left"},
        {"causal": "lower_right"},
        {"window": 3},
        {"window": (1, 2), "causal": "lower_right"},
        {"scale": 0.2, "softcap": 1.5},
        {"sinks": torch.tensor([0.0, 1.0, -torch.inf, 30.0], dtype=F64)},
        {"mask": torch.zeros(N, M, dtype=torch.bool)},
    ],
)
@pytest.mark.parametrize("elements", [1, 120, 1 << 22])
@pytest.mark.parametrize("kv", [1, 4])
def test_every_limit(limits: dict[str, Any], elements: int, kv: int) -> None:
    call = make(kv=kv, **limits)
    found = together(call, block_elements=elements)
    torch.testing.assert_close(found, by_equation(call), rtol=1e-12, atol=1e-12)
    if "mask" in limits:
        assert (found == 0).all()


@pytest.mark.parametrize("rows", [slice(2, 5), slice(None, 1), slice(-2, None), slice(3, 100), slice(6, 7)])
@pytest.mark.parametrize("elements", [1, 1 << 22])
def test_some_rows(rows: slice, elements: int) -> None:
    call = make(mask=torch.rand(B, 1, N, M) > 0.3, causal="lower_right", window=6)
    found, expected = together(call, rows, elements), by_equation(call)
    torch.testing.assert_close(found[:, :, rows], expected[:, :, rows], rtol=1e-12, atol=1e-12)
    others = torch.ones(N, dtype=torch.bool)
    others[rows] = False
    assert torch.isnan(found[:, :, others]).all()


def test_no_rows() -> None:
    assert list(weight_blocks(make(), slice(4, 4))) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precisions(dtype: torch.dtype) -> None:
    call = make(dtype=dtype, mask=torch.randn(N, M).to(dtype), sinks=torch.randn(H).to(dtype))
    found = together(call, block_elements=90)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), by_equation(call), rtol=1e-5, atol=1e-6)


def test_a_float64_bias_leaves_the_weights_float32() -> None:
    call = make(dtype=torch.float32, mask=torch.randn(N, M, dtype=F64))
    torch.testing.assert_close(together(call).double(), by_equation(call), rtol=1e-5, atol=1e-6)


def test_a_threshold_of_its_own() -> None:
    mask = torch.zeros(1, 1, 1, M, dtype=F64)
    mask[..., 0] = -20.0
    assert (together(make(mask=mask))[..., 0] > 0).all()
    assert (together(make(mask=mask, hide_below=-10.0))[..., 0] == 0).all()


def test_nan_behind_a_mask_does_not_matter() -> None:
    mask = torch.ones(B, 1, 1, M, dtype=torch.bool)
    mask[1, ..., -2:] = False
    call = make(mask=mask)
    k = call.k.clone()
    k[1, :, -2:] = torch.nan
    assert torch.equal(together(call.with_(k=k)), together(call))


@pytest.mark.parametrize("elements", [1, 63, 64, 100, 250, 1000])
def test_a_block_holds_no_more_than_asked(elements: int) -> None:
    call = make()
    blocks = list(weight_blocks(call, block_elements=elements))
    least = H * M  # one row of one sequence
    assert all(block.weights.numel() <= max(elements, least) for block in blocks)
    assert sum(block.weights.numel() for block in blocks) == B * H * N * M


class Largest(TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, Tensor):
                self.elements = max(self.elements, t.untyped_storage().nbytes() // t.element_size())
        return out


@pytest.mark.parametrize("causal", [None, "upper_left"])
@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 1, 1500, dtype=torch.bool)])
def test_memory_is_linear(causal: Any, mask: Tensor | None) -> None:
    n = 1500
    call = AttentionCall(torch.randn(1, 1, n, 4), torch.randn(1, 1, n, 4), mask=mask, causal=causal)
    with Largest() as seen:
        total = sum(float(block.weights.sum()) for block in weight_blocks(call, block_elements=1 << 16))
    assert total == pytest.approx(n, rel=1e-5)
    assert n <= seen.elements <= 1 << 17
