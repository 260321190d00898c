"""The Triton kernel: output and row statistics in one pass over the keys, on CUDA (rows.py)."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels.geometry import Geometry
from headwise.kernels.protocol import RowStatistics

TYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256
"""The widest head: wider tiles do not fit the shared memory of one multiprocessor."""

MOST_KEYS = 1 << 24
"""Positions are counted in float32, exact up to here."""

OLDEST = (8, 0)
"""The least compute capability: before it there is neither bfloat16 nor enough shared memory."""


class TritonKernel:
    """The kernel for CUDA devices; Triton's interpreter runs it on a CPU, for tests."""

    name = "triton"

    def refuses(self, call: AttentionCall) -> str | None:
        """Why this kernel cannot run the call; None if it can."""
        q = call.q
        if q.device.type not in ("cuda", "cpu") or (q.device.type == "cpu" and not _interpreter_is_wanted()):
            return f"it runs on CUDA devices; this call is on {q.device.type}"
        if q.dtype not in TYPES:
            return f"it computes in float32; this call is in {q.dtype}".replace("torch.", "")
        widest = max(q.shape[-1], 0 if call.v is None else call.v.shape[-1])
        if widest > WIDEST:
            return f"it takes heads up to {WIDEST} wide; this call's are {widest}"
        if call.k.shape[2] >= MOST_KEYS:
            return f"it takes fewer than {MOST_KEYS:,} keys; this call has {call.k.shape[2]:,}"
        if any(t is not None and t.device != q.device for t in (call.k, call.v, call.mask, call.sinks)):
            return "its tensors are on several devices"
        why = _missing()
        if why is None and q.device.type == "cuda":
            why = _unfit(q.device)
        elif why is None and not _interpreted():
            why = "TRITON_INTERPRET=1 was set after triton had been imported: set it before Python starts"
        return why

    def run(self, call: AttentionCall, geometry: Geometry) -> RowStatistics:
        """The row statistics of a call that `refuses` let pass."""
        return self._measure(call, geometry, None)

    def attend(self, call: AttentionCall, geometry: Geometry, out: Tensor) -> RowStatistics:
        """Write the output `[B, H, N, d_v]` too, into `out`, of the dtype of q."""
        return self._measure(call, geometry, out)

    def _measure(self, call: AttentionCall, geometry: Geometry, out: Tensor | None) -> RowStatistics:
        from headwise.kernels.triton.launch import measure

        return measure(call, geometry, out, _interpreted())


def _interpreter_is_wanted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


@lru_cache(maxsize=1)
def _missing() -> str | None:
    """Why triton cannot be used; None if it can. Asked only where it is needed: importing it takes half a second."""
    if find_spec("triton") is None:
        return "triton is not installed: pip install 'headwise[triton]' (Linux; torch's CUDA builds bring it along)"
    try:
        import headwise.kernels.triton.rows  # noqa: F401
    except ImportError as error:
        return f"triton cannot be loaded: {error}"
    return None


@lru_cache
def _unfit(device: torch.device) -> str | None:
    """Why triton cannot run on a CUDA device; None if it can."""
    if torch.version.hip:
        return "it is compiled and tested for NVIDIA's devices; this is one of AMD's"
    has = torch.cuda.get_device_capability(device)
    if has < OLDEST:
        return "it needs compute capability {}.{}; this device has {}.{}".format(*OLDEST, *has)
    try:
        import triton

        triton.runtime.driver.active.get_current_target()
    except Exception as error:  # noqa: BLE001 - no C compiler, no Python headers, no driver: whatever it is, it is told
        return f"triton cannot start here ({type(error).__name__}: {error})"
    return None


@lru_cache(maxsize=1)
def _interpreted() -> bool:
    """Whether Triton's interpreter runs the kernel: that is settled when triton is imported."""
    from headwise.kernels.triton.rows import rows

    return type(rows).__name__ == "InterpretedFunction"
