"""How far the native kernel may be from float64 at real lengths, on every instruction set; what threads may change.

Scores are products in float32, so what they are off by grows with them, and all that is made of weights with it.
"""

from __future__ import annotations

import ctypes
import math
import platform
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.equations import attention
from headwise.kernels import geometry_of, row_statistics
from headwise.kernels.geometry import Geometry
from headwise.kernels.native import LEVELS, Library, library
from headwise.kernels.native.building import BuildError, compiler
from headwise.kernels.protocol import STATISTICS, RowStatistics
from headwise.kernels.tiles import Tile, score_tile
from tests.compiled import needs_native

pytestmark = needs_native

BOUND = 5e-6
"""Of output, lse and entropy, times max(1, largest score)."""
OF_DISTANCE = 1e-6
"""Relative, where scores are of standard normal queries and keys; for larger ones, times the largest."""
UNDERFLOW = 2.0**-126
"""A weight below this is 0 in float32, and then so is a distance that is made of such weights alone."""

LENGTHS = {
    "plain": (513, 1021, 2047),
    "large": (1021,),
    "denormal": (769,),
    "bool": (515,),
    "bias": (1021,),
    "keys": (769,),
}


def native() -> Library:
    found = library()
    assert not isinstance(found, str), found
    return found


@lru_cache(maxsize=1)
def case(kind: str, N: int, causal: Any) -> tuple[AttentionCall, Geometry, RowStatistics, Tensor, float]:
    """A call, its statistics and output in float64 from the same numbers, and its largest score."""
    torch.manual_seed(N)
    q, k, v = (torch.randn(1, 2, N, 64) for _ in range(3))
    mask = None
    if kind == "large":
        q *= 100
    elif kind == "denormal":
        for t in (q, k, v):
            t[torch.rand_like(t) < 0.3] = 1e-40
    elif kind == "bool":
        mask = torch.rand(1, 1, N, N) > 0.5
        mask[..., N // 2, :] = False
    elif kind == "bias":
        mask = torch.randn(1, 2, N, N).masked_fill(torch.rand(1, 2, N, N) > 0.5, -math.inf)
    elif kind == "keys":
        mask = (torch.arange(N) >= N // 3)[None, None, None]
    call = AttentionCall(q, k, v, mask=mask, causal=causal)
    mask = mask if mask is None or mask.dtype == torch.bool else mask.double()
    exact = AttentionCall(q.double(), k.double(), v.double(), mask=mask, causal=causal)
    assert exact.v is not None
    geometry = geometry_of(call)
    out = attention(exact.q, exact.k, exact.v, mask=mask, causal=causal)
    scores = score_tile(exact, Tile())
    largest = max(1.0, float(scores.masked_fill(scores == -math.inf, 0.0).abs().max()))
    return call, geometry, row_statistics(exact, "reference", geometry), out, largest


CASES = [(kind, N, causal) for kind, sizes in LENGTHS.items() for N in sizes for causal in (None, "upper_left")]


@pytest.mark.parametrize("level", range(len(LEVELS)))
@pytest.mark.parametrize(("kind", "N", "causal"), CASES)
def test_bounds(kind: str, N: int, causal: Any, level: int) -> None:
    if level > native().level:
        pytest.skip(f"this machine has no {LEVELS[level]}")
    call, geometry, reference, expected, largest = case(kind, N, causal)
    out = torch.empty(1, 2, N, 64)
    found = native().run(call, geometry, out=out, level=level)
    assert found is not None
    sees = geometry.visible.expand(1, 2, N) > 0
    assert (out[~sees] == 0).all()
    assert error(out, expected) <= BOUND * largest
    assert (found.lse[~sees] == -math.inf).all()
    assert error(found.lse[sees], reference.lse[sees]) <= BOUND * largest
    assert error(found.entropy, reference.entropy) <= BOUND * largest
    distance, far = found.distance[sees].double(), reference.distance[sees]
    relative = OF_DISTANCE * (largest if kind == "large" else 1)
    assert ((distance - far).abs() <= relative * far + UNDERFLOW * N * N).all()
    # Everything else is a weight, or made of weights: 0..1.
    for name in ("largest", "own", "previous", "next", "first", "rest", "ipr"):
        assert error(getattr(found, name), getattr(reference, name)) <= BOUND * largest, name


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max())


@pytest.mark.parametrize("level", range(len(LEVELS)))
@pytest.mark.parametrize("causal", [None, "upper_left"])
def test_threads_and_repetition_change_no_bit_at_any_level(level: int, causal: Any) -> None:
    """With and without the output."""
    if level > native().level:
        pytest.skip(f"this machine has no {LEVELS[level]}")
    call, geometry, *_ = case("plain", 1021, causal)
    before = torch.get_num_threads()
    first: list[Tensor] = []
    try:
        for threads in (1, 2, 2, 1):
            torch.set_num_threads(threads)
            out = torch.empty(1, 2, 1021, 64)
            both = native().run(call, geometry, out=out, level=level)
            alone = native().run(call, geometry, level=level)
            assert both is not None
            assert alone is not None
            for statistics in (both, alone):
                got = [
                    out,
                    *(torch.nan_to_num(getattr(statistics, name), nan=-1.0) for name in (*STATISTICS, "argmax")),
                ]
                first = first or got
                assert all(torch.equal(a, b) for a, b in zip(got, first, strict=True))
    finally:
        torch.set_num_threads(before)


# The floating-point state of torch's threads

STATES = """
#include <dlfcn.h>
#include <immintrin.h>
typedef void (*Parallel)(void (*)(void*), void*, unsigned, unsigned);
typedef int (*Number)();
struct Job { unsigned* states; bool write; Number number; };
static void body(void* data) {
  Job& job = *(Job*)data;
  unsigned& state = job.states[job.number()];
  if (job.write) _mm_setcsr(state);
  else state = _mm_getcsr();
}
extern "C" void states(unsigned* of, int threads, int write) {
  Job job{of, write != 0, (Number)dlsym(RTLD_DEFAULT, "omp_get_thread_num")};
  ((Parallel)dlsym(RTLD_DEFAULT, "GOMP_parallel"))(body, &job, (unsigned)threads, 0);
}
"""
THREADS = 3
CONTROL = 0xFFC0  # of MXCSR; the lowest bits tell what has happened, not what is asked for


class States:
    """MXCSR of each of torch's threads."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def read(self) -> list[int]:
        found = (ctypes.c_uint * THREADS)()
        self._library.states(found, THREADS, 0)
        return [state & CONTROL for state in found]

    def write(self, states: list[int]) -> None:
        self._library.states((ctypes.c_uint * THREADS)(*states), THREADS, 1)


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[States]:
    if platform.machine().lower() not in ("x86_64", "amd64") or platform.system() != "Linux":
        pytest.skip("MXCSR is of x86, and threads are looked up as on Linux")
    try:
        command = compiler()
    except BuildError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("states")
    (folder / "states.cpp").write_text(STATES)
    made = folder / "states.so"
    subprocess.run([*command, "-shared", "-fPIC", str(folder / "states.cpp"), "-o", str(made), "-ldl"], check=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    found = States(made)
    before = found.read()
    yield found
    found.write(before)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("outcome", ["done", "not finite"])
@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_every_thread_keeps_its_floating_point_state(level: int, outcome: str, states: States) -> None:
    """Each another one: rounding down, up or to zero, flushing denormals or not."""
    if level > native().level:
        pytest.skip(f"this machine has no {LEVELS[level]}")
    q, k, v = (torch.randn(2, 8, 300, 64) for _ in range(3))
    if outcome == "not finite":
        k[1, 7, 299, 63] = math.nan
    call = AttentionCall(q, k, v)
    geometry, out = geometry_of(call), torch.empty(2, 8, 300, 64)
    for asked in ([0x1F80] * THREADS, [0x3F80, 0x5F80, 0x7F80], [0x9FC0, 0x1F80, 0x7F80]):
        states.write(asked)
        try:
            assert states.read() == asked, "the test's own means"
            found = native().run(call, geometry, out=out, level=level)
            assert states.read() == asked
        finally:
            states.write([0x1F80] * THREADS)
        assert (found is None) == (outcome == "not finite")
