"""A linear map that holds several projections in one matrix, and how each is initialised."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Projection(nn.Linear):
    """Several projections of the same width of input, one under the other in one weight matrix.

    Called with `rows`, it makes only these output features: the queries from one sequence, keys and values from
    another, by one module whose hooks run on every use.

    Attributes:
        parts: The width of each projection, and the bound of its initial values.
    """

    def __init__(
        self,
        in_features: int,
        parts: Sequence[tuple[int, float]],
        *,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Make the map.

        Args:
            in_features: Width of the input.
            parts: For each projection in it: its width, and the bound of its initial values.
            bias: Whether to add a bias.
            device: Where to make it.
            dtype: In which dtype.
        """
        # First: nn.Linear's own __init__ draws the initial values.
        self.parts = tuple(parts)
        super().__init__(in_features, sum(width for width, _ in parts), bias=bias, device=device, dtype=dtype)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every part anew, in order, uniformly within its bound; biases are 0."""
        for part, (_, bound) in zip(self.weight.split([width for width, _ in self.parts]), self.parts, strict=True):
            nn.init.uniform_(part, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, rows: slice | None = None) -> Tensor:
        """`x W^T + b`, or only the output features `rows` of it."""
        if rows is None:
            return F.linear(x, self.weight, self.bias)
        return F.linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])


def xavier_bound(fan_in: int, fan_out: int) -> float:
    """The bound of Xavier's uniform distribution, `sqrt(6 / (fan_in + fan_out))` (Glorot & Bengio 2010, eq. 16)."""
    return math.sqrt(6 / (fan_in + fan_out))
