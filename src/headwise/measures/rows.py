"""Row measures: one function each, from RowStatistics to a formula for a value per row `[B, H, N]`.

A value is NaN where the measure is undefined for that row (its own key is hidden, nothing comes next under a causal
mask). Which rows count at all (real, finite, at least one visible key) is decided by `counted`, for all alike.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headwise.kernels import RowFormula, RowStatistics

REST_AT_LEAST = 1e-3
"""`entropy_rest` is defined where the first key leaves more than this."""


def self_focus(s: RowStatistics) -> RowFormula:
    """`p_{i,self(i)}`: the weight that a position gives itself.

    Range 0..1. Undefined where the own key is hidden or unknown (cross-attention). The founding article's claim is
    that one head spends too much here. Source: Clark et al. 2019 (attention to the current token).
    """
    return RowFormula(s.own, s.geometry.own_visible)


def self_lift(s: RowStatistics) -> RowFormula:
    """`n_i p_{i,self(i)}`: self-focus relative to uniform attention over the n_i visible keys.

    Range 0..M; 1 = as much as uniform. Compare at equal lengths only, or by position bins. Source: headwise.
    """
    return RowFormula(s.own, s.geometry.own_visible, factor=s.geometry.visible.to(s.own.dtype))


def previous(s: RowStatistics) -> RowFormula:
    """`p_{i,self(i)-1}`: the weight on the token before. Range 0..1. Source: Clark et al. 2019.

    Undefined where that key does not exist or is hidden.
    """
    return RowFormula(s.previous, s.geometry.previous_visible)


def next_token(s: RowStatistics) -> RowFormula:
    """`p_{i,self(i)+1}`: the weight on the token after. Range 0..1. Source: Clark et al. 2019.

    Undefined where that key does not exist or is hidden: everywhere under a causal mask.
    """
    return RowFormula(s.next, s.geometry.next_visible)


def first(s: RowStatistics) -> RowFormula:
    """`p_{i,f}`: the weight on f, the first key of the row's sequence that any row may see (an attention sink).

    Range 0..1. Rows with f visible that stand after f; in cross-attention every row that sees f. Sources: Xiao et
    al. 2023; Qiu et al. 2025.
    """
    return RowFormula(s.first, s.geometry.first_before)


def entropy(s: RowStatistics) -> RowFormula:
    """`lse_i - sum_j p_ij s_ij - p_sink b_h`: how widely a row spreads its weight.

    Nats, 0..ln n_i (ln(n_i + 1) with a sink logit). Source: Zhai et al. 2023.
    """
    return RowFormula(s.entropy)


def entropy_ratio(s: RowStatistics) -> RowFormula:
    """`entropy_i / ln n_i` (n_i + 1 with a sink logit): 1 = uniform attention.

    Range 0..1. Undefined where n_i < 2. Source: headwise.
    """
    n = s.geometry.visible
    choices = (n + int(s.has_sinks)).to(s.entropy.dtype)
    return RowFormula(s.entropy, n >= 2, divisor=torch.log(choices))


def entropy_rest(s: RowStatistics) -> RowFormula:
    """`(H + p_f ln p_f + r ln r) / r`, r = 1 - p_f: the spread of what the first key leaves over.

    Nats, 0..ln n_i. Undefined where `r <= 1e-3`. Source: headwise.
    """
    return RowFormula(s.entropy_rest, s.rest > REST_AT_LEAST)


def effective_keys(s: RowStatistics) -> RowFormula:
    """`exp(entropy_i)`: how many keys a row really reads. Range 1..n_i. Source: headwise (perplexity)."""
    return RowFormula(torch.exp(s.entropy))


def max_weight(s: RowStatistics) -> RowFormula:
    """`exp(max_j s_ij - lse_i)`: the largest weight of the row.

    Range 0..1. Source: Voita et al. 2019 call its mean a head's confidence; here rows of EOS count too.
    """
    return RowFormula(s.largest)


def distance(s: RowStatistics) -> RowFormula:
    """`sum_j p_ij |self(i) - j| / sum_j p_ij`: how far away a row reads on average.

    Tokens, 0..M. Undefined in cross-attention. Source: Dosovitskiy et al. 2020 (mean attention distance).
    """
    return RowFormula(s.distance, (s.geometry.own >= 0)[:, None])


def ipr(s: RowStatistics) -> RowFormula:
    """`sum_j p_ij^2`, the inverse participation ratio: 1 = one single key, 1 / n_i = uniform.

    Range 0..1. Source: headwise.
    """
    return RowFormula(s.ipr)


def max_score(s: RowStatistics) -> RowFormula:
    """`max_j s_ij`: the largest score of the row; a head's value is the maximum over rows.

    Nats, any real number. Source: the logit that QK-clip watches (Kimi K2 2025).
    """
    return RowFormula(s.max_score)


def sink_bias(s: RowStatistics) -> RowFormula:
    """`exp(b_h - lse_i)`: the weight that a learned sink logit takes. Range 0..1. Source: gpt-oss (OpenAI 2025).

    Undefined for a call without sink logits.
    """
    return RowFormula(s.sink, nowhere=not s.has_sinks)


FORMULAS: dict[str, Callable[[RowStatistics], RowFormula]] = {
    "self_focus": self_focus,
    "self_lift": self_lift,
    "previous": previous,
    "next": next_token,
    "first": first,
    "entropy": entropy,
    "entropy_ratio": entropy_ratio,
    "entropy_rest": entropy_rest,
    "effective_keys": effective_keys,
    "max_weight": max_weight,
    "distance": distance,
    "ipr": ipr,
    "max_score": max_score,
    "sink_bias": sink_bias,
}
"""The formula of each measure of the catalogue."""


def nonfinite(s: RowStatistics) -> Tensor:
    """Rows with visible keys and a NaN or +inf score (or nothing but -inf), or a NaN sink logit, bool `[B, H, N]`."""
    return (~torch.isfinite(s.max_score) | torch.isnan(s.lse)) & (s.geometry.visible >= 1)


def counted(s: RowStatistics) -> Tensor:
    """Rows that count: real, finite, at least one visible key; bool `[B, H, N]`."""
    return s.geometry.real[:, None] & (s.geometry.visible >= 1) & ~nonfinite(s)
