"""Keeping: copies of what the weights of a call are made from, so that any of them can be recomputed later."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.call import Alignment, AttentionCall
from headwise.capture.forwards import Forward
from headwise.errors import shown
from headwise.kernels import RowStatistics
from headwise.kernels.tiles import Tile, visible_tile
from headwise.profile import Group, Profile
from headwise.profile.kept import Held, Kept, KeptCall, Keys, bytes_of, renote, size_of

KEEP = ("qk", "qkv")


def keeper_of(profile: Profile, keep: str | None, limit: int | str) -> Keeper | None:
    """What keeps calls for `watch(keep=..., keep_limit=...)`; None where nothing is to be kept.

    Raises:
        ValueError: Another `keep`, or a limit that is no size.
    """
    if keep is not None and keep not in KEEP:
        raise ValueError(f"keep: expected None, 'qk' or 'qkv'; got {shown(keep)}")
    size = bytes_of(limit)
    if keep is None:
        return None
    profile.kept = Kept(size)
    return Keeper(profile, profile.kept, values=keep == "qkv")


class Keeper:
    """Keeps calls in a profile: copies in the host's memory, in the dtype of the call."""

    def __init__(self, profile: Profile, kept: Kept, values: bool) -> None:
        self._profile = profile
        self._kept = kept
        self._values = values
        # The keys that a layer's last call read, which the next one of the same sequences may only add to.
        self._open: dict[tuple[int, int, str], tuple[tuple[int, ...], int]] = {}
        self._forward: Forward | None = None
        # Masks of this forward by where they lie: their number, what they leave to causality, and themselves, so that
        # their memory is not taken for another's.
        self._known: dict[tuple[Any, ...], tuple[int | None, Alignment | None, Tensor]] = {}
        self._masks: list[int] = []

    def keep(self, call: AttentionCall, statistics: RowStatistics, forward: Forward) -> None:
        """Keep a call, if it fits."""
        place, kept = call.place, self._kept
        group = Group(place.layer, place.call, place.phase, place.kind)
        if not kept.fits(0):
            self._drop(group)
            return
        if forward is not self._forward:
            self.end_of_forward()
            self._forward = forward
        sequences = sequences_of(forward, call.q.shape[0])
        stream = (place.layer, place.call, place.kind)
        k, v = unrepeated(call, self._values)
        known = self._continued(stream, sequences, k, v)
        start = 0 if known is None else kept.keys[known].length
        mask, new_mask, causal = self._mask(call)
        k, v = k[:, :, start:], None if v is None else v[:, :, start:]
        # What is certainly too large is not copied first.
        size = sum(t.numel() * t.element_size() for t in (call.q, statistics.lse, k, v, call.sinks) if t is not None)
        if not kept.fits(size + size_of([] if new_mask is None else [new_mask])):
            self._drop(group)
            return
        q, lse = held(call.q), held(statistics.lse)
        sinks, more = None if call.sinks is None else held(call.sinks), (held(k), None if v is None else held(v))
        # From here on nothing can fail: a call that does is tried again, and must not be kept twice.
        if new_mask is not None:
            mask = self._new_mask(new_mask, call, causal)
        if known is None:
            known = len(kept.keys)
            kept.keys.append(Keys())
        kept.keys[known].append(*more)
        self._open[stream] = (sequences, known)
        kept.used += size
        in_decoder = forward.encoder_decoder and "decoder" in place.name.split(".")
        kept.calls.append(
            KeptCall(
                group, sequences, q, lse, known, call.sizes[3], mask, sinks, causal, call.scale, call.softcap,
                call.window, call.hide_below, of_text=place.kind == "cross" or not in_decoder,
            )
        )  # fmt: skip

    def end_of_forward(self) -> None:
        """Forget the masks of the forward that ended."""
        self._forward = None
        self._known.clear()
        self._masks.clear()

    def release(self) -> None:
        """Forget what later calls might have continued."""
        self.end_of_forward()
        self._open.clear()

    def _drop(self, group: Group) -> None:
        before = self._kept.note()
        self._kept.drop(group)
        renote(self._profile, before)

    def _continued(
        self, stream: tuple[int, int, str], sequences: tuple[int, ...], k: Tensor, v: Tensor | None
    ) -> int | None:
        """The kept keys that these only add to; None where they are others."""
        names, number = self._open.get(stream, ((), -1))
        if names != sequences:
            return None
        keys = self._kept.keys[number]
        return number if _begins(k, keys.k) and (v is None or _begins(v, keys.v)) else None

    def _mask(self, call: AttentionCall) -> tuple[int | None, Held | None, Alignment | None]:
        """The call's mask: its number if it is kept already, else itself; and the causal alignment beside it."""
        mask = call.mask
        if mask is None:
            return None, None, call.causal
        key = _whereabouts(mask, call)
        if key is not None and key in self._known:
            number, causal, _ = self._known[key]
            return number, None, causal
        small, causal = compressed(mask, call)
        if small is None:
            if key is not None:
                self._known[key] = (None, causal, mask)
            return None, None, causal
        new = bits(small, call.sizes[3]) if small.dtype == torch.bool else held(small)
        for number in self._masks:
            old = self._kept.masks[number]
            if old.dtype == new.dtype and np.array_equal(old.array, new.array):
                if key is not None:
                    self._known[key] = (number, causal, mask)
                return number, None, causal
        return None, new, causal

    def _new_mask(self, new: Held, call: AttentionCall, causal: Alignment | None) -> int:
        number = len(self._kept.masks)
        self._kept.masks.append(new)
        self._kept.used += size_of([new])
        self._masks.append(number)
        key = None if call.mask is None else _whereabouts(call.mask, call)
        if key is not None and call.mask is not None:
            self._known[key] = (number, causal, call.mask)
        return number


