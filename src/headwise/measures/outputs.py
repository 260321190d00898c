"""What a head writes: weights say where it read, not what it wrote (Kobayashi et al. 2020).

With W_O known, vectors are measured after it: `|x W_O^h|`. A factor R_h with `R_h^T R_h = W_O^h W_O^h^T` (from a QR
decomposition, so that nothing is squared) gives the same length in d_v instead of d_model numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import working_dtype

if TYPE_CHECKING:
    from headwise.measures.blockwise import Block


def value_own(block: Block) -> Tensor:
    """`p_is |v_s| / sum_j p_ij |v_j|`, s = self(i), `[b, H, R]`: the own position's share, values by their length.

    Range 0..1. Undefined where the own key is hidden or unknown, or no key has a value. Source: Kobayashi et al. 2020.
    """
    s = block.statistics
    return _share(block, s.own, block.geometry.own, block.geometry.own_visible)


def value_previous(block: Block) -> Tensor:
    """`p_is |v_s| / sum_j p_ij |v_j|`, s = self(i) - 1, `[b, H, R]`: the same for the token before.

    Range 0..1. Undefined where that key does not exist or is hidden. Source: Kobayashi et al. 2020.
    """
    s = block.statistics
    return _share(block, s.previous, block.geometry.own - 1, block.geometry.previous_visible)


def value_first(block: Block) -> Tensor:
    """`p_if |v_f| / sum_j p_ij |v_j|`, `[b, H, R]`: the same for the first real key f.

    Range 0..1. Rows as in `first`: f visible, and self(i) after it (cross-attention: every row that sees f). Small
    beside `first` where a sink holds no value. Source: Kobayashi et al. 2020.
    """
    g = block.geometry
    after = (g.own > g.first) | (g.own < 0)
    return _share(block, block.statistics.first, g.first, g.first_visible & after[:, None])


def output_norm(block: Block) -> Tensor:
    """`|out_h|`, `[b, H, R]`; with W_O known `|out_h W_O^h|`: how much the head writes.

    Range 0.. Source: Kobayashi et al. 2020.
    """
    assert block.out is not None
    return written_norms(block.out, block.factors)


def output_factors(call: AttentionCall, output_weight: Tensor | None, width: int) -> Tensor | None:
    """Factors `[H, d_v, r]`, r = min(d_v, d_model), with `|x factor_h| = |x W_O^h|`; None without W_O.

    Args:
        call: The call.
        output_weight: W_O `[d_model, H * d_v]`, as in the torch.nn.Linear that follows the heads.
        width: d_v.

    Raises:
        ValueError: W_O of another shape.
    """
    if output_weight is None:
        return None
    H = call.q.shape[1]
    if output_weight.dim() != 2 or output_weight.shape[1] != H * width:
        came = tuple(output_weight.shape)
        raise ValueError(f"output_weight: expected W_O [d_model, H * d_v] = [d_model, {H * width}]; got {came}")
    dtype = working_dtype(call)
    by_head = output_weight.to(dtype).view(-1, H, width).transpose(0, 1)  # W_O^h transposed: [H, d_model, d_v]
    factors: Tensor = torch.linalg.qr(by_head, mode="r").R
    return factors.transpose(-2, -1).contiguous()


def value_norms_of(call: AttentionCall, factors: Tensor | None = None) -> Tensor:
    """`|v_j|` of the values that each head reads, or `|v_j W_O^h|`: `[B, H, M]`, float32 at least."""
    assert call.v is not None
    H, dtype = call.q.shape[1], working_dtype(call)
    group = H // call.v.shape[1]
    if factors is None:
        norms: Tensor = torch.linalg.vector_norm(call.v, dim=-1, dtype=dtype)
        return norms.repeat_interleave(group, 1)
    # A head at a time: no copy of v for each head of a group.
    heads = [written_norms(call.v[:, h // group].to(dtype)[:, None], factors[h : h + 1]) for h in range(H)]
    return torch.cat(heads, 1)


def written_norms(x: Tensor, factors: Tensor | None) -> Tensor:
    """`|x|` of vectors `[b, H, R, d_v]`, or their length after the factors: `[b, H, R]`."""
    norms: Tensor = torch.linalg.vector_norm(x if factors is None else x @ factors, dim=-1)
    return norms


def _share(block: Block, weight: Tensor, key: Tensor, defined: Tensor) -> Tensor:
    """The share of one key per row: its weight `[B, H, N]`, its number `[B or 1, N]`, where it is defined."""
    assert block.value_norms is not None
    norms = block.value_norms
    at = block.of_rows(key).clamp(0, norms.shape[-1] - 1)[:, None].expand(*norms.shape[:2], -1)
    share = block.of_rows(weight) * norms.gather(-1, at) / block.value_total
    # Its weight and the sum come from two kernels: their last digits differ. Where nothing is read, 0 / 0 is NaN.
    return torch.where(block.of_rows(defined), share.clamp(max=1), math.nan)
