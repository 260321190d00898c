"""Key measures: the weight that each key receives, and from how many rows that may see it.

    received_j = sum_i p_ij        alpha_j = received_j / #{i that may see j}

over the rows that count. Keys are numbered from f, the first real key of their sequence, so that sequences of
different padding can be averaged. Sums are float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import RowStatistics
from headwise.measures.blockwise import one_pass
from headwise.measures.rows import counted
from headwise.measures.sums import ClusterSums
from headwise.measures.visibility import key_positions, visible_rows


@dataclass(frozen=True)
class KeySums:
    """What the keys of some sequences have received so far. Decoding steps add rows, and keys at the end.

    Attributes:
        received: `sum_i p_ij` over the rows that count `[B, H, M]`, float64.
        rows: How many of them may see the key `[B, H, M]`, float64.
        position: `j - f`, the key's number in its sequence `[B, M]`; -1 for padding.
    """

    received: Tensor
    rows: Tensor
    position: Tensor

    @property
    def alpha(self) -> Tensor:
        """`received / rows`, `[B, H, M]`: 0..1, NaN for a key that no row may see. Source: Gu et al. 2024."""
        return torch.where(self.rows > 0, self.received / self.rows, math.nan)

    def extended(self, later: KeySums) -> KeySums:
        """With the rows of a later call of the same sequences, whose keys are these and perhaps more after them.

        Raises:
            ValueError: Another number of sequences or heads, or fewer keys.
        """
        (B, H, M), other = self.received.shape, later.received.shape
        if other[:2] != (B, H) or other[2] < M:
            raise ValueError(f"KeySums: expected {B} sequences, {H} heads and at least {M} keys; got {tuple(other)}")
        more = (0, other[2] - M)
        pad = torch.nn.functional.pad
        # A decoding step may see no more than a window: the longer view knows where the sequence began.
        known = pad(self.position, more, value=-1)
        grown = known[:, M - 1 : M] + torch.arange(1, other[2] - M + 1, device=known.device)
        known[:, M:] = torch.where(known[:, M - 1 : M] >= 0, grown, later.position[:, M:])
        return KeySums(pad(self.received, more) + later.received, pad(self.rows, more) + later.rows, known)

    def alpha_sums(self) -> ClusterSums:
        """Sums of alpha over sequences, by position from f: arrays `[H, T]`, T the longest sequence."""
        B, H, M = self.received.shape
        used = (self.rows > 0) & (self.position >= 0)[:, None]
        at = self.position.clamp(min=0)[:, None].expand(B, H, M)
        value = torch.where(used, self.alpha, 0.0)
        by_position = [
            x.new_zeros(B, H, M).scatter_add_(-1, at, x).sum(0)  # packed sequences of a batch row fall together
            for x in (value, value * value, used.double())
        ]
        total, squares, number = by_position
        return ClusterSums(sequences=number, s=total, ss=squares, sn=total, n=number, nn=number)


def key_sums(call: AttentionCall, statistics: RowStatistics, received: Tensor | None = None) -> KeySums:
    """The key sums of one call.

    Args:
        call: The call.
        statistics: Its row statistics.
        received: From `one_pass(..., received=True)`, where it was made already.
    """
    if received is None:
        received = one_pass(call, statistics, received=True).received
        assert received is not None
    rows = visible_rows(call, statistics.geometry, counted(statistics).expand(call.sizes[:3]))
    position = key_positions(call, statistics.geometry).expand(received.shape[0], -1)
    return KeySums(received, rows.expand_as(received), position)