def held(tensor: Tensor) -> Held:
    """A copy of a tensor in the host's memory."""
    there = tensor.device.type == "cpu"
    copy = tensor.detach().clone(memory_format=torch.contiguous_format) if there else tensor.detach().contiguous().cpu()
    name = str(copy.dtype).removeprefix("torch.")
    return Held((copy.view(torch.int16) if copy.dtype == torch.bfloat16 else copy).numpy(), name)


def bits(mask: Tensor, num_keys: int) -> Held:
    """A bool mask `[b, h, n, M]`, eight keys a byte."""
    return Held(np.packbits(mask.expand(*mask.shape[:3], num_keys).cpu().numpy(), axis=-1), "bits")


def sequences_of(forward: Forward, rows: int) -> tuple[int, ...]:
    """Which sequence each row of an attention batch belongs to, counted from 0: several rows may be windows of one."""
    own = forward.sequences
    each = rows // len(own)
    # Rows that cannot be told apart all count as the first's.
    return tuple(own[0 if rows % len(own) else row // each] - 1 for row in range(rows))


def unrepeated(call: AttentionCall, values: bool) -> tuple[Tensor, Tensor | None]:
    """Keys and values `[B, H_kv, M, d]` with as many heads as the model has, where it repeated them."""
    k, v = call.k, call.v if values else None
    H, heads = call.q.shape[1], k.shape[1]
    each = call.place.kv_groups if heads == H else 1
    if heads > 1 and k.stride(1) == 0:
        each = heads
    if each == 1 or heads % each:
        return k, v
    groups = [t.unflatten(1, (-1, each)) for t in (k, v) if t is not None]
    if not all(bool((group == group[:, :, :1]).all()) for group in groups):
        return k, v
    return groups[0][:, :, 0], None if v is None else groups[1][:, :, 0]


def compressed(mask: Tensor, call: AttentionCall) -> tuple[Tensor | None, Alignment | None]:
    """A mask with the same effect in less memory, `[b, h, n, m]` or None, and the causal alignment that goes with it.

    A float mask that only hides becomes a bool one; rows that are all alike become one; a causal limit with key
    padding becomes the two.
    """
    M = call.sizes[3]
    mask = mask[(None,) * (4 - mask.dim())]
    for dim in range(4):
        if mask.stride(dim) == 0:
            mask = mask.narrow(dim, 0, 1)
    if mask.dtype != torch.bool:
        hidden = mask <= call.hide_below
        if not bool(((mask == 0) | hidden).all()):
            return mask, call.causal
        mask = ~hidden
    if bool(mask.all()):
        return None, call.causal
    if bool((mask == mask[:, :, :1]).all()):
        return mask[:, :, :1], call.causal
    if call.causal is None and call.window is None and mask.shape[3] == M:
        keys = mask.any(2, keepdim=True)
        alignments: tuple[Alignment, ...] = ("upper_left", "lower_right")
        for alignment in alignments:
            limit = visible_tile(call.with_(mask=None, causal=alignment), Tile())
            if limit is not None and bool((mask == (keys & limit)).all()):
                return None if bool(keys.all()) else keys, alignment
    return mask, call.causal


def _begins(whole: Tensor, pieces: list[Held]) -> bool:
    """Whether `whole [B, H, M, d]` begins with what was kept."""
    at = 0
    for piece in pieces:
        array, end = piece.array, at + piece.array.shape[2]
        part = whole[:, :, at:end]
        if tuple(part.shape) != array.shape or str(whole.dtype).removeprefix("torch.") != piece.dtype:
            return False
        one = torch.from_numpy(array)
        one = one.view(torch.bfloat16) if piece.dtype == "bfloat16" else one
        if not torch.equal(part, one.to(whole.device)):
            return False
        at = end
    return True


def _whereabouts(mask: Tensor, call: AttentionCall) -> tuple[Any, ...] | None:
    """What tells a mask from others of this forward; None where it may have been changed without a trace."""
    if mask.is_inference():
        return None
    shape = (mask.data_ptr(), mask._version, mask.dtype, mask.shape, mask.stride())
    return (*shape, call.sizes[2:], call.causal, call.window, call.hide_below)
