"""One attention call: the native kernel beside torch's fused attention, in one process, turn by turn."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.machine import machine
from headwise.call import AttentionCall
from headwise.kernels import fused_attention, geometry_of, row_statistics

SDPA, FUSED, STATISTICS, PORTABLE = "sdpa", "fused", "statistics", "portable"
VARIANTS = {
    SDPA: "torch.nn.functional.scaled_dot_product_attention: the output alone",
    FUSED: "native kernel: the output and all row statistics",
    STATISTICS: "native kernel: all row statistics, without the output",
    PORTABLE: "portable kernel: all row statistics, without the output",
}
TURNS = 9
HEADS = {512: 24, 2048: 6, 8192: 2}
"""Heads by length, so that every call takes a few milliseconds at least."""


@dataclass(frozen=True)
class Case:
    """One call `[1, H, N, d_k]`, float32, with or without a mask."""

    num_tokens: int
    head_dim: int
    kind: str

    @property
    def name(self) -> str:
        """`2048 x 64, causal`."""
        return f"{self.num_tokens} x {self.head_dim}, {self.kind}"


CASES = tuple(
    Case(n, d, kind) for kind in ("full", "causal", "key padding", "float bias") for n in HEADS for d in (32, 64, 128)
)


def run() -> dict[str, Any]:
    """Every case; ratios are medians over turns, and their geometric means by kind."""
    torch.manual_seed(0)
    found = []
    for case in CASES:
        found.append(_measure(case))
        print(_line(found[-1]), file=sys.stderr, flush=True)
    summary = {}
    for kind in dict.fromkeys(case.kind for case in CASES):
        of_kind = [one["to_sdpa"] for one in found if one["kind"] == kind]
        summary[kind] = {
            variant: {
                "geometric_mean": geometric_mean(one[variant] for one in of_kind),
                "largest": max(one[variant] for one in of_kind),
            }
            for variant in of_kind[0]
        }
    return {"case": "attention", "variants": VARIANTS, "machine": machine(), "cases": found, "to_sdpa": summary}


def _measure(case: Case) -> dict[str, Any]:
    H, N, d = HEADS[case.num_tokens], case.num_tokens, case.head_dim
    q, k, v = (torch.randn(1, N, H, d).transpose(1, 2) for _ in range(3))
    mask: Tensor | None = None
    if case.kind == "key padding":
        mask = (torch.arange(N) < N - N // 8)[None, None, None, :]
    if case.kind == "float bias":
        mask = torch.randn(1, 1, N, N)
    causal = case.kind == "causal"
    call = AttentionCall(q, k, v, mask=mask, causal="upper_left" if causal else None, scale=1 / math.sqrt(d))
    # As in a model, whose layers share it.
    geometry = geometry_of(call)
    operations: dict[str, Callable[[], object]] = {
        SDPA: lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal),
        FUSED: lambda: fused_attention(call, torch.empty(1, N, H, d).transpose(1, 2), geometry),
        STATISTICS: lambda: row_statistics(call, "native", geometry),
    }
    if N <= 2048:
        operations[PORTABLE] = lambda: row_statistics(call, "portable", geometry)
    samples: dict[str, list[float]] = {name: [] for name in operations}
    with torch.no_grad():
        for turn in range(-2, TURNS):
            for name, operation in operations.items():
                started = time.perf_counter()
                operation()
                if turn >= 0:
                    samples[name].append(time.perf_counter() - started)
    ratios = {
        name: median(a / b for a, b in zip(seconds, samples[SDPA], strict=True))
        for name, seconds in samples.items()
        if name not in (SDPA, PORTABLE)
    }
    result = {
        "name": case.name, "num_tokens": N, "head_dim": d, "num_heads": H, "kind": case.kind,
        "median_seconds": {name: median(seconds) for name, seconds in samples.items()}, "to_sdpa": ratios,
        "samples": samples,
    }  # fmt: skip
    if PORTABLE in samples:
        result["portable_to_sdpa"] = median(a / b for a, b in zip(samples[PORTABLE], samples[SDPA], strict=True))
    return result


def _line(one: dict[str, Any]) -> str:
    ratios = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in one["to_sdpa"].items())
    portable = f", portable {one['portable_to_sdpa']:.2f}x" if "portable_to_sdpa" in one else ""
    return f"{one['name']}: sdpa {one['median_seconds'][SDPA] * 1e3:.1f} ms; {ratios}{portable}"


def summary_line(result: dict[str, Any]) -> str:
    """The ratios to SDPA in a line a kind."""
    return "\n".join(
        f"attention, {kind}: "
        + ", ".join(f"{v} {r['geometric_mean']:.2f}x (at most {r['largest']:.2f}x)" for v, r in ratios.items())
        for kind, ratios in result["to_sdpa"].items()
    )
