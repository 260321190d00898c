"""Which kernel runs a call, and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels.geometry import Geometry, geometry_of
from headwise.kernels.native import NativeKernel
from headwise.kernels.portable import PortableKernel
from headwise.kernels.protocol import Kernel, RowStatistics
from headwise.kernels.reference import ReferenceKernel

# Fastest first; the reference stands outside: it runs only when asked for by name.
NATIVE = NativeKernel()
PREFERENCE: tuple[Kernel, ...] = (NATIVE, PortableKernel())
KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in (*PREFERENCE, ReferenceKernel())}


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
            raise ValueError(f"kernel: expected one of {', '.join(KERNELS)}; got {kernel!r}")
        why = KERNELS[kernel].refuses(call)
        if why:
            raise ValueError(f"kernel {kernel!r} cannot run this call: {why}")
        return Choice(kernel, "asked for by name")
    refused = [("reference", "holds all N x M weights in float64; for tests, only when asked for by name")]
    for candidate in PREFERENCE:
        why = candidate.refuses(call)
        if why is None:
            reason = f"the fastest that can run {call.q.dtype} on {call.q.device.type}"
            return Choice(candidate.name, reason.replace("torch.", ""), tuple(refused))
        refused.append((candidate.name, why))
    raise ValueError("no kernel can run this call: " + "; ".join(f"{name}: {why}" for name, why in refused))


def row_statistics(call: AttentionCall, kernel: str | None = None, geometry: Geometry | None = None) -> RowStatistics:
    """The row statistics of a call, without autograd.

    Args:
        call: The call.
        kernel: As in `choose`.
        geometry: The call's geometry where it is known already (layers that share a mask share it).
    """
    chosen = KERNELS[choose(call, kernel).kernel]
    with torch.no_grad():
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
    if call.v is None or call.v.dtype != call.q.dtype or NATIVE.refuses(call):
        return None
    with torch.no_grad():
        return NATIVE.attend(call, geometry_of(call) if geometry is None else geometry, out)
