"""A layer under the machinery of torch: compilers, transforms, devices, copies, parallel training."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.trace_rules import get_torch_obj_rule_map
from torch.utils.checkpoint import checkpoint

import headwise as hw
from tests.layer.textbook import close, shaken

# The compiler lists torch's functions when it first runs: before any test has put a poisoned torch.empty in place.
get_torch_obj_rule_map()

KEYS = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "padding": {"key_mask": KEYS},
    "causal padding": {"key_mask": KEYS, "causal": True},
    "bias": {"mask": torch.linspace(-2, 1, 25).view(5, 5).masked_fill(torch.eye(5) > 0, -torch.inf)},
    "rotary": {"position": hw.RotaryEmbedding(4), "causal": "lower_right"},
    "weights": {"return_weights": True, "causal": True},
    "context": {"context": torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(1))},
}


def layer(**options: Any) -> Any:
    return shaken(hw.MultiHeadAttention(16, 4, **{"num_kv_heads": 2, **options}))


def outs(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiled code from other tests, which would make recompilations; and an empty that the compiler knows."""
    monkeypatch.undo()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# torch.compile, torch.export


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.usefixtures("compiler")
def test_it_compiles_as_one_graph(options: str, grad: bool) -> None:
    mha, x = layer(qk_norm="rms"), torch.randn(2, 5, 16)
    compiled = torch.compile(mha, backend="aot_eager" if grad else "eager", fullgraph=True)
    with torch.set_grad_enabled(grad):
        expected, got = outs(mha(x, **OPTIONS[options])), outs(compiled(x, **OPTIONS[options]))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)
    if grad:
        mine = torch.autograd.grad(sum(t.pow(2).sum() for t in got), mha.parameters())
        eager = torch.autograd.grad(sum(t.pow(2).sum() for t in expected), mha.parameters())
        for a, b in zip(mine, eager, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("compiler")
def test_it_compiles_under_autocast_and_with_dropout() -> None:
    mha, x = layer(dropout=0.5), torch.randn(2, 5, 16)
    compiled = torch.compile(mha, backend="eager", fullgraph=True)
    with torch.autocast("cpu"):
        torch.manual_seed(0)
        y, w = compiled(x, return_weights=True)
        torch.manual_seed(0)
        y2, w2 = mha(x, return_weights=True)
    assert y.dtype == w.dtype == torch.bfloat16
    assert torch.equal(y, y2)
    assert torch.equal(w, w2)


@pytest.mark.usefixtures("compiler")
def test_decoding_compiles_as_one_graph() -> None:
    mha, x, c = layer(), torch.randn(2, 7, 16), torch.randn(2, 4, 16)
    compiled = torch.compile(mha, backend="eager", fullgraph=True)
    with torch.no_grad():
        cache, cross = hw.KVCache(), hw.KVCache()
        steps = [compiled(x[:, i : i + 1], causal=True, cache=cache) for i in range(7)]
        torch.testing.assert_close(torch.cat(steps, 1), mha(x, causal=True))
        torch._dynamo.reset()
        steps = [compiled(x[:, i : i + 1], c, cache=cross) for i in range(7)]
        torch.testing.assert_close(torch.cat(steps, 1), mha(x, c))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("compiler")
def test_measuring_in_a_compiled_model_is_right_outside_the_graph() -> None:
    mha, x = layer(), torch.randn(2, 5, 16)
    compiled = torch.compile(mha, backend="eager")
    y, w, s = compiled(x, causal=True, measure=True, return_weights=True)
    y2, w2, s2 = mha(x, causal=True, measure=True, return_weights=True)
    torch.testing.assert_close((y, w, s.lse, s.entropy, s.own), (y2, w2, s2.lse, s2.entropy, s2.own))


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.usefixtures("compiler")
def test_it_compiles_with_inductor(options: str) -> None:
    mha, x = layer(), torch.randn(2, 5, 16)
    got = outs(torch.compile(mha, fullgraph=True)(x, **OPTIONS[options]))
    expected = outs(mha(x, **OPTIONS[options]))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    mine = torch.autograd.grad(got[0].pow(2).sum(), mha.parameters())
    for a, b in zip(mine, torch.autograd.grad(expected[0].pow(2).sum(), mha.parameters()), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


class Exported(nn.Module):
    def __init__(self, mha: nn.Module) -> None:
        super().__init__()
        self.mha = mha
        self.rope = hw.RotaryEmbedding(4)

    def forward(self, x: Tensor, context: Tensor, keys: Tensor) -> Any:
        y, w = self.mha(x, key_mask=keys, causal=True, position=self.rope, return_weights=True)
        return y + self.mha(x, context), w


@pytest.mark.usefixtures("compiler")
def test_it_exports_for_any_batch_and_length() -> None:
    model = Exported(layer(qk_norm="layer")).eval()
    batch, length, other = (torch.export.Dim(name, min=2, max=512) for name in ("batch", "length", "other"))
    shapes = ({0: batch, 1: length}, {0: batch, 1: other}, {0: batch, 1: length})
    program = torch.export.export(model, (torch.randn(2, 5, 16), torch.randn(2, 7, 16), KEYS), dynamic_shapes=shapes)
    for B, N, M in ((2, 5, 7), (3, 11, 4), (5, 2, 30)):
        inputs = (torch.randn(B, N, 16), torch.randn(B, M, 16), torch.randint(0, 2, (B, N)))
        for a, b in zip(program.module()(*inputs), model(*inputs), strict=True):
            torch.testing.assert_close(a, b)


# Autocast


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("norm", [None, "rms", "layer"])
def test_autocast(options: str, norm: Any) -> None:
    mha, x = layer(qk_norm=norm), torch.randn(2, 5, 16)
    expected = outs(mha(x, **OPTIONS[options]))
    with torch.autocast("cpu"):
        got = outs(mha(x, **OPTIONS[options]))
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a.float(), b, atol=0.15, rtol=0.1)
    sum(t.float().pow(2).sum() for t in got).backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in mha.parameters())


