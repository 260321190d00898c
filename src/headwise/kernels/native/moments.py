"""Sums of row measures in one pass (moments.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.kernels.formulas import RowFormula
from headwise.kernels.native.binding import library

_SUMS = ("rows", "mean", "m2", "low", "high")
_BY_PART = ("cluster_sum", "cluster_rows", "bin_sum", "bin_rows")


_PAIR = ctypes.c_int64 * 2


class _Value(ctypes.Structure):
    """`headwise::Value`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("statistic", "defined", "factor", "divisor")),
        *((f"{name}_stride", _PAIR) for name in ("defined", "factor", "divisor")),
    )


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
    formulas: Sequence[RowFormula], counted: Tensor, bins: Tensor, num_bins: int, segment: Tensor | None
) -> dict[str, Tensor] | None:
    """The sums that a profile adds up, float64; None where the compiled kernel cannot make them.

    Args:
        formulas: K numbers per row.
        counted: Rows that count, bool `[B, H, N]`.
        bins: Position bin of each row `[b, N]`, int64, b = B or 1.
        num_bins: P.
        segment: Packed sequence of each row `[b, N]`, int64, or None.

    Returns:
        `rows`, `mean`, `m2`, `low`, `high` `[K, H]`, `cluster_sum`, `cluster_rows` `[K, H, B S]`, `bin_sum`,
        `bin_rows` `[K, H, P]`: see headwise.measures.summary.Part.
    """
    found = library()
    parts = [x for one in formulas for x in (one.statistic, one.factor, one.divisor) if x is not None]
    if isinstance(found, str) or any(x.device.type != "cpu" or x.dtype != torch.float32 for x in [*parts]):
        return None
    if counted.device.type != "cpu":  # there are no formulas
        return None
    K, (B, H, N) = len(formulas), counted.shape
    S = 1 if segment is None else int(segment.max()) + 1
    shapes = dict.fromkeys(_SUMS, (K, H)) | {
        name: (K, H, B * S if name.startswith("cluster") else num_bins) for name in _BY_PART
    }
    made = {name: torch.zeros(shape, dtype=torch.float64, device="cpu") for name, shape in shapes.items()}
    kept: list[Tensor] = []  # alive until the call has returned

    def placed(x: Tensor | None) -> tuple[int | None, ctypes.Array[ctypes.c_int64]]:
        """Where a tensor over `[b, h, N]` lies, and its strides over b and h."""
        if x is None:
            return None, _PAIR(0, 0)
        x = x.expand(B, H, N)
        if x.stride(2) != 1 and N > 1:
            x = x.contiguous()
        kept.append(x)
        return x.data_ptr(), _PAIR(*x.stride()[:2])

    values = (_Value * K)()
    for value, one in zip(values, formulas, strict=True):
        if one.nowhere:
            continue
        statistic = one.statistic.expand(B, H, N).contiguous()
        kept.append(statistic)
        value.statistic = statistic.data_ptr()
        value.defined, value.defined_stride = placed(one.defined)
        value.factor, value.factor_stride = placed(one.factor)
        value.divisor, value.divisor_stride = placed(one.divisor)
    counted, bins = counted.contiguous(), bins.contiguous()
    segment = None if segment is None else segment.contiguous()
    failed = found.moments(
        _Moments(
            values=ctypes.addressof(values),
            counted=counted.data_ptr(), bins=bins.data_ptr(),
            segments=None if segment is None else segment.data_ptr(),
            K=K, B=B, H=H, N=N, P=num_bins, S=S, bins_stride=N if bins.shape[0] > 1 else 0,
            segments_stride=N if segment is not None and segment.shape[0] > 1 else 0,
            **{name: tensor.data_ptr() for name, tensor in made.items()}, threads=torch.get_num_threads(),
            level=found.level,
        )
    )  # fmt: skip
    return None if failed else made
