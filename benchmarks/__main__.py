"""Run benchmarks: `python -m benchmarks [CASE ...]`. Variants take turns, each run in a process of its own.

Results go to benchmarks/results/CASE.json: every sample, medians, and ratios pair by pair.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import attention
from benchmarks.machine import machine
from benchmarks.registry import CASES, UNWATCHED, VARIANTS, Case

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["attention", *CASES]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(names)} (default: all)")
    chosen = parser.parse_args().cases or names
    for name in chosen:
        if name not in names:
            parser.error(f"no benchmark {name!r}; there are {', '.join(names)}")
    for name in chosen:
        result = attention.run() if name == "attention" else run(CASES[name])
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        print(attention.summary_line(result) if name == "attention" else _line(result), flush=True)


def run(case: Case) -> dict[str, Any]:
    """All runs of a case, interleaved: variant A, B, C, A, B, C, ..."""
    samples: dict[str, list[dict[str, float]]] = {variant: [] for variant in case.variants}
    for turn in range(case.repeats):
        for variant in case.variants:
            print(f"{case.name}: {variant}, run {turn + 1} of {case.repeats}", file=sys.stderr, flush=True)
            samples[variant].append(_sample(case.name, variant))
    return {
        "case": case.name,
        "model": case.model,
        "batch": case.batch,
        "tokens": case.tokens,
        "variants": {variant: VARIANTS[variant] for variant in case.variants},
        "machine": machine(),
        "samples": samples,
        "median_seconds": {v: median(s["seconds"] for s in runs) for v, runs in samples.items()},
        "median_extra_bytes": {v: median(s["extra_bytes"] for s in runs) for v, runs in samples.items()},
        "seconds_to_unwatched": {v: _ratio(samples, v) for v in case.variants if v != UNWATCHED},
    }


def _sample(case: str, variant: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.worker", case, variant]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    sample: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return sample


def _ratio(samples: dict[str, list[dict[str, float]]], variant: str) -> float:
    """Median of the ratios of runs that followed each other."""
    pairs = zip(samples[variant], samples[UNWATCHED], strict=True)
    return median(a["seconds"] / b["seconds"] for a, b in pairs)


def _line(result: dict[str, Any]) -> str:
    parts = [
        f"{variant} {seconds:.2f} s +{result['median_extra_bytes'][variant] / 2**20:.0f} MiB"
        for variant, seconds in result["median_seconds"].items()
    ]
    ratios = [f"{variant} {ratio:.2f}x" for variant, ratio in result["seconds_to_unwatched"].items()]
    return f"{result['case']}: {'; '.join(parts)} (to unwatched: {', '.join(ratios)})"


if __name__ == "__main__":
    main()
