"""measure=True in compiled and exported models: one graph, the numbers of an uncompiled layer, right gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.trace_rules import get_torch_obj_rule_map
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

import headwise as hw
from headwise.kernels import native
from headwise.kernels.protocol import STATISTICS, RowStatistics
from tests.layer.textbook import shaken

# The compiler lists torch's functions when it first runs: before any test has put a poisoned torch.empty in place.
get_torch_obj_rule_map()

KEYS = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
BIAS = torch.linspace(-2, 1, 25).view(5, 5).masked_fill(torch.eye(5) > 0, -torch.inf)

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "padding": {"key_mask": KEYS},
    "causal padding": {"key_mask": KEYS, "causal": True},
    "bias": {"mask": BIAS},
    "rotary": {"position": hw.RotaryEmbedding(4), "causal": "lower_right"},
    "weights": {"return_weights": True, "causal": True},
    "context": {"context": torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(1)), "causal": "lower_right"},
}


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiled code from other tests, which would make recompilations; and an empty that the compiler knows."""
    monkeypatch.undo()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Graphs:
    """A backend that runs graphs as they are, and keeps them."""

    def __init__(self) -> None:
        self.made: list[fx.GraphModule] = []

    def __call__(self, graph: fx.GraphModule, inputs: list[Tensor]) -> Any:
        self.made.append(graph)
        return graph.forward

    @property
    def operations(self) -> list[str]:
        """Those of headwise, in all graphs."""
        return [str(n.target) for g in self.made for n in g.graph.nodes if str(n.target).startswith("headwise.")]


def layer(**options: Any) -> Any:
    return shaken(hw.MultiHeadAttention(16, 4, **{"num_kv_heads": 2, **options}))


def same(found: RowStatistics, expected: RowStatistics) -> None:
    for name in (*STATISTICS, "argmax"):
        a, b = (torch.nan_to_num(getattr(s, name), nan=-7) for s in (found, expected))
        assert torch.equal(a, b), name
        assert not a.requires_grad
    assert found.geometry.row_spans == expected.geometry.row_spans
    assert found.geometry.num_keys == expected.geometry.num_keys
    for name in ("own", "first", "real", "visible", "own_visible"):
        assert torch.equal(*torch.broadcast_tensors(*(getattr(s.geometry, name) for s in (found, expected)))), name


@pytest.mark.parametrize(
    ("grad", "options"),
    [(True, "context"), (True, "causal padding"), (False, "causal"), (False, "bias"), (False, "rotary"),
     (False, "weights"), (False, "context")],
)  # fmt: skip
def test_measuring_is_one_graph_with_the_same_numbers(grad: bool, options: str) -> None:
    mha, graphs = layer(qk_norm="rms"), Graphs()
    compiled = torch.compile(mha, backend=graphs, fullgraph=True)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            x = torch.randn(2, 5, 16)
            y, *w, s = compiled(x, **OPTIONS[options], measure=True)
            y2, *w2, s2 = mha(x, **OPTIONS[options], measure=True)
            assert torch.equal(y, y2)
            same(s, s2)
            for a, b in zip(w, w2, strict=True):
                torch.testing.assert_close(a, b)
    assert len(graphs.made) == 1, "compiled once, for every call"
    both = not grad and not isinstance(native.library(), str)
    assert graphs.operations == ["headwise.attention" if both else "headwise.row_statistics"]


@pytest.mark.parametrize("options", ["causal padding", "bias"])
def test_gradients_are_those_of_a_layer_that_is_not_measured(options: str) -> None:
    mha, x = layer(), torch.randn(2, 5, 16, requires_grad=True)
    more = dict(OPTIONS[options])
    if options == "bias":
        more["mask"] = BIAS.clone().requires_grad_()
    wanted = [x, *mha.parameters(), *(t for t in more.values() if isinstance(t, Tensor) and t.requires_grad)]
    compiled = torch.compile(mha, backend="aot_eager", fullgraph=True)
    y, s = compiled(x, **more, measure=True)
    assert y.requires_grad
    assert not s.entropy.requires_grad
    got = torch.autograd.grad(y.pow(2).sum(), wanted)
    expected = torch.autograd.grad(mha(x, **more).pow(2).sum(), wanted)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_one_graph_serves_every_length_and_batch() -> None:
    mha, graphs = layer(), Graphs()
    compiled = torch.compile(mha, backend=graphs, fullgraph=True)
    with torch.no_grad():
        for B, N in ((2, 5), (3, 11), (7, 2), (2, 300)):
            x, keys = torch.randn(B, N, 16), torch.arange(N) < torch.randint(1, N + 1, (B, 1))
            for t in (x, keys):
                torch._dynamo.mark_dynamic(t, 0)
                torch._dynamo.mark_dynamic(t, 1)
            y, s = compiled(x, causal=True, key_mask=keys, measure=True)
            y2, s2 = mha(x, causal=True, key_mask=keys, measure=True)
            torch.testing.assert_close(y, y2)
            same(s, s2)
            assert s.geometry.num_keys == N
    assert len(graphs.made) == 1


