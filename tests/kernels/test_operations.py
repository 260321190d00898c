"""The custom operations: torch's own check of them, the same numbers as kernels give, geometry, derivatives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.trace_rules import get_torch_obj_rule_map

from headwise.call import AttentionCall, Place
from headwise.equations import attention, window_sides
from headwise.kernels import Geometry, chooser, fused_attention, native, operations, row_statistics
from headwise.kernels.protocol import STATISTICS, RowStatistics
from headwise.measures.rows import FORMULAS
from headwise.measures.summary import Part, summarise
from tests.compiled import needs_native

# The compiler lists torch's functions when it first runs: before any test has put a poisoned torch.empty in place.
get_torch_obj_rule_map()


def packed(N: int) -> Tensor:
    sequence = torch.arange(N) // 4
    return (sequence[:, None] == sequence)[None, None]


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": "upper_left"},
    "scale": {"scale": 0.3, "causal": "lower_right"},
    "bool": {"mask": torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(1)) > 0.3},
    "bias": {"mask": torch.linspace(-2, 1, 81).view(1, 1, 9, 9).masked_fill(torch.eye(9) > 0, -math.inf)},
    "by head": {"mask": torch.linspace(-2, 1, 324).view(4, 9, 9)},
    "keys": {"mask": (torch.arange(9) < torch.tensor([[9], [5]]))[:, None, None]},
    "causal keys": {"mask": (torch.arange(9) < torch.tensor([[9], [5]]))[:, None, None], "causal": "upper_left"},
    "one row": {"mask": torch.arange(9) < 7},
    "packed": {"mask": packed(9)},
    "lowest": {"mask": torch.zeros(9, 9).masked_fill(torch.ones(9, 9).triu(1) > 0, torch.finfo(torch.float32).min)},
    "gentle": {"mask": torch.zeros(9, 9).masked_fill(torch.ones(9, 9).triu(1) > 0, -1e4), "hide_below": -5e3},
    "real": {"real": torch.arange(9) < torch.tensor([[9], [5]]), "causal": "upper_left"},
    "cross": {"place": Place(kind="cross")},
}
ONLY_STATISTICS: dict[str, dict[str, Any]] = {
    "sinks": {"sinks": torch.tensor([0.0, 1.0, -1.0, 3.0])},
    "softcap": {"softcap": 2.0},
    "window": {"window": 3, "causal": "upper_left"},
    "one side": {"window": (None, 2)},
}


def make(more: dict[str, Any], dtype: torch.dtype = torch.float32, d_v: int = 6) -> AttentionCall:
    q, k, v = torch.randn(2, 9, 4, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, d_v)
    return AttentionCall(q.to(dtype).transpose(1, 2), k.to(dtype), v.to(dtype), **more)


def measured(call: AttentionCall) -> RowStatistics:
    return operations.measured(
        call.q, call.k, mask=call.mask, causal=call.causal, scale=call.scale, softcap=call.softcap, sinks=call.sinks,
        window=call.window, hide_below=call.hide_below, real=call.real, cross=call.is_cross,
    )  # fmt: skip


def attended(call: AttentionCall) -> tuple[Tensor, RowStatistics]:
    assert call.v is not None
    found = operations.attended(
        call.q, call.k, call.v, mask=call.mask, causal=call.causal, scale=call.scale,
        hide_below=call.hide_below, real=call.real, cross=call.is_cross,
    )  # fmt: skip
    assert found is not None
    return found


def same(found: RowStatistics, expected: RowStatistics) -> None:
    """Bitwise the same numbers; a geometry that says the same, and gives the same measures."""
    for name in (*STATISTICS, "argmax"):
        a, b = getattr(found, name), getattr(expected, name)
        assert a.dtype == b.dtype
        assert torch.equal(torch.nan_to_num(a, nan=-7), torch.nan_to_num(b, nan=-7)), name
    assert found.has_sinks == expected.has_sinks
    for field in fields(Geometry):
        a, b = getattr(found.geometry, field.name), getattr(expected.geometry, field.name)
        if isinstance(b, Tensor):
            assert a.dtype == b.dtype, field.name
            assert torch.equal(*torch.broadcast_tensors(a, b)), field.name
        elif field.name == "segment":
            assert a is None or not a.any()
        else:
            assert a == b, field.name
    assert found.geometry.row_spans == expected.geometry.row_spans
    mine, theirs = summarise(found, tuple(FORMULAS)), summarise(expected, tuple(FORMULAS))
    for field in fields(Part):
        torch.testing.assert_close(getattr(mine, field.name), getattr(theirs, field.name), rtol=1e-12, atol=1e-12)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiled code from other tests, which would make recompilations; and an empty that the compiler knows."""
    monkeypatch.undo()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("how", [*CALLS, *ONLY_STATISTICS])
def test_statistics_are_those_of_the_kernel(how: str, dtype: torch.dtype) -> None:
    call = make({**CALLS, **ONLY_STATISTICS}[how], dtype)
    same(measured(call), row_statistics(call))


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", CALLS)
def test_output_and_statistics_are_those_of_the_kernel(how: str, dtype: torch.dtype) -> None:
    call = make(CALLS[how], dtype)
    heads, statistics = attended(call)
    out = torch.empty(2, 4, 9, 6, dtype=dtype)
    expected = fused_attention(call, out)
    assert expected is not None
    same(statistics, expected)
    assert heads.dtype == dtype
    assert torch.equal(heads, out)


