"""What a kernel takes and gives: an AttentionCall in, RowStatistics out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels.geometry import Geometry


@dataclass(frozen=True)
class RowStatistics:
    """What every measure of a row is made from; each tensor is `[B, H, N]`, float32 (float64 for float64 inputs).

    Notation as in docs/measures.md: s_ij score, p_ij weight, f the first real key, self(i) the own key.

    Attributes:
        lse: `ln sum_j exp(s_ij)` over visible keys (a sink logit included), nats; -inf if nothing is visible.
        max_score: `max_j s_ij`, nats; -inf if nothing is visible, NaN or +inf if a score is.
        argmax: The key with the largest score, int64.
        entropy: `lse - sum_j p_ij s_ij - p_sink b`, nats.
        largest: The largest weight, `exp(max_score - lse)` without the loss of digits; 0 if nothing is visible.
        own: Weight on the own key; 0 where it is hidden or undefined (`geometry` says which).
        previous: Weight on `self(i) - 1`; 0 where hidden.
        next: Weight on `self(i) + 1`; 0 where hidden.
        first: Weight on f; 0 where hidden.
        rest: `1 - first`, summed without f so that it is exact when f has nearly all.
        entropy_rest: Entropy of the weights without f, renormalised, nats; NaN where `rest` is 0.
        distance: `sum_j p_ij |self(i) - j| / sum_j p_ij`, tokens; NaN where no key has weight.
        ipr: `sum_j p_ij^2`.
        sink: Weight of the sink logit; 0 without one.
        geometry: Which keys each row sees, and which is its own.
        has_sinks: Whether the call has sink logits.
    """

    lse: Tensor
    max_score: Tensor
    argmax: Tensor
    entropy: Tensor
    largest: Tensor
    own: Tensor
    previous: Tensor
    next: Tensor
    first: Tensor
    rest: Tensor
    entropy_rest: Tensor
    distance: Tensor
    ipr: Tensor
    sink: Tensor
    geometry: Geometry
    has_sinks: bool = False


STATISTICS: tuple[str, ...] = tuple(
    f.name for f in fields(RowStatistics) if f.name not in ("argmax", "geometry", "has_sinks")
)
"""The floating statistics, in order."""


class Kernel(Protocol):
    """One implementation of the row statistics."""

    name: str

    def refuses(self, call: AttentionCall) -> str | None:
        """Why this kernel cannot run the call; None if it can."""

    def run(self, call: AttentionCall, geometry: Geometry) -> RowStatistics:
        """The row statistics of a call that `refuses` let pass."""
