"""RowFormula: a number per row that is made of one statistic, so that it can be summed without being written down."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class RowFormula(NamedTuple):
    """`statistic * factor / divisor` where it is defined, NaN elsewhere. `b` is B or 1, `h` is H or 1.

    Attributes:
        statistic: `[B, H, N]`.
        defined: Where it is defined, bool `[b, h, N]`; None: everywhere.
        factor: `[b, h, N]` of the type of the statistic, or None.
        divisor: The same.
        nowhere: It is defined for no row.
    """

    statistic: Tensor
    defined: Tensor | None = None
    factor: Tensor | None = None
    divisor: Tensor | None = None
    nowhere: bool = False

    def values(self) -> Tensor:
        """The numbers themselves `[B, H, N]`."""
        x = self.statistic
        if self.nowhere:
            return torch.full_like(x, math.nan)
        if self.factor is not None:
            x = x * self.factor
        if self.divisor is not None:
            x = x / self.divisor
        if self.defined is None:
            return x
        return torch.where(self.defined, x, math.nan)