@needs_native
@pytest.mark.parametrize("how", CALLS)
def test_where_numbers_are_not_finite_torchs_attention_gives_the_output(how: str) -> None:
    call = make(CALLS[how])
    call.q[0, 1, 3, 2] = math.nan
    assert fused_attention(call, torch.empty(2, 4, 9, 6)) is None
    heads, statistics = attended(call)
    same(statistics, row_statistics(call))
    assert call.v is not None
    plain = eager(call)
    assert torch.equal(heads.isnan(), plain.isnan())
    assert heads.isnan().any()
    torch.testing.assert_close(heads, plain, rtol=0, atol=1e-5, equal_nan=True)


def eager(call: AttentionCall) -> Tensor:
    assert call.v is not None
    return attention(call.q, call.k, call.v, mask=call.mask, causal=call.causal, scale=call.scale)


def test_no_result_is_a_view_of_another_or_of_an_input() -> None:
    call = make(CALLS["real"])
    assert call.v is not None
    given = [call.q, call.k, call.v, call.real]
    results = torch.ops.headwise.attention(*given[:3], None, call.real, "upper_left", None, -65504.0, False)
    places = [t.untyped_storage().data_ptr() for t in (*given, *results) if t is not None]
    assert len(set(places)) == len(places) == 4 + 13


# torch compares the numbers too, but takes no NaN for equal: then only schema, shapes, strides and aliases.
NAN: dict[str, Any] = {"test_utils": ("test_schema", "test_autograd_registration", "test_faketensor")}
CHECKS: dict[str, dict[str, Any]] = {
    "plain": {}, "keys": {}, "sinks": {}, "by head": NAN, "one row": NAN, "real": NAN, "window": NAN,
}  # fmt: skip


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("how", CHECKS)
def test_torchs_own_check_of_the_statistics(how: str) -> None:
    c = make({**CALLS, **ONLY_STATISTICS}[how], torch.float64 if how == "by head" else torch.float32)
    left, right = window_sides(c.window)
    torch.library.opcheck(
        torch.ops.headwise.row_statistics.default,
        (c.q, c.k, c.mask, c.sinks, c.real, c.causal, c.scale, c.softcap, left, right, c.hide_below, c.is_cross),
        **CHECKS[how],
    )


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("how", "finite"), [("keys", True), ("real", True), ("causal", False), ("by head", False)])
def test_torchs_own_check_of_the_attention(how: str, finite: bool) -> None:
    """Also where the output is torch's: with the strides that were promised."""
    c = make(CALLS[how])
    if not finite:
        c.k[1, 1, 2, 0] = math.inf
    torch.library.opcheck(
        torch.ops.headwise.attention.default,
        (c.q, c.k, c.v, c.mask, c.real, c.causal, c.scale, c.hide_below, c.is_cross),
        **(CHECKS[how] if finite else NAN),
    )


def test_statistics_have_no_gradient_and_attention_does_not_lose_one_in_silence() -> None:
    call = make({"mask": torch.zeros(9, 9, requires_grad=True), "sinks": torch.zeros(4, requires_grad=True)})
    call.q.requires_grad_()
    statistics = measured(call)
    assert not any(getattr(statistics, name).requires_grad for name in STATISTICS)
    if isinstance(native.library(), str):
        return
    heads, statistics = attended(call.with_(sinks=None))
    with pytest.raises(RuntimeError, match=r"no autograd\s+formula"):
        heads.sum().backward()


@pytest.mark.parametrize("q", [torch.float64, torch.float32])
def test_where_no_kernel_gives_both_there_is_no_attention(q: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if q == torch.float32:
        monkeypatch.setattr(native, "library", lambda: "it was not compiled")
    x = torch.randn(1, 2, 5, 8, dtype=q)
    assert operations.attended(x, x, x) is None
    assert operations.attended(*[x.to("meta")] * 3) is None
    same(operations.measured(x, x), row_statistics(AttentionCall(x, x)))


def test_the_callers_settings_neither_matter_nor_change(monkeypatch: pytest.MonkeyPatch) -> None:
    call = make({})
    call.k[1, 1, 2, 0] = math.inf  # attention asks for the statistics too
    inside: list[tuple[bool, str]] = []

    def spy(*args: Any, **kwargs: Any) -> RowStatistics:
        inside.append((torch.is_autocast_enabled("cpu"), torch.get_float32_matmul_precision()))
        return row_statistics(*args, **kwargs)

    monkeypatch.setattr(chooser, "row_statistics", spy)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            measured(call)
            torch.ops.headwise.attention(call.q, call.k, call.v, None, None, None, None, -65504.0, False)
            assert torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert inside == [(False, "highest")] * 2


def test_a_call_that_does_not_fit_is_refused_in_the_words_of_a_call() -> None:
    x = torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match=r"AttentionCall: mask .* does not broadcast"):
        operations.measured(x, x, mask=torch.zeros(4, 4))
