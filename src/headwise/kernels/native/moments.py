"""Sums of row measures in one pass (moments.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.kernels.native.binding import library

_SUMS = ("rows", "mean", "m2", "low", "high")
_BY_PART = ("cluster_sum", "cluster_rows", "bin_sum", "bin_rows")


class _Moments(ctypes.Structure):
    """`headwise::Moments`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("values", "counted", "bins", "segments")),
        *((name, ctypes.c_int64) for name in ("K", "B", "H", "N", "P", "S", "bins_stride", "segments_stride")),
        *((name, ctypes.c_void_p) for name in (*_SUMS, *_BY_PART)),
        ("threads", ctypes.c_int64),
        ("level", ctypes.c_int32),
    )


def moments(
    values: Sequence[Tensor], counted: Tensor | None, bins: Tensor, num_bins: int, segment: Tensor | None
) -> dict[str, Tensor] | None:
    """The sums that a profile adds up, float64; None where the compiled kernel cannot make them.

    Args:
        values: K row measures `[B, H, N]`, one or more, NaN where one is undefined.
        counted: Rows that count, bool `[B, H, N]`; None: all.
        bins: Position bin of each row `[b, N]`, int64, b = B or 1.
        num_bins: P.
        segment: Packed sequence of each row `[b, N]`, int64, or None.

    Returns:
        `rows`, `mean`, `m2`, `low`, `high` `[K, H]`, `cluster_sum`, `cluster_rows` `[K, H, B S]`, `bin_sum`,
        `bin_rows` `[K, H, P]`: see headwise.measures.summary.Part.
    """
    found = library()
    if isinstance(found, str) or any(x.device.type != "cpu" or x.dtype != torch.float32 for x in values):
        return None
    K, (B, H, N) = len(values), values[0].shape
    S = 1 if segment is None else int(segment.max()) + 1
    shapes = dict.fromkeys(_SUMS, (K, H)) | {
        name: (K, H, B * S if name.startswith("cluster") else num_bins) for name in _BY_PART
    }
    made = {name: torch.zeros(shape, dtype=torch.float64, device="cpu") for name, shape in shapes.items()}
    values, bins = [x.contiguous() for x in values], bins.contiguous()
    counted = None if counted is None else counted.contiguous()
    segment = None if segment is None else segment.contiguous()
    pointers = (ctypes.c_void_p * K)(*(x.data_ptr() for x in values))
    found.moments(
        _Moments(
            values=ctypes.addressof(pointers),
            counted=None if counted is None else counted.data_ptr(), bins=bins.data_ptr(),
            segments=None if segment is None else segment.data_ptr(),
            K=K, B=B, H=H, N=N, P=num_bins, S=S, bins_stride=N if bins.shape[0] > 1 else 0,
            segments_stride=N if segment is not None and segment.shape[0] > 1 else 0,
            **{name: tensor.data_ptr() for name, tensor in made.items()}, threads=torch.get_num_threads(),
            level=found.level,
        )
    )  # fmt: skip
    return made
