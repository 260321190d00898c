"""Which heads are compared with each other, and what is said where they cannot be."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwise
from headwise.profile import Group, Layer, Profile
from headwise.profile.matching import assignment
from tests.profile.simulating import part_of, profile_with


def best_by_trying_all(gain: np.ndarray) -> float:
    gain = gain if gain.shape[0] <= gain.shape[1] else gain.T
    R, C = gain.shape
    return max(sum(gain[i, p[i]] for i in range(R)) for p in itertools.permutations(range(C), R))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32 - 1), st.booleans())
def test_the_assignment_is_the_best_of_all(R: int, C: int, seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    gain = rng.integers(-2, 3, (R, C)).astype(float) if ties else rng.normal(size=(R, C))
    pairs = assignment(gain)
    rows, columns = zip(*pairs, strict=True)
    assert len(set(rows)) == len(set(columns)) == len(pairs) == min(R, C)
    assert list(rows) == sorted(rows)
    assert sum(gain[i, j] for i, j in pairs) == pytest.approx(best_by_trying_all(gain), abs=1e-12)


def test_the_assignment_is_the_best_of_all_where_many_compete() -> None:
    rng = np.random.default_rng(1)
    for _ in range(150):
        gain = rng.integers(0, 9, (5, 6)) + rng.normal(size=6)
        assert sum(gain[i, j] for i, j in assignment(gain)) == pytest.approx(best_by_trying_all(gain), abs=1e-9)


def test_the_assignment_is_not_greedy() -> None:
    """Head 0 likes head 0 best, but head 1 has nobody else."""
    assert assignment(np.array([[0.9, 0.8], [0.85, 0.1]])) == [(0, 1), (1, 0)]


def test_the_assignment_finds_a_permutation_of_many() -> None:
    rng = np.random.default_rng(0)
    order = rng.permutation(96)
    gain = 0.6 * rng.random((96, 96))
    gain[np.arange(96), order] = 0.7
    assert assignment(gain) == list(enumerate(order))


def two(heads: tuple[int, int] = (2, 2), **b: Any) -> tuple[Profile, Profile]:
    rng = np.random.default_rng(0)
    return tuple(  # type: ignore[return-value]
        profile_with(rng.normal(size=(1, h, 5)), 3, range(1, 6), **more) for h, more in zip(heads, ({}, b), strict=True)
    )


def with_layer(profile: Profile, number: int, name: str = "other") -> Profile:
    part = part_of(np.ones((1, 2, 5)), 1, range(1, 6))
    profile.record(Layer(number, name, 2, 2, 8), Group(number, 0, "prefill", "self"), part)
    return profile


def refused(a: Any, b: Any, kind: type[Exception] = ValueError, **how: Any) -> str:
    with pytest.raises(kind) as error:
        headwise.compare(a, b, **how)
    assert str(error.value).startswith("compare: ")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_other_head_counts_and_names_are_refused_with_the_way_out() -> None:
    message = refused(*two((2, 3)))
    assert "layer 0 (attn) has 2 heads in a and 3 in b" in message
    assert 'match="layer"' in message
    message = refused(*two(name="decoder.attn"))
    assert "'attn' in a and 'decoder.attn' in b" in message
    assert 'match="layer"' in message


def test_layers_that_one_profile_lacks_are_named() -> None:
    a, b = two()
    message = refused(with_layer(with_layer(a, 3), 4), b)
    assert "a has layers 3, 4 alone" in message
    assert "layers=[0] compares those that both have" in message
    assert headwise.compare(a, b, layers=[0]).table()["layer"].unique().tolist() == [0]
    assert headwise.compare(a, b, layers=["attn"]).table()["layer"].unique().tolist() == [0]
    assert "neither profile has a layer 7" in refused(a, b, layers=[7])
    assert "neither profile has a layer 'att'" in refused(a, b, layers=["att"])
    assert "a has layer 3 alone; they have no layer in common" not in refused(a, b, layers=[3])
    assert "got none in b" in refused(a, b, layers=[3])


def test_empty_profiles_and_what_is_no_profile() -> None:
    a, _ = two()
    assert "got none in b" in refused(a, Profile(("entropy",)))
    assert "b must be a headwise.Profile; got DataFrame" in refused(a, a.table(), kind=TypeError)


def test_measures() -> None:
    a, b = two(measures=("first",))
    assert "no measure in common; a has entropy, b has first" in refused(a, b)
    assert "expected names among entropy; got 'first'" in refused(a, a, measures=["entropy", "first"])
    assert "got an empty list" in refused(a, a, measures=[])
    assert headwise.compare(a, a, measures="entropy").table()["measure"].unique().tolist() == ["entropy"]


def test_calls_that_only_one_profile_has() -> None:
    a, b = two(group=Group(0, 0, "decode", "self"))
    message = refused(a, b)
    assert "a has prefill self, b has decode self" in message
    both = headwise.compare(two()[0].merge(b), two()[0])
    assert both.notes == ["only a has L0 decode self"]
    assert both.table()["phase"].unique().tolist() == ["prefill"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"match": "pattern"}, "needs similarity="),
        ({"match": "pattern", "similarity": {1: np.eye(2)}}, "there is no matrix of layer 0; got layer 1"),
        ({"match": "pattern", "similarity": {0: np.eye(3)}}, "expected finite numbers [2, 2]"),
        ({"match": "pattern", "similarity": {0: np.eye(2) * np.nan}}, "NaN or infinite"),
        ({"similarity": {0: np.eye(2)}}, 'similarity= is for match="pattern"'),
        ({"match": "best"}, "match: expected one of 'place', 'pattern', 'layer'; got 'best'"),
        ({"correct_over": "some"}, "correct_over: expected one of 'all', 'heads'; got 'some'"),
    ],
)
def test_arguments_that_do_not_fit(how: dict[str, Any], said: str) -> None:
    assert said in refused(*two(), **how)


def test_heads_that_changed_places_are_found_by_their_patterns() -> None:
    rng = np.random.default_rng(2)
    S = 10 * rng.normal(size=(1, 3, 1)) + rng.normal(size=(1, 3, 8))
    a, b = profile_with(S, 1, range(1, 9)), profile_with(S[:, [2, 0, 1]] + 1e-9, 1, range(1, 9))
    assert len(headwise.compare(a, b).significant())
    bc = np.array([[0.2, 0.9, 0.1], [0.3, 0.2, 0.8], [0.7, 0.1, 0.2]])
    found = headwise.compare(a, b, match="pattern", similarity={0: bc})
    table = found.table().sort_values("head")
    assert table["head"].tolist() == [0, 1, 2]
    assert table["head_b"].tolist() == [1, 2, 0]
    assert found.significant().empty
    assert table["note"].tolist() == [f"equal within rounding; bc {x}" for x in ("0.900", "0.800", "0.700")]


def test_with_fewer_heads_some_have_no_partner() -> None:
    a, b = two((3, 2))
    found = headwise.compare(a, b, match="pattern", similarity={0: np.array([[0, 0.1], [0.9, 0], [0, 0.8]])})
    assert found.table().sort_values("head")[["head", "head_b"]].to_numpy().tolist() == [[1, 0], [2, 1]]
    assert found.notes == ["no partner for L0H0 of a"]
