"""Where in the model's space a head reads and writes, and how much two heads of a layer share.

What head h adds to the stream for a token x that it attends to is `x W_V^h W_O^h` (a row vector times a matrix of rank
d_v at most; Elhage et al. 2021 call it the OV circuit). Two subspaces of R^{d_model} belong to it:

- **read**: the column space of `W_V^h W_O^h`: the directions of x that change the output (of R^{d_context} where the
  layer reads another sequence),
- **written**: its row space: the directions in which the output can lie.

With the thin singular value decomposition `W_V^h W_O^h = U S V^T`, cut at singular values `<= max(shape) eps S_1`, the
columns of U and V are orthonormal bases of them. The principal angles between the subspaces of heads a and b are
`theta_i = arccos sigma_i(B_a^T B_b)` with B = U or V (Bjorck & Golub 1973); angles below 45 degrees are computed from
the sine, `theta_i = arcsin sigma_i(B_b - B_a B_a^T B_b)`, because the cosine of a small angle says little about it
(Knyazev & Argentati 2002). There are as many as the smaller subspace has dimensions; 0 degrees is a shared direction,
90 degrees orthogonal ones. `overlap` is the mean of their squared cosines: 0 where nothing is shared, 1 where one
subspace contains the other; two random subspaces of dimension d_v in R^{d_model} have d_v / d_model on average.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from headwise.layer import MultiHeadAttention


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """The principal angles between the spans of two orthonormal bases.

    Args:
        a: `[d, m]`, orthonormal columns.
        b: `[d, n]`, orthonormal columns.

    Returns:
        `[min(m, n)]`, degrees, ascending.
    """
    if a.shape[1] < b.shape[1]:
        a, b = b, a
    cosines = torch.linalg.svdvals(a.mT @ b).clamp(0, 1)  # descending
    sines = torch.linalg.svdvals(b - a @ (a.mT @ b)).clamp(0, 1).flip(0)  # ascending
    angles = torch.where(cosines**2 > 0.5, torch.asin(sines), torch.acos(cosines))
    return torch.rad2deg(angles)


def value_output_bases(layer: MultiHeadAttention) -> list[tuple[Tensor, Tensor]]:
    """For each head orthonormal bases of what it reads `[d_context, r]` and of where it writes `[d_model, r]`."""
    weights = layer.per_head_weights()
    bases = []
    for w_v, w_o in zip(weights.w_v.detach().double(), weights.w_o.detach().double(), strict=True):
        product = w_v @ w_o
        u, s, vh = torch.linalg.svd(product, full_matrices=False)
        rank = int((s > max(product.shape) * torch.finfo(s.dtype).eps * s[0]).sum()) if s.numel() else 0
        # The product of two thin matrices has no more directions than they have in common.
        rank = min(rank, w_v.shape[1])
        bases.append((u[:, :rank], vh[:rank].mT))
    return bases


def subspaces(model: nn.Module) -> list[dict[str, Any]]:
    """The angles between every two heads of every layer, as `final.json` holds them.

    Returns:
        For each attention layer: `name`, `d_v`, `d_model` and `pairs`, each with the heads `a` and `b`, the angles
        `read` and `written` (degrees, ascending), and `read_overlap` and `written_overlap` (0..1).
    """
    layers = []
    for name, layer in model.named_modules():
        if isinstance(layer, MultiHeadAttention):
            bases = value_output_bases(layer)
            pairs = [
                {
                    "a": a,
                    "b": b,
                    **_shared("read", bases[a][0], bases[b][0]),
                    **_shared("written", bases[a][1], bases[b][1]),
                }
                for a, b in combinations(range(len(bases)), 2)
            ]
            layers.append({"name": name, "d_v": layer.value_head_dim, "d_model": layer.d_model, "pairs": pairs})
    return layers


def _shared(what: str, a: Tensor, b: Tensor) -> dict[str, Any]:
    angles = principal_angles(a, b)
    overlap = torch.cos(torch.deg2rad(angles)).square().mean().item() if len(angles) else None
    return {what: [round(angle, 6) for angle in angles.tolist()], f"{what}_overlap": overlap}
