"""Recorder: from an attention call to the sums in a profile."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from headwise.blocks import weight_blocks
from headwise.call import AttentionCall
from headwise.capture.forwards import Forward
from headwise.kernels import (
    Geometry,
    RowStatistics,
    fused_attention,
    geometry_of,
    row_statistics,
    working_dtype,
)
from headwise.measures.summary import Part, summarise
from headwise.profile import Group, Layer, Profile
from headwise.profile.accumulators import PartSums

BUFFER = 1 << 22
"""Numbers that may wait (32 MB, touched only as they come): the sums of some hundred calls."""

ERROR = "error"

PARTS = tuple(f.name for f in fields(Part))


@dataclass(frozen=True)
class _Kept:
    """A call whose sums wait in the buffer: where they belong, and the shape of each."""

    layer: Layer
    group: Group
    sequences: tuple[int, ...]
    shapes: dict[str, torch.Size]
    verified: bool


class Recorder:
    """Measures calls and adds them to a profile.

    Sums of calls wait in one buffer: on a device until they are read, so that recording never waits for it; on the
    host until the forward ends. Small arrays that live on, strewn between the large temporary ones of a running model,
    would keep the C library from using freed memory again: one forward over a long text leaves a gigabyte of holes.
    """

    def __init__(self, profile: Profile, verify: bool) -> None:
        self.profile = profile
        self.verify = verify
        self._waiting: list[_Kept] = []
        self._buffer: Tensor | None = None
        self._used = 0

    def attend(self, call: AttentionCall, out: Tensor, forward: Forward) -> bool:
        """Compute the output into `out [B, H, N, d_v]` and measure in the same pass; False: nothing was done."""
        statistics = fused_attention(call, out, _shared_geometry(call, forward))
        if statistics is not None:
            self.record(call, out, 0.0, forward, statistics)
        return statistics is not None

    def record(
        self,
        call: AttentionCall,
        out: Tensor,
        dropout: float,
        forward: Forward,
        statistics: RowStatistics | None = None,
    ) -> None:
        """Measure one call. `out [B, H, N, d_v]` is what the model computed, for verification."""
        geometry = _shared_geometry(call, forward)
        if statistics is None:
            statistics = row_statistics(call, geometry=geometry)
        if call.q.device.type == "mps":
            statistics = _on_host(statistics)  # it has no float64
        part = summarise(statistics, self.profile.measures)
        place, (_, H, _, d) = call.place, call.q.shape
        layer = Layer(
            place.layer, place.name, H, max(1, H // place.kv_groups), d, (place.kind,), (place.phase,), 1,
            (call.causal or "none",),
        )  # fmt: skip
        error = None
        if self.verify:
            if dropout:
                layer.not_verifiable = 1
            else:
                error = _verification_error(call, out, geometry)
                # float32 is held to 1e-5; a coarser output to the two digits that it keeps.
                layer.bound = max(1e-5, 2 * torch.finfo(out.dtype).eps)
        group = Group(place.layer, place.call, place.phase, place.kind)
        names = _sequence_names(forward, call.q.shape[0], part.cluster_sum.shape[2])
        self._keep(layer, group, part, names, error)

    def end_of_forward(self) -> None:
        """Add what waits in the host's own memory to the profile; what waits on a device goes on waiting."""
        if self._buffer is not None and self._buffer.device.type == "cpu":
            self.settle()

    def settle(self) -> None:
        """Add what waits to the profile, in one transfer if it waits on a device."""
        waiting, self._waiting = self._waiting, []
        if self._buffer is None or not waiting:
            return
        numbers, self._used = self._buffer[: self._used].cpu().numpy(), 0
        at = 0
        for kept in waiting:
            arrays: dict[str, Any] = {}
            for name, shape in kept.shapes.items():
                arrays[name] = numbers[at : at + shape.numel()].reshape(shape)
                at += shape.numel()
            worst = arrays.pop(ERROR)
            if kept.verified:
                kept.layer.verified = float(worst[0])
            try:
                self.profile.record(kept.layer, kept.group, PartSums(**arrays, sequences=kept.sequences))
            except ValueError as error:
                self.unseen(kept.layer.name, str(error), "watch one configuration of the model at a time")

    def release(self) -> None:
        """Give back the buffer."""
        self._buffer, self._used = None, 0

    def _keep(self, layer: Layer, group: Group, part: Part, names: tuple[int, ...], error: Tensor | None) -> None:
        fields_of = {name: getattr(part, name) for name in PARTS}
        fields_of[ERROR] = part.counts.new_zeros(1) if error is None else error.double().reshape(1)
        size = sum(t.numel() for t in fields_of.values())
        buffer = self._buffer
        if buffer is None or buffer.device != part.counts.device or self._used + size > len(buffer):
            self.settle()
            if buffer is None or buffer.device != part.counts.device or size > len(buffer):
                with torch.inference_mode(False):  # a later forward may run outside inference mode
                    self._buffer = buffer = torch.empty(
                        max(BUFFER, size), dtype=torch.float64, device=part.counts.device
                    )
        torch.cat([t.flatten() for t in fields_of.values()], out=buffer[self._used : self._used + size])
        self._used += size
        shapes = {name: t.shape for name, t in fields_of.items()}
        self._waiting.append(_Kept(layer, group, names, shapes, verified=error is not None))

    def unseen(self, name: str, reason: str, way_out: str) -> None:
        """Note a call that was not measured; warn the first time."""
        if self.profile.record_unseen(name, reason, way_out):
            where = f" in {name}" if name else " at the root"
            warnings.warn(f"headwise: attention{where} is not measured: {reason}; {way_out}", stacklevel=2)


