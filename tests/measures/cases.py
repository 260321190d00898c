"""Attention calls of every kind, each with what the float64 oracle says of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.call import AttentionCall, Place
from headwise.kernels import RowStatistics, row_statistics
from headwise.measures.rows import counted
from tests.oracle import definitions as oracle

F64 = torch.float64
B, H, N, WIDTH = 3, 4, 12, 5
TRIL = torch.ones(N, N, dtype=torch.bool).tril()
SEQUENCES = [(0, 12), (0, 5, 12), (0, 3, 7, 12)]


def padding() -> Tensor:
    """Left padding in the second sequence, right padding in the third."""
    mask = torch.ones(B, 1, 1, N, dtype=torch.bool)
    mask[1, ..., :4] = False
    mask[2, ..., -3:] = False
    return mask


def packing() -> Tensor:
    mask = torch.zeros(B, 1, N, N, dtype=torch.bool)
    for b, cuts in enumerate(SEQUENCES):
        for start, end in pairwise(cuts):
            mask[b, 0, start:end, start:end] = True
    return mask


def packed_numbers() -> np.ndarray:
    return np.array([[sum(cut <= j for cut in cuts) - 1 for j in range(N)] for cuts in SEQUENCES])


def some(seed: int, *shape: int, density: float = 0.7) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": "upper_left"},
    "one kv head": {"kv": 1, "causal": "upper_left"},
    "no groups": {"kv": 4},
    "padded": {"mask": padding()},
    "padded causal": {"mask": padding() & TRIL},
    "padded, causal apart": {"mask": padding(), "causal": "upper_left"},
    "packed": {"mask": packing()},
    "packed causal": {"mask": packing() & TRIL},
    "window": {"window": 3, "causal": "upper_left"},
    "window both ways": {"window": (2, 1)},
    "window padded": {"window": (4, None), "mask": padding()},
    "chunk": {"N": 5, "causal": "lower_right"},
    "decode": {"N": 1},
    "decode padded": {"N": 1, "mask": padding()},
    "cross": {"M": 7, "place": Place(kind="cross")},
    "cross padded": {"place": Place(kind="cross"), "mask": padding()},
    "sinks": {"sinks": torch.tensor([0.0, 2.0, -3.0, 9.0], dtype=F64), "causal": "upper_left"},
    "softcap": {"softcap": 2.0, "scale": 0.9},
    "holes": {"mask": some(5, B, H, N, N, density=0.4)},
    "holes causal": {"mask": some(6, B, 1, N, N), "causal": "upper_left"},
    "bias": {"mask": torch.randn(1, H, N, N, generator=torch.Generator().manual_seed(1), dtype=F64)},
    "lowest": {"mask": torch.where(padding() & TRIL, 0.0, torch.finfo(torch.float32).min).double()},
    "real": {"real": some(8, B, N, density=0.6)},
}


@dataclass(frozen=True)
class Case:
    """A call, its statistics, and what the oracle says: see `tests.oracle.patterns`."""

    name: str
    call: AttentionCall
    statistics: RowStatistics
    p: np.ndarray
    sink: np.ndarray | None
    seen: np.ndarray
    own: np.ndarray
    first: np.ndarray
    counted: np.ndarray
    sequence: np.ndarray | None


@cache
def case(name: str, dtype: torch.dtype = F64, size: float = 1.5, seed: int = 0, broken: bool = False) -> Case:
    options = dict(CASES[name])
    rows, keys, kv = options.pop("N", N), options.pop("M", N), options.pop("kv", 2)
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(B, H, rows, WIDTH, generator=g, dtype=F64) * size
    k, v = (torch.randn(B, kv, keys, w, generator=g, dtype=F64) for w in (WIDTH, 6))
    if broken:
        q[1, 2, -1] = torch.nan
    for field in ("mask", "sinks"):
        x = options.get(field)
        if x is not None and x.dtype != torch.bool:
            options[field] = x.to(dtype).clamp(min=torch.finfo(dtype).min)
    return of_call(AttentionCall(q.to(dtype), k.to(dtype), v.to(dtype), **options), name)


def of_call(call: AttentionCall, name: str = "") -> Case:
    mask = None if call.mask is None else (call.mask if call.mask.dtype == torch.bool else call.mask.double()).numpy()
    seen = oracle.seen_keys(call.sizes, mask, call.causal, call.window, call.hide_below)
    scores = oracle.scores_of(call.q.double().numpy(), call.k.double().numpy(), call.scale, call.softcap, mask)
    p, sink = oracle.weights_of(scores, seen, None if call.sinks is None else call.sinks.double().numpy())
    statistics = row_statistics(call)
    sequence = packed_numbers() if name.startswith("packed") else None
    return Case(
        name,
        call,
        statistics,
        p,
        sink,
        seen,
        oracle.own_keys(seen, causal=call.causal is not None, cross=call.is_cross),
        oracle.first_keys(seen, sequence),
        counted(statistics).expand(call.sizes[:3]).numpy(),
        sequence,
    )


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation gave."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, Tensor):
                self.elements = max(self.elements, t.untyped_storage().nbytes() // t.element_size())
        return out
