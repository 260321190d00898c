"""The native kernel: every instruction set, any call, threads, floating-point state, memory errors."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.call import AttentionCall
from headwise.equations import attention
from headwise.kernels import fused_attention, geometry_of, row_statistics
from headwise.kernels.native import LEVELS, NativeKernel, binding, library
from headwise.kernels.native.binding import Library
from headwise.kernels.native.building import BuildError, build, compiler
from headwise.kernels.protocol import STATISTICS, RowStatistics
from headwise.measures.rows import counted
from tests.compiled import needs_native

pytestmark = needs_native

TYPES = [torch.float32, torch.bfloat16, torch.float16]


def native() -> Library:
    found = library()
    assert not isinstance(found, str), found
    return found


def exact(call: AttentionCall) -> AttentionCall:
    mask = call.mask
    return call.with_(
        q=call.q.double(), k=call.k.double(), v=None if call.v is None else call.v.double(),
        mask=mask if mask is None or mask.dtype == torch.bool else mask.double(),
    )  # fmt: skip


def output(call: AttentionCall) -> Tensor:
    c = exact(call)
    assert c.v is not None
    return attention(
        c.q, c.k, c.v, mask=c.mask, causal=c.causal, scale=c.scale, softcap=c.softcap, sinks=c.sinks, window=c.window
    )


def compare(call: AttentionCall, level: int | None = None) -> None:
    """Statistics and output against float64, statistics alone bitwise as beside the output."""
    geometry = geometry_of(call)
    reference = row_statistics(exact(call), "reference", geometry)
    assert call.v is not None
    out = torch.full((*call.q.shape[:3], call.v.shape[-1]), math.nan, dtype=call.q.dtype)
    found = native().run(call, geometry, out=out, level=level)
    alone = native().run(call, geometry, level=level)
    assert found is not None
    assert alone is not None
    scores = reference.max_score[reference.max_score.isfinite()].abs()
    largest = max(1.0, float(scores.max())) if scores.numel() else 1.0
    # A score carries the rounding of its d_k products.
    q, k = call.q.float(), call.k.float()
    bound = float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) * (call.scale or q.shape[-1] ** -0.5)
    tolerance = max(5e-6 * largest, 1e-6 * bound)
    for name in STATISTICS:
        a, b, again = (getattr(s, name).double() for s in (found, reference, alone))
        if name == "distance":
            known = (geometry.own >= 0)[:, None].expand(a.shape)
            a, b, again = a[known], b[known], again[known]
        if name == "entropy_rest":
            # What is left beside the first key must itself be more than rounding.
            left = reference.rest > 1e-3
            a, b, again = a[left], b[left], again[left]
        assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(again)), name
        torch.testing.assert_close(
            a, b, rtol=max(2e-6, tolerance / 4), atol=tolerance, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}"
        )
    seen = torch.isfinite(reference.max_score)
    chosen = scores_at(call, found.argmax)[seen]
    torch.testing.assert_close(chosen, reference.max_score[seen], rtol=0, atol=tolerance)
    eps = torch.finfo(call.q.dtype).eps if call.q.dtype != torch.float32 else 0.0
    torch.testing.assert_close(out.double(), output(call), rtol=eps, atol=max(tolerance, 2 * eps))


def scores_at(call: AttentionCall, key: Tensor) -> Tensor:
    """The exact score of one key a row."""
    from headwise.kernels.tiles import Tile, score_tile

    return score_tile(exact(call), Tile()).gather(-1, key[..., None]).squeeze(-1)


def make(
    sizes: tuple[int, int, int, int, int] = (2, 4, 9, 9, 8), kv: int | None = None, d_v: int | None = None,
    dtype: torch.dtype = torch.float32, by: float = 1.0, **more: Any,
) -> AttentionCall:  # fmt: skip
    B, H, N, M, d = sizes
    kv = H if kv is None else kv
    q = (by * torch.randn(B, N, H, d)).to(dtype).transpose(1, 2)
    return AttentionCall(q, torch.randn(B, kv, M, d).to(dtype), torch.randn(B, kv, M, d_v or d).to(dtype), **more)


SHAPES = [
    ((1, 2, 7, 7, 16), 2, 16), ((2, 4, 65, 65, 24), 2, 24), ((1, 6, 130, 130, 64), 2, 64), ((2, 3, 40, 111, 8), 3, 5),
    ((1, 9, 1, 77, 64), 3, 64), ((2, 8, 5, 300, 32), 4, 48), ((1, 2, 200, 200, 100), 2, 100),
    ((1, 1, 97, 33, 3), 1, 256),
]  # fmt: skip

KINDS = ["full", "upper_left", "lower_right", "window", "bool", "bias", "keys", "by head"]


@pytest.mark.parametrize("level", range(len(LEVELS)))
@pytest.mark.parametrize(("sizes", "kv", "d_v"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set(level: int, sizes: tuple[int, int, int, int, int], kv: int, d_v: int, kind: str) -> None:
    if level > native().level:
        pytest.skip(f"this machine has no {LEVELS[level]}")
    B, H, N, M, _ = sizes
    more: dict[str, Any] = {}
    if kind in ("upper_left", "lower_right"):
        more["causal"] = kind
    elif kind == "window":
        more |= {"causal": "lower_right", "window": 5}
    elif kind == "bool":
        more["mask"] = torch.rand(B, 1, N, M) > 0.4
        more["mask"][:, :, N // 2] = False
    elif kind == "bias":
        more["mask"] = torch.randn(1, 1, N, M).masked_fill(torch.rand(1, 1, N, M) > 0.7, -math.inf)
    elif kind == "keys":
        more["mask"] = (torch.arange(M) < M - M // 3)[None, None, None].expand(B, 1, 1, M)
    elif kind == "by head":
        more["mask"] = torch.randn(B, H, N, M)
    compare(make(sizes, kv, d_v, **more), level)


@st.composite
def calls(draw: st.DrawFn) -> AttentionCall:
    B, kv, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    N, M = draw(st.integers(1, 140)), draw(st.integers(1, 210))
    M = N if draw(st.booleans()) else M
    d, d_v = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    H = kv * groups
    torch.manual_seed(draw(st.integers(0, 10_000)))
    dtype = draw(st.sampled_from(TYPES))
    more: dict[str, Any] = {
        "causal": draw(st.sampled_from([None, "upper_left", "lower_right"])),
        "window": draw(st.sampled_from([None, 1, 7, (0, 3), (5, None), (None, 2)])),
        "softcap": draw(st.sampled_from([None, None, 5.0])),
        "sinks": torch.randn(H) * 3 if draw(st.booleans()) else None,
        "scale": draw(st.sampled_from([None, 0.05, 1.0])),
    }
    shape = tuple(draw(st.sampled_from([1, size])) for size in (B, H, N, M))
    kind = draw(st.sampled_from(["none", "bool", "bias", "lowest"]))
    if kind == "bool":
        more["mask"] = torch.rand(shape) > draw(st.sampled_from([0.1, 0.5, 0.95]))
    elif kind != "none":
        low = -math.inf if kind == "bias" else torch.finfo(torch.float32).min
        more["mask"] = torch.randn(shape).masked_fill(torch.rand(shape) > 0.6, low)
    call = make((B, H, N, M, d), kv, d_v, dtype, **more)
    if draw(st.booleans()):
        # Strides of every kind: transposed, spread out, one sequence for all.
        k = torch.randn(B, M, kv, 2 * d).to(dtype)[..., ::2].transpose(1, 2)
        v = torch.randn(1, kv, d_v, M).to(dtype).transpose(2, 3).expand(B, -1, -1, -1)
        call = call.with_(k=k, v=v)
    return call


@given(calls(), st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_any_call(call: AttentionCall, level: int) -> None:
    compare(call, level)


@pytest.mark.slow
@given(calls(), st.integers(0, 2))
@settings(max_examples=2000, deadline=None)
def test_any_of_two_thousand_calls(call: AttentionCall, level: int) -> None:
    compare(call, level)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kv", [1, 3, 9])
def test_decoding(dtype: torch.dtype, kv: int) -> None:
    for M in (1, 15, 16, 17, 300):
        compare(make((2, 9, 1, M, 64), kv, 64, dtype, causal="lower_right"))


def test_queries_a_hundred_times_as_large() -> None:
    compare(make((1, 2, 150, 150, 64), by=100.0, causal="upper_left"))


def test_scores_that_differ_by_little_far_from_zero_keep_their_difference() -> None:
    """Exact in float32: weights depend on differences alone."""
    differences = torch.tensor([0.0, -0.5, -1.25, -3.0])
    q = (differences + 1000)[None, None, None].expand(1, 1, 4, 4)
    call = AttentionCall(q, torch.eye(4)[None, None], scale=1.0)
    found = row_statistics(call, "native")
    assert found.own[0, 0].tolist() == pytest.approx(differences.double().softmax(0).tolist(), rel=1e-6)


def test_a_bias_of_denormal_and_infinite_numbers() -> None:
    mask = torch.full((70, 70), 1e-40).masked_fill(torch.rand(70, 70) > 0.5, -math.inf)
    compare(make((1, 2, 70, 70, 16), mask=mask))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("where", ["q", "k"])
def test_what_is_not_finite_or_huge_goes_to_the_portable_kernel(poison: float, where: str) -> None:
    call = make((1, 2, 20, 20, 8))
    broken = getattr(call, where).clone()
    broken[0, 1, 5, 3] = poison
    call = call.with_(**{where: broken})
    assert native().run(call, geometry_of(call)) is None
    assert fused_attention(call, torch.empty(1, 2, 20, 8)) is None
    found, portable = row_statistics(call, "native"), row_statistics(call, "portable")
    assert torch.equal(counted(found), counted(portable))
    for name in STATISTICS:
        assert torch.equal(torch.nan_to_num(getattr(found, name)), torch.nan_to_num(getattr(portable, name)))


@pytest.mark.parametrize("sizes", [(2, 6, 300, 300, 64), (1, 1, 1100, 1100, 16)])
@pytest.mark.parametrize(
    "limits", [{}, {"causal": "upper_left"}, {"window": 70}, {"causal": "upper_left", "window": (150, 0)}]
)
def test_threads_and_repetition_change_no_bit(sizes: tuple[int, int, int, int, int], limits: dict[str, Any]) -> None:
    # A block holds 64 rows or 256, as threads allow: the second size changes over with two threads.
    call = make(sizes, sizes[1] // 3 or 1, **limits)
    geometry, before = geometry_of(call), torch.get_num_threads()
    runs: list[RowStatistics | Tensor] = []
    try:
        for threads in (1, 2, 4, 2):
            torch.set_num_threads(threads)
            out = torch.empty(call.q.shape)
            statistics = native().run(call, geometry, out=out)
            assert statistics is not None
            runs += [statistics, out]
    finally:
        torch.set_num_threads(before)
    for statistics, out in zip(runs[2::2], runs[3::2], strict=True):
        assert torch.equal(out, runs[1])
        for name in (*STATISTICS, "argmax"):
            a, b = (torch.nan_to_num(getattr(s, name), nan=-1.0) for s in (statistics, runs[0]))
            assert torch.equal(a, b), name


def test_denormal_arithmetic_is_as_before_on_every_thread() -> None:
    """The kernel flushes denormals to zero, on threads that are torch's."""
    tiny, before = torch.full((1 << 20,), 1e-40), torch.get_num_threads()
    call = make((2, 8, 300, 300, 64))
    try:
        torch.set_num_threads(2)
        expected = tiny + tiny
        assert native().run(call, geometry_of(call)) is not None
        assert torch.equal(tiny + tiny, expected)
        assert (expected > 0).all()
    finally:
        torch.set_num_threads(before)


