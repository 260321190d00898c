"""Every number of the lesson once more, in plain numpy and from the definitions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def softmax(scores: Array, seen: Array | None = None) -> Array:
    visible = scores if seen is None else np.where(seen, scores, -np.inf)
    e = np.exp(visible - visible.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def weights(state: dict[str, Any], q: Array, k: Array, *, causal: bool | None = None, real: Any = None) -> Array:
    scale = 1 / math.sqrt(q.shape[1]) if state["scale"] else 1.0
    causal = state["causal"] if causal is None else causal
    seen = np.tril(np.ones((len(q), len(k)))) if causal else np.ones((len(q), len(k)))
    return softmax(q @ k.T * scale, seen if real is None else seen * np.array(real))


def described(p: Array) -> dict[str, Any]:
    entropy = np.array([-sum(x * math.log(x) for x in row if x > 0) for row in p])
    own = np.diag(p)
    return {
        "self_focus": own,
        "entropy": entropy,
        "mean_self_focus": own.mean(),
        "mean_entropy": entropy.mean(),
    }


def work(state: dict[str, Any]) -> dict[str, Any]:
    """What `headwise.lesson.working.work` gives, but for the random numbers of step 5."""
    x, y, wq, wk, wv, wo = (np.array(state[name], float) for name in ("x", "y", "wq", "wk", "wv", "wo"))
    q, k, v = x @ wq, x @ wk, x @ wv
    N, d = x.shape
    p = weights(state, q, k)
    divisor = math.sqrt(d) if state["scale"] else 1.0
    padded = np.vstack([x, state["pad"]])
    pq, pk = padded @ wq, padded @ wk
    real = [1.0] * N + [0.0]
    crossed = weights(state, y @ wq, k, causal=False)
    return {
        "qkv": {"q": q, "k": k, "v": v},
        "scores": {
            "products": q @ k.T, "divisor": divisor, "scores": q @ k.T / divisor, "weights": p, **described(p),
        },
        "output": {
            "z": p @ v,
            "parts": [p[state["look"], j] * v[j] for j in range(N)],
            "sum": sum(p[state["look"], j] * v[j] for j in range(N)),
        },
        "counts": [counts(n, d) for n in (N, 10, 100, 1000)],
        "masks": {
            "none": weights(state, pq, pk, causal=False),
            "padding": weights(state, pq, pk, causal=False, real=real),
            "causal": weights(state, pq, pk, causal=True),
            "both": weights(state, pq, pk, causal=True, real=real),
        },
        "places": {
            "encoder": weights(state, q, k, causal=False),
            "decoder": weights(state, y @ wq, y @ wk, causal=True),
            "cross": crossed,
            "reads": [state["tokens"][int(row.argmax())] for row in crossed],
        },
        "heads": heads(state, x, (wq, wk, wv), wo),
        "cuts": [cut(state, h) for h in (1, 2, 3, 4, 6)],
    }  # fmt: skip


def counts(n: int, d: int) -> dict[str, int]:
    # Multiplying [a, b] by [b, c] takes a * b * c multiplications.
    return {
        "tokens": n, "recurrent_steps": n, "attention_products": 5, "attention_steps": 3,
        "recurrent_multiplications": n * (d * d + d * d),
        "attention_multiplications": 3 * (n * d * d) + n * d * n + n * n * d,
    }  # fmt: skip


def heads(state: dict[str, Any], x: Array, matrices: tuple[Array, ...], wo: Array) -> dict[str, Any]:
    h, d = state["heads"], len(wo)
    found = []
    for i in range(h):
        own = [matrix[:, i * d // h : (i + 1) * d // h] for matrix in matrices]
        q, k, v = (x @ matrix for matrix in own)
        p = weights(state, q, k)
        names = dict(zip(("wq", "wk", "wv"), own, strict=True))
        found.append({**names, "q": q, "k": k, "v": v, "weights": p, "z": p @ v, **described(p)})
    concat = np.hstack([one["z"] for one in found])
    out = concat @ wo
    return {"d_k": d // h, "heads": found, "concat": concat, "out": out, "fused_out": out}


def cut(state: dict[str, Any], h: int) -> dict[str, Any]:
    x, wq, wk = (np.array(state["wide"][name], float) for name in ("x", "wq", "wk"))
    q, k = x @ wq, x @ wk
    d_k = q.shape[1] // h
    slices = [slice(i * d_k, (i + 1) * d_k) for i in range(h)]
    p = [weights(state, q[:, s], k[:, s]) for s in slices]
    return {
        "h": h, "d_k": d_k, "q": q, "k": k, "weights": p, "parts": [q[:, s] @ k[:, s].T for s in slices],
        "sum": q @ k.T, "self_focus": [described(one)["mean_self_focus"] for one in p],
        "entropy": [described(one)["mean_entropy"] for one in p],
    }  # fmt: skip


def mulberry32(seed: int) -> Iterator[float]:
    """Tommy Ettinger's generator as it is written in JavaScript, one number after the other."""
    a = seed
    while True:
        a = (a + 0x6D2B79F5) & 0xFFFFFFFF
        t = ((a ^ (a >> 15)) * (a | 1)) & 0xFFFFFFFF
        t = ((t + ((t ^ (t >> 7)) * (t | 61) & 0xFFFFFFFF)) & 0xFFFFFFFF) ^ t
        yield (t ^ (t >> 14)) / 2**32
