"""How the row loop is launched: its arguments, its grid, and the sizes of its blocks."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels.geometry import Geometry
from headwise.kernels.protocol import STATISTICS, RowStatistics
from headwise.kernels.triton.rows import rows


@dataclass(frozen=True)
class Blocks:
    """How a program's work is cut.

    Attributes:
        rows: Rows of a program.
        keys: Keys of a tile.
        warps: Warps of a program.
        stages: Tiles in flight: one is computed with while the others are read.
    """

    rows: int
    keys: int
    warps: int
    stages: int


def blocks_of(dtype: torch.dtype, width: int, masked: bool, num_rows: int) -> Blocks:
    """The sizes of blocks, chosen by what compilation ahead of time shows (tests/kernels/test_triton.py).

    A program must fit the registers (255 a thread: what spills is read back for each tile) and 99 KiB of shared memory,
    the least that a device of compute capability 8.0 and up has for one. So wide heads have fewer rows; a mask, which
    waits in shared memory too, has fewer rows and tiles in flight; and float32, which is multiplied outside the tensor
    cores from registers, has fewer of everything.

    Args:
        dtype: Of q.
        width: The larger of d_k and d_v, rounded up to a power of two.
        masked: Whether the call has a mask.
        num_rows: Rows that programs share: up to 16 (decoding), programs have no more.
    """
    kind = "float32" if dtype == torch.float32 else "masked" if masked else "half"
    found = next(blocks for most, blocks in _TABLE[kind] if width <= most)
    return Blocks(16, found.keys, 4, found.stages) if num_rows <= 16 else found


# By width, ascending.
_TABLE = {
    "half": ((64, Blocks(128, 64, 8, 3)), (128, Blocks(128, 32, 8, 3)), (256, Blocks(32, 32, 8, 2))),
    "masked": ((64, Blocks(64, 64, 4, 2)), (128, Blocks(64, 32, 8, 2)), (256, Blocks(32, 32, 8, 2))),
    "float32": ((64, Blocks(64, 32, 8, 2)), (128, Blocks(32, 32, 8, 2)), (256, Blocks(32, 16, 8, 1))),
}


_MOST_KEYS = max(blocks.keys for row in _TABLE.values() for _, blocks in row)
_WIDEST = max(most for row in _TABLE.values() for most, _ in row)


def measure(call: AttentionCall, geometry: Geometry, out: Tensor | None, interpreted: bool) -> RowStatistics:
    """The row statistics, and the output where there is a place for it; nothing waits for the device.

    Args:
        call: A call that `TritonKernel.refuses` let pass.
        geometry: Its geometry.
        out: Where to write the output `[B, H, N, d_v]`, of the dtype of q and any strides (the call must have v);
            None: no output is computed.
        interpreted: Whether Triton's interpreter runs the kernel.
    """
    B, H, N, _ = call.sizes
    statistics = torch.empty(len(STATISTICS), B, H, N, dtype=torch.float32, device=call.q.device)
    argmax = torch.empty(B, H, N, dtype=torch.int64, device=call.q.device)
    programs, arguments, options = launch_of(call, geometry, out, statistics, argmax, interpreted)
    with torch.cuda.device(call.q.device) if call.q.device.type == "cuda" else nullcontext():
        rows[(programs,)](**arguments, **options)
    found = dict(zip(STATISTICS, statistics.unbind(0), strict=True))
    return RowStatistics(**found, argmax=argmax, geometry=geometry, has_sinks=call.sinks is not None)


def launch_of(
    call: AttentionCall,
    geometry: Geometry,
    out: Tensor | None,
    statistics: Tensor,
    argmax: Tensor,
    interpreted: bool = False,
) -> tuple[int, dict[str, Any], dict[str, int | bool]]:
    """Number of programs, the kernel's arguments by name, and the compiler's options.

    Strides are in elements. `heads` query heads share a program (1, or G = H / H_kv); there are `groups` of them a
    sequence, with `blocks` programs each. `plane` is the size of one statistic.
    """
    B, H, N, M = call.sizes
    q, k = call.q.detach().resolve_neg(), _dense(call.k.detach().resolve_neg())
    v = None if out is None or call.v is None else _dense(call.v.detach().resolve_neg())
    kv_heads, d_k = k.shape[1], q.shape[-1]
    d_v = 1 if v is None else v.shape[-1]
    G = H // kv_heads
    width = _rounded(max(d_k, d_v))
    masked = call.mask is not None
    blocks = blocks_of(q.dtype, width, masked, N)
    # Where a call has few queries, a program takes the heads that share a key-value head: they read the same keys.
    heads = G if blocks.rows > N else 1
    blocks = blocks_of(q.dtype, width, masked, heads * N)
    per_group, groups = -(-heads * N // blocks.rows), H // heads
    mask = None if call.mask is None else call.mask.detach().resolve_neg().expand(B, H, N, M)
    bias = mask is not None and mask.dtype != torch.bool
    if mask is not None and not bias:
        mask = mask.view(torch.uint8)
    spans = geometry.spans.contiguous()
    own, first = geometry.own.contiguous(), geometry.first.contiguous()
    arguments: dict[str, Any] = {
        "q": q, "k": k, "v": v, "out": None if v is None else out, "mask": mask,
        "sinks": None if call.sinks is None else call.sinks.detach().to(torch.float32).contiguous(),
        "own": own, "first": first, "spans": spans, "statistics": statistics, "argmax": argmax,
        "H": H, "G": G, "N": N, "M": M,
        "heads": heads, "groups": groups, "blocks": per_group, "plane": B * H * N,
        **_strides("q", "bhnd", q), **_strides("k", "bhnd", k), **_strides("v", "bhnd", v),
        **_strides("out", "bhnd", None if v is None else out), **_strides("mask", "bhnm", mask),
        "own_b": own.stride(0) if own.shape[0] > 1 else 0, "first_b": first.stride(0) if first.shape[0] > 1 else 0,
        "span_b": spans.stride(0) if spans.shape[0] > 1 else 0, "span_h": spans.stride(1) if spans.shape[1] > 1 else 0,
        "scale": 1 / math.sqrt(d_k) if call.scale is None else float(call.scale),
        "softcap": float(call.softcap or 1.0), "hide_below": float(call.hide_below) if bias else -math.inf,
        "D_K": d_k, "D_V": d_v, "BIAS": bias, "CAPPED": bool(call.softcap),
        # Triton's interpreter multiplies the bits of bfloat16 numbers.
        "WIDEN": interpreted and q.dtype == torch.bfloat16,
        "BLOCK_ROWS": blocks.rows, "BLOCK_KEYS": blocks.keys, "BLOCK_DK": _rounded(d_k), "BLOCK_DV": _rounded(d_v),
    }  # fmt: skip
    # Fused multiply-adds by name: what Triton does unasked differs between its versions.
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages, "enable_fp_fusion": True}
    return B * groups * per_group, arguments, options


def _dense(tensor: Tensor) -> Tensor:
    """Keys or values so laid out that offsets within a tile fit 32 bits: any but an odd view of a huge tensor is."""
    far = _MOST_KEYS * tensor.stride(2) + _WIDEST * tensor.stride(3) > torch.iinfo(torch.int32).max
    return tensor.contiguous() if far else tensor


def _strides(name: str, axes: str, tensor: Tensor | None) -> dict[str, int]:
    steps = (0,) * len(axes) if tensor is None else tensor.stride()
    return {f"{name}_{axis}": step for axis, step in zip(axes, steps, strict=True)}


def _rounded(width: int) -> int:
    """The power of two that holds a width: no less than 16, the least of a matrix product on tensor cores."""
    return max(16, 1 << (width - 1).bit_length())
