"""The chooser: which kernel runs, and that it can say why."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headwise.call import AttentionCall
from headwise.kernels import (
    KERNELS,
    RowStatistics,
    choose,
    chooser,
    fused_attention,
    geometry_of,
    row_statistics,
    triton,
)
from tests.compiled import needs_native


def make(dtype: torch.dtype = torch.float32) -> AttentionCall:
    return AttentionCall(torch.randn(1, 2, 3, 4).to(dtype), torch.randn(1, 2, 3, 4).to(dtype))


def elsewhere(device: str, dtype: torch.dtype = torch.float32, width: int = 64, keys: int = 3, **more: Any) -> Any:
    """As much of a call on a device that this machine may lack as kernels look at before they run."""
    q = SimpleNamespace(device=torch.device(device), dtype=dtype, shape=(1, 2, 3, width))
    k = SimpleNamespace(device=torch.device(device), dtype=dtype, shape=(1, 2, keys, width))
    return SimpleNamespace(**{"q": q, "k": k, "v": k, "mask": None, "sinks": None, **more})


@pytest.fixture
def with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if triton were installed and the device fit, and it were asked for."""
    monkeypatch.setenv("HEADWISE_TRITON", "1")
    monkeypatch.setattr(triton, "_missing", lambda: None)
    monkeypatch.setattr(triton, "_unfit", lambda device: None)


class Refuser:
    name = "refuser"

    def refuses(self, call: AttentionCall) -> str | None:
        return "it is Sunday"

    def run(self, call: AttentionCall, geometry: object) -> RowStatistics:
        raise AssertionError("a kernel that refused must not run")


@needs_native
def test_the_native_kernel_is_chosen_and_says_why() -> None:
    choice = choose(make(torch.bfloat16))
    assert choice.kernel == "native"
    assert "bfloat16" in choice.reason
    assert "cpu" in choice.reason
    assert "torch." not in choice.reason
    assert [name for name, _ in choice.refused] == ["reference"]


@needs_native
def test_the_portable_kernel_takes_what_the_native_one_refuses() -> None:
    choice = choose(make(torch.float64))
    assert choice.kernel == "portable"
    reasons = dict(choice.refused)
    assert set(reasons) == {"reference", "native", "triton"}
    assert "float64" in reasons["native"]
    assert "a tile of scores at a time" in choice.reason


def test_without_the_compiled_library_the_portable_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.kernels.native.library", lambda: "it was not compiled: install a C++ compiler")
    choice = choose(make())
    assert choice.kernel == "portable"
    assert "C++ compiler" in dict(choice.refused)["native"]
    assert row_statistics(make()).lse.shape == (1, 2, 3)


def test_the_reference_runs_only_by_name() -> None:
    assert choose(make(), "reference").kernel == "reference"
    assert choose(make(), "reference").reason == "asked for by name"
    assert row_statistics(make(), "reference").lse.dtype == torch.float64
    assert row_statistics(make()).lse.dtype == torch.float32


def test_an_unknown_kernel_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"kernel: expected one of .*portable.*; got 'fastest'"):
        choose(make(), "fastest")
    with pytest.raises(ValueError, match="'fastest'"):
        row_statistics(make(), "fastest")


def test_a_kernel_that_refuses_is_passed_over_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chooser, "PREFERENCE", (Refuser(), *chooser.PREFERENCE))
    choice = choose(make())
    assert choice.kernel in ("native", "portable")
    assert ("refuser", "it is Sunday") in choice.refused
    assert row_statistics(make()).lse.shape == (1, 2, 3)


def test_a_kernel_named_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNELS, "refuser", Refuser())
    with pytest.raises(ValueError, match="kernel 'refuser' cannot run this call: it is Sunday"):
        row_statistics(make(), "refuser")


def test_when_none_can_run_every_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chooser, "PREFERENCE", (Refuser(),))
    with pytest.raises(ValueError, match=r"no kernel can run this call: reference: .*; refuser: it is Sunday"):
        choose(make())


def test_the_reference_refuses_devices_without_float64() -> None:
    call = SimpleNamespace(q=SimpleNamespace(device=SimpleNamespace(type="mps")))
    why = KERNELS["reference"].refuses(call)  # type: ignore[arg-type]
    assert why is not None
    assert "float64" in why


def test_names_are_those_of_the_kernels() -> None:
    assert {name: kernel.name for name, kernel in KERNELS.items()} == {n: n for n in KERNELS}
    assert {"portable", "reference"} <= set(KERNELS)


def test_a_known_geometry_is_used_as_it_is() -> None:
    call = make()
    geometry = geometry_of(call)
    assert row_statistics(call, geometry=geometry).geometry is geometry


