"""Recorder: from an attention call to the sums in a profile."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.blocks import weight_blocks
from headwise.call import AttentionCall
from headwise.capture.forwards import Forward
from headwise.capture.kept import Keeper
from headwise.capture.labels import Labels
from headwise.capture.sdpa import UnmeasurableError
from headwise.capture.sequences import Identity, parts_of
from headwise.capture.weighing import Weighed, Weighing, output_weight_of
from headwise.kernels import (
    Geometry,
    RowStatistics,
    fused_attention,
    geometry_of,
    row_statistics,
    working_dtype,
)
from headwise.measures.keys import KeySums
from headwise.measures.pairs import PairSums
from headwise.measures.summary import Part, summarise
from headwise.measures.sums import ClusterSums
from headwise.profile import Group, Layer, Profile
from headwise.profile.accumulators import PartSums

if TYPE_CHECKING:
    from headwise.profile.clusters import Identities

BUFFER = 1 << 22
"""Numbers that may wait (32 MB, touched only as they come): the sums of some hundred calls."""

ERROR = "error"

PARTS = tuple(f.name for f in fields(Part))


@dataclass(frozen=True)
class _Waiting:
    """A call whose sums wait in the buffer: where they belong, and the shape of each."""

    layer: Layer
    group: Group
    sequences: tuple[int, ...]
    texts: _Texts | None
    shapes: dict[str, torch.Size]
    verified: bool
    label: str | None


@dataclass(frozen=True)
class _Texts:
    """Which texts a call read: the forward's, and how they lie in the call's sequences."""

    identity: Identity
    numbers: tuple[int, ...]
    clusters: int
    per_row: int

    def identities(self) -> Identities:
        whole = self.identity.of(self.numbers)
        return whole if self.clusters == len(whole) else parts_of(whole, self.clusters, self.per_row)


class Recorder:
    """Measures calls and adds them to a profile.

    Sums of calls wait in one buffer: on a device until they are read, so that recording never waits for it; on the
    host until the forward ends. Small arrays that live on, strewn between the large temporary ones of a running model,
    would keep the C library from using freed memory again: one forward over a long text leaves a gigabyte of holes.
    """

    def __init__(
        self,
        profile: Profile,
        row_measures: tuple[str, ...],
        weighing: Weighing,
        verify: bool,
        labels: Labels,
        keeper: Keeper | None = None,
    ) -> None:
        self.profile = profile
        self.verify = verify
        self._row_measures = row_measures
        self._weighing = weighing
        self.labels = labels
        self._keeper = keeper
        # Told of every call that is measured, with its statistics and output.
        self.tap: Callable[[AttentionCall, RowStatistics, Tensor], None] | None = None
        self._open_keys: dict[Group, tuple[tuple[int, ...], KeySums]] = {}
        self._open_pairs: dict[Group, tuple[tuple[int, ...], PairSums]] = {}
        self._heads: dict[int, int] = {}
        self._waiting: list[_Waiting] = []
        self._buffer: Tensor | None = None
        self._used = 0

    @property
    def notes(self) -> dict[str, str]:
        """Why a measure is undefined for some calls, by measure."""
        return self._weighing.notes

    def attend(
        self, call: AttentionCall, out: Tensor, forward: Forward, caller: nn.Module | None, of_tokens: bool = True
    ) -> bool:
        """Compute the output into `out [B, H, N, d_v]` and measure in the same pass; False: nothing was done."""
        statistics = fused_attention(call, out, _shared_geometry(call, forward))
        if statistics is not None:
            self.record(call, out, 0.0, forward, caller, statistics, fused=True, of_tokens=of_tokens)
        return statistics is not None

    def record(
        self,
        call: AttentionCall,
        out: Tensor,
        dropout: float,
        forward: Forward,
        caller: nn.Module | None,
        statistics: RowStatistics | None = None,
        fused: bool = False,
        of_tokens: bool = True,
    ) -> None:
        """Measure one call, made by module `caller`. `out [B, H, N, d_v]` is what the model computed.

        `of_tokens`: whether its rows can be those of the model's own tokens, not of a tower for images or sound.
        """
        heads, number = call.q.shape[1], call.place.layer
        if self._heads.setdefault(number, heads) != heads:
            raise UnmeasurableError(
                f"layer {number} ({call.place.name}): expected {self._heads[number]} heads as before, got {heads}",
                "watch one configuration of the model at a time",
            )
        geometry = _shared_geometry(call, forward)
        if statistics is None:
            statistics = row_statistics(call, geometry=geometry)
        if call.q.device.type == "mps":
            statistics = _on_host(statistics)  # it has no float64
        if self.tap is not None:
            self.tap(call, statistics, out)
        weighed = Weighed()
        if not self._weighing.idle:
            weight = output_weight_of(caller, out.shape[1] * out.shape[3])
            weighed = self._weighing.of(call, statistics, out, forward, weight)
        part = summarise(statistics, self._row_measures, weighed.values)
        place, (_, H, _, d) = call.place, call.q.shape
        layer = Layer(
            place.layer, place.name, H, max(1, H // place.kv_groups), d, (place.kind,), (place.phase,), 1,
            (call.causal or "none",),
        )  # fmt: skip
        layer.fused = int(fused)
        error = None
        if self.verify:
            if dropout:
                layer.not_verifiable = 1
            else:
                error = _verification_error(call, out, geometry)
                # float32 is held to 1e-5; a coarser output to the two digits that it keeps.
                layer.bound = max(1e-5, 2 * torch.finfo(out.dtype).eps)
        group = Group(place.layer, place.call, place.phase, place.kind)
        rows, clusters = call.q.shape[0], part.cluster_sum.shape[2]
        names = _sequence_names(forward, rows, clusters)
        texts = None
        if forward.identity is not None and rows % len(forward.sequences) == 0:
            texts = _Texts(forward.identity, forward.sequences, clusters, clusters // rows)
        of_labels = {
            label: summarise(statistics, self._row_measures, weighed.values, only)
            for label, only in self.labels.rows(call, forward, of_tokens).items()
        }
        if self._keeper is not None:
            self._keeper.keep(call, statistics, forward)
        self._put_totals(group, names, weighed)
        # Last, when nothing can fail any more: a call that fails is tried again, and must not count twice.
        self._wait(layer, group, part, names, texts, error)
        for label, some in of_labels.items():
            self._wait(layer, group, some, names, None, None, label)

    def _put_totals(self, group: Group, names: tuple[int, ...], weighed: Weighed) -> None:
        """Give what keys receive, and how alike heads are, to the profile; decoding goes on with its sequences."""
        if weighed.keys is not None:
            keys, open_keys = weighed.keys, self._open_keys.pop(group, None)
            if open_keys is not None and open_keys[0] == names:
                if open_keys[1].received.shape[2] > keys.received.shape[2]:
                    why = "a cache dropped keys: rows that came later are left out of what keys receive"
                    self.profile.note(why)
                    keys = open_keys[1]
                else:
                    keys = open_keys[1].extended(keys)
            self._open_keys[group] = (names, keys)
            self.profile.put_keys(group, names, _numbers(keys.alpha_sums()))
        if weighed.pairs is not None:
            pairs, open_pairs = weighed.pairs, self._open_pairs.pop(group, None)
            if open_pairs is not None and open_pairs[0] == names:
                pairs = PairSums(pairs.total + open_pairs[1].total, pairs.rows + open_pairs[1].rows)
            self._open_pairs[group] = (names, pairs)
            self.profile.put_pairs(group, names, _numbers(pairs.sums))

    def end_of_forward(self) -> None:
        """Add what waits in the host's own memory to the profile; what waits on a device goes on waiting."""
        if self._keeper is not None:
            self._keeper.end_of_forward()
        if self._buffer is not None and self._buffer.device.type == "cpu":
            self.settle()

    def settle(self) -> None:
        """Add what waits to the profile, in one transfer if it waits on a device."""
        waiting, self._waiting = self._waiting, []
        if self._buffer is None or not waiting:
            return
        numbers, self._used = self._buffer[: self._used].cpu().numpy(), 0
        at = 0
        for one in waiting:
            arrays: dict[str, Any] = {}
            for name, shape in one.shapes.items():
                arrays[name] = numbers[at : at + shape.numel()].reshape(shape)
                at += shape.numel()
            worst = arrays.pop(ERROR)
            if one.verified:
                one.layer.verified = float(worst[0])
            try:
                identities = None if one.texts is None else one.texts.identities()
                part = PartSums(**_merged(arrays, one.sequences, identities))
                self.profile.record(one.layer, one.group, part, one.label)
            except ValueError as error:
                self.unseen(one.layer.name, str(error), "watch one configuration of the model at a time")

    def release(self) -> None:
        """Give back the buffer."""
        if self._keeper is not None:
            self._keeper.release()
        self._buffer, self._used = None, 0
        self._open_keys.clear()
        self._open_pairs.clear()

    def _wait(
        self,
        layer: Layer,
        group: Group,
        part: Part,
        names: tuple[int, ...],
        texts: _Texts | None,
        error: Tensor | None,
        label: str | None = None,
    ) -> None:
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
        self._waiting.append(_Waiting(layer, group, names, texts, shapes, error is not None, label))

    def unseen(self, name: str, reason: str, way_out: str) -> None:
        """Note a call that was not measured; warn the first time."""
        if self.profile.record_unseen(name, reason, way_out):
            where = f" in {name}" if name else " at the root"
            warnings.warn(f"headwise: attention{where} is not measured: {reason}; {way_out}", stacklevel=2)


