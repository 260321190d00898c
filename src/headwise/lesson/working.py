"""The worked example: from the numbers that a reader may change (the state) to every number that the lesson shows.

`static/work.js` is this file's twin in the page; a test compares the two, number by number, in a browser.
"""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from headwise.equations import attention, merge_heads, split_heads, visible_keys, weights

State: TypeAlias = dict[str, Any]
Numbers: TypeAlias = dict[str, Any]

WIDTHS = (4, 16, 64, 256, 1024)
"""The d_k of step 5."""

CUTS = (1, 2, 3, 4, 6)
"""The head counts of step 9."""

LENGTHS = (10, 100, 1000)
"""Further sequence lengths for which step 4 counts operations."""


def example() -> State:
    """The article's example: the state that the lesson opens with."""
    state: State = json.loads((files("headwise.lesson") / "static" / "example.json").read_text("utf-8"))
    return state


def work(state: State) -> Numbers:
    """Every number of the lesson.

    Args:
        state: As `example()`: `tokens` (N of them), `x` `[N, d]`, `wq`, `wk` `[d, d]`, `wv` `[d, d]`, `wo` `[d, d]`,
            `scale` and `causal` (bool), `heads` (divides d), `look` (a row), `pad` `[d]`, `target` (T tokens) and `y`
            `[T, d]`, `random` (seed, queries, keys), `wide` (`x` `[N, 12]`, `wq`, `wk`, `wv` `[12, 12]`, `heads`).

    Returns:
        Lists and floats by step; float64 throughout.
    """
    x, y, pad = _matrix(state["x"]), _matrix(state["y"]), _matrix([state["pad"]])
    return {
        "qkv": _listed(_projections(state, x)),
        "scores": _scores(state, x),
        "output": _output(state, x),
        "counts": [_counts(n, x.shape[1]) for n in (x.shape[0], *LENGTHS)],
        "random": [_random(d_k, **state["random"]) for d_k in WIDTHS],
        "masks": _masks(state, torch.cat((x, pad))),
        "places": _places(state, x, y),
        "heads": _heads(state, x),
        "cuts": [_cut(state, h) for h in CUTS],
    }


def _projections(state: State, x: Tensor, context: Tensor | None = None) -> dict[str, Tensor]:
    """Q = X W^Q, K = X W^K, V = X W^V (step 2); K and V from another sequence where there is one."""
    read = x if context is None else context
    return {"q": x @ _matrix(state["wq"]), "k": read @ _matrix(state["wk"]), "v": read @ _matrix(state["wv"])}


def _weights(state: State, q: Tensor, k: Tensor, *, causal: bool | None = None, mask: Tensor | None = None) -> Tensor:
    """Weights `[..., N, M]` of eq. 1 with the state's scale, and its causal limit unless another is given."""
    causal = bool(state["causal"]) if causal is None else causal
    scale = 1 / math.sqrt(q.shape[-1]) if state["scale"] else 1.0
    return attention(q, k, k, mask=mask, causal=causal, scale=scale, return_weights=True)[1]


def _scores(state: State, x: Tensor) -> Numbers:
    """Step 3: from Q K^T by scale and softmax to the weights."""
    made = _projections(state, x)
    products = made["q"] @ made["k"].T
    divisor = math.sqrt(made["q"].shape[-1]) if state["scale"] else 1.0
    p = _weights(state, made["q"], made["k"])
    return {
        "products": products.tolist(),
        "divisor": divisor,
        "scores": (products / divisor).tolist(),
        "weights": p.tolist(),
        **_described(p),
    }


def _output(state: State, x: Tensor) -> Numbers:
    """Step 4: Z = P V, and one row of it as a weighted sum of the rows of V."""
    made = _projections(state, x)
    p = _weights(state, made["q"], made["k"])
    row = int(state["look"])
    parts = p[row][:, None] * made["v"]
    return {"z": (p @ made["v"]).tolist(), "parts": parts.tolist(), "sum": parts.sum(0).tolist()}


def _counts(n: int, d: int) -> Numbers:
    """What waits for what (step 4), for a sequence of n and one width d."""
    return {
        "tokens": n,
        "recurrent_steps": n,
        "attention_products": 5,
        "attention_steps": 3,
        "recurrent_multiplications": 2 * n * d * d,
        "attention_multiplications": 3 * n * d * d + 2 * n * n * d,
    }


def _random(d_k: int, seed: int, queries: int, keys: int) -> Numbers:
    """Step 5: queries and keys of independent standard normal numbers, with and without the division by sqrt(d_k)."""
    numbers = normals((seed * 7919 + d_k) % 2**32, (queries + keys) * d_k).reshape(queries + keys, d_k)
    products = torch.from_numpy(numbers[:queries] @ numbers[queries:].T)
    found: Numbers = {"d_k": d_k}
    for name, s in (("scaled", products / math.sqrt(d_k)), ("unscaled", products)):
        p = weights(s)
        found[name] = {
            "deviation": float(s.std(correction=0)),
            "entropy": float(_entropy(p).mean()),
            "largest": float(p.amax(-1).mean()),
            # The trace of the softmax's Jacobian: sum_j dp_j/ds_j = sum_j p_j (1 - p_j).
            "gradient": float((p * (1 - p)).sum(-1).mean()),
        }
    return found


