"""One run of one variant in a fresh process: `python -m benchmarks.worker CASE VARIANT` prints one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

import headwise as hw
from benchmarks import peak
from benchmarks.models import load
from benchmarks.registry import CASES, EAGER, FUSED, WATCHED


def main() -> None:
    case, variant = CASES[sys.argv[1]], sys.argv[2]
    model = load(case.model, "eager" if variant == EAGER else "sdpa")
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.config.vocab_size
    ids = torch.randint(1000, vocabulary, (case.batch, case.tokens), generator=generator)
    with torch.no_grad():
        _run(model, ids[:, :64], variant)  # warm up
        peak.reset()
        before = peak.resident()
        started = time.perf_counter()
        _run(model, ids, variant)
        seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "extra_bytes": peak.maximum() - before, "peak_bytes": peak.maximum()}))


def _run(model: Any, ids: torch.Tensor, variant: str) -> None:
    if variant in (WATCHED, FUSED):
        with hw.watch(model, fuse=variant == FUSED) as profile:
            model(ids, use_cache=False)
        profile.table()
    elif variant == EAGER:
        for weights in model(ids, use_cache=False, output_attentions=True).attentions:
            entropy = -torch.special.xlogy(weights, weights).sum(-1)
            (entropy.mean((0, 2)), weights.diagonal(dim1=-2, dim2=-1).mean((0, 2)))
    else:
        model(ids, use_cache=False)


if __name__ == "__main__":
    main()
