"""The compiled kernel: found, checked and called through its C ABI (call.h)."""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.equations import key_limits
from headwise.kernels.geometry import Geometry
from headwise.kernels.native.building import NAME, fingerprint
from headwise.kernels.protocol import STATISTICS, RowStatistics

LEVELS = ("portable", "AVX2", "AVX-512")
"""What `level` of the C ABI means."""

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
DONE, NOT_FINITE, NO_MEMORY = 0, 1, 2

_POINTERS = ("q", "k", "v", "out")
_SIZES = ("B", "H", "G", "N", "M", "d_k", "d_v")
_STRIDES = ctypes.c_int64 * 4


class _Call(ctypes.Structure):
    """`headwise::Call`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _SIZES),
        *((f"{name}_stride", _STRIDES) for name in _POINTERS),
        ("mask", ctypes.c_void_p),
        ("mask_stride", _STRIDES),
        *((name, ctypes.c_void_p) for name in ("sinks", "own", "first")),
        *((name, ctypes.c_int64) for name in ("own_stride", "first_stride", "left", "right", "offset")),
        *((name, ctypes.c_void_p) for name in ("statistics", "argmax")),
        *((name, ctypes.c_float) for name in ("scale", "softcap", "hide_below")),
        *((name, ctypes.c_int32) for name in ("type", "mask_kind", "threads", "level")),
    )


class Library:
    """The loaded library.

    Attributes:
        path: The file.
        level: The best instruction set of `LEVELS` that this machine runs.
        threaded: Whether torch's OpenMP runtime was found, so that all cores work.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.headwise_sources.restype = ctypes.c_uint32
        if self._library.headwise_sources() != fingerprint():
            raise OSError("it was built from other sources: install headwise again (pip install .)")
        self._library.headwise_run.argtypes = [ctypes.POINTER(_Call)]
        self.level = int(self._library.headwise_level())
        self.threaded = bool(self._library.headwise_threaded())

    def moments(self, arguments: ctypes.Structure) -> bool:
        """Run `headwise_moments`: see moments.py. Whether it failed, for want of memory."""
        return bool(self._library.headwise_moments(ctypes.byref(arguments)))

    def tally(self, arguments: ctypes.Structure) -> None:
        """Run `headwise_tally`: see tally.py."""
        self._library.headwise_tally(ctypes.byref(arguments))

    def run(
        self,
        call: AttentionCall,
        geometry: Geometry,
        *,
        out: Tensor | None = None,
        level: int | None = None,
    ) -> RowStatistics | None:
        """The row statistics, and the output where there is a place for it; None if an input is not finite, or huge.

        Args:
            call: A call that `NativeKernel.refuses` let pass.
            geometry: Its geometry.
            out: Where to write the output `[B, H, N, d_v]`, of the dtype of q and any strides (the call must have v);
                None: no output is computed.
            level: An index of `LEVELS`, no higher than the machine's; None: the best.

        Raises:
            MemoryError: Scratch memory was refused.
        """
        B, H, N, M = call.sizes
        # What is read is memory: tensors that negate it when they are read (torch.imag of a conjugate) are written out.
        q, k = call.q.detach().resolve_neg(), call.k.detach().resolve_neg()
        v = None if out is None or call.v is None else call.v.detach().resolve_neg()
        if out is not None and (v is None or tuple(out.shape) != (B, H, N, v.shape[-1]) or out.dtype != q.dtype):
            raise ValueError(
                f"out: expected {(B, H, N)} and the width of v, of {q.dtype}; got {tuple(out.shape)}, {out.dtype}"
            )
        statistics = torch.empty(len(STATISTICS), B, H, N, dtype=torch.float32, device="cpu")
        argmax = torch.empty(B, H, N, dtype=torch.int64, device="cpu")
        own, first = geometry.own.contiguous(), geometry.first.contiguous()
        sinks = None if call.sinks is None else call.sinks.detach().resolve_neg().to(torch.float32).contiguous()
        if sinks is not None and bool(sinks.isnan().any()):
            return None
        mask = call.mask
        if mask is not None:
            mask = mask.detach().resolve_neg()
            if mask.dtype != torch.bool:
                # Converted once, not once for each row and head that share it.
                once = tuple(slice(1) if step == 0 else slice(None) for step in mask.stride())
                mask = mask[once].to(torch.float32)
            mask = mask.expand(B, H, N, M)
        left, right, offset = key_limits(N, M, call.causal, call.window)
        a = _Call(
            q=q.data_ptr(), k=k.data_ptr(), v=None if v is None else v.data_ptr(),
            out=None if out is None else out.data_ptr(),
            B=B, H=H, G=H // k.shape[1], N=N, M=M, d_k=q.shape[-1], d_v=0 if v is None else v.shape[-1],
            q_stride=_STRIDES(*q.stride()), k_stride=_STRIDES(*k.stride()),
            v_stride=_STRIDES(*(v.stride() if v is not None else (0, 0, 0, 0))),
            out_stride=_STRIDES(*(out.stride() if out is not None else (0, 0, 0, 0))),
            mask=None if mask is None else mask.data_ptr(),
            mask_stride=_STRIDES(*(mask.stride() if mask is not None else (0, 0, 0, 0))),
            sinks=None if sinks is None else sinks.data_ptr(), own=own.data_ptr(), first=first.data_ptr(),
            own_stride=N if own.shape[0] > 1 else 0, first_stride=N if first.shape[0] > 1 else 0,
            left=-1 if left is None else left, right=-1 if right is None else right,
            offset=offset,
            statistics=statistics.data_ptr(), argmax=argmax.data_ptr(),
            scale=1 / math.sqrt(q.shape[-1]) if call.scale is None else call.scale,
            softcap=call.softcap or 0.0, hide_below=call.hide_below,
            type=TYPES[q.dtype], mask_kind=0 if mask is None else 1 if mask.dtype == torch.bool else 2,
            threads=torch.get_num_threads(), level=self.level if level is None else min(level, self.level),
        )  # fmt: skip
        outcome = self._library.headwise_run(ctypes.byref(a))
        if outcome == NO_MEMORY:
            raise MemoryError("the native kernel: no memory for its scratch buffers")
        if outcome == NOT_FINITE:
            return None
        found = dict(zip(STATISTICS, statistics.unbind(0), strict=True))
        return RowStatistics(**found, argmax=argmax, geometry=geometry, has_sinks=sinks is not None)


@lru_cache(maxsize=1)
def library() -> Library | str:
    """The compiled kernel, or why there is none."""
    path = Path(__file__).parent / NAME
    if not path.exists():
        return "it was not compiled: headwise doctor says what is missing"
    try:
        return Library(path)
    except (OSError, AttributeError) as error:
        return f"{path} cannot be loaded: {error}"
