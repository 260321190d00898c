"""The Triton kernel: the same table of calls under Triton's CPU interpreter and, where there is one, on a GPU.

Whether the interpreter runs is settled when triton is imported, so it runs in a process of its own:
`python -m tests.kernels.test_triton quick` prints what is wrong with each call, as JSON. Compilation for real devices
needs none of them: `... compile` runs it to machine code.
"""

from __future__ import annotations

import functools
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.call import AttentionCall, Place
from headwise.equations import attention
from headwise.kernels import RowStatistics, geometry_of, row_statistics
from headwise.kernels.protocol import STATISTICS
from headwise.kernels.tiles import Tile, score_tile
from headwise.kernels.triton import TritonKernel
from headwise.measures.rows import counted

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton is not installed: pip install 'headwise[triton]'"
)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
INF = math.inf


def make(
    N: int = 9, M: int | None = None, d: int = 16, d_v: int | None = None, *, B: int = 1, H: int = 2,
    kv: int | None = None, dtype: torch.dtype = F32, by: float = 1.0, **more: Any,
) -> AttentionCall:  # fmt: skip
    M, kv = N if M is None else M, H if kv is None else kv
    q = (by * torch.randn(B, N, H, d)).to(dtype).transpose(1, 2)
    return AttentionCall(q, torch.randn(B, kv, M, d).to(dtype), torch.randn(B, kv, M, d_v or d).to(dtype), **more)


def strided(dtype: torch.dtype = F32) -> AttentionCall:
    """k spread out, v transposed and one sequence for all, a mask that is a view."""
    call = make(21, 33, 24, B=2, H=4, kv=2, dtype=dtype)
    k = torch.randn(2, 33, 2, 48).to(dtype)[..., ::2].transpose(1, 2)
    v = torch.randn(1, 2, 40, 33).to(dtype).transpose(2, 3).expand(2, -1, -1, -1)
    return call.with_(k=k, v=v, mask=(torch.rand(33, 21) > 0.3).T.expand(2, 1, 21, 33))


def holes() -> AttentionCall:
    mask = torch.rand(2, 1, 20, 37) > 0.5
    mask[:, :, [0, 7]] = False
    mask[1, :, :, :5] = False
    return make(20, 37, B=2, mask=mask, sinks=torch.randn(2))


def poisoned(poison: float) -> AttentionCall:
    """A query, a key in the middle and the first key are broken, each for some rows alone."""
    call = make(12, H=3, causal="upper_left")
    q, k = call.q.clone(), call.k.clone()
    q[0, 0, 3, 1] = poison
    k[0, 1, 5, 2] = poison
    k[0, 2, 0, 0] = poison
    return call.with_(q=q, k=k)


def broken_bias() -> AttentionCall:
    mask = torch.randn(1, 1, 9, 9)
    mask[0, 0, 3, 5], mask[0, 0, 6, 2], mask[0, 0, 7, 1] = math.nan, INF, -INF
    return make(9, mask=mask)


def hidden_poison(poison: float) -> AttentionCall:
    call = make(70, mask=(torch.arange(70) < 66)[None, None, None], dtype=F16)
    k = call.k.clone()
    k[:, :, 66:] = poison
    return call.with_(k=k)


def rows_of(scores: list[float], **more: Any) -> AttentionCall:
    """Every row has these scores, exactly: k is the identity, and scale 1."""
    q = torch.tensor(scores)[None, None, None].expand(1, 1, len(scores), -1)
    return AttentionCall(q, torch.eye(len(scores))[None, None], torch.randn(1, 1, len(scores), 5), scale=1.0, **more)


def padding(hidden: list[int], M: int) -> Tensor:
    """The first keys of each sequence are hidden."""
    return (torch.arange(M) >= torch.tensor(hidden)[:, None])[:, None, None]


