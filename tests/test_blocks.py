"""Blocks: exact weights, some rows at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise.blocks import bins, pooled_map, span_of, weight_blocks, weights_of
from headwise.call import AttentionCall
from headwise.equations import attention
from headwise.kernels import row_statistics
from tests.measures.cases import CASES, Largest, case
from tests.oracle import patterns

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
    for block in weight_blocks(call, rows, block_elements=block_elements):
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


@pytest.mark.parametrize("causal", [None, "upper_left"])
@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 1, 1500, dtype=torch.bool)])
def test_memory_is_linear(causal: Any, mask: Tensor | None) -> None:
    n = 1500
    call = AttentionCall(torch.randn(1, 1, n, 4), torch.randn(1, 1, n, 4), mask=mask, causal=causal)
    with Largest() as seen:
        total = sum(float(block.weights.sum()) for block in weight_blocks(call, block_elements=1 << 16))
    assert total == pytest.approx(n, rel=1e-5)
    assert n <= seen.elements <= 1 << 17


# With the statistics of the call, for chosen rows, from held weights


@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_weights_with_what_is_known(name: str, dtype: torch.dtype) -> None:
    c = case(name, dtype)
    g = c.statistics.geometry
    slack = 1e-12 if dtype == F64 else 2e-5
    for lse in (None, c.statistics.lse):
        for geometry in (None, g):
            for elements in (1, 150, 1 << 20):
                found = np.full(c.p.shape, np.nan)
                for block in weight_blocks(c.call, lse=lse, geometry=geometry, block_elements=elements):
                    assert block.part.shape[-1] == block.keys.stop - block.keys.start
                    assert block.weights.dtype == torch.promote_types(dtype, torch.float32)
                    found[block.batch, :, block.rows] = block.weights.double().numpy()
                np.testing.assert_allclose(found, c.p, rtol=slack, atol=slack)


@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize("rows", [[0], [1, 3, 4, 11], torch.tensor([2, 9]), torch.arange(12), slice(1, 11, 3)])
@pytest.mark.parametrize("name", ["padded causal", "window", "sinks", "bias"])
def test_rows_by_number(name: str, rows: Any, with_lse: bool) -> None:
    c = case(name)
    chosen = list(range(12))[rows] if isinstance(rows, slice) else [int(i) for i in rows]
    for elements in (1, 150, 1 << 20):
        lse = c.statistics.lse if with_lse else None
        blocks = list(weight_blocks(c.call, rows, lse, elements, geometry=c.statistics.geometry))
        assert all(isinstance(block.rows, Tensor) for block in blocks)
        for b in range(3):
            mine = [block for block in blocks if block.batch.start <= b < block.batch.stop]
            assert torch.cat([block.rows for block in mine]).tolist() == chosen
            found = torch.cat([block.weights[b - block.batch.start] for block in mine], 1)
            np.testing.assert_allclose(found.numpy(), c.p[b][:, chosen], atol=1e-12)


@pytest.mark.parametrize("rows", [[3, 1], [1, 1], [-1], [12], [0.5], [[1]], slice(5, 1, -1)])
def test_rows_that_are_none(rows: Any) -> None:
    with pytest.raises(ValueError, match="rows: expected"):
        list(weight_blocks(case("plain").call, rows))


def test_no_row_numbers() -> None:
    assert list(weight_blocks(make(), [])) == []
    assert weights_of(make(), 0, []).shape == (B, 0, M)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lse: expected \(3, 4, 7\), .*got \(3, 4, 1\)"):
        list(weight_blocks(make(), lse=torch.zeros(B, H, 1)))
    with pytest.raises(ValueError, match=r"held: expected \(3, 4, 7, 9\), .*got \(3, 4, 7, 7\)"):
        list(weight_blocks(make(), held=torch.zeros(B, H, N, N)))


def test_rows_that_see_nan_have_no_weights_and_spoil_no_others() -> None:
    call = make(causal="upper_left")
    q = call.q.clone()
    q[0, 1, 3], q[1, 0, 2, 0] = torch.nan, torch.inf
    call = call.with_(q=q)
    lse = row_statistics(call).lse
    found, clean = together(call), by_equation(call.with_(q=torch.nan_to_num(q, 0, 0)))
    for (block,) in zip(weight_blocks(call, lse=lse), strict=True):
        known = block.weights
    broken = torch.zeros(B, H, N, dtype=torch.bool)
    broken[0, 1, 3] = broken[1, 0, 2] = True
    for weights in (found, known):
        assert weights[broken].isnan().any(-1).all()
        torch.testing.assert_close(weights[~broken], clean[~broken], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("more", "rows", "keys"),
    [
        ({}, slice(3, 5), slice(0, 12)),
        ({"causal": "upper_left"}, slice(3, 5), slice(0, 5)),
        ({"causal": "upper_left"}, torch.tensor([1, 6]), slice(0, 7)),
        ({"causal": "upper_left", "window": 3}, slice(6, 8), slice(4, 8)),
        ({"window": (1, 2)}, slice(6, 8), slice(5, 10)),
        ({"window": (1, 2)}, torch.tensor([0, 11]), slice(0, 12)),
        ({"N": 5, "causal": "lower_right"}, slice(0, 2), slice(0, 9)),
        ({"N": 5, "causal": "lower_right", "window": (1, 0)}, slice(0, 2), slice(6, 9)),
    ],
)
def test_hidden_keys_are_not_computed(more: dict[str, Any], rows: Any, keys: slice) -> None:
    call = make(**{"N": 12, "M": 12, **more})
    assert span_of(call, rows) == keys
    assert span_of(call, rows, row_statistics(call).geometry) == keys


def test_a_device_is_not_waited_for() -> None:
    """Tensors on "meta" hold no numbers that could be read."""
    call = make(N=12, M=12, causal="upper_left")
    call = call.with_(q=call.q.to("meta"), k=call.k.to("meta"))
    geometry = row_statistics(make(N=12, M=12, causal="upper_left")).geometry
    for known in (None, geometry):
        assert span_of(call, slice(3, 5), known) == slice(0, 5)
        assert span_of(call, torch.zeros(2, device="meta"), known) == slice(0, 12)


def test_gradients_are_not_recorded() -> None:
    call = make(N=12, M=12)
    call = call.with_(q=call.q.requires_grad_())
    assert not pooled_map(call, 3).requires_grad
    assert not weights_of(call, 0).requires_grad


def test_what_a_mask_hides_is_not_computed_where_the_geometry_is_known() -> None:
    c = case("packed causal")
    assert span_of(c.call, slice(10, 12)) == slice(0, 12)
    assert span_of(c.call.with_(mask=c.call.mask[2:]), slice(10, 12)) == slice(0, 12)
    one = c.call.with_(q=c.call.q[2:], k=c.call.k[2:], v=None, mask=c.call.mask[2:])
    g = row_statistics(one).geometry
    assert span_of(one, slice(10, 12), g) == slice(7, 12)
    assert span_of(one, torch.tensor([4, 10]), g) == slice(3, 11)
    nothing = make(mask=torch.zeros(N, M, dtype=torch.bool))
    assert span_of(nothing, slice(0, 2), row_statistics(nothing).geometry) == slice(0, 1)


@pytest.mark.parametrize("name", ["plain", "padded causal", "window", "lowest", "chunk", "holes"])
def test_weights_that_the_model_holds(name: str) -> None:
    c = case(name)
    # A model whose mask is finfo.min gives rows that see nothing uniform weights.
    held = np.where(c.seen.any(-1, keepdims=True), c.p, 1 / c.p.shape[-1])
    for dtype in (F64, torch.bfloat16):
        mine = torch.from_numpy(held).to(dtype)
        for elements in (1, 1 << 20):
            for block in weight_blocks(c.call, held=mine, block_elements=elements, geometry=c.statistics.geometry):
                want = np.where(c.seen, mine.double().numpy(), 0)[block.batch][:, :, block.rows]
                assert np.array_equal(block.weights.numpy(), want)


# Rectangles of one head


@pytest.mark.parametrize(
    ("rows", "keys"),
    [
        (slice(None), slice(None)),
        (slice(3, 5), slice(2, 5)),
        ([1, 2, 10], slice(-3, None)),
        (slice(0, 12, 4), slice(0, 1)),
        (slice(4, 4), slice(1, 3)),
        (slice(2, 9), slice(6, 6)),
    ],
)
@pytest.mark.parametrize("name", ["packed causal", "window", "holes", "sinks", "one kv head"])
def test_a_rectangle_of_one_head(name: str, rows: Any, keys: slice) -> None:
    c = case(name)
    for head in range(4):
        want = c.p[:, head][:, rows][..., keys]
        for lse in (None, c.statistics.lse):
            for batch in (slice(None), slice(1, 2)):
                found = weights_of(c.call, head, rows, keys, lse, batch=batch)
                np.testing.assert_allclose(found.numpy(), want[batch], atol=1e-12)


def test_a_rectangle_needs_no_more_than_it_asks_for() -> None:
    n = 3000
    call = AttentionCall(torch.randn(1, 2, n, 4), torch.randn(1, 2, n, 4), causal="upper_left")
    lse = row_statistics(call).lse.clone()
    with Largest() as seen:
        weights_of(call, 1, slice(500, 520), slice(100, 200), lse)
    assert seen.elements <= lse.numel() + call.q.numel()
    with Largest() as seen:
        found = weights_of(call, 1, slice(0, n), slice(100, 110))
    assert found.shape == (1, n, 10)
    assert seen.elements < n * n / 4


def test_rectangles_that_are_none() -> None:
    call = make()
    for head in (-1, 4):
        with pytest.raises(ValueError, match=f"expected a head from 0 to 3; got {head}"):
            weights_of(call, head)
    with pytest.raises(ValueError, match="expected keys with step 1; got step 2"):
        weights_of(call, 0, keys=slice(0, 8, 2))
    with pytest.raises(ValueError, match="rows: expected ascending numbers from 0 to 6"):
        weights_of(call, 0, [9])


# Pooled maps


def test_bins() -> None:
    assert bins(10, 4) == [(0, 3), (2, 5), (5, 8), (7, 10)]
    assert bins(4, 4) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    for length in range(1, 30):
        for number in range(1, length + 1):
            x = torch.arange(length, dtype=F64)
            expected = torch.nn.functional.adaptive_avg_pool1d(x[None], number)[0]
            assert [float(x[a:b].mean()) for a, b in bins(length, number)] == pytest.approx(expected.tolist())


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("size", [1, 5, 11, 40])
@pytest.mark.parametrize("name", ["causal", "packed", "window", "chunk", "cross", "decode", "sinks"])
def test_pooled_maps(name: str, size: int, how: Any) -> None:
    c = case(name)
    expected = patterns.pooled(c.p, size, how)
    for elements in (1, 150, 1 << 20):
        for lse, geometry in ((None, None), (c.statistics.lse, c.statistics.geometry)):
            found = pooled_map(c.call, size, how, lse, geometry=geometry, block_elements=elements)
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_a_map_of_held_weights() -> None:
    held = torch.rand(B, H, N, M)
    found = pooled_map(make(dtype=torch.float32), 100, held=held)
    torch.testing.assert_close(found, held)


def test_a_map_in_half_precision_is_float32() -> None:
    c = case("causal", torch.bfloat16)
    found = pooled_map(c.call, 5)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), patterns.pooled(c.p, 5, "mean"), atol=1e-6)


def test_maps_that_are_none() -> None:
    for size, how in ((0, "mean"), (4, "sum")):
        with pytest.raises(ValueError, match="expected a size of at least 1 and how 'mean' or 'max'; got"):
            pooled_map(make(), size, how)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["mean", "max"])
def test_a_map_takes_linear_memory(how: Any) -> None:
    n = 1500
    mask = torch.zeros(1, 1, n, n, dtype=torch.bfloat16)
    call = AttentionCall(*(torch.randn(1, 1, n, 4) for _ in range(2)), mask=mask, causal="upper_left")
    with Largest() as seen:
        found = pooled_map(call, 16, how, block_elements=1 << 16)
    assert found.shape == (1, 1, 16, 16)
    # The mask itself is what the caller holds; of the weights there is never more than a block.
    views = mask.numel()
    assert seen.elements == views
    with Largest() as seen:
        pooled_map(call.with_(mask=None), 16, how, block_elements=1 << 16)
    assert seen.elements <= 1 << 17