ONE_RUNTIME = """
import torch
from pathlib import Path
from headwise.call import AttentionCall
from headwise.kernels import row_statistics
torch.set_num_threads(2)
x = torch.randn(2, 8, 300, 64)
row_statistics(AttentionCall(x, x), "native")
for line in Path("/proc/self/maps").read_text().splitlines():
    if Path(line.split()[-1]).name.startswith(("libgomp", "libomp", "libiomp")):
        print(line.split()[-1])
"""


def test_one_openmp_runtime() -> None:
    """In a process of its own: other tests may load libraries that bring a runtime along."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("no /proc on this system")
    done = subprocess.run([sys.executable, "-c", ONE_RUNTIME], check=True, stdout=subprocess.PIPE, text=True)
    runtimes = set(done.stdout.split())
    assert len(runtimes) == 1, runtimes


def test_it_refuses_with_a_reason() -> None:
    kernel = NativeKernel()
    assert "float64" in (kernel.refuses(make(dtype=torch.float64)) or "")
    assert "meta" in (kernel.refuses(AttentionCall(*(torch.empty(1, 1, 2, 2, device="meta"),) * 2)) or "")
    assert kernel.refuses(make()) is None


def test_a_library_of_other_sources_is_not_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "fingerprint", lambda: 1)
    with pytest.raises(OSError, match="built from other sources"):
        Library(native().path)


def test_without_a_compiler_the_build_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match=r"no C\+\+ compiler"):
        build(tmp_path / "library.so")


def test_a_compiler_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{sys.executable} -c raise(SystemExit('no'))")
    with pytest.raises(BuildError, match="failed"):
        build(tmp_path / "library.so")
    assert list(tmp_path.iterdir()) == []


SANITIZED = """
import sys, torch
from pathlib import Path
import tests.kernels.test_native as tests
from headwise.kernels.native.binding import Library
found = Library(Path(sys.argv[1]))
tests.native = lambda: found
torch.manual_seed(0)
for level in range(found.level + 1):
    for sizes, kv, d_v in tests.SHAPES:
        for kind in tests.KINDS:
            tests.test_every_instruction_set(level, sizes, kv, d_v, kind)
