"""An oracle for the row measures: float64 numpy, straight from the formulas of docs/measures.md.

It shares no code with headwise and knows nothing of tiles, tricks or torch. Weights may come from anywhere: from
`weights_of` here, or from a model's own eager attention (then `scores` is None, and so is what needs them).

Notation: B sequences, H heads, N rows (queries), M keys; p weight, s score, V_i the keys that row i may see, n_i
their number, self(i) the own key, f the first real key.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

MEASURES = (
    "self_focus", "self_lift", "previous", "next", "first", "entropy", "entropy_ratio", "entropy_rest",
    "effective_keys", "max_weight", "distance", "ipr", "max_score", "sink_bias",
)  # fmt: skip


def seen_keys(
    shape: tuple[int, int, int, int],
    mask: NDArray | None = None,
    causal: str | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    hide_below: float = -65504.0,
) -> Bools:
    """V_i as bool `[B, H, N, M]`: what mask (bool: True = may attend; float: hides at -inf or low), causality and
    window leave to each row.
    """
    N, M = shape[2:]
    seen = np.ones(shape, dtype=bool)
    for i in range(N):
        position = i + M - N if causal == "lower_right" else i
        for j in range(M):
            if causal is not None and j > position:
                seen[:, :, i, j] = False
            if isinstance(window, int) and abs(j - position) >= window:
                seen[:, :, i, j] = False
            if isinstance(window, tuple):
                left, right = window
                if left is not None and position - j > left:
                    seen[:, :, i, j] = False
                if right is not None and j - position > right:
                    seen[:, :, i, j] = False
    if mask is not None:
        allowed = mask if mask.dtype == bool else ~(mask.astype(np.float64) <= hide_below)
        seen &= np.broadcast_to(allowed, shape)
    return seen


def scores_of(
    q: NDArray,
    k: NDArray,
    scale: float | None = None,
    softcap: float | None = None,
    mask: NDArray | None = None,
) -> Floats:
    """s_ij = scale q_i . k_j, capped, plus a float mask; q `[B, H, N, d]`, k `[B, H_kv, M, d]` -> `[B, H, N, M]`."""
    q, k = q.astype(np.float64), k.astype(np.float64)
    B, H, N, d = q.shape
    s = np.zeros((B, H, N, k.shape[2]))
    with np.errstate(all="ignore"):
        for b in range(B):
            for h in range(H):
                s[b, h] = q[b, h] @ k[b, h // (H // k.shape[1])].T
        s *= 1 / math.sqrt(d) if scale is None else scale
        if softcap is not None:
            s = softcap * np.tanh(s / softcap)
        if mask is not None and mask.dtype != bool:
            s = s + mask.astype(np.float64)
    return s


def weights_of(scores: Floats, seen: Bools, sinks: NDArray | None = None) -> tuple[Floats, Floats | None]:
    """p_ij = exp(s_ij - lse_i) over V_i, and p_sink `[B, H, N]` (None without sinks). A row that sees nothing is 0,
    a row with a NaN or infinite score is NaN.
    """
    B, H, N, _ = scores.shape
    weights = np.zeros_like(scores)
    sink_weight = None if sinks is None else np.zeros((B, H, N))
    for b, h, i in np.ndindex(B, H, N):
        keys = np.flatnonzero(seen[b, h, i])
        s = scores[b, h, i, keys]
        if len(keys) == 0:
            continue
        if np.isnan(s).any() or np.isposinf(s).any():
            weights[b, h, i] = np.nan
            continue
        top = s.max() if sinks is None else max(s.max(), float(sinks[h]))
        lse = top + math.log(np.exp(s - top).sum() + (0.0 if sinks is None else math.exp(float(sinks[h]) - top)))
        weights[b, h, i, keys] = np.exp(s - lse)
        if sink_weight is not None:
            sink_weight[b, h, i] = math.exp(float(sinks[h]) - lse)
    return weights, sink_weight


def own_keys(seen: Bools, *, causal: bool = False, cross: bool = False) -> Ints:
    """self(i) `[B, N]`: i where N == M; the largest visible key under a causal mask or with a single query; else -1."""
    B, _, N, M = seen.shape
    own = np.full((B, N), -1, dtype=np.int64)
    if cross:
        return own
    if N == M:
        own[:] = np.arange(N)
    elif causal or N == 1:
        for b, i in np.ndindex(B, N):
            keys = np.flatnonzero(seen[b, :, i].any(0))
            own[b, i] = keys[-1] if len(keys) else -1
    return own


def first_keys(seen: Bools, sequence: Ints | None = None) -> Ints:
    """f `[B, N]`: the first key of the row's sequence that any row may see, -1 where there is none.

    Args:
        seen: V_i.
        sequence: `[B, N]`, N == M: a number for the packed sequence of each position. None: nothing is packed.
    """
    B, _, N, M = seen.shape
    first = np.full((B, N), -1, dtype=np.int64)
    for b in range(B):
        used = seen[b].any((0, 1))
        for i in range(N):
            mine = [j for j in range(M) if used[j] and (sequence is None or sequence[b, j] == sequence[b, i])]
            first[b, i] = mine[0] if mine else -1
    return first


def finite_rows(scores: Floats, seen: Bools) -> Bools:
    """Rows without a NaN or +inf score at a visible key, `[B, H, N]`."""
    broken = np.isnan(scores) | np.isposinf(scores)
    return ~(broken & seen).any(-1)


def row_values(
    weights: NDArray,
    scores: NDArray | None,
    visible: Bools,
    own: Ints | None,
    first: Ints,
    sink_weight: NDArray | None = None,
    sink_logit: NDArray | None = None,
) -> dict[str, Floats]:
    """Every row measure by its formula, `[B, H, N]` each; NaN where it is undefined for the row.

    Args:
        weights: p `[B, H, N, M]`, 0 at hidden keys.
        scores: s `[B, H, N, M]`, or None where only the weights are known (`max_score` is NaN then).
        visible: V_i, bool `[B, H, N, M]`.
        own: self(i) `[B, N]`, -1 where undefined; None: undefined everywhere (cross-attention).
        first: f `[B, N]`, -1 where there is none.
        sink_weight: p_sink `[B, H, N]`, or None without sinks.
        sink_logit: b `[H]`. Where float64 weights, scores and sinks are given, the entropy is checked against its
            formula with lse.
    """
    p_all = np.asarray(weights, dtype=np.float64)
    B, H, N, M = p_all.shape
    own = np.full((B, N), -1, dtype=np.int64) if own is None else np.broadcast_to(own, (B, N))
    first = np.broadcast_to(first, (B, N))
    visible = np.broadcast_to(visible, p_all.shape)
    out = {name: np.full((B, H, N), np.nan) for name in MEASURES}
    key = np.arange(M)
    for b, h, i in np.ndindex(B, H, N):
        see, p = visible[b, h, i], p_all[b, h, i]
        n, me, f = int(see.sum()), int(own[b, i]), int(first[b, i])
        if n == 0 or np.isnan(p).any():
            continue
        row = (b, h, i)
        p_sink = 0.0 if sink_weight is None else float(sink_weight[row])
        if me >= 0:
            if see[me]:
                out["self_focus"][row] = p[me]
                out["self_lift"][row] = n * p[me]
            if me >= 1 and see[me - 1]:
                out["previous"][row] = p[me - 1]
            if me + 1 < M and see[me + 1]:
                out["next"][row] = p[me + 1]
            out["distance"][row] = (p * np.abs(me - key)).sum() / p.sum() if p.sum() > 0 else np.nan
        if f >= 0 and see[f] and (me < 0 or me > f):
            out["first"][row] = p[f]

        entropy = -_x_ln_x(p) - _x_ln_x(p_sink)
        choices = n if sink_weight is None else n + 1
        out["entropy"][row] = entropy
        if n >= 2:
            out["entropy_ratio"][row] = entropy / math.log(choices)
        p_f = float(p[f]) if f >= 0 else 0.0
        r = float(p[key != f].sum()) + p_sink  # 1 - p_f, without the loss of digits where p_f is nearly 1
        if r > 1e-3:
            out["entropy_rest"][row] = (entropy + _x_ln_x(p_f) + _x_ln_x(r)) / r
        out["effective_keys"][row] = math.exp(entropy)
        out["max_weight"][row] = p[see].max()
        out["ipr"][row] = (p * p).sum()
        if scores is not None:
            out["max_score"][row] = np.asarray(scores, dtype=np.float64)[b, h, i, see].max()
        if sink_weight is not None:
            out["sink_bias"][row] = p_sink
    exact = np.asarray(weights).dtype == np.float64
    if exact and scores is not None and (sink_weight is None or sink_logit is not None):
        _check_entropy(out["entropy"], p_all, np.asarray(scores, np.float64), visible, sink_weight, sink_logit)
    return out


def head_values(rows: dict[str, Floats], counted: Bools, sequence: Ints | None = None) -> dict[str, dict[str, Floats]]:
    """What a table says of each head: `{measure: {"mean", "std", "min", "max", "se", "rows"}}`, `[H]` each.

    Each head's rows are written out as a plain list first. `mean` of `max_score` is still the mean; its table value
    is `max`.

    Args:
        rows: From `row_values`.
        counted: Rows that count, `[B, H, N]`.
        sequence: The sequence of each row `[B, N]`; None: one per batch row.
    """
    B, H, N = counted.shape
    if sequence is None:
        sequence = np.repeat(np.arange(B)[:, None], N, axis=1)
    table: dict[str, dict[str, Floats]] = {}
    for name, values in rows.items():
        columns: dict[str, Floats] = {s: np.full(H, np.nan) for s in ("mean", "std", "min", "max", "se", "rows")}
        for h in range(H):
            listed = [
                (float(values[b, h, i]), int(sequence[b, i]))
                for b in range(B)
                for i in range(N)
                if counted[b, h, i] and not np.isnan(values[b, h, i])
            ]
            columns["rows"][h] = len(listed)
            if listed:
                numbers = np.array([value for value, _ in listed])
                columns["mean"][h] = math.fsum(numbers) / len(numbers)
                columns["std"][h] = numbers.std()
                columns["min"][h], columns["max"][h] = numbers.min(), numbers.max()
                columns["se"][h] = clustered_se(listed)
        table[name] = columns
    return table


def clustered_se(listed: list[tuple[float, int]]) -> float:
    """Standard error of the mean of (value, sequence) pairs, clustered by sequence; NaN with fewer than two.

    The ratio estimator of survey sampling: mean = sum S_c / sum N_c over sequences c, residuals e_c = S_c - mean N_c,
    variance C / (C - 1) * sum e_c^2 / (sum N_c)^2.
    """
    clusters = sorted({c for _, c in listed})
    C = len(clusters)
    if C < 2:
        return math.nan
    total = {c: math.fsum(value for value, of in listed if of == c) for c in clusters}
    size = {c: sum(1 for _, of in listed if of == c) for c in clusters}
    mean = math.fsum(total.values()) / sum(size.values())
    squares = math.fsum((total[c] - mean * size[c]) ** 2 for c in clusters)
    return math.sqrt(C / (C - 1) * squares) / sum(size.values())


def _x_ln_x(x: Floats | float) -> float:
    x = np.atleast_1d(np.asarray(x, dtype=np.float64))
    some = x[x > 0]
    return float((some * np.log(some)).sum())


def _check_entropy(entropy: Floats, p: Floats, s: Floats, see: Bools, p_sink: Floats | None, b: NDArray | None) -> None:
    """The oracle against itself: lse - sum p s - p_sink b says the same as - sum p ln p, if p belongs to s."""
    for row in zip(*np.nonzero(~np.isnan(entropy)), strict=True):
        keys = see[row] & (p[row] > 0)
        if not keys.any() or np.isneginf(s[row][keys]).any():
            continue
        best = int(np.argmax(p[row]))
        lse = float(s[row][best] - np.log(p[row][best]))
        expected = lse - float((p[row][keys] * s[row][keys]).sum())
        if p_sink is not None and b is not None and p_sink[row] > 0:
            expected -= float(p_sink[row] * b[row[1]])
        size = max(1.0, float(np.abs(s[row][keys]).max()))
        assert abs(expected - entropy[row]) <= 1e-6 * size, (row, expected, entropy[row])
