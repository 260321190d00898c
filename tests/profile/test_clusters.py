"""The sums of single sequences: kept as they end, merged by putting them together, given up beyond a limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.profile import Group, Profile, profiles
from headwise.profile.accumulators import Accumulator
from headwise.profile.clusters import Clusters
from headwise.profile.files import load
from tests.profile.simulating import part_of, profile_with


def kept(accumulator: Accumulator) -> dict[int, tuple[float, float]]:
    """Identity to (total, rows) of the first measure and head."""
    clusters = accumulator.by_sequence()
    assert clusters is not None
    total, rows, names = clusters.arrays()
    assert len(names) == clusters.count == len(set(names.tolist()))
    return {int(n): (float(total[0, 0, c]), float(rows[0, 0, c])) for c, n in enumerate(names)}


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=30), max_size=8))
def test_what_is_appended_is_there_in_order(forwards: list[list[int]]) -> None:
    clusters, total, rows, names = Clusters(), [], [], []
    for forward in forwards:
        r = np.array(forward, float) * np.array([1.0, 2.0])[:, None]  # two heads
        clusters.append((r * 3)[None], r[None], np.arange(1, len(forward) + 1, dtype=np.uint64))
        some = [i for i, n in enumerate(forward) if n]
        total += [3.0 * forward[i] for i in some]
        rows += [2.0 * forward[i] for i in some]
        names += [i + 1 for i in some]
    found_total, found_rows, found_names = clusters.arrays()
    assert clusters.count == len(names)
    assert clusters.numbers == 4 * len(names)
    assert found_names.tolist() == names
    if names:
        assert found_total[0, 0].tolist() == total
        assert found_rows[0, 1].tolist() == rows


def test_a_sequence_is_kept_when_it_ends_and_read_before() -> None:
    """Decoding: three forwards bring rows to the same two sequences, then others come."""
    accumulator = Accumulator()
    for _ in range(3):
        accumulator.add(part_of([[[1.0, 2.0]]], 1, [11, 12]))
        assert set(kept(accumulator)) == {11, 12}
    assert accumulator.clusters is not None
    assert accumulator.clusters.count == 0
    accumulator.add(part_of([[[5.0]]], 1, [13], first=7))
    assert kept(accumulator) == {11: (3.0, 3.0), 12: (6.0, 3.0), 13: (5.0, 1.0)}
    assert accumulator.clusters.count == 2


def test_merging_puts_them_together_and_leaves_the_other() -> None:
    a, b = Accumulator(), Accumulator()
    a.add(part_of([[[1.0, 2.0]]], 1, [1, 2]))
    b.add(part_of([[[7.0]]], 2, [3]))
    a.merge(b)
    assert kept(a) == {1: (1.0, 1.0), 2: (2.0, 1.0), 3: (7.0, 2.0)}
    assert kept(b) == {3: (7.0, 2.0)}
    b.clusters = None
    a.merge(b)
    assert a.by_sequence() is None
    assert a.closed().arrays["sequences"][0, 0] == 4


def test_the_sums_of_sequences_add_up_to_those_of_the_group() -> None:
    rng = np.random.default_rng(0)
    accumulator = Accumulator()
    for first in range(0, 40, 4):
        accumulator.add(part_of(rng.normal(size=(2, 3, 4)), rng.integers(0, 9, (2, 3, 4)), first=first))
    clusters = accumulator.by_sequence()
    assert clusters is not None
    total, rows, _ = clusters.arrays()
    arrays = accumulator.closed().arrays
    np.testing.assert_allclose(total.sum(-1), arrays["s"])
    np.testing.assert_allclose(rows.sum(-1), arrays["n"])
    np.testing.assert_allclose((total * rows).sum(-1), arrays["sn"])


def test_beyond_the_limit_they_are_given_up_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two numbers for each of 2 sequences, 1 measure, 2 heads: 8 a forward."""
    monkeypatch.setattr(profiles, "KEPT_SUMS", 24)
    rng = np.random.default_rng(1)
    profile, free = profile_with(rng.normal(size=(1, 2, 2)), 1, [1, 2]), None
    layer = profile.layers[0]
    for step in range(1, 6):
        part = part_of(rng.normal(size=(1, 2, 2)), 1, [3, 4], first=10 * step)
        profile.record(layer, Group(0, 0, "prefill", "self"), part)
        # The last forward is open, so it is not counted yet.
        assert bool(profile.unpairable) == (step > 3), step
        free = profile.table()
    assert free is not None
    assert free["entropy_se"].notna().all()
    assert "more sequences than it keeps one by one (24 numbers)" in profile.unpairable
    assert all(sums.by_sequence() is None for sums in profile.groups.values())
    profile.record(layer, Group(0, 1, "prefill", "self"), part_of(np.ones((1, 2, 2)), 1, [3, 4]))
    assert all(sums.by_sequence() is None for sums in profile.groups.values())
    profile.save(tmp_path / "p")
    again = load(tmp_path / "p")
    assert again.unpairable == profile.unpairable
    assert again.table().equals(profile.table())
    assert again.merge(load(tmp_path / "p")).unpairable == profile.unpairable


def test_merging_counts_against_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiles, "KEPT_SUMS", 15)
    a, b, c = (profile_with(np.ones((1, 1, 3)) * i, 1, [i, i + 1, i + 2]) for i in (1, 11, 21))
    a.merge(b)
    assert a.unpairable == ""
    a.save(tmp_path / "a")
    for whole in (load(tmp_path / "a"), a):
        whole.merge(c)
        assert "one by one (15 numbers)" in whole.unpairable
    assert b.unpairable == c.unpairable == ""
    b.merge(a)
    assert b.unpairable == a.unpairable
    fresh = Profile(("entropy",)).merge(c)
    assert fresh.unpairable == ""
    assert fresh.merge(b).unpairable
    assert all(sums.clusters is None for sums in fresh.groups.values())
