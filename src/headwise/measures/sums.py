"""Sums over sequences that merge, and the mean with its clustered error that comes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClusterSums:
    """Sums over sequences c of their totals S_c and numbers N_c; every tensor has one shape, float64.

    Rows of one text are no independent samples, so the error of a mean is told from the sequences.

    Attributes:
        sequences: How many sequences have any (N_c > 0).
        s: `sum S_c`; `ss`: `sum S_c^2`; `sn`: `sum S_c N_c`; `n`: `sum N_c`; `nn`: `sum N_c^2`.
    """

    sequences: Tensor
    s: Tensor
    ss: Tensor
    sn: Tensor
    n: Tensor
    nn: Tensor

    @classmethod
    def of(cls, total: Tensor, rows: Tensor) -> ClusterSums:
        """From the totals and numbers of each sequence `[..., C]`."""
        return cls(
            sequences=(rows > 0).double().sum(-1),
            s=total.sum(-1),
            ss=(total * total).sum(-1),
            sn=(total * rows).sum(-1),
            n=rows.sum(-1),
            nn=(rows * rows).sum(-1),
        )

    def __add__(self, other: ClusterSums) -> ClusterSums:
        """The sums of other sequences added; where they are longer or shorter in the last dimension, zeros follow."""
        length = max(self.s.shape[-1], other.s.shape[-1])

        def padded(x: Tensor) -> Tensor:
            return torch.nn.functional.pad(x, (0, length - x.shape[-1]))

        return ClusterSums(
            **{f.name: padded(getattr(self, f.name)) + padded(getattr(other, f.name)) for f in fields(self)}
        )

    @property
    def mean(self) -> Tensor:
        """`sum S_c / sum N_c`; NaN where there is nothing."""
        return torch.where(self.n > 0, self.s / self.n, math.nan)

    @property
    def error(self) -> Tensor:
        """Standard error of the mean, clustered by sequence (ratio estimator); NaN with fewer than two sequences."""
        residual = self.ss - 2 * self.mean * self.sn + self.mean**2 * self.nn
        corrected = residual.clamp(min=0) * self.sequences / (self.sequences - 1)
        return torch.where(self.sequences >= 2, corrected.sqrt() / self.n, math.nan)