def _merged(arrays: dict[str, Any], names: tuple[int, ...], identities: Identities | None) -> dict[str, Any]:
    """The sums of a call in which each sequence stands once: beam search reads one in several rows."""
    once = tuple(dict.fromkeys(names))
    if len(once) < len(names):
        belongs = np.equal.outer(names, once).astype(np.float64)
        arrays |= {name: arrays[name] @ belongs for name in ("cluster_sum", "cluster_rows")}
        identities = None if identities is None else identities[[names.index(name) for name in once]]
    return {**arrays, "sequences": once, "identities": identities}


def _numbers(sums: ClusterSums) -> dict[str, Any]:
    return {f.name: getattr(sums, f.name).cpu().numpy() for f in fields(sums)}


def _shared_geometry(call: AttentionCall, forward: Forward) -> Geometry:
    """The call's geometry: layers of one forward that share a mask share it."""
    mask, real = call.mask, call.real
    seen = None
    if mask is not None:
        if mask.is_inference():
            return geometry_of(call)  # it cannot be told whether it was changed since the layer before
        seen = (mask.data_ptr(), mask._version, mask.dtype, mask.shape, mask.stride())
    # Which rows are real is the forward's own tensor (`Forward.real_rows`), which nobody changes.
    key = (
        seen,
        None if real is None else id(real),
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
