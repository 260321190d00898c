"""An oracle for what needs whole weights: float64 numpy and plain loops over rows and keys, from docs/measures.md.

It shares no code with headwise. Weights p `[B, H, N, M]`, visible keys `seen` of the same shape, own keys `[B, N]` and
first keys `[B, N]` (-1: none), rows that count `[B, H, N]`: as in `tests.oracle.definitions`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


def received(p: Floats, counted: Bools) -> Floats:
    """sum_i p_ij over the rows that count, `[B, H, M]`."""
    out = np.zeros((p.shape[0], p.shape[1], p.shape[3]))
    for b, h, i in np.ndindex(counted.shape):
        if counted[b, h, i]:
            out[b, h] += p[b, h, i]
    return out


def rows_that_see(seen: Bools, counted: Bools) -> Floats:
    """#{i that counts and may see j}, `[B, H, M]`."""
    out = np.zeros((seen.shape[0], seen.shape[1], seen.shape[3]))
    for b, h, i in np.ndindex(counted.shape):
        if counted[b, h, i]:
            out[b, h] += seen[b, h, i]
    return out


def alphas(p: Floats, seen: Bools, counted: Bools, sequence: Ints | None = None) -> list[list[dict[int, float]]]:
    """For each head, a dictionary for each sequence: the key's number from f to its alpha.

    `sequence [B, M]` numbers packed sequences; their keys are those that their own rows may see.
    """
    B, H, _, M = p.shape
    total, number = received(p, counted), rows_that_see(seen, counted)
    out: list[list[dict[int, float]]] = []
    for h in range(H):
        found = []
        for b in range(B):
            used = seen[b].any((0, 1))
            labels = np.zeros(M, int) if sequence is None else sequence[b]
            for label in sorted(set(labels.tolist())):
                mine = [j for j in range(M) if labels[j] == label]
                start = next((j for j in mine if used[j]), None)
                if start is None:
                    continue
                found.append({j - start: total[b, h, j] / number[b, h, j] for j in mine if number[b, h, j] > 0})
        out.append(found)
    return out


def token_values(
    p: Floats, seen: Bools, own: Ints, ids: Ints, real: Bools, sequence: Ints | None = None
) -> dict[str, Floats]:
    """`duplicate` and `induction` per row, NaN where no such key may be seen.

    Args:
        p: Weights.
        seen: Visible keys.
        own: Own keys; the row's token is the one there.
        ids: `[B, M]`.
        real: Keys that are no padding `[B, M]`.
        sequence: Packed sequence of each key `[B, M]`.
    """
    B, H, N, _ = p.shape
    out = {name: np.full((B, H, N), np.nan) for name in ("duplicate", "induction")}
    for b, h, i in np.ndindex(B, H, N):
        me = int(own[b, i])
        if me < 0 or not real[b, me]:
            continue
        occurrences = [
            j
            for j in range(me)
            if real[b, j] and ids[b, j] == ids[b, me] and (sequence is None or sequence[b, j] == sequence[b, me])
        ]
        followers = [j + 1 for j in occurrences if sequence is None or sequence[b, j + 1] == sequence[b, me]]
        for name, keys in (("duplicate", occurrences), ("induction", followers)):
            keys = [j for j in keys if seen[b, h, i, j]]
            if keys:
                out[name][b, h, i] = sum(p[b, h, i, j] for j in keys)
    return out


def on_keys(p: Floats, listed: Bools) -> Floats:
    """The weight on listed keys `[B, M]`, `[B, H, N]`."""
    out = np.zeros(p.shape[:3])
    for b, h, i, j in np.ndindex(p.shape):
        if listed[b, j]:
            out[b, h, i] += p[b, h, i, j]
    return out


def value_shares(
    p: Floats, v: Floats, seen: Bools, own: Ints, first: Ints, output_weight: Floats | None = None
) -> dict[str, Floats]:
    """p_ij |v_j| normalised over j at the own, previous and first key; and |out|. W_O `[d_model, H d_v]` if known."""
    B, H, N, M = p.shape
    group, width = H // v.shape[1], v.shape[3]
    names = ("value_own", "value_previous", "value_first", "output_norm")
    out = {name: np.full((B, H, N), np.nan) for name in names}
    for b, h in np.ndindex(B, H):
        vectors = v[b, h // group]
        after = np.eye(width) if output_weight is None else output_weight[:, h * width : (h + 1) * width].T
        lengths = np.array([math.sqrt(float(((vectors[j] @ after) ** 2).sum())) for j in range(M)])
        for i in range(N):
            parts = p[b, h, i] * lengths
            out["output_norm"][b, h, i] = math.sqrt(float((((p[b, h, i] @ vectors) @ after) ** 2).sum()))
            me, f = int(own[b, i]), int(first[b, i])
            if not parts.sum() > 0:
                continue
            share = parts / parts.sum()
            if me >= 0 and seen[b, h, i, me]:
                out["value_own"][b, h, i] = share[me]
            if me >= 1 and seen[b, h, i, me - 1]:
                out["value_previous"][b, h, i] = share[me - 1]
            if f >= 0 and seen[b, h, i, f] and (me < 0 or me > f):
                out["value_first"][b, h, i] = share[f]
    return out


def pair_values(p: Floats, q: Floats, p_sink: float | None = None, q_sink: float | None = None) -> dict[str, float]:
    """bc, hellinger and js of two rows of weights `[M]`, a sink as one more key."""
    if p_sink is not None or q_sink is not None:
        p, q = np.append(p, p_sink or 0.0), np.append(q, q_sink or 0.0)
    bc = math.fsum(math.sqrt(a * b) for a, b in zip(p, q, strict=True))
    divergence = 0.0
    for one in (p, q):
        for x, other in zip(one, (p + q) / 2, strict=True):
            if x > 0:
                divergence += 0.5 * x * math.log2(x / other)
    return {"bc": bc, "hellinger": math.sqrt(max(0.0, 1 - bc)), "js": math.sqrt(max(0.0, divergence))}


def cka(x: Floats, y: Floats) -> float:
    """Linear CKA of `[n, d]` and `[n, e]` by the Hilbert-Schmidt independence criterion, with n x n matrices."""
    n = len(x)
    centre = np.eye(n) - 1 / n

    def hsic(k: Floats, m: Floats) -> float:
        return float(np.trace(k @ centre @ m @ centre))

    k, m = x @ x.T, y @ y.T
    return hsic(k, m) / math.sqrt(hsic(k, k) * hsic(m, m))


def pooled(p: Floats, size: int, how: str) -> Floats:
    """Bins from floor(r N / R) to ceil((r + 1) N / R), R = min(N, size), of rows and of keys."""
    B, H, N, M = p.shape
    R, C = min(N, size), min(M, size)
    out = np.zeros((B, H, R, C))
    for b, h, r, c in np.ndindex(B, H, R, C):
        rows = range(math.floor(r * N / R), math.ceil((r + 1) * N / R))
        keys = range(math.floor(c * M / C), math.ceil((c + 1) * M / C))
        bin_ = [p[b, h, i, j] for i in rows for j in keys]
        out[b, h, r, c] = max(bin_) if how == "max" else math.fsum(bin_) / len(bin_)
    return out
