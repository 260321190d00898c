"""Corners of the kernels: other devices, huge scores, sinks that are no numbers, masks that are shared."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import Tensor

from headwise.blocks import pooled_map, weights_of
from headwise.call import AttentionCall
from headwise.equations import attention
from headwise.kernels import RowStatistics, row_statistics
from headwise.kernels.native import binding
from headwise.measures.blockwise import one_pass
from headwise.measures.rows import counted, entropy
from headwise.measures.summary import summarise

Q, K = torch.randn(2, 1, 2, 9, 8)
CPU_KERNELS = pytest.mark.parametrize("kernel", ["native", "portable"])


def uniform(bias: float, keys: int = 64, **more: float) -> AttentionCall:
    """A row that gives each key the same weight, whatever the bias."""
    q, k = torch.zeros(1, 1, 1, 8), torch.randn(1, 1, keys, 8)
    return AttentionCall(q, k, mask=torch.full((1, keys), bias), **more)


# Where tensors are


@CPU_KERNELS
def test_under_another_default_device(kernel: str) -> None:
    call = AttentionCall(Q, K)
    expected = row_statistics(call, kernel)
    with torch.device("meta"):
        found = row_statistics(call, kernel)
        part = summarise(found, ("entropy", "self_focus"))
    assert torch.equal(found.entropy, expected.entropy)
    assert torch.equal(part.mean, summarise(expected, ("entropy", "self_focus")).mean)


@pytest.mark.parametrize("name", ["k", "v", "mask", "sinks"])
def test_tensors_on_two_devices_are_refused(name: str) -> None:
    tensors = {"q": Q, "k": K, "v": K, "mask": torch.ones(9, 9, dtype=torch.bool), "sinks": torch.zeros(2)}
    tensors[name] = tensors[name].to("meta")
    with pytest.raises(ValueError, match="expected tensors on one device; got cpu, meta"):
        AttentionCall(**tensors)


# Large numbers


@CPU_KERNELS
@pytest.mark.parametrize("bias", [-300.0, -1e12, torch.finfo(torch.float32).min, 1e6, 7.50003136e8, 1e12])
def test_rows_of_one_huge_bias_are_uniform(kernel: str, bias: float) -> None:
    s = row_statistics(uniform(bias, hide_below=-math.inf), kernel)
    for name, value in {"entropy": math.log(64), "ipr": 1 / 64, "largest": 1 / 64, "rest": 63 / 64}.items():
        assert getattr(s, name).item() == pytest.approx(value, rel=1e-4), name
    assert s.lse.item() == pytest.approx(bias, rel=1e-6, abs=5)


@pytest.mark.parametrize(("width", "size"), [(256, 1900.0), (512, 1500.0), (1024, 1777.0)])
def test_wide_heads_of_large_numbers_are_uniform(width: int, size: float) -> None:
    q = torch.full((1, 1, 3, width), size)
    s = row_statistics(AttentionCall(q, q, scale=1.0), "native")
    torch.testing.assert_close(s.ipr, torch.full_like(s.ipr, 1 / 3), rtol=1e-4, atol=0)
    torch.testing.assert_close(s.entropy, torch.full_like(s.entropy, math.log(3)), rtol=1e-4, atol=0)


@pytest.mark.parametrize("bias", [-300.0, -1000.0, -20000.0])
def test_weights_of_rows_with_large_scores_sum_to_one(bias: float) -> None:
    """Every key receives 1 / 64 of each of the 64 rows: their sum is 1, which rounding the lse would lose."""
    q, k = torch.zeros(1, 1, 64, 8), torch.randn(1, 1, 64, 8)
    call = AttentionCall(q, k, mask=torch.full((64, 64), bias))
    found = one_pass(call, row_statistics(call), (), received=True)
    assert found.received is not None
    torch.testing.assert_close(found.received, torch.ones_like(found.received), rtol=0, atol=1e-6)


@pytest.mark.parametrize("window", [sys.maxsize, (None, sys.maxsize), (sys.maxsize, None), 2**62])
def test_a_window_wider_than_all_keys_is_none(window: object) -> None:
    out = attention(Q, K, K, window=window)  # type: ignore[arg-type]
    torch.testing.assert_close(out, attention(Q, K, K))
    s = row_statistics(AttentionCall(Q, K, window=window))  # type: ignore[arg-type]
    assert s.geometry.visible.unique().tolist() == [9]


# Sinks


@CPU_KERNELS
def test_a_sink_that_is_no_number_is_counted(kernel: str) -> None:
    s = row_statistics(AttentionCall(Q, K, sinks=torch.tensor([0.5, math.nan])), kernel)
    part = summarise(s, ("entropy",))
    assert part.counts.tolist() == [[9, 0], [0, 0], [0, 0], [0, 9]]
    assert counted(s)[0].sum(-1).tolist() == [9, 0]
    assert entropy(s).values()[0, 0].isfinite().all()


@CPU_KERNELS
def test_sinks_that_are_negated_when_they_are_read(kernel: str) -> None:
    sinks = torch.tensor([1.0, 2.0])
    negated = torch._neg_view(sinks)
    found, expected = (row_statistics(AttentionCall(Q, K, sinks=x), kernel) for x in (negated, -sinks))
    assert torch.equal(found.sink, expected.sink)


# Masks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_mask_that_all_heads_share(dtype: torch.dtype) -> None:
    mask = torch.randn(1, 1, 9, 9).to(dtype)
    q, k = torch.randn(2, 3, 4, 9, 8)
    shared, written = (
        row_statistics(AttentionCall(q, k, mask=one), "native")
        for one in (mask.expand(3, 4, 9, 9), mask.repeat(3, 4, 1, 1))
    )
    assert torch.equal(shared.entropy, written.entropy)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_mask_of_each_head_is_cut_with_the_tile(batch: int, heads: int) -> None:
    """As the whole mask would be."""
    q, k = torch.randn(2, 3, 4, 9, 8)
    mask = torch.randn(batch, heads, 9, 9).masked_fill(torch.rand(batch, heads, 9, 9) < 0.3, -math.inf)
    call = AttentionCall(q, k, mask=mask)
    exact = attention(q.double(), k.double(), k.double(), mask.double(), return_weights=True)[1]
    for head in range(4):
        torch.testing.assert_close(weights_of(call, head).double(), exact[:, head], rtol=0, atol=1e-6)
    assert_same(row_statistics(call, "portable"), row_statistics(call, "reference"))


def assert_same(a: RowStatistics, b: RowStatistics) -> None:
    for name in ("lse", "entropy", "ipr", "own", "distance"):
        torch.testing.assert_close(getattr(a, name).double(), getattr(b, name).double(), rtol=1e-5, atol=1e-5)


# The caller's settings


def test_exact_weights_are_exact_under_autocast() -> None:
    call = AttentionCall(Q, K)

    def made() -> list[Tensor]:
        return [weights_of(call, 0), pooled_map(call, (3, 3)), row_statistics(call, "portable").entropy]

    plain = made()
    with torch.autocast("cpu", torch.bfloat16):
        cast = made()
    for a, b in zip(plain, cast, strict=True):
        assert torch.equal(a, b)


def test_a_library_that_is_none_leaves_the_portable_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        def __getattr__(self, name: str) -> object:
            raise AttributeError(f"undefined symbol: {name}")

    monkeypatch.setattr("ctypes.CDLL", lambda _: Other())
    binding.library.cache_clear()
    try:
        assert "undefined symbol: headwise_sources" in str(binding.library())
    finally:
        binding.library.cache_clear()
