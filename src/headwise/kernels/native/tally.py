"""Which rows of a call count, counted in one pass (tally.cpp)."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.kernels.native.binding import library
from headwise.kernels.protocol import RowStatistics

_PAIR, _TRIPLE = ctypes.c_int64 * 2, ctypes.c_int64 * 3


class _Tally(ctypes.Structure):
    """`headwise::Tally`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("argmax", "max_score", "lse", "visible", "own", "real", "only")),
        *((name, ctypes.c_int64) for name in ("B", "H", "N")),
        ("visible_stride", _TRIPLE),
        *((f"{name}_stride", _PAIR) for name in ("own", "real", "only")),
        *((name, ctypes.c_int64) for name in ("first_offset", "offsets")),
        *((name, ctypes.c_void_p) for name in ("counts", "histogram", "counted")),
        ("threads", ctypes.c_int64),
    )


class Tally(NamedTuple):
    """Rows by kind.

    Attributes:
        counted: Rows that count, bool `[B, H, N]`.
        counts: How many count, see nothing, are padding, are not finite `[4, H]`, float64.
        offsets: Of the rows that count and know their own key, how many have `own - argmax` at each offset asked for,
            then all others `[H, offsets + 1]`, float64.
    """

    counted: Tensor
    counts: Tensor
    offsets: Tensor


def tally(s: RowStatistics, offsets: range, only: Tensor | None = None) -> Tally | None:
    """Count the rows of a call; None where the compiled kernel cannot.

    Args:
        s: Its row statistics.
        offsets: Offsets that have a bin of their own.
        only: The rows to look at, bool `[B or 1, N]`; None: all.
    """
    found = library()
    if isinstance(found, str) or s.max_score.device.type != "cpu" or s.max_score.dtype != torch.float32:
        return None
    B, H, N = s.max_score.shape
    g = s.geometry
    argmax, max_score, lse = s.argmax.contiguous(), s.max_score.contiguous(), s.lse.contiguous()
    visible = g.visible.expand(B, H, N)
    own, real = g.own.expand(B, N), g.real.expand(B, N)
    chosen = None if only is None else only.expand(B, N)
    made = Tally(
        torch.empty(B, H, N, dtype=torch.bool, device="cpu"),
        torch.empty(4, H, dtype=torch.float64, device="cpu"),
        torch.zeros(H, len(offsets) + 1, dtype=torch.float64, device="cpu"),
    )
    found.tally(
        _Tally(
            argmax=argmax.data_ptr(), max_score=max_score.data_ptr(), lse=lse.data_ptr(),
            visible=visible.data_ptr(), own=own.data_ptr(),
            real=real.data_ptr(), only=None if chosen is None else chosen.data_ptr(), B=B, H=H, N=N,
            visible_stride=_TRIPLE(*visible.stride()), own_stride=_PAIR(*own.stride()),
            real_stride=_PAIR(*real.stride()), only_stride=_PAIR(*(chosen.stride() if chosen is not None else (0, 0))),
            first_offset=offsets.start, offsets=len(offsets), counts=made.counts.data_ptr(),
            histogram=made.offsets.data_ptr(), counted=made.counted.data_ptr(), threads=torch.get_num_threads(),
        )
    )  # fmt: skip
    return made
