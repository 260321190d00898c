"""Linear CKA: how alike two sets of vectors are, up to rotation and scale (Kornblith et al. 2019)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FEWEST_ROWS = 3
"""Two centred vectors always lie on a line: any two sets of two are the same."""

ROUNDING = 1e-12
"""Below this share of the squared length, what centring leaves is rounding."""

GRAM_ELEMENTS = 1 << 22


def cka(a: Tensor, b: Tensor) -> Tensor:
    """`|Y_a^T Y_b|^2 / (|Y_a^T Y_a| |Y_b^T Y_b|)`, Frobenius norms, Y the centred outputs: `[H_a, H_b]`, float64.

    Range 0..1; NaN with fewer than three rows, or where all rows are the same. With few rows beside the width d_v even
    unrelated outputs are alike: compare at equal numbers of rows.

    Args:
        a: Outputs `[H_a, n, d_a]`.
        b: Outputs `[H_b, n, d_b]` for the same rows.
    """
    exact = torch.float32 if a.device.type == "mps" else torch.float64
    found = torch.full((len(a), len(b)), math.nan, dtype=exact, device=a.device)
    if a.shape[1] < FEWEST_ROWS:
        return found
    ya, yb = _centred(a.to(exact)), _centred(b.to(exact))
    if a.shape[1] ** 2 * (len(a) + len(b)) <= GRAM_ELEMENTS:
        # |Y_a^T Y_b|^2 = <Y_a Y_a^T, Y_b Y_b^T>: all pairs in one product.
        ga, gb = ((y @ y.transpose(1, 2)).flatten(1) for y in (ya, yb))
        sizes = ga.norm(dim=1)[:, None] * gb.norm(dim=1)
        # Vectors that are all the same have no length left.
        return torch.where(sizes > 0, ga @ gb.T / sizes, math.nan).clamp(0, 1)
    size_a, size_b = (torch.linalg.matrix_norm(y.transpose(1, 2) @ y) for y in (ya, yb))
    for head, y in enumerate(ya):
        found[head] = torch.linalg.matrix_norm(y.T @ yb).square() / (size_a[head] * size_b)
    return found.clamp(0, 1)


def _centred(y: Tensor) -> Tensor:
    """Rows minus their mean; 0, and so without a similarity, where nothing but rounding is left."""
    centred = y - y.mean(1, keepdim=True)
    left, length = (x.square().sum((1, 2), keepdim=True) for x in (centred, y))
    return torch.where(left > ROUNDING * length, centred, 0.0)
