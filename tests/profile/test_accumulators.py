"""Accumulators: any split into parts, in any order, is one pass; standard errors by the textbook."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.profile.accumulators import ADDED, CLUSTERS, MOMENTS, Accumulator, PartSums
from tests.oracle.definitions import clustered_se
from tests.profile.recording import assert_same_sums

# One head, one measure: a sequence is the list of its values; NaN = undefined for that row.
Sequence = list[float]


def part(sequences: list[Sequence], names: tuple[int, ...] | None = None) -> PartSums:
    """The sums of some sequences, in plain numpy; K = H = 1."""
    listed = np.array([x for sequence in sequences for x in sequence if not math.isnan(x)])

    def one(x: float) -> Any:
        return np.array([[float(x)]])

    kept = [[x for x in sequence if not math.isnan(x)] for sequence in sequences]
    mean = listed.mean() if len(listed) else 0.0
    bins = np.zeros((1, 1, 3))
    bins[0, 0, : min(3, len(listed))] = listed[:3]
    return PartSums(
        counts=np.array([[len(listed)], [1], [2], [3]], dtype=float),
        rows=one(len(listed)),
        mean=one(mean),
        m2=one(((listed - mean) ** 2).sum()),
        low=one(listed.min(initial=math.inf)),
        high=one(listed.max(initial=-math.inf)),
        cluster_sum=np.array([[[math.fsum(s) for s in kept]]]),
        cluster_rows=np.array([[[float(len(s)) for s in kept]]]),
        offsets=np.full((1, 18), float(len(sequences))),
        bin_sum=bins,
        bin_rows=(bins != 0).astype(float),
        sequences=tuple(range(len(sequences))) if names is None else names,
    )


def of(*parts: PartSums) -> Accumulator:
    accumulator = Accumulator()
    for one in parts:
        accumulator.add(one)
    return accumulator


def column(accumulator: Accumulator, name: str, summary: str = "mean") -> float:
    return float(accumulator.closed().columns([summary])[0][name][0])


values = st.floats(-100, 100) | st.just(math.nan)
sequences_of_values = st.lists(st.lists(values, min_size=0, max_size=6), min_size=1, max_size=8)


@given(sequences_of_values)
def test_columns_are_those_of_the_list(sequences: list[Sequence]) -> None:
    accumulator = of(part(sequences))
    pairs = [(x, c) for c, s in enumerate(sequences) for x in s if not math.isnan(x)]
    x = np.array([value for value, _ in pairs])
    if len(x) == 0:
        for name in ("", "_std", "_min", "_max", "_se"):
            assert math.isnan(column(accumulator, name)), name
        return
    assert column(accumulator, "") == pytest.approx(x.mean(), rel=1e-12, abs=1e-12)
    assert column(accumulator, "_std") == pytest.approx(x.std(), rel=1e-9, abs=1e-12)
    assert column(accumulator, "_min") == x.min()
    assert column(accumulator, "_max") == x.max()
    # Squared sums lose half of the digits where every sequence has the same mean.
    size = float(np.abs(x).max())
    assert column(accumulator, "_se") == pytest.approx(clustered_se(pairs), rel=1e-6, abs=1e-6 * size, nan_ok=True)


def test_standard_error_by_hand() -> None:
    """Sums 3 and 6 over 2 and 1 rows: mean 3, residuals -3 and 3, variance 2 * 18 / 9 = 4."""
    accumulator = of(part([[1.0, 2.0], [6.0]]))
    assert column(accumulator, "") == 3.0
    assert column(accumulator, "_se") == pytest.approx(2.0, abs=1e-12)
    assert column(accumulator, "_std") == pytest.approx(math.sqrt((4 + 1 + 9) / 3), abs=1e-12)


def test_equal_sequences_have_the_error_of_a_plain_mean() -> None:
    """One row each: the standard error of a sample mean, s / sqrt(n)."""
    x = np.array([1.0, 4.0, 2.0, 8.0])
    accumulator = of(part([[float(value)] for value in x]))
    assert column(accumulator, "_se") == pytest.approx(x.std(ddof=1) / 2, rel=1e-12)


def test_rows_of_one_text_are_no_independent_samples() -> None:
    alone = of(part([[1.0], [5.0], [3.0]]))
    repeated = of(part([[1.0] * 100, [5.0] * 100, [3.0] * 100]))
    assert column(repeated, "_se") == pytest.approx(column(alone, "_se"), rel=1e-12)


def test_one_sequence_has_no_standard_error_and_a_maximum_has_none() -> None:
    assert math.isnan(column(of(part([[1.0, 2.0]])), "_se"))
    assert math.isnan(column(of(part([[1.0, 2.0], [math.nan], []])), "_se"))
    two = of(part([[1.0, 2.0], [4.0]]))
    assert math.isnan(column(two, "_se", "max"))
    assert column(two, "", "max") == 4.0
    assert column(two, "_min", "max") == 1.0


@given(st.lists(st.lists(values, min_size=0, max_size=5), min_size=1, max_size=9), st.data())
def test_any_split_in_any_order_is_one_pass(sequences: list[Sequence], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, 3), min_size=len(sequences), max_size=len(sequences)))
    groups = [[i for i, at in enumerate(places) if at == g] for g in range(4)]
    parts = [part([sequences[i] for i in g], tuple(g)) for g in groups if g]
    order = data.draw(st.permutations(parts))
    whole = part(sequences)
    for name in ("counts", "offsets", "bin_sum", "bin_rows"):  # made up in part(), so add them up here
        setattr(whole, name, sum(getattr(one, name) for one in parts))
    one_pass = of(whole)
    assert_same_sums(of(*order), one_pass)
    merged = Accumulator()
    for one in order:
        merged.merge(of(one))
    assert_same_sums(merged, one_pass)
    # a tree: halves, then together
    half = len(order) // 2
    left, right = of(*order[:half]), of(*order[half:])
    left.merge(right)
    assert_same_sums(left, one_pass)


@given(st.lists(st.floats(0.99, 1.01), min_size=2, max_size=30), st.integers(1, 29), st.sampled_from([0.0, 1e3, 1e6]))
def test_nothing_cancels_far_from_zero(x: list[float], cut: int, far: float) -> None:
    x = [value + far for value in x]
    cut = min(cut, len(x) - 1)
    accumulator = of(part([x[:cut]], (0,)), part([x[cut:]], (1,)))
    assert column(accumulator, "_std") == pytest.approx(np.std(x), rel=1e-6, abs=1e-9)


@given(st.lists(st.lists(values, min_size=1, max_size=4), min_size=1, max_size=6), st.integers(1, 4))
def test_sequences_that_go_on_are_one_longer_call(steps: list[list[float]], width: int) -> None:
    """Decoding: step t brings a row to each sequence, under the same names."""
    rows = [(step * width)[:width] for step in steps]
    names = tuple(range(10, 10 + width))
    decoded = of(*(part([[x] for x in row], names) for row in rows))
    longer = part([[row[c] for row in rows] for c in range(width)], names)
    for name in ("counts", "offsets", "bin_sum", "bin_rows"):
        setattr(longer, name, len(rows) * getattr(longer, name))
    expected = of(longer)
    a, b = decoded.closed().arrays, expected.closed().arrays
    for name in (*MOMENTS, *CLUSTERS):
        size = max(1.0, float(np.abs(b[name][np.isfinite(b[name])]).max(initial=0)))
        np.testing.assert_allclose(a[name], b[name], rtol=1e-12, atol=1e-12 * size, err_msg=name)


def test_the_same_rows_under_new_names_are_other_sequences() -> None:
    same = of(part([[1.0], [2.0]], (0, 1)), part([[3.0], [6.0]], (0, 1)))
    new = of(part([[1.0], [2.0]], (0, 1)), part([[3.0], [6.0]], (2, 3)))
    assert float(same.closed().arrays["sequences"][0, 0]) == 2
    assert float(new.closed().arrays["sequences"][0, 0]) == 4
    assert column(same, "") == column(new, "") == 3.0
    # sums 4 and 8 of 2 rows each: residuals -2 and 2
    assert column(same, "_se") == pytest.approx(math.sqrt(2 * 8) / 4, rel=1e-12)
    # residuals -2, -1, 0, 3
    assert column(new, "_se") == pytest.approx(math.sqrt(4 / 3 * 14) / 4, rel=1e-12)


def test_reading_does_not_close_a_sequence() -> None:
    read, unread = Accumulator(), Accumulator()
    for row in ([1.0, 2.0], [3.0, 7.0], [5.0, 1.0]):
        read.add(part([[x] for x in row]))
        column(read, "_se")
        unread.add(part([[x] for x in row]))
    assert_same_sums(read, unread)
    assert float(read.closed().arrays["sequences"][0, 0]) == 2


def test_merging_leaves_the_other_as_it_was() -> None:
    a, b = of(part([[1.0, 2.0]], (0,))), of(part([[5.0], [6.0]], (1, 2)))
    before = {name: array.copy() for name, array in b.closed().arrays.items()}
    a.merge(b)
    a.add(part([[9.0]], (3,)))
    for name, array in b.closed().arrays.items():
        np.testing.assert_array_equal(array, before[name])
    b.add(part([[1.0], [1.0]], (1, 2)))  # its sequences are still open
    assert float(b.closed().arrays["sequences"][0, 0]) == 2


def test_adding_does_not_change_the_part() -> None:
    first, second = part([[1.0, 2.0], [3.0]]), part([[4.0], [5.0]])
    names = (*ADDED, *MOMENTS, "cluster_sum", "cluster_rows")
    before = {name: getattr(first, name).copy() for name in names}
    accumulator = of(first, second)
    accumulator.add(part([[7.0], [8.0]]))
    for name in names:
        np.testing.assert_array_equal(getattr(first, name), before[name], err_msg=name)


def test_a_part_without_rows_changes_only_the_counts() -> None:
    accumulator, alone = of(part([[1.0, 2.0], [4.0]])), of(part([[1.0, 2.0], [4.0]]))
    accumulator.add(part([[math.nan], []], (7, 8)))
    for name in ("", "_std", "_min", "_max", "_se"):
        assert column(accumulator, name) == column(alone, name)
    assert accumulator.closed().arrays["counts"][:, 0].tolist() == [3, 2, 4, 6]
    early = of(part([[math.nan], []], (7, 8)), part([[1.0, 2.0], [4.0]]))
    assert_same_sums(early, accumulator)