def _shared_geometry(call: AttentionCall, forward: Forward) -> Geometry:
    """The call's geometry: layers of one forward that share a mask share it."""
    mask, real = call.mask, call.real
    if any(t is not None and t.is_inference() for t in (mask, real)):
        return geometry_of(call)  # it cannot be told whether they were changed since the layer before
    seen = [None if t is None else (t.data_ptr(), t._version, t.dtype, t.shape, t.stride()) for t in (mask, real)]
    key = (*seen, call.sizes[0], *call.sizes[2:], call.causal, call.window, call.is_cross, call.q.device)
    if key not in forward.geometries:
        forward.geometries[key] = (geometry_of(call), (mask, real))
    return forward.geometries[key][0]


def _sequence_names(forward: Forward, rows: int, clusters: int) -> tuple[int, ...]:
    """A name for each of the call's sequences: rows of a later call under the same name belong to the same one.

    The attention batch may hold several rows per sequence of the model's batch (windows of one image, say).
    """
    own = forward.sequences
    if rows % len(own):
        own = tuple(-(own[0] << 20) - row for row in range(rows))
    per_row, per_cluster = rows // len(own), clusters // rows
    if per_row == per_cluster == 1:
        return own
    return tuple(
        (own[c // per_cluster // per_row] << 40) + (c // per_cluster % per_row << 20) + c % per_cluster
        for c in range(clusters)
    )


def _verification_error(call: AttentionCall, out: Tensor, geometry: Geometry) -> Tensor:
    """`max |P v - out| / max(1, max |v|)` over rows that see a key: a judge that depends on no implementation."""
    assert call.v is not None
    if call.v.numel() == 0:
        return call.q.new_zeros(())
    dtype = working_dtype(call)
    v = call.v.to(dtype)
    worst = v.new_zeros(())
    sees = (geometry.visible >= 1).expand(call.q.shape[0], call.q.shape[1], -1)
    for block in weight_blocks(call):
        p = block.weights
        b, _, R, M = p.shape
        values = v[block.batch]
        expected = (p.reshape(b, values.shape[1], -1, M) @ values).view(b, -1, R, v.shape[-1])
        error = (expected - out[block.batch, :, block.rows].to(dtype)).abs().amax(-1)
        worst = torch.maximum(worst, torch.where(sees[block.batch, :, block.rows], error, 0.0).max())
    return worst / v.abs().max().clamp(min=1.0)


def _on_host(statistics: RowStatistics) -> RowStatistics:
    def moved(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.cpu()
        if isinstance(value, Geometry):
            return Geometry(**{f.name: moved(getattr(value, f.name)) for f in fields(Geometry)})
        return value

    return RowStatistics(**{f.name: moved(getattr(statistics, f.name)) for f in fields(RowStatistics)})