def test_decoding() -> None:
    mha, x = layer(), torch.randn(2, 7, 16)
    compiled = torch.compile(mha, backend="eager", fullgraph=True)
    with torch.no_grad():
        mine, theirs = hw.KVCache(), hw.KVCache()
        for i in range(7):
            y, s = compiled(x[:, i : i + 1], causal=True, cache=mine, measure=True)
            y2, s2 = mha(x[:, i : i + 1], causal=True, cache=theirs, measure=True)
            assert torch.equal(y, y2)
            same(s, s2)
            assert s.geometry.own.tolist() == [[i]]


def test_autocast_and_dropout() -> None:
    mha, x = layer(dropout=0.5), torch.randn(2, 5, 16)
    compiled = torch.compile(mha, backend="eager", fullgraph=True)
    with torch.autocast("cpu"):
        torch.manual_seed(0)
        y, s = compiled(x, measure=True)
        torch.manual_seed(0)
        y2, s2 = mha(x, measure=True)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, y2)
    same(s, s2)


@pytest.mark.parametrize("options", ["causal", "padding"])
def test_numbers_that_are_not_finite(options: str) -> None:
    mha, x = layer(), torch.randn(2, 5, 16)
    x[0, 3, 1] = torch.nan
    compiled = torch.compile(mha, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        y, s = compiled(x, **OPTIONS[options], measure=True)
        y2, s2 = mha(x, **OPTIONS[options], measure=True)
    assert y.isnan().any()
    assert torch.equal(torch.nan_to_num(y), torch.nan_to_num(y2))
    same(s, s2)


class Model(nn.Module):
    """Two layers; returns what it computes and two numbers that it reads from its own heads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer() for _ in range(2)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, first = self.layers[0](x, causal=True, measure=True)
        x, second = self.layers[1](x.tanh(), measure=True)
        return x, first.entropy.mean(), second.geometry.visible.sum()


def test_a_model_that_reads_its_own_heads() -> None:
    model, graphs = Model(), Graphs()
    x = torch.randn(2, 5, 16)
    for a, b in zip(torch.compile(model, backend=graphs, fullgraph=True)(x), model(x), strict=True):
        assert torch.equal(a, b)
    assert len(graphs.operations) == 2


def test_it_is_exported_with_its_measurements() -> None:
    model = Model().eval()
    sizes = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=2, max=64)}
    program = torch.export.export(model, (torch.randn(2, 5, 16),), dynamic_shapes=(sizes,))
    for shape in ((2, 5, 16), (3, 11, 16)):
        x = torch.randn(shape)
        for a, b in zip(program.module()(x), model(x), strict=True):
            torch.testing.assert_close(a, b)


def test_a_copy_and_a_second_compilation_measure_too() -> None:
    mha, x = layer(), torch.randn(2, 5, 16)
    for one in (mha, copy.deepcopy(mha)):
        one.compile(backend="eager", fullgraph=True)
        with torch.no_grad():
            same(one(x, measure=True)[1], mha(x, measure=True)[1])


# What compiled code must refuse, or must not lose


def test_transforms_are_refused_as_in_code_that_is_not_compiled() -> None:
    mha, x = layer(), torch.randn(3, 5, 16)
    for transform in (torch.func.vmap(lambda x: mha(x, measure=True)[0]), torch.func.grad(lambda x: loss(mha, x))):
        torch._dynamo.reset()
        with pytest.raises(Unsupported, match=r"inside a torch\.func transform .* measure in a plain call"):
            torch.compile(transform, backend="eager", fullgraph=True)(x)


def loss(mha: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = mha(x, measure=True)[0]
    return y.sum()


def test_nothing_to_measure_is_told() -> None:
    with pytest.raises(Unsupported, match="there is nothing to measure"):
        torch.compile(layer(), backend="eager", fullgraph=True)(torch.randn(0, 5, 16), measure=True)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_derivatives_that_are_carried_forward_are_not_lost(requires_grad: bool) -> None:
    """With gradients off too, where one kernel would give the output."""
    mha, x, tangent = layer().requires_grad_(requires_grad), torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    found = []
    with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level():
        for measure in (False, True):
            out = mha(forward_ad.make_dual(x, tangent), measure=measure)
            found.append(forward_ad.unpack_dual(out[0] if measure else out).tangent)
    assert found[0] is not None
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(out[1].lse, mha(x, measure=True)[1].lse)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("grad", [True, False])
def test_inductor(options: str, grad: bool) -> None:
    mha, x = layer(), torch.randn(2, 5, 16, requires_grad=grad)
    with torch.set_grad_enabled(grad):
        y, *_, s = torch.compile(mha, fullgraph=True)(x, **OPTIONS[options], measure=True)
        y2, *_, s2 = mha(x, **OPTIONS[options], measure=True)
    torch.testing.assert_close((y, s.lse, s.entropy, s.own), (y2, s2.lse, s2.entropy, s2.own), atol=1e-5, rtol=1e-5)
    if grad:
        expected = torch.autograd.grad(y2.pow(2).sum(), [x, *mha.parameters()])
        for a, b in zip(torch.autograd.grad(y.pow(2).sum(), [x, *mha.parameters()]), expected, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
