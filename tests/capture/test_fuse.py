"""watch(fuse=True): one kernel gives output and statistics, where it can."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headwise
from headwise.kernels import KERNELS, chooser
from headwise.kernels.native import NativeKernel
from tests.compiled import needs_native

pytestmark = needs_native


class Attention(nn.Module):
    """Self-attention with or without a mask, grouped queries and dropout."""

    def __init__(self, heads: int = 4, kv: int = 2, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.dropout = heads, kv, dropout
        self.q = nn.Linear(16, heads * width)
        self.kv = nn.Linear(16, 2 * kv * width)
        self.o = nn.Linear(heads * width, 16)

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        q = self.q(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2) for t in self.kv(x).chunk(2, -1))
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            mask,
            self.dropout if self.training else 0.0,
            causal,
            enable_gqa=self.num_heads != self.num_kv_heads,
        )
        return self.o(out.transpose(1, 2).flatten(2))


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ran: "fused" for a call that the kernel computed, "operation" for torch's own."""
    ran: list[str] = []
    attend = NativeKernel.attend

    def counted(self: NativeKernel, *args: Any) -> Any:
        found = attend(self, *args)
        ran.append("refused" if found is None else "fused")
        return found

    monkeypatch.setattr(NativeKernel, "attend", counted)
    return ran


MASK = (torch.arange(9) < 6)[None, None, None]


@pytest.mark.parametrize("kv", [1, 2, 4])
@pytest.mark.parametrize(
    "how", [{}, {"causal": True}, {"mask": MASK}, {"mask": torch.zeros(9, 9).masked_fill(~MASK[0, 0], -torch.inf)}]
)
def test_outputs_are_equal_and_statistics_the_same(kv: int, how: dict[str, Any], counts: list[str]) -> None:
    model, x = Attention(kv=kv).eval(), torch.randn(3, 9, 16)
    with torch.no_grad():
        plain = model(x, **how)
        with headwise.watch(model) as beside:
            model(x, **how)
        with headwise.watch(model, fuse=True, verify=True) as fused:
            out = model(x, **how)
    assert counts == ["fused"]
    torch.testing.assert_close(out, plain, rtol=0, atol=1e-5)
    assert fused.passed
    assert fused.unseen == []
    for name in beside.measures:
        assert fused.table()[name].tolist() == pytest.approx(beside.table()[name].tolist(), abs=1e-6, nan_ok=True), name


@pytest.mark.parametrize("case", ["gradients", "dropout", "float64", "not finite"])
def test_where_it_cannot_the_models_own_operation_runs_untouched(case: str, counts: list[str]) -> None:
    model, x = Attention(dropout=0.5 if case == "dropout" else 0.0), torch.randn(2, 7, 16)
    model.train(case == "dropout")
    if case == "float64":
        model, x = model.double(), x.double()
    if case == "not finite":
        x[0, 0] = torch.inf
    with torch.set_grad_enabled(case == "gradients"):
        torch.manual_seed(1)
        plain = model(x)
        torch.manual_seed(1)
        with headwise.watch(model, fuse=True) as profile:
            out = model(x)
    assert torch.equal(torch.nan_to_num(out), torch.nan_to_num(plain))
    assert "fused" not in counts
    assert profile.table()["rows"].sum() > 0
    assert profile.layers[0].calls == 1


def test_one_call_counts_once_when_the_kernel_gives_up(counts: list[str]) -> None:
    model, x = Attention().eval(), torch.randn(2, 7, 16)
    x[1, 3] = torch.nan
    with torch.no_grad(), headwise.watch(model, fuse=True) as profile:
        model(x)
        model(torch.randn(2, 7, 16))
    assert counts == ["refused", "fused"]
    assert set(profile.table()["call"]) == {0}
    assert profile.table()["nonfinite_rows"].max() > 0


def test_autocast_keeps_the_dtype_of_the_operation(counts: list[str]) -> None:
    model, x = Attention().eval(), torch.randn(2, 7, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = model(x)
        with headwise.watch(model, fuse=True):
            out = model(x)
    assert counts == ["fused"]
    assert out.dtype == plain.dtype
    torch.testing.assert_close(out.float(), plain.float(), rtol=0.02, atol=0.02)


def test_without_a_compiled_kernel_it_watches_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.kernels.native.library", lambda: "it was not compiled")
    model, x = Attention().eval(), torch.randn(2, 7, 16)
    with torch.no_grad():
        plain = model(x)
        with headwise.watch(model, fuse=True) as profile:
            out = model(x)
    assert torch.equal(out, plain)
    assert len(profile.table()) == 4


def test_the_native_kernel_is_there() -> None:
    """A compiler is a part of this project's test machine: without it the tests above would prove nothing."""
    assert isinstance(KERNELS["native"], NativeKernel)
    assert not isinstance(chooser.NATIVE.refuses, str)
    from headwise.kernels.native import library

    assert not isinstance(library(), str), library()
