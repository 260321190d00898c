"""What is kept of attention calls, so that the exact weights of any head can be looked at later. Arrays, no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headwise.errors import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headwise.profile.profiles import Profile
    from headwise.profile.records import Group

LIMIT = "1GB"

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

Window: TypeAlias = int | tuple[int | None, int | None]


class Held(NamedTuple):
    """A tensor as an array, C-contiguous.

    Attributes:
        array: Its numbers; of bfloat16, which numpy lacks, their bits as int16; of bool eight keys a byte.
        dtype: Its dtype as torch names it, or "bits".
    """

    array: NDArray[Any]
    dtype: str


@dataclass(eq=False)
class Keys:
    """The keys, and values where they are kept, of one or several calls: those of a cache grow from call to call.

    Attributes:
        k: Pieces `[B, H_kv, m, d_k]` that follow each other along the keys.
        v: Pieces `[B, H_kv, m, d_v]`; empty where values are not kept.
    """

    k: list[Held] = field(default_factory=list)
    v: list[Held] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Keys that they hold."""
        return sum(piece.array.shape[2] for piece in self.k)

    def append(self, k: Held, v: Held | None) -> None:
        """Add keys behind those that are there."""
        for pieces, piece in ((self.k, k), (self.v, v)):
            if piece is None or not piece.array.shape[2]:
                continue
            pieces.append(piece)
            # As many pieces as a number has digits: a cache that grows by one is neither copied nor walked each time.
            while len(pieces) > 1 and pieces[-2].array.shape[2] <= pieces[-1].array.shape[2]:
                pieces[-2:] = [joined(pieces[-2:])]


@dataclass(frozen=True, eq=False)
class KeptCall:
    """One attention call.

    Attributes:
        group: Its layer, call, phase and kind.
        sequences: Which sequence each row of its batch belongs to, counted from 0 in the order they were read `[B]`.
        q: Queries `[B, H, N, d_k]`.
        lse: As in `headwise.RowStatistics` `[B, H, N]`.
        keys: Which `Keys` it reads: of those the first `num_keys`, M.
        num_keys: M.
        mask: Which mask it has, `[b, h, n, m]` with b, h and n possibly 1; None: none.
        sinks: Sink logits `[H]`.
        causal: As in `headwise.AttentionCall`, like all that follow.
        scale: Factor of the scores.
        softcap: Cap of the scores.
        window: Sliding window.
        hide_below: From where on a float mask hides.
        of_text: Whether its keys are the tokens of the profile's sequences (not those of a decoder beside them).
    """

    group: Group
    sequences: tuple[int, ...]
    q: Held
    lse: Held
    keys: int
    num_keys: int
    mask: int | None = None
    sinks: Held | None = None
    causal: str | None = None
    scale: float | None = None
    softcap: float | None = None
    window: Window | None = None
    hide_below: float = 0.0
    of_text: bool = True


@dataclass
class Kept:
    """The calls that were kept, in the order in which they were made, up to a limit.

    Attributes:
        limit: Bytes that all of it may take.
        calls: The calls.
        keys: Their keys and values.
        masks: Their masks: one that layers share is there once.
        dropped: How many calls of a group came when the limit was reached.
        used: Bytes that are taken.
    """

    limit: int
    calls: list[KeptCall] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    masks: list[Held] = field(default_factory=list)
    dropped: dict[Group, int] = field(default_factory=dict)
    used: int = 0

    def fits(self, size: int) -> bool:
        """Whether another `size` bytes may be kept; once a call was dropped, none that comes later is kept."""
        return not self.dropped and self.used + size <= self.limit

    def drop(self, group: Group, count: int = 1) -> None:
        """Count calls that are not kept."""
        self.dropped[group] = self.dropped.get(group, 0) + count

    def note(self) -> str:
        """How many calls of which layers are missing, in words; "" if none is."""
        count = sum(self.dropped.values())
        if not count:
            return ""
        calls, were = (f"{count:,} calls", "were") if count > 1 else ("1 call", "was")
        layers = layers_text({group.layer for group in self.dropped})
        return f"keep: {calls} of {layers} {were} not kept: keep_limit of {size_text(self.limit)} was reached"

    def extend(self, other: Kept, offset: int) -> None:
        """Add the calls of another profile, whose sequences are numbered on from `offset`, while they fit."""
        keys: dict[int, int] = {}
        masks: dict[int, int] = {}
        for call in list(other.calls):
            new_keys = [] if call.keys in keys else [*other.keys[call.keys].k, *other.keys[call.keys].v]
            new_mask = [] if call.mask is None or call.mask in masks else [other.masks[call.mask]]
            size = size_of([call.q, call.lse, *new_keys, *new_mask, *([call.sinks] if call.sinks else [])])
            if not self.fits(size):
                self.drop(call.group)
                continue
            self.used += size
            if new_keys:
                keys[call.keys] = len(self.keys)
                theirs = other.keys[call.keys]
                self.keys.append(Keys(list(theirs.k), list(theirs.v)))
            if new_mask and call.mask is not None:
                masks[call.mask] = len(self.masks)
                self.masks += new_mask
            self.calls.append(
                replace(
                    call,
                    sequences=tuple(number + offset for number in call.sequences),
                    keys=keys[call.keys],
                    mask=None if call.mask is None else masks[call.mask],
                )
            )
        for group, count in other.dropped.items():
            self.drop(group, count)


def renote(profile: Profile, before: str) -> None:
    """Put what is missing now into the profile's notes, in place of what was missing before."""
    if before in profile.notes:
        profile.notes.remove(before)
    if profile.kept is not None and (now := profile.kept.note()):
        profile.note(now)


def merge_kept(profile: Profile, other: Profile) -> None:
    """Add what another profile kept, after its notes and before its sequences are added to this one's."""
    theirs = other.kept
    if theirs is None:
        return
    if profile.kept is None:
        profile.kept = Kept(theirs.limit)
    before, told = profile.kept.note(), theirs.note()
    profile.kept.extend(theirs, profile.num_sequences)
    if told in profile.notes:
        profile.notes.remove(told)
    renote(profile, before)


def joined(pieces: list[Held]) -> Held:
    """Pieces `[B, H, m, d]` that follow each other as one."""
    import numpy as np

    return pieces[0] if len(pieces) == 1 else Held(np.concatenate([p.array for p in pieces], axis=2), pieces[0].dtype)


def size_of(held: list[Held]) -> int:
    """Bytes that arrays take."""
    return sum(one.array.nbytes for one in held)


def bytes_of(limit: int | str) -> int:
    """A size in bytes, given as a number or as in "1GB", "200 MB", "512 kB", "2 GiB".

    Raises:
        ValueError: It is neither.
    """
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0:
        return limit
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b\s*", limit, re.IGNORECASE) if type(limit) is str else None
    if found is None:
        raise ValueError(f"keep_limit: expected bytes, or a size as in '1GB', '200 MB', '512 kB'; got {shown(limit)}")
    return int(float(found[1]) * UNITS[(found[2] or "").lower()])


def size_text(size: int) -> str:
    """A number of bytes, to read: "1 GB", "2.5 MB"."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} bytes"


def layers_text(layers: set[int]) -> str:
    """Layers, to read: "L0, L3-L5"."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(sorted(layers)), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"L{run[0]}" if len(run) == 1 else f"L{run[0]}-L{run[-1]}" for run in runs)
