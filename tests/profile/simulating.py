"""Profiles made of numbers drawn at random: clustered rows, unequal lengths, whatever effect is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.measures.catalogue import OFFSETS, POSITION_BINS
from headwise.profile import Group, Layer, Profile
from headwise.profile.accumulators import Accumulator, PartSums

GROUP = Group(0, 0, "prefill", "self")


def part_of(total: Any, rows: Any, texts: Any = None, std: float = 1.0, first: int = 0) -> PartSums:
    """Sums of sequences with totals and rows `[K, H, C]`; `texts [C]` says which they are, `std` is that of rows."""
    S, N = np.asarray(total, float), np.broadcast_to(np.asarray(rows, float), np.shape(total)).copy()
    K, H, C = S.shape
    n = N.sum(-1)
    mean = S.sum(-1) / np.maximum(n, 1)
    bins = np.zeros((K, H, POSITION_BINS))
    return PartSums(
        counts=np.zeros((4, H)),
        rows=n,
        mean=mean,
        m2=std**2 * n,
        low=mean - std,
        high=mean + std,
        cluster_sum=S,
        cluster_rows=N,
        offsets=np.zeros((H, len(OFFSETS) + 1)),
        bin_sum=bins,
        bin_rows=bins,
        sequences=tuple(range(first, first + C)),
        identities=None if texts is None else np.asarray(texts, np.uint64),
    )


def sums_of(total: Any, rows: Any, texts: Any = None, std: float = 1.0) -> Accumulator:
    accumulator = Accumulator()
    accumulator.add(part_of(total, rows, texts, std))
    return accumulator


def profile_with(
    total: Any, rows: Any, texts: Any = None, measures: tuple[str, ...] = ("entropy",), std: float = 1.0, **more: Any
) -> Profile:
    """A profile of one layer."""
    profile = Profile(measures)
    H = np.shape(total)[1]
    layer = Layer(0, more.pop("name", "attn"), H, H, 8, ("self",), ("prefill",), 1, ("none",))
    profile.record(layer, more.pop("group", GROUP), part_of(total, rows, texts, std))
    assert not more
    return profile


def drawn(
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    *,
    spread: float = 0.8,
    within: float = 0.3,
    shared: Any = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Totals and rows `[K, H, C]` of sequences whose mean is random (variance 1), as are their lengths.

    Args:
        rng: Where chance comes from.
        shape: K, H, C.
        spread: Standard deviation of the logarithm of lengths.
        within: Standard deviation of a sequence's mean times the root of its length: small beside the variance
            between sequences, so that rows of one are far from independent.
        shared: Added to the mean of each sequence.
    """
    N = np.ceil(np.exp(rng.normal(3.5, spread, (shape[0], 1, shape[2])))) * np.ones(shape)
    mean = rng.normal(size=shape) + within * rng.normal(size=shape) / np.sqrt(N) + shared
    return mean * N, N
