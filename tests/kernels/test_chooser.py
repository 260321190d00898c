"""The chooser: which kernel runs, and that it can say why."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from headwise.call import AttentionCall
from headwise.kernels import KERNELS, RowStatistics, choose, chooser, geometry_of, row_statistics
from tests.compiled import needs_native


def make(dtype: torch.dtype = torch.float32) -> AttentionCall:
    return AttentionCall(torch.randn(1, 2, 3, 4).to(dtype), torch.randn(1, 2, 3, 4).to(dtype))


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
    assert set(reasons) == {"reference", "native"}
    assert "float64" in reasons["native"]


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
