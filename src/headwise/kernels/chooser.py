"""Which kernel runs a call, and why.

On a CPU the native kernel runs: it gives every statistic, and the output, in one pass over the keys. The Triton kernel
does the same on CUDA devices; its numbers have been checked by Triton's interpreter alone, so it runs where it is asked
for, by name or by HEADWISE_TRITON=1. What they refuse (float64, other devices, heads wider than they take, a machine
without a C++ compiler) goes to the portable kernel: plain torch, a tile of scores at a time.

The portable kernel makes no fused calls of torch's, because none yields what is asked. Flash attention's returns the
log-sum-exp alone and takes half precision alone; an entropy from a second call, with keys for values, has its weights
rounded to that half precision and misses the tolerance of 1e-5; and no fused call yields a two-sided distance, an
inverse participation ratio, or what is left beside the first key without a difference that loses its digits.
FlexAttention's `AuxRequest` yields the log-sum-exp and the largest score, on CUDA and when compiled, which takes
triton: where it could serve, the Triton kernel runs. On other devices (Apple's MPS, Intel's XPU) no fused call of
torch's has more to give.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.errors import shown
from headwise.kernels.geometry import Geometry, geometry_of
from headwise.kernels.native import NativeKernel
from headwise.kernels.portable import PortableKernel
from headwise.kernels.precision import full_precision, without_autocast
from headwise.kernels.protocol import Kernel, RowStatistics
from headwise.kernels.reference import ReferenceKernel
from headwise.kernels.triton import TritonKernel

# Fastest first; the reference stands outside: it runs only when asked for by name.
NATIVE, TRITON = NativeKernel(), TritonKernel()
PREFERENCE: tuple[Kernel, ...] = (NATIVE, TRITON, PortableKernel())
KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in (*PREFERENCE, ReferenceKernel())}

HOW = {
    "native": ": one pass over the keys, in C++",
    "triton": ": one pass over the keys, in a Triton kernel",
    "portable": ": plain torch, a tile of scores at a time; torch's fused calls yield no row maximum and no distance",
}


@dataclass(frozen=True)
class Choice:
    """The kernel that runs, why, and why others do not.

    Attributes:
        kernel: Its name.
        reason: Why it was chosen.
        refused: Pairs (kernel, why it does not run).
    """

    kernel: str
    reason: str
    refused: tuple[tuple[str, str], ...] = ()


def choose(call: AttentionCall, kernel: str | None = None) -> Choice:
    """Choose the kernel for a call.

    Args:
        call: The call.
        kernel: The name of a kernel that must run, or None for the fastest that can.

    Raises:
        ValueError: No such kernel, or the named one cannot run this call.
    """
    if kernel is not None:
        if kernel not in KERNELS:
            raise ValueError(f"kernel: expected one of {', '.join(KERNELS)}; got {shown(kernel)}")
        why = KERNELS[kernel].refuses(call)
        if why:
            raise ValueError(f"kernel {kernel!r} cannot run this call: {why}")
        return Choice(kernel, "asked for by name")
    refused = [("reference", "holds all N x M weights in float64; for tests, only when asked for by name")]
    for candidate in PREFERENCE:
        why = _unasked(candidate, call)
        if why is None:
            reason = f"the fastest that can run {call.q.dtype} on {call.q.device.type}{HOW.get(candidate.name, '')}"
            return Choice(candidate.name, reason.replace("torch.", ""), tuple(refused))
        refused.append((candidate.name, why))
    raise ValueError("no kernel can run this call: " + "; ".join(f"{name}: {why}" for name, why in refused))


def _unasked(kernel: Kernel, call: AttentionCall) -> str | None:
    """Why a kernel does not run a call that asks for none by name; None if it does."""
    why = kernel.refuses(call)
    if why is not None or kernel is not TRITON:
        return why
    if call.q.device.type == "cpu":
        return "Triton's interpreter would run it, slowly; for tests, only when asked for by name"
    if os.environ.get("HEADWISE_TRITON") != "1":
        return "not yet checked on a GPU, only by Triton's interpreter: set HEADWISE_TRITON=1 to use it"
    return None


def row_statistics(call: AttentionCall, kernel: str | None = None, geometry: Geometry | None = None) -> RowStatistics:
    """The row statistics of a call, without autograd.

    Args:
        call: The call.
        kernel: As in `choose`.
        geometry: The call's geometry where it is known already (layers that share a mask share it).

    Raises:
        TypeError: `call` is none.
        ValueError: As in `choose`.
    """
    if not isinstance(call, AttentionCall):
        raise TypeError(
            "row_statistics: expected a headwise.AttentionCall, as in row_statistics(AttentionCall(q, k, causal=...)); "
            f"got {shown(call)}"
        )
    chosen = KERNELS[choose(call, kernel).kernel]
    with torch.no_grad(), without_autocast(call.q.device.type), full_precision():
        return chosen.run(call, geometry_of(call) if geometry is None else geometry)


def fused_attention(call: AttentionCall, out: Tensor, geometry: Geometry | None = None) -> RowStatistics | None:
    """Output and row statistics in one pass, where a kernel gives both; without autograd.

    Args:
        call: The call, with v.
        out: Where the output `[B, H, N, d_v]` goes: of the dtype of q.
        geometry: As in `row_statistics`.

    Returns:
        The statistics; None where no kernel gives both for this call, and then `out` holds nothing of use.
    """
    if call.v is None or call.v.dtype != call.q.dtype:
        return None
    kernel = next((kernel for kernel in (NATIVE, TRITON) if _unasked(kernel, call) is None), None)
    if kernel is None:
        return None
    with torch.no_grad():
        return kernel.attend(call, geometry_of(call) if geometry is None else geometry, out)
