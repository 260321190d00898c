"""Exact weights of a call, a few rows at a time: linear memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise import equations
from headwise.call import AttentionCall

BLOCK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class WeightBlock:
    """Some rows of the weights.

    Attributes:
        batch: The sequences of the block.
        rows: Its queries.
        weights: `[b, H, R, M]`, float32 (float64 for float64 inputs); before dropout; rows that see nothing are 0.
    """

    batch: slice
    rows: slice
    weights: Tensor


def weight_blocks(
    call: AttentionCall, rows: slice = slice(None), block_elements: int = BLOCK_ELEMENTS
) -> Iterator[WeightBlock]:
    """The weights of a call by eq. 1, block by block: never more than about `block_elements` of them at once.

    Args:
        call: The call.
        rows: Only these queries (step 1).
        block_elements: How many weights a block may hold; one row of one sequence is the least.
    """
    B, H, N, M = call.sizes
    start, stop, _ = rows.indices(N)
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    step = max(1, min(stop - start, block_elements // max(1, H * M)))
    together = max(1, min(B, block_elements // max(1, H * M * step)))
    for b in range(0, B, together):
        batch = slice(b, min(B, b + together))
        k = call.k[batch].to(dtype)
        mask = call.mask
        if mask is not None and mask.dim() == 4 and mask.shape[0] > 1:
            mask = mask[batch]
        for r in range(start, stop, step):
            block = slice(r, min(stop, r + step))
            yield WeightBlock(batch, block, _weights(call, call.q[batch, :, block].to(dtype), k, mask, block))


def _weights(call: AttentionCall, q: Tensor, k: Tensor, mask: Tensor | None, rows: slice) -> Tensor:
    _, H, N, M = call.sizes
    b, _, R, _ = q.shape
    kv_heads = k.shape[1]
    stacked = q.reshape(b, kv_heads, -1, q.shape[-1])
    bias = equations.bias_of(mask)
    s = equations.scores(stacked, k, scale=call.scale, softcap=call.softcap).view(b, H, R, M)
    if bias is not None:
        s = s + equations.cut(bias, rows, slice(None))
    visible = equations.visible_keys(
        N, M, mask=mask, causal=call.causal, window=call.window, rows=rows, hide_below=call.hide_below, device=q.device
    )  # fmt: skip
    return equations.weights(s, visible, call.sinks)