def normals(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Standard normal numbers that JavaScript can make too: mulberry32 and the Box-Muller transform.

    Args:
        seed: 0 .. 2^32 - 1.
        count: How many.

    Returns:
        `[count]`, float64.
    """
    state = np.uint32(seed) + np.arange(1, 2 * count + 1, dtype=np.uint32) * np.uint32(0x6D2B79F5)
    t = (state ^ (state >> np.uint32(15))) * (state | np.uint32(1))
    t = (t + (t ^ (t >> np.uint32(7))) * (t | np.uint32(61))) ^ t
    uniform = (t ^ (t >> np.uint32(14))) / 2**32
    one, two = uniform[0::2], uniform[1::2]
    made: np.ndarray[Any, np.dtype[np.float64]] = np.sqrt(-2 * np.log(1 - one)) * np.cos(2 * np.pi * two)
    return made


def _masks(state: State, padded: Tensor) -> Numbers:
    """Step 6: the sequence with one padding row, without a mask, with either, with both."""
    made = _projections(state, padded)
    real = torch.arange(len(padded)) < len(padded) - 1
    return {
        name: _weights(state, made["q"], made["k"], causal=causal, mask=mask).tolist()
        for name, causal, mask in (
            ("none", False, None),
            ("padding", False, real),
            ("causal", True, None),
            ("both", True, real),
        )
    }


def _places(state: State, x: Tensor, y: Tensor) -> Numbers:
    """Step 7: the three attentions of an encoder-decoder model."""
    encoder, decoder, cross = _projections(state, x), _projections(state, y), _projections(state, y, x)
    reading = _weights(state, cross["q"], cross["k"], causal=False).tolist()
    return {
        "encoder": _weights(state, encoder["q"], encoder["k"], causal=False).tolist(),
        "decoder": _weights(state, decoder["q"], decoder["k"], causal=True).tolist(),
        "cross": reading,
        # The source token that each target token reads most.
        "reads": [state["tokens"][row.index(max(row))] for row in reading],
    }


def _heads(state: State, x: Tensor) -> Numbers:
    """Step 8: h separate projections, concat, W^O (eq. 2), and beside it one fused projection cut into heads."""
    h, w_o = int(state["heads"]), _matrix(state["wo"])
    matrices = {name: _matrix(state[name]) for name in ("wq", "wk", "wv")}
    causal = bool(state["causal"])
    d_k = w_o.shape[0] // h
    scale = 1 / math.sqrt(d_k) if state["scale"] else 1.0
    heads = []
    for i in range(h):
        own = slice(i * d_k, (i + 1) * d_k)
        cut = {name: matrix[:, own] for name, matrix in matrices.items()}
        q, k, v = (x @ cut[name] for name in ("wq", "wk", "wv"))
        z, p = attention(q, k, v, causal=causal, scale=scale, return_weights=True)
        heads.append({**cut, "q": q, "k": k, "v": v, "weights": p, "z": z})
    concat = torch.cat([head["z"] for head in heads], -1)
    out = concat @ w_o
    fused = torch.stack([x @ matrix for matrix in matrices.values()])  # [3, N, d]
    q, k, v = split_heads(fused, h)  # each [h, N, d_k]
    fused_out = merge_heads(attention(q, k, v, causal=causal, scale=scale)) @ w_o
    return {
        "d_k": d_k,
        "heads": [{**_listed(head), **_described(head["weights"])} for head in heads],
        "concat": concat.tolist(),
        "out": out.tolist(),
        "fused_out": fused_out.tolist(),
        "difference": float((out - fused_out).abs().max()),
    }


def _cut(state: State, h: int) -> Numbers:
    """Step 9: the same Q, K, V cut into h heads; and Q K^T as the sum of the heads' own products."""
    wide = state["wide"]
    x = _matrix(wide["x"])
    q, k, v = (x @ _matrix(wide[name]) for name in ("wq", "wk", "wv"))
    heads_q, heads_k = split_heads(q, h), split_heads(k, h)
    parts = heads_q @ heads_k.mT
    p = _weights(state, heads_q, heads_k)
    described = [_described(one) for one in p]
    return {
        "h": h,
        "d_k": q.shape[-1] // h,
        "q": q.tolist(),
        "k": k.tolist(),
        "v": v.tolist(),
        "weights": p.tolist(),
        "z": merge_heads(p @ split_heads(v, h)).tolist(),
        "self_focus": [one["mean_self_focus"] for one in described],
        "entropy": [one["mean_entropy"] for one in described],
        "parts": parts.tolist(),
        "sum": parts.sum(0).tolist(),
        "difference": float((parts.sum(0) - q @ k.T).abs().max()),
    }


def _described(p: Tensor) -> Numbers:
    """Self-focus and entropy (nats) of the rows of one weight matrix `[N, N]`, and their means."""
    own, entropy = p.diagonal(), _entropy(p)
    return {
        "self_focus": own.tolist(),
        "entropy": entropy.tolist(),
        "mean_self_focus": float(own.mean()),
        "mean_entropy": float(entropy.mean()),
    }


def _entropy(p: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(p).sum(-1)
    return entropy


def visible(num_tokens: int, *, causal: bool) -> list[list[bool]]:
    """Which keys each row may see: what is hidden is drawn otherwise than what merely has no weight."""
    seen = visible_keys(num_tokens, num_tokens, causal=causal)
    full = torch.ones(num_tokens, num_tokens, dtype=torch.bool)
    shown: list[list[bool]] = (full if seen is None else seen & full).tolist()
    return shown


def _matrix(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def _listed(tensors: dict[str, Tensor]) -> Numbers:
    return {name: tensor.tolist() for name, tensor in tensors.items()}
