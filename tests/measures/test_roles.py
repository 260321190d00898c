"""Roles: thresholds, evidence in words, and what is no evidence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.measures.roles import Thresholds, roles

NAN = math.nan
RULES = {
    "alpha_first": ("sink", 0.3),
    "self_focus": ("self", 0.5),
    "previous": ("previous", 0.5),
    "next": ("next", 0.5),
    "delimiter": ("delimiter", 0.5),
    "duplicate": ("duplicate", 0.5),
    "induction": ("induction", 0.5),
    "entropy_ratio": ("broad", 0.9),
}


def labels(evidence: dict[str, Any], **more: Any) -> list[list[str]]:
    return [[role.label for role in head] for head in roles(evidence, **more)]


def histogram(**counts: float) -> list[float]:
    """Counts by offset self - argmax: minus3=4, own=1, plus1=9, other=2."""
    out = [0.0] * 18
    for name, count in counts.items():
        sign = -1 if name.startswith("minus") else 1
        at = 17 if name == "other" else 8 + (0 if name == "own" else sign * int(name[-1]))
        out[at] = count
    return out


@pytest.mark.parametrize("name", RULES)
def test_a_role_begins_above_its_threshold(name: str) -> None:
    label, limit = RULES[name]
    assert labels({name: [limit - 0.01, limit, limit + 0.01, 1.0]}) == [["mixed"], ["mixed"], [label], [label]]
    field = {"alpha_first": "sink", "entropy_ratio": "broad"}.get(name, name)
    own = Thresholds(**{field: 0.7})
    assert labels({name: [0.69, 0.7, 0.71]}, thresholds=own) == [["mixed"], ["mixed"], [label]]


def test_the_evidence_is_told() -> None:
    (role,) = roles({"previous": [0.8312]}, spread={"previous": [0.0214], "next": [0.5]})[0]
    assert role.evidence == "mean weight on the previous token 0.831 ± 0.021 over texts (> 0.5)"
    assert (role.value, role.spread) == (0.8312, 0.0214)
    (role,) = roles({"alpha_first": [0.42]}, spread={"alpha_first": [NAN]})[0]
    assert role.evidence == "weight that the first key receives from a row that may see it 0.42 (> 0.3)"
    assert role.spread is None
    (role,) = roles({"induction": [0.9]})[0]
    assert "repeated random tokens" in role.evidence


@pytest.mark.parametrize(
    ("counts", "label", "evidence"),
    [
        ({"plus1": 90, "own": 10}, "positional(-1)", "largest weight at the previous token in 90.0% of rows (>= 90%)"),
        ({"minus1": 95, "own": 5}, "positional(+1)", "largest weight at the next token in 95.0% of rows (>= 90%)"),
        ({"own": 1}, "positional(0)", "largest weight at the own position in 100.0% of rows (>= 90%)"),
        ({"plus4": 0.97, "other": 0.03}, "positional(-4)", "4 tokens before the own position in 97.0%"),
        ({"minus8": 19, "plus8": 1}, "positional(+8)", "8 tokens after the own position in 95.0%"),
    ],
)
def test_positional(counts: dict[str, float], label: str, evidence: str) -> None:
    (role,) = roles({}, offsets=[histogram(**counts)])[0]
    assert role.label == label
    assert evidence in role.evidence


@pytest.mark.parametrize("counts", [{"plus1": 89, "own": 11}, {"other": 100}, {"plus1": 50, "other": 50}])
def test_not_positional(counts: dict[str, float]) -> None:
    assert labels({}, offsets=[histogram(**counts)]) == [["mixed"]]
    assert labels({}, offsets=[histogram(**counts)], thresholds=Thresholds(positional=0.5)) in (
        [["mixed"]], [["positional(-1)"]],
    )  # fmt: skip


def test_a_head_can_have_several() -> None:
    evidence = {"previous": np.array([0.7, 0.1]), "alpha_first": [0.35, 0.31], "entropy_ratio": [0.2, 0.95]}
    found = labels(evidence, offsets=[histogram(plus1=99, other=1), histogram(other=5)])
    assert found == [["positional(-1)", "sink", "previous"], ["sink", "broad"]]


def test_no_evidence_gives_no_label() -> None:
    assert labels({"previous": [NAN, None, 0.1], "next": [None, NAN, NAN]}) == [[], [], ["mixed"]]
    assert labels({}, offsets=[[0.0] * 18, [NAN] * 18]) == [[], []]
    assert labels({}) == []
    assert labels({"entropy": [0.9]}) == []


def test_columns_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"a number for each head in every column; got lengths \[1, 2\]"):
        roles({"next": [0.1], "previous": [0.1, 0.2]})
    with pytest.raises(ValueError, match=r"got lengths \[1, 2\]"):
        roles({"next": [0.1]}, offsets=[histogram(own=1)] * 2)
    with pytest.raises(ValueError, match="expected 18 bins of offsets; got 3"):
        roles({}, offsets=[[1, 2, 3]])


@given(st.dictionaries(st.sampled_from(list(RULES)), st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1))
def test_heads_are_judged_one_by_one(evidence: dict[str, list[float]]) -> None:
    whole = roles(evidence)
    for head in range(3):
        assert roles({name: [column[head]] for name, column in evidence.items()}) == [whole[head]]
        expected = {RULES[name][0] for name, column in evidence.items() if column[head] > RULES[name][1]}
        assert {role.label for role in whole[head]} == (expected or {"mixed"})
