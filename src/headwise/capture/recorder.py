"""Recorder: from an attention call to the sums in a profile."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from headwise.blocks import weight_blocks
from headwise.call import AttentionCall
from headwise.capture.forwards import Forward
from headwise.kernels import Geometry, RowStatistics, geometry_of, row_statistics
from headwise.measures.summary import Part, summarise
from headwise.profile import Group, Layer, Profile
from headwise.profile.accumulators import PartSums

PENDING = 4096
"""Calls whose sums may wait on a device before they are brought to the host in one transfer."""

PARTS = tuple(f.name for f in fields(Part))


class Recorder:
    """Measures calls and adds them to a profile.

    Sums of calls on a device stay there until they are read, so that recording never waits for it.
    """

    def __init__(self, profile: Profile, verify: bool) -> None:
        self.profile = profile
        self.verify = verify
        self._waiting: list[tuple[Layer, Group, Part, tuple[int, ...], Tensor | None]] = []

    def record(self, call: AttentionCall, out: Tensor, dropout: float, forward: Forward) -> None:
        """Measure one call. `out [B, H, N, d_v]` is what the model computed, for verification."""
        geometry = _shared_geometry(call, forward)
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
        self._waiting.append((layer, group, part, names, error))
        if call.q.device.type == "cpu" or len(self._waiting) >= PENDING:
            self.settle()

    def settle(self) -> None:
        """Bring what waits on a device to the host and add it to the profile."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        numbers = []
        for _, _, part, _, error in waiting:
            numbers += [getattr(part, name).flatten() for name in PARTS]
            numbers.append(part.counts.new_zeros(1) if error is None else error.double().reshape(1))
        host = torch.cat(numbers).cpu().numpy()
        at = 0
        for layer, group, part, names, error in waiting:
            arrays: dict[str, Any] = {}
            for name in PARTS:
                shape = getattr(part, name).shape
                arrays[name] = host[at : at + shape.numel()].reshape(shape)
                at += shape.numel()
            if error is not None:
                layer.verified = float(host[at])
            at += 1
            self.profile.record(layer, group, PartSums(**arrays, sequences=names))

    def unseen(self, name: str, reason: str, way_out: str) -> None:
        """Note a call that was not measured; warn the first time."""
        if self.profile.record_unseen(name, reason, way_out):
            where = f" in {name}" if name else ""
            warnings.warn(f"headwise: attention{where} is not measured: {reason}; {way_out}", stacklevel=2)


def _shared_geometry(call: AttentionCall, forward: Forward) -> Geometry:
    """The call's geometry: layers of one forward that share a mask share it."""
    mask, real = call.mask, call.real
    described = None
    if mask is not None:
        described = (mask.data_ptr(), mask._version, mask.dtype, tuple(mask.shape), mask.stride())
    rows = None if real is None else (real.data_ptr(), real._version, real.stride())
    key = (
        described,
        rows,
        call.sizes[0],
        *call.sizes[2:],
        call.causal,
        call.window,
        call.is_cross,
        call.q.device,
    )
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
    dtype = torch.promote_types(call.q.dtype, torch.float32)
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