def low_mask(N: int, M: int, low: float, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(1, 2, N, M).to(dtype).masked_fill(torch.rand(1, 2, N, M) > 0.6, low)


CASES: dict[str, Callable[[], AttentionCall]] = {
    "one query, one key": lambda: make(1, 1, 1),
    "7 x 63, width 5": lambda: make(7, 63, 5, 1),
    "65 x 65, width 32, causal": lambda: make(65, 65, 32, causal="upper_left"),
    "111 x 63, width 100, bfloat16": lambda: make(111, 63, 100, 24, dtype=BF16, H=1),
    "63 x 111, width 128, float16": lambda: make(63, 111, 128, dtype=F16, H=1, causal="lower_right"),
    "33 x 65, width 256": lambda: make(33, 65, 256, 16, H=1),
    "33 x 65, width 256, bfloat16, masked": lambda: make(33, 65, 256, dtype=BF16, H=1, mask=torch.rand(33, 65) > 0.2),
    "more rows than a block": lambda: make(150, 150, 16, dtype=F16, H=1, causal="upper_left"),
    "grouped queries": lambda: make(65, H=4, kv=2, causal="upper_left", scale=0.3, dtype=BF16),
    "grouped queries share a block": lambda: make(5, 70, 32, B=2, H=6, kv=2, causal="lower_right"),
    "decoding": lambda: make(1, 111, 64, B=2, H=8, kv=2, causal="lower_right", dtype=BF16),
    "decoding without groups": lambda: make(1, 65, 48, B=2, causal="lower_right"),
    "cross": lambda: make(13, 70, place=Place(kind="cross")),
    "neither causal nor square": lambda: make(13, 70),
    "fewer keys than queries": lambda: make(40, 7, causal="lower_right"),
    "window": lambda: make(111, window=7, causal="upper_left", H=1),
    "window on both sides": lambda: make(65, 70, window=(3, 5), causal=None),
    "softcap": lambda: make(40, by=5.0, softcap=4.0, causal="upper_left"),
    "softcap, small scores": lambda: make(40, by=0.05, softcap=1000.0),
    "sinks": lambda: make(40, H=5, sinks=torch.tensor([-INF, -3.0, 0.5, 4.0, 60.0])),
    "bool mask": lambda: make(40, 70, mask=torch.rand(1, 2, 40, 70) > 0.4, hide_below=0.5),
    "expanded mask": lambda: make(20, B=2, kv=1, mask=(torch.rand(20, 20) > 0.3).expand(2, 2, -1, -1)),
    "key padding, left": lambda: make(40, B=2, mask=padding([0, 37], 40)),
    "key padding, right": lambda: make(40, B=2, causal="upper_left", mask=~padding([40, 3], 40)),
    "a column of the mask": lambda: make(20, B=2, mask=torch.randn(2, 2, 20, 1)),
    "bias, -inf": lambda: make(40, 70, mask=low_mask(40, 70, -INF)),
    "bias, finfo.min of bfloat16": lambda: make(40, mask=low_mask(40, 40, torch.finfo(BF16).min, BF16), dtype=BF16),
    "bias, a threshold of its own": lambda: make(40, mask=torch.randn(1, 2, 40, 40), hide_below=-0.5),
    "bias of float64": lambda: make(20, mask=low_mask(20, 20, torch.finfo(torch.float64).min, torch.float64)),
    "rows that see nothing": holes,
    "no row sees anything": lambda: make(20, mask=torch.zeros(20, 20, dtype=torch.bool)),
    "strides of every kind": strided,
    "strides of every kind, bfloat16": lambda: strided(BF16),
    "scores x 100": lambda: make(65, 65, 24, by=100.0, causal="upper_left"),
    "ties": lambda: rows_of([1.0, 2.0, 0.5, 2.0, 2.0, -1.0]),
    "ties over many tiles": lambda: make(5, 111, by=0.0),
    "a first key with nearly all": lambda: rows_of([60.0, 0.0, 1.0, -0.5]),
    "large scores that lie close": lambda: rows_of([1000.0, 999.5, 998.75, 997.0]),
    "scores far below the top": lambda: rows_of([0.0, -3e4, -3e38, 0.0]),
    "a sink far above": lambda: rows_of([0.0, 1.0, 2.0], sinks=torch.tensor([1000.0])),
    "NaN": lambda: poisoned(math.nan),
    "infinity": lambda: poisoned(INF),
    "NaN and infinity in a bias": broken_bias,
    "NaN behind a mask": lambda: hidden_poison(math.nan),
    "infinity behind a mask": lambda: hidden_poison(INF),
}  # fmt: skip

EXACT = {
    "ties",
    "ties over many tiles",
    "large scores that lie close",
    "a first key with nearly all",
    "scores far below the top",
}
"""Exact in float32, argmax (the first of equals) included."""


def any_call(seed: int) -> AttentionCall:
    """A call of random shapes, limits and layout."""
    torch.manual_seed(seed)
    choose = random.Random(seed)
    B, kv, G = choose.randint(1, 2), choose.randint(1, 2), choose.randint(1, 3)
    N, M = choose.choice([1, 3, 17, 65, 90]), choose.choice([1, 7, 33, 64, 130])
    M = N if choose.random() < 0.5 else M
    H, dtype = kv * G, choose.choice([F32, F32, BF16, F16])
    shape = tuple(choose.choice([1, size]) for size in (B, H, N, M))
    kind = choose.choice(["none", "bool", "-inf", "finfo.min"])
    mask = None
    if kind == "bool":
        mask = torch.rand(shape) > choose.choice([0.1, 0.5, 0.95])
    elif kind != "none":
        low = -INF if kind == "-inf" else torch.finfo(F32).min
        mask = torch.randn(shape).masked_fill(torch.rand(shape) > 0.6, low)
    call = make(
        N, M, choose.randint(1, 70), choose.randint(1, 70), B=B, H=H, kv=kv, dtype=dtype, mask=mask,
        causal=choose.choice([None, "upper_left", "lower_right"]),
        window=choose.choice([None, None, 1, 7, (0, 3), (5, None), (None, 2)]),
        softcap=choose.choice([None, None, 5.0]), scale=choose.choice([None, 0.05, 1.0]),
        sinks=3 * torch.randn(H) if choose.random() < 0.3 else None,
    )  # fmt: skip
    if choose.random() < 0.3:
        assert call.v is not None
        call = call.with_(
            k=call.k.transpose(2, 3).contiguous().transpose(2, 3), v=torch.cat((call.v, call.v), -1)[..., ::2]
        )
    return call


# What is wrong with a call's statistics and output


def on(call: AttentionCall, device: str) -> AttentionCall:
    names = ("q", "k", "v", "mask", "sinks")
    return call.with_(**{name: x.to(device) for name in names if (x := getattr(call, name)) is not None})


def exact(call: AttentionCall) -> AttentionCall:
    mask = call.mask
    return call.with_(
        q=call.q.double(), k=call.k.double(), v=None if call.v is None else call.v.double(),
        mask=mask if mask is None or mask.dtype == torch.bool else mask.double(),
    )  # fmt: skip


def near(found: Tensor, wanted: Tensor, rtol: float, atol: float, name: str) -> str | None:
    try:
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return f"{name}: {error}"
    return None


def complaints(name: str, call: AttentionCall, device: str = "cpu") -> list[str]:
    """What is wrong with the kernel's results by the float64 reference; tolerances as for the native kernel."""
    kernel, there = TritonKernel(), on(call, device)
    if (why := kernel.refuses(there)) is not None:
        return [f"refused: {why}"]
    assert call.v is not None
    B, H, N, _ = call.sizes
    geometry = geometry_of(there)
    place = torch.full((B, N, H, call.v.shape[-1]), math.nan, dtype=call.q.dtype, device=device).transpose(1, 2)
    found, alone = on_host(kernel.attend(there, geometry, place)), on_host(kernel.run(there, geometry))
    out = place.cpu()
    geometry = geometry_of(call)
    reference = row_statistics(exact(call), "reference", geometry)
    portable = row_statistics(call, "portable", geometry)
    wrong = [] if torch.equal(counted(found), counted(portable)) else ["other rows count than with the portable kernel"]

    finite = ~(reference.max_score.isnan() | (reference.max_score == INF))
    scores = reference.max_score[reference.max_score.isfinite()].abs()
    largest = max(1.0, float(scores.max())) if scores.numel() else 1.0
    # A score carries the rounding of its d_k products.
    norms = [x.float().nan_to_num(0, 0, 0).norm(dim=-1).max() for x in (call.q, call.k)]
    bound = float(norms[0] * norms[1]) * (call.scale or call.q.shape[-1] ** -0.5)
    tolerance = 2e-6 if name in EXACT else max(5e-6 * largest, 1e-6 * bound)
    for what in (*STATISTICS, "argmax"):
        a, b, again = (getattr(one, what)[finite].double() for one in (found, reference, alone))
        if what == "distance":
            known = (geometry.own >= 0)[:, None].expand(B, H, N)[finite]
            a, b, again = a[known], b[known], again[known]
        if what == "entropy_rest":
            # What is left beside the first key must itself be more than rounding.
            left = reference.rest[finite] > 1e-3
            a, b, again = a[left], b[left], again[left]
        wrong.append(near(again, a, 0, 0, f"{what} with and without the output"))
        if what == "argmax" and name not in EXACT:
            seen = torch.isfinite(reference.max_score)
            chosen = score_tile(exact(call), Tile()).gather(-1, found.argmax[..., None]).squeeze(-1)
            wrong.append(near(chosen[seen], reference.max_score[seen], 0, tolerance, "the score at argmax"))
        else:
            wrong.append(near(a, b, max(2e-6, tolerance / 4), tolerance, what))
    eps = torch.finfo(call.q.dtype).eps if call.q.dtype != F32 else 0.0
    c = exact(call)
    assert c.v is not None
    expected = attention(c.q, c.k, c.v, c.mask, c.causal, c.scale, softcap=c.softcap, sinks=c.sinks, window=c.window)
    if c.hide_below == AttentionCall.hide_below:
        wrong.append(near(out.double()[finite], expected[finite], eps, max(tolerance, 2 * eps), "output"))
    if not out[reference.geometry.visible.expand(B, H, N) == 0].eq(0).all():
        wrong.append("the output of a row that sees nothing is not 0")
    return [one for one in wrong if one]


def on_host(s: RowStatistics) -> RowStatistics:
    call_side = {name: getattr(s, name).cpu() for name in (*STATISTICS, "argmax")}
    tensors = {n: x.cpu() for n, x in vars(s.geometry).items() if isinstance(x, Tensor)}
    geometry = type(s.geometry)(num_keys=s.geometry.num_keys, segment=tensors.pop("segment", None), **tensors)
    return RowStatistics(**call_side, geometry=geometry, has_sinks=s.has_sinks)


def built(name: str) -> AttentionCall:
    torch.manual_seed(0)
    return CASES[name]()


# Compilation ahead of time

SHARED = 99 * 1024
"""Shared memory of one program, in bytes: the least that devices of compute capability 8.0 and up have (8.6, 8.9)."""

ARCHITECTURES = (80, 90)

KINDS: dict[str, Callable[..., AttentionCall]] = {
    "full": lambda **more: make(512, **more),
    "masked": lambda **more: make(512, mask=torch.ones(512, 512, dtype=torch.bool), **more),
    "bias": lambda **more: make(512, mask=torch.zeros(512, 512), softcap=20.0, sinks=torch.zeros(2), **more),
    "decoding": lambda **more: make(1, 512, causal="lower_right", **more),
}


def compiled(call: AttentionCall, fused: bool, architecture: int) -> dict[str, Any]:
    """Compile the kernel as a launch of the call would, and say what the machine code takes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from headwise.kernels.triton.launch import launch_of
    from headwise.kernels.triton.rows import rows

    B, H, N, _ = call.sizes
    assert call.v is not None
    out = torch.empty(B, H, N, call.v.shape[-1], dtype=call.q.dtype) if fused else None
    statistics, argmax = torch.empty(len(STATISTICS), B, H, N), torch.empty(B, H, N, dtype=torch.int64)
    _, arguments, options = launch_of(call, geometry_of(call), out, statistics, argmax)
    names = {F32: "*fp32", BF16: "*bf16", F16: "*fp16", torch.uint8: "*u8", torch.int64: "*i64"}
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes = {}
    # As Triton specialises at a launch: on 1, and on multiples of 16.
    for index, parameter in enumerate(rows.params):
        name, value = parameter.name, arguments[parameter.name]
        special = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (special and isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[name] = names[value.dtype]
        else:
            signature[name] = "i32" if isinstance(value, int) else "fp32"
        if isinstance(value, Tensor) or (signature[name] == "i32" and special and value % 16 == 0):
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(rows, signature, constants, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    return {
        "shared": made.metadata.shared,
        "machine code": len(made.asm["cubin"]),
        "ptx": f".target sm_{architecture}" in made.asm["ptx"],
    }


def compilations(which: str) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    everything = [
        (d, t, k, f, a)
        for d in (64, 128, 256)
        for t in (F32, BF16)
        for k in KINDS
        for f in (True, False)
        for a in ARCHITECTURES
    ]
    quick = [(16, F32, "bias", True, 80), (16, BF16, "full", True, 90)]
    for d, dtype, kind, fused, architecture in quick if which == "quick" else everything:
        name = f"{kind}, width {d}, {dtype}, {'with' if fused else 'without'} output, sm_{architecture}".replace(
            "torch.", ""
        )
        yield name, functools.partial(compiled, KINDS[kind](d=d, dtype=dtype), fused, architecture)


# The tests


def elsewhere(task: str, cache: Path, interpret: bool) -> Any:
    """What this file prints for a task in a process of its own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1" if interpret else "0", "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.test_triton", task], env=environment, capture_output=True, text=True,
        check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    found: dict[str, list[str]] = elsewhere("quick", tmp_path_factory.mktemp("triton"), interpret=True)
    return found


FEW, MANY = range(8), range(100, 400)


@needs_triton
@pytest.mark.parametrize("name", [*CASES, *(f"any call {seed}" for seed in FEW)])
def test_the_interpreter_gives_what_the_reference_gives(interpreted: dict[str, list[str]], name: str) -> None:
    assert interpreted[name] == []


@needs_triton
@pytest.mark.slow
def test_any_of_many_calls(tmp_path: Path) -> None:
    found = elsewhere("slow", tmp_path, interpret=True)
    assert len(found) == len(MANY)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def check_compiled(found: dict[str, dict[str, Any]]) -> None:
    assert found
    for name, made in found.items():
        assert made["ptx"], name
        assert made["machine code"] > 0, name
        assert made["shared"] <= SHARED, (name, made)


@needs_triton
@pytest.mark.slow
def test_it_compiles_for_real_devices(tmp_path: Path) -> None:
    check_compiled(elsewhere("compile quick", tmp_path, interpret=False))


@needs_triton
@pytest.mark.slow
def test_every_form_compiles_for_real_devices(tmp_path: Path) -> None:
    check_compiled(elsewhere("compile slow", tmp_path, interpret=False))


@needs_triton
@needs_cuda
@pytest.mark.parametrize("name", [*CASES, *(f"any call {seed}" for seed in FEW)])
def test_a_gpu_gives_what_the_reference_gives(name: str) -> None:
    call = built(name) if name in CASES else any_call(int(name.split()[-1]))
    assert complaints(name, call, "cuda") == []


def main(task: str) -> None:
    """What is wrong with each call of a table, or what each compilation made, as a line of JSON."""
    torch.set_num_threads(1)
    if task.startswith("compile"):
        print(json.dumps({name: make() for name, make in compilations(task.split()[-1])}))
        return
    empty = torch.empty
    # A number that the kernel forgets to write must not pass.
    torch.empty = lambda *size, **how: empty(*size, **how).fill_(99 if how.get("dtype") == torch.int64 else math.nan)
    calls = {name: functools.partial(built, name) for name in CASES} if task == "quick" else {}
    calls |= {f"any call {seed}": functools.partial(any_call, seed) for seed in (FEW if task == "quick" else MANY)}
    print(json.dumps({name: complaints(name, call()) for name, call in calls.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