# Activation checkpointing, torch.func


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant: bool) -> None:
    mha, x = layer(dropout=0.3), torch.randn(2, 5, 16, requires_grad=True)

    def grads(run: Any) -> list[Tensor]:
        torch.manual_seed(0)
        return [*torch.autograd.grad(run(x).pow(2).sum(), [x, *mha.parameters()], allow_unused=True)]

    def checkpointed(x: Tensor) -> Tensor:
        return checkpoint(lambda x: mha(x, causal=True, key_mask=KEYS), x, use_reentrant=reentrant)

    expected = grads(lambda x: mha(x, causal=True, key_mask=KEYS))
    if reentrant:  # backward() only
        torch.manual_seed(0)
        checkpointed(x).pow(2).sum().backward()
        got = [x.grad, *(p.grad for p in mha.parameters())]
    else:
        got = grads(checkpointed)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


def test_measuring_under_activation_checkpointing() -> None:
    mha, x = layer(), torch.randn(2, 5, 16, requires_grad=True)
    y, s = checkpoint(lambda x: mha(x, causal=True, measure=True), x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(s.lse, mha(x, causal=True, measure=True)[1].lse)
    assert x.grad is not None


@pytest.mark.parametrize("options", ["causal padding", "weights", "rotary"])
def test_functional_gradients(options: str) -> None:
    mha, x = layer(), torch.randn(2, 5, 16)
    parameters = dict(mha.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        result = torch.func.functional_call(mha, parameters, (x,), OPTIONS[options])
        return sum(t.pow(2).sum() for t in outs(result))

    got = torch.func.grad(loss)({name: p.detach() for name, p in parameters.items()}, x)
    expected = torch.autograd.grad(loss(parameters, x), list(parameters.values()))
    for name, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(got[name], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching rule")
def test_gradients_per_sequence() -> None:
    mha, x = layer(), torch.randn(3, 5, 16)
    parameters = {name: p.detach() for name, p in mha.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(mha, parameters, (x,), {"causal": True}).pow(2).sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for b in range(3):
        one = torch.func.grad(loss)(parameters, x[b])
        for name in parameters:
            torch.testing.assert_close(each[name][b], one[name], atol=1e-5, rtol=1e-5)


# Devices, copies, state


@pytest.mark.parametrize("options", OPTIONS)
def test_meta_device(options: str) -> None:
    mha = hw.MultiHeadAttention(16, 4, num_kv_heads=2, qk_norm="rms", device="meta")
    given = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in OPTIONS[options].items()}
    result = outs(mha(torch.empty(2, 5, 16, device="meta"), **given))
    assert [tuple(t.shape) for t in result] == [(2, 5, 16), (2, 4, 5, 5)][: len(result)]


def test_made_on_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # torch.device() knows torch's own empty only, not the tests' poisoned one
    torch.utils._device._device_constructors.cache_clear()
    with torch.device("meta"):
        mha = hw.MultiHeadAttention(16, 4, qk_norm="rms")
    torch.utils._device._device_constructors.cache_clear()
    assert {p.device.type for p in mha.parameters()} == {"meta"}


def test_from_meta_to_a_real_device() -> None:
    """As large models are made: empty, then filled by reset_parameters or from a file."""
    torch.manual_seed(3)
    made = hw.MultiHeadAttention(16, 4, qk_norm="layer")
    empty = hw.MultiHeadAttention(16, 4, qk_norm="layer", device="meta").to_empty(device="cpu")
    torch.manual_seed(3)
    empty.reset_parameters()
    x = torch.randn(2, 5, 16)
    assert torch.equal(empty(x), made(x))
    other = hw.MultiHeadAttention(16, 4, qk_norm="layer", device="meta")
    other.load_state_dict(made.state_dict(), assign=True)
    assert torch.equal(other(x), made(x))


@pytest.mark.parametrize("options", [{}, {"d_context": 7}, {"qk_norm": "layer", "bias": False}])
def test_copies_and_state_dicts_are_the_layer_again(options: dict[str, Any], tmp_path: Path) -> None:
    mha = layer(**options)
    x, c = torch.randn(2, 5, 16), torch.randn(2, 6, mha.d_context)
    y = mha(x, c)
    twin = copy.deepcopy(mha)
    assert torch.equal(twin(x, c), y)
    fresh = hw.MultiHeadAttention(16, 4, num_kv_heads=2, **options)
    assert not torch.equal(fresh(x, c), y)
    torch.save(mha.state_dict(), tmp_path / "layer.pt")
    fresh.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
    assert torch.equal(fresh(x, c), y)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert torch.equal(mha(x, c), y)
    whole = io.BytesIO()
    torch.save(mha, whole)
    whole.seek(0)
    assert torch.equal(torch.load(whole, weights_only=False)(x, c), y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    mha = layer().to(dtype)
    y, w = mha(torch.randn(2, 5, 16).to(dtype), causal=True, return_weights=True)
    assert y.dtype == w.dtype == dtype
    assert hw.MultiHeadAttention(16, 4, dtype=dtype, qk_norm="rms").q_norm.weight.dtype == dtype


# Parallel training


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_distributed_data_parallel() -> None:
    mha, x = layer(), torch.randn(2, 5, 16)
    alone = copy.deepcopy(mha)
    parallel = nn.parallel.DistributedDataParallel(mha)
    y, s = parallel(x, causal=True, measure=True)
    y2 = alone(x, causal=True)
    assert torch.equal(y, y2)
    y.pow(2).sum().backward()
    y2.pow(2).sum().backward()
    for a, b in zip(mha.parameters(), alone.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    cache = hw.KVCache()
    with torch.no_grad():
        parallel(x[:, :4], causal=True, cache=cache)
        # The wrapper and the layer in it are one layer.
        close(mha(x[:, 4:], causal=True, cache=cache), y2[:, 4:], 1e-5)
    assert s.lse.shape == (2, 4, 5)