import headwise.kernels.native.moments, headwise.kernels.native.tally
import tests.kernels.test_moments as sums
from headwise.kernels import tally
headwise.kernels.native.moments.library = headwise.kernels.native.tally.library = sums.native = lambda: found
for level in range(found.level + 1):
    for N in (1, 7, 16, 33, 130):
        for shared in (False, True):
            sums.check(level, 3, 2, N, range(9), shared, packed=not shared, density=0.9)
for sizes, kv, d_v in tests.SHAPES:
    assert tally(tests.row_statistics(tests.make(sizes, kv, d_v), "native"), range(-3, 4), None) is not None
print("clean")
"""


@pytest.mark.slow
def test_no_memory_error_and_nothing_undefined(tmp_path: Path) -> None:
    """Built with the address and undefined-behaviour sanitizers, which end the process at the first fault."""
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"]
    made = build(tmp_path / "_rows.so", sanitize)
    runtime = subprocess.run(
        [*compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED, str(made)], env=environment, capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip().endswith("clean")


@pytest.mark.parametrize("level", range(len(LEVELS)))
@pytest.mark.parametrize("kind", ["full", "upper_left", "window", "keys", "bias"])
def test_of_equal_scores_the_first_is_the_largest(level: int, kind: str) -> None:
    """Whole numbers, exact in float32: most maxima are met several times, within a group of keys and in many tiles."""
    if level > native().level:
        pytest.skip(f"this machine has no {LEVELS[level]}")
    B, H, N, M = 2, 2, 70, 211
    q, k = (torch.randint(-1, 2, (B, H, length, 4)).float() for length in (N, M))
    more: dict[str, Any] = {
        "causal": kind if kind == "upper_left" else None,
        "window": 30 if kind == "window" else None,
    }
    if kind == "keys":
        more["mask"] = (torch.arange(M) % 5 != 0)[None, None, None].expand(B, 1, 1, M)
    elif kind == "bias":
        more["mask"] = torch.randint(-2, 1, (1, 1, N, M)).float()
    call = AttentionCall(q, k, q.new_ones(B, H, M, 3), scale=1.0, **more)
    geometry = geometry_of(call)
    found = native().run(call, geometry, level=level)
    assert found is not None
    from headwise.kernels.tiles import Tile, score_tile

    scores = score_tile(exact(call), Tile()).numpy()
    seen = torch.isfinite(found.max_score)
    assert seen.float().mean() > 0.9
    assert found.argmax[seen].tolist() == torch.from_numpy(scores.argmax(-1))[seen].tolist()
