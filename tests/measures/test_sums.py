"""Clustered sums against the oracle's lists of rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.measures.sums import ClusterSums
from tests.oracle.definitions import clustered_se

rows = st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), min_size=1, max_size=12)


def sums(listed: list[tuple[float, int]]) -> ClusterSums:
    total, number = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for value, sequence in listed:
        total[sequence] += value
        number[sequence] += 1
    return ClusterSums.of(total[None], number[None])


@given(rows)
def test_mean_and_error_are_those_of_the_list(listed: list[tuple[float, int]]) -> None:
    found = sums(listed)
    assert float(found.mean[0]) == pytest.approx(np.mean([value for value, _ in listed]), abs=1e-12)
    assert float(found.error[0]) == pytest.approx(clustered_se(listed), abs=1e-6, nan_ok=True)


@given(rows, rows)
def test_merging_is_one_list(a: list[tuple[float, int]], b: list[tuple[float, int]]) -> None:
    merged, whole = sums(a) + sums(b), sums(a + [(value, sequence) for value, sequence in b])
    separate = a + [(value, 4 + sequence) for value, sequence in b]
    assert float(merged.mean[0]) == pytest.approx(float(whole.mean[0]), abs=1e-12)
    assert float(merged.error[0]) == pytest.approx(clustered_se(separate), abs=1e-6, nan_ok=True)
    assert merged.sequences[0] == len({sequence for _, sequence in separate})


def test_nothing_is_nan() -> None:
    nothing = ClusterSums.of(torch.zeros(1, 3), torch.zeros(1, 3))
    assert math.isnan(float(nothing.mean))
    assert math.isnan(float(nothing.error))
