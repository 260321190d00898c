"""From attention calls to a profile, without a model: what the recorder of headwise.capture does, in a few lines."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from hypothesis import settings

from headwise.call import AttentionCall
from headwise.kernels import row_statistics
from headwise.measures.catalogue import BY_NAME
from headwise.measures.summary import Part, summarise
from headwise.profile import Group, Layer, Profile
from headwise.profile.accumulators import Accumulator, PartSums

ALL = tuple(BY_NAME)
NEW = itertools.count(1000)

FEWER = settings(max_examples=max(1, settings.default.max_examples // 3))
"""For properties whose every example records several calls."""


def sums_of(call: AttentionCall, sequences: tuple[int, ...] | None = None, measures: tuple[str, ...] = ALL) -> PartSums:
    """The sums of one call; `sequences` names its sequences, which are new ones if not said."""
    part = summarise(row_statistics(call), measures)
    number = part.cluster_sum.shape[2]
    names = tuple(next(NEW) for _ in range(number)) if sequences is None else sequences
    assert len(names) == number
    arrays: dict[str, Any] = {name: getattr(part, name).numpy() for name in Part.__dataclass_fields__}
    return PartSums(**arrays, sequences=names)


def add(profile: Profile, call: AttentionCall, sequences: tuple[int, ...] | None = None) -> int:
    """Record one call in a profile; returns how many sequences it has, which are new ones if not named."""
    place, H = call.place, call.sizes[1]
    layer = Layer(
        place.layer, place.name, H, H // place.kv_groups, call.q.shape[-1], (place.kind,), (place.phase,), 1,
        (call.causal or "none",),
    )  # fmt: skip
    group = Group(place.layer, place.call, place.phase, place.kind)
    sums = sums_of(call, sequences, profile.measures)
    profile.record(layer, group, sums)
    return len(sums.sequences)


def profile_of(*calls: AttentionCall | tuple[AttentionCall, tuple[int, ...]]) -> Profile:
    """A profile of calls; each may come with the names of its sequences, else its sequences are new ones."""
    profile = Profile()
    for one in calls:
        add(profile, *(one if isinstance(one, tuple) else (one,)))
    return profile


def random_call(B: int = 2, H: int = 3, N: int = 6, M: int | None = None, d: int = 4, **more: Any) -> AttentionCall:
    M = N if M is None else M
    q, k = (torch.randn(B, H, n, d, dtype=torch.float64) for n in (N, M))
    return AttentionCall(q * 2, k, **more)


def assert_same_sums(a: Accumulator, b: Accumulator, tolerance: float = 1e-12) -> None:
    """Two accumulators hold the same sums; the tolerance is relative to the size of each array."""
    one, other = a.closed().arrays, b.closed().arrays
    assert one.keys() == other.keys()
    for name in one:
        finite = np.abs(other[name][np.isfinite(other[name])])
        size = max(1.0, float(finite.max(initial=0.0)))
        np.testing.assert_allclose(one[name], other[name], rtol=tolerance, atol=tolerance * size, err_msg=name)


def assert_same_table(a: Profile, b: Profile, tolerance: float = 1e-10, skip: tuple[str, ...] = ()) -> None:
    """Two tables hold the same numbers."""
    one, other = a.table(), b.table()
    assert list(one.columns) == list(other.columns)
    assert len(one) == len(other)
    for column in one.columns:
        if column in skip:
            continue
        x, y = one[column].to_numpy(), other[column].to_numpy()
        if x.dtype.kind == "f":
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, err_msg=column)
        else:
            assert x.tolist() == y.tolist(), column
