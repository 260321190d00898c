"""The native kernel: output and row statistics in one pass over the keys, in C++ (rows.cpp)."""

from __future__ import annotations

from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels.geometry import Geometry
from headwise.kernels.native.binding import LEVELS, TYPES, Library, library
from headwise.kernels.portable import PortableKernel
from headwise.kernels.protocol import RowStatistics

MOST_KEYS = 1 << 24
"""Positions are counted in float32, exact up to here."""

__all__ = ["LEVELS", "Library", "NativeKernel", "library"]


class NativeKernel:
    """The kernel for CPUs."""

    name = "native"

    def refuses(self, call: AttentionCall) -> str | None:
        """Why this kernel cannot run the call; None if it can."""
        if call.q.device.type != "cpu":
            return f"it runs on CPUs; this call is on {call.q.device.type}"
        if call.q.dtype not in TYPES:
            return f"it computes in float32; this call is in {call.q.dtype}".replace("torch.", "")
        if call.k.shape[2] >= MOST_KEYS:
            return f"it takes fewer than {MOST_KEYS:,} keys; this call has {call.k.shape[2]:,}"
        found = library()
        return found if isinstance(found, str) else None

    def run(self, call: AttentionCall, geometry: Geometry) -> RowStatistics:
        """The row statistics of a call that `refuses` let pass."""
        found = _loaded().run(call, geometry)
        # Scores that are NaN or infinite are rare, and the portable kernel says exactly which.
        return PortableKernel().run(call, geometry) if found is None else found

    def attend(self, call: AttentionCall, geometry: Geometry, out: Tensor) -> RowStatistics | None:
        """Write the output `[B, H, N, d_v]` too, into `out`; None, and `out` useless, if an input is not finite."""
        return _loaded().run(call, geometry, out=out)


def _loaded() -> Library:
    found = library()
    if isinstance(found, str):
        raise RuntimeError(found)
    return found
