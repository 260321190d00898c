"""The variants of one attention call compute what they say, on every kind of mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from headwise.benchmarks import calls, peak, registry
from headwise.benchmarks.cases import NotRunError
from headwise.benchmarks.runner import measure
from headwise.kernels import choose, row_statistics
from headwise.kernels.native import library

each_kind = pytest.mark.parametrize("kind", registry.KINDS)


def inputs(kind: str, tokens: int = 70) -> calls.Inputs:
    return calls.make_inputs(tokens, 16, 3, kind)


@each_kind
def test_all_give_the_same_output(kind: str) -> None:
    made = inputs(kind)
    out = calls.sdpa(made)()
    eager, _, _ = calls.eager(made)()
    torch.testing.assert_close(eager, out, atol=1e-5, rtol=1e-5)
    if not isinstance(library(), str):
        torch.testing.assert_close(calls.fused(made)(), out, atol=1e-5, rtol=1e-5)


@each_kind
def test_all_give_the_same_measures(kind: str) -> None:
    made = inputs(kind)
    exact = row_statistics(made.call, "reference")
    _, entropy, own = calls.eager(made)()
    torch.testing.assert_close(entropy, exact.entropy.float(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(own, exact.own.float(), atol=1e-5, rtol=1e-4)
    kernels: list[Callable[[calls.Inputs], Callable[[], Any]]] = [calls.portable]
    kernels += [] if isinstance(library(), str) else [calls.statistics]
    for kernel in kernels:
        torch.testing.assert_close(kernel(made)().entropy, exact.entropy.float(), atol=1e-4, rtol=1e-4)


def test_the_masks_hide_what_they_say() -> None:
    assert inputs("full").mask is None and inputs("causal").mask is None
    padding = inputs("key padding", 64).mask
    assert padding is not None and padding.shape == (1, 1, 1, 64) and int(padding.sum()) == 56
    bias = inputs("float bias").mask
    assert bias is not None and bias.shape == (1, 1, 70, 70) and bias.is_floating_point()
    assert inputs("causal").call.causal == "upper_left"


@each_kind
@pytest.mark.parametrize("variant", [v.name for v in registry.ATTENTION_VARIANTS if v.name != registry.FLEX])
def test_every_variant_runs(kind: str, variant: str) -> None:
    if variant in (registry.FUSED, registry.STATISTICS) and isinstance(library(), str):
        pytest.skip(f"no native kernel: {library()}")
    operation = calls.workload({"tokens": 24, "head_dim": 8, "heads": 2, "kind": kind})(variant)
    assert measure(operation).seconds > 0


@pytest.mark.slow
@each_kind
def test_flex_gives_the_same_output(kind: str) -> None:
    """Compiled by a C++ compiler for each shape, which takes seconds."""
    made = inputs(kind, 128)
    with torch.no_grad():
        try:
            out = calls.flex(made)()
        except Exception as error:  # noqa: BLE001 (torch says in many ways that there is no compiler)
            pytest.skip(f"FlexAttention cannot be compiled here: {type(error).__name__}")
    torch.testing.assert_close(out, calls.sdpa(made)(), atol=1e-5, rtol=1e-5)


def test_what_is_not_worth_running_says_so() -> None:
    sizes = {"tokens": calls.PORTABLE_TOKENS + 1, "head_dim": 8, "heads": 1, "kind": "full"}
    with pytest.raises(NotRunError, match="not run beyond 2,048 tokens"):
        calls.workload(sizes)(registry.PORTABLE)
    quick = {"tokens": 24, "head_dim": 8, "heads": 1, "kind": "full", "effort": registry.QUICK}
    with pytest.raises(NotRunError, match=r"compiled anew for each shape.*--full runs it"):
        calls.workload(quick)(registry.FLEX)


def test_weights_that_do_not_fit_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 x 4 bytes x 2 heads x 1000 x 1000 = 24 MB, which may take half of what is free."""
    run = calls.workload({"tokens": 1000, "head_dim": 8, "heads": 2, "kind": "full"})
    monkeypatch.setattr(peak, "available", lambda: 47_000_000)
    with pytest.raises(NotRunError, match="would need 0 GB for weights; 0 GB are free"):
        run(registry.EAGER)
    for there in (48_000_000, None):
        monkeypatch.setattr(peak, "available", lambda there=there: there)
        run(registry.EAGER)


def test_without_the_native_kernel_its_variants_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise ValueError("kernel 'native' cannot run this call: it was not compiled")

    monkeypatch.setattr(calls, "choose", refused)
    for variant in (registry.FUSED, registry.STATISTICS):
        with pytest.raises(NotRunError, match="it was not compiled"):
            calls.workload({"tokens": 24, "head_dim": 8, "heads": 1, "kind": "full"})(variant)
    assert choose(inputs("full").call).kernel


def test_the_grid_is_whole() -> None:
    points = registry.CASES["attention"].points
    found = {(p.parameters["tokens"], p.parameters["head_dim"], p.parameters["kind"]) for p in points}
    assert found == {(n, d, kind) for n in (512, 2048, 8192) for d in (32, 64, 128) for kind in registry.KINDS}
    length = registry.CASES["length-65536"]
    assert [(p.parameters["tokens"], p.parameters["heads"]) for p in length.points] == [(8192, 9), (65536, 9)]
    assert length.fresh
