"""Exact weights of a call, a few rows at a time: linear memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import Tile, weight_tile

BLOCK_ELEMENTS = 1 << 20


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
    step = max(1, min(stop - start, block_elements // max(1, H * M)))
    together = max(1, min(B, block_elements // max(1, H * M * step)))
    for b in range(0, B, together):
        batch = slice(b, min(B, b + together))
        for r in range(start, stop, step):
            block = slice(r, min(stop, r + step))
            yield WeightBlock(batch, block, weight_tile(call, Tile(batch=batch, rows=block)))