@pytest.mark.usefixtures("with_triton")
def test_unchecked_on_a_gpu_it_runs_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWISE_TRITON")
    call = elsewhere("cuda:0")
    assert choose(call).kernel == "portable"
    assert "set HEADWISE_TRITON=1" in dict(choose(call).refused)["triton"]
    assert choose(call, "triton").kernel == "triton"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("with_triton")
def test_on_cuda_the_triton_kernel_is_chosen(dtype: torch.dtype) -> None:
    choice = choose(elsewhere("cuda", dtype))
    assert choice.kernel == "triton"
    assert f"{dtype} on cuda: one pass over the keys, in a Triton kernel".removeprefix("torch.") in choice.reason
    assert dict(choice.refused)["native"] == "it runs on CPUs; this call is on cuda"


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (elsewhere("cuda", torch.float64), "it computes in float32; this call is in float64"),
        (elsewhere("cuda", width=257), "heads up to 256 wide; this call's are 257"),
        (
            elsewhere("cuda", v=SimpleNamespace(device=torch.device("cuda"), shape=(1, 2, 3, 300))),
            "this call's are 300",
        ),
        (elsewhere("cuda", keys=1 << 24), "fewer than 16,777,216 keys"),
        (elsewhere("cuda", mask=torch.ones(3, 3)), "its tensors are on several devices"),
        (elsewhere("mps"), "it runs on CUDA devices; this call is on mps"),
        (elsewhere("xpu"), "it runs on CUDA devices; this call is on xpu"),
    ],
)
@pytest.mark.usefixtures("with_triton")
def test_what_the_triton_kernel_refuses_goes_to_the_portable_one(call: Any, why: str) -> None:
    choice = choose(call)
    assert choice.kernel == "portable"
    assert why in dict(choice.refused)["triton"]
    assert f"on {call.q.device.type}: plain torch" in choice.reason


def test_without_triton_the_portable_kernel_runs_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "find_spec", lambda name: None)
    triton._missing.cache_clear()
    try:
        choice = choose(elsewhere("cuda"))
    finally:
        triton._missing.cache_clear()
    assert choice.kernel == "portable"
    assert "triton is not installed: pip install 'headwise[triton]'" in dict(choice.refused)["triton"]


@pytest.mark.parametrize(
    ("hip", "capability", "why"),
    [
        (None, (7, 5), "it needs compute capability 8.0; this device has 7.5"),
        ("6.2", (9, 0), "NVIDIA's devices"),
        (None, (9, 0), "triton cannot start here"),
    ],
)
def test_devices_that_triton_does_not_fit(
    hip: str | None, capability: tuple[int, int], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(triton, "_missing", lambda: None)
    monkeypatch.setitem(sys.modules, "triton", None)  # its import fails
    triton._unfit.cache_clear()
    try:
        assert why in dict(choose(elsewhere("cuda:7")).refused)["triton"]
    finally:
        triton._unfit.cache_clear()


def test_the_interpreter_runs_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.TritonKernel, "refuses", lambda self, call: None)
    monkeypatch.setattr("headwise.kernels.native.library", lambda: "it was not compiled")
    call = make()
    assert choose(call).kernel == "portable"
    assert "only when asked for by name" in dict(choose(call).refused)["triton"]
    assert choose(call, "triton").kernel == "triton"
    assert fused_attention(call.with_(v=call.k), torch.empty(1, 2, 3, 4)) is None


@pytest.mark.parametrize("wanted", ["1", "0"])
def test_on_a_cpu_the_triton_kernel_needs_its_interpreter(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", wanted)
    monkeypatch.setattr(triton, "_missing", lambda: None)
    monkeypatch.setattr(triton, "_interpreted", lambda: False)
    why = KERNELS["triton"].refuses(make())
    assert why == (
        "TRITON_INTERPRET=1 was set after triton had been imported: set it before Python starts"
        if wanted == "1"
        else "it runs on CUDA devices; this call is on cpu"
    )


@pytest.mark.usefixtures("with_triton")
def test_output_and_statistics_come_from_the_triton_kernel_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.TritonKernel, "attend", lambda self, call, geometry, out: (geometry, out))
    assert fused_attention(elsewhere("cuda"), "place", "geometry") == ("geometry", "place")  # type: ignore[arg-type]
    assert fused_attention(elsewhere("mps"), "place", "geometry") is None  # type: ignore[arg-type]
    assert fused_attention(elsewhere("cuda", v=None), "place", "geometry") is None  # type: ignore[arg-type]


def test_triton_is_imported_only_where_it_may_run() -> None:
    """Its import takes half a second."""
    code = """
import sys, torch
from headwise.call import AttentionCall
from headwise.kernels import choose
x = torch.randn(1, 1, 2, 2)
choose(AttentionCall(x, x)), choose(AttentionCall(x.double(), x.double()))
print("triton" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
