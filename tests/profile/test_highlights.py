"""The sentences about heads that stand out: numbers by hand, thresholds, phases, honesty about nothing."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from headwise.profile.highlights import Highlight, highlights
from tests.synthetic import synthetic

NAN = float("nan")


def table(*heads: dict[str, Any]) -> pd.DataFrame:
    """A table whose i-th row is head i of layer 0, unless it says otherwise."""
    rows = []
    for index, head in enumerate(heads):
        row = {"layer": 0, "head": index, "call": 0, "phase": "prefill", "kind": "self", "rows": 9}
        row |= {"masked_rows": 0, "padded_rows": 0, "nonfinite_rows": 0, **head}
        rows.append({"label": f"L{row['layer']}H{row['head']}", **row})
    return pd.DataFrame(rows)


def about(measure: str, found: list[Highlight]) -> Highlight:
    one = [highlight for highlight in found if highlight.measure == measure]
    assert len(one) == 1, found
    return one[0]


def test_the_own_position_claim_is_a_fact_with_numbers() -> None:
    found = highlights(table({"self_focus": 0.1}, {"self_focus": 0.9}, {"self_focus": 0.2}))
    assert about("self_focus", found) == Highlight(
        "self_focus",
        "Own position",
        "The average head gives 0.4 of its weight to its own position; "
        "1 of 3 heads gives it more than half: L0H1 (0.9).",
        ("L0H1",),
        (1,),
    )


def test_a_head_at_exactly_one_half_does_not_exceed_it() -> None:
    found = highlights(table({"self_focus": 0.5}, {"self_focus": 0.1}))
    assert "none of the 2 heads gives it more than half (the most is 0.5, L0H0)" in about("self_focus", found).sentence


@pytest.mark.parametrize(("measure", "target"), [("previous", "previous"), ("next", "next"), ("first", "first")])
def test_positional_heads_are_named_strongest_first(measure: str, target: str) -> None:
    found = highlights(table(*({measure: value} for value in (0.6, 0.98, 0.4, 0.7, 0.55))), limit=2)
    one = about(measure, found)
    assert (
        one.sentence == f"L0H1, L0H3 and 2 more put more than half of their weight on the {target} token (up to 0.98)."
    )
    assert one.heads == ("L0H1", "L0H3", "L0H0", "L0H4")
    assert one.places == (1, 3, 0, 4)


def test_one_head_takes_the_singular() -> None:
    one = about("previous", highlights(table({"previous": 0.75}, {"previous": 0.1})))
    assert one.sentence == "L0H0 puts more than half of its weight on the previous token (0.75)."


def test_broad_sharp_far() -> None:
    found = highlights(
        table(
            {"entropy_ratio": 0.95, "max_weight": 0.1, "distance": 2.0},
            {"entropy_ratio": 0.90, "max_weight": 0.9, "distance": 1250.0},
        )
    )
    assert about("entropy_ratio", found).heads == ("L0H0",)
    assert about("max_weight", found).sentence == (
        "L0H1 is the sharpest: a row's largest weight averages 0.9 (the average head: 0.5)."
    )
    assert about("distance", found).sentence == (
        "L0H1 reads farthest: 1,250 tokens away on average (the average head: 626.0)."
    )


def test_scores_beyond_qk_clip_are_said_to_be() -> None:
    calm = about("max_score", highlights(table({"max_score": 12.34}, {"max_score": -3.0})))
    assert calm.sentence == "The largest score is 12.3 (L0H0); QK-clip would step in at 100."
    wild = about("max_score", highlights(table({"max_score": 100.4}, {"max_score": 3000.0}, {"max_score": 100.0})))
    assert wild.sentence == "L0H1 and L0H0 reach scores above 100, QK-clip's threshold (up to 3,000)."


def test_masked_and_nonfinite_rows_are_never_silent() -> None:
    found = highlights(table({"masked_rows": 2}, {"layer": 3, "masked_rows": 5}, {"nonfinite_rows": 1}))
    assert about("masked_rows", found).sentence == (
        "In layers 0 and 3, rows may see no key at all (up to 5 rows a head): they are counted, never averaged."
    )
    assert about("nonfinite_rows", found).sentence == (
        "L0H2 met NaN or infinite scores (up to 1 row a head): those rows are counted, never averaged."
    )


def test_undefined_values_are_skipped() -> None:
    found = highlights(table({"self_focus": NAN, "next": NAN}, {"self_focus": 0.2, "next": NAN}, {"self_focus": 0.4}))
    assert not [one for one in found if one.measure == "next"]
    assert "The average head gives 0.3" in about("self_focus", found).sentence
    assert "none of the 2 heads that have one" in about("self_focus", found).sentence
    assert not any("nan" in one.sentence.lower().split() for one in found)


def test_two_phases_are_told_apart() -> None:
    found = highlights(table({"head": 0, "first": 0.8}, {"head": 0, "first": 0.9, "phase": "decode"}))
    first = [one for one in found if one.measure == "first"]
    assert [one.sentence.split(", ")[0] for one in first] == ["In prefill", "While decoding"]
    assert [one.places for one in first] == [(0,), (1,)]
    assert [one.heads for one in first] == [("L0H0",), ("L0H0",)]


def test_a_label_seen_in_several_calls_says_which() -> None:
    found = highlights(
        table({"head": 0, "first": 0.8}, {"head": 0, "first": 0.9, "call": 1}, {"head": 1, "first": 0.7})
    )
    assert about("first", found).sentence.startswith("L0H0 (call 1), L0H0 (call 0) and L0H1 put")


def test_layers_of_different_kinds_are_not_ambiguous() -> None:
    found = highlights(table({"first": 0.8}, {"layer": 1, "first": 0.9, "kind": "window"}))
    assert about("first", found).sentence.startswith("L1H1 and L0H0 put")


def test_nothing_stands_out_is_said() -> None:
    found = highlights(table({"previous": 0.2, "first": 0.3, "entropy_ratio": 0.5}, {"previous": 0.1}))
    assert found[-1] == Highlight(
        "",
        "No head stands out",
        "No head puts more than half of its weight on the previous token or the first token; "
        "none spreads its weight almost evenly.",
        (),
    )
    assert not [one for one in highlights(table({"previous": 0.6})) if one.measure == ""]


def test_no_measure_and_no_row_are_said() -> None:
    assert [one.sentence for one in highlights(table({"self_focus": NAN}))] == [
        "Nothing can be said of these heads: no measure is defined for any of them."
    ]
    assert [one.title for one in highlights(table({}).iloc[:0])] == ["Nothing was measured"]


def test_what_even_attention_does_too_does_not_stand_out() -> None:
    """Over one or two keys, uniform attention gives half of its weight or more to any of them."""
    heads = [
        {
            "self_focus": 0.52,
            "previous": 0.6,
            "entropy_ratio": 0.99,
            "self_lift": 1.0,
            "max_weight": 0.525,
            "distance": r,
        }
        for r in (0.748, 0.751)
    ]
    found = {one.title: one for one in highlights(table(*heads))}
    assert set(found) == {"Own position", "Broad heads"}
    assert "(1x uniform); none of the 2 heads" in found["Own position"].sentence


def test_the_table_may_come_with_any_index_and_is_left_alone() -> None:
    given = synthetic(2, 3).table()
    shuffled = given.set_index(pd.Index([f"r{i}" for i in range(len(given))]))
    before = shuffled.copy()
    assert highlights(shuffled) == highlights(given)
    pd.testing.assert_frame_equal(shuffled, before)


def test_every_number_in_a_large_table_stays_readable() -> None:
    for one in highlights(synthetic(20, 16, phases=("prefill", "decode")).table(), limit=3):
        assert len(one.sentence) < 200
        assert "e+" not in one.sentence
        assert len(one.heads) == len(one.places)
        assert not any(math.isnan(place) for place in one.places)


def test_sinks_that_write_little_name_both_shares() -> None:
    found = highlights(
        table(
            {"first": 0.9, "value_first": 0.09},
            {"first": 0.8, "value_first": 0.4},  # exactly half is not less than half
            {"first": 0.6, "value_first": 0.01},
            {"first": 0.4, "value_first": 0.0},  # no sink
            {"first": 0.7, "value_first": NAN},
        )
    )
    one = about("value_first", found)
    assert one.sentence == (
        "2 heads give the first token more than half of their weight, but take from it less than half as large a "
        "share of the values read (by length): L0H2 (weight 0.6, values 0.01) and L0H0 (weight 0.9, values 0.09)."
    )
    assert one.heads == ("L0H2", "L0H0")
    assert not [one for one in highlights(table({"first": 0.9})) if one.measure == "value_first"]


def test_induction_heads_are_named_with_how_to_be_sure() -> None:
    one = about("induction", highlights(table({"induction": 0.5}, {"induction": 0.75})))
    assert one.sentence == (
        "L0H1 puts more than half of its weight on what followed an earlier occurrence of the token (0.75); "
        "induction_scores tests that on random tokens."
    )


def pair(a: int, b: int, bc: float, **place: Any) -> dict[str, Any]:
    return {
        "layer": 0,
        "a": f"L0H{a}",
        "b": f"L0H{b}",
        "call": 0,
        "phase": "prefill",
        "kind": "self",
        "bc": bc,
        **place,
    }


def test_heads_alike_are_named_and_those_that_only_share_a_sink_counted() -> None:
    heads = table({"first": 0.9}, {"first": 0.1}, {"first": 0.8})
    close = pd.DataFrame([pair(0, 1, 0.95), pair(0, 2, 0.97), pair(1, 2, 0.9996)])
    one = about("bc", highlights(heads, pairs=close))
    assert one.sentence == (
        "2 of 3 pairs of heads in a layer have nearly the same pattern (bc > 0.95); in 1 of them both lean on the "
        "first token: L0H1 and L0H2 (0.9996); L0H0 and L0H2 (0.97)."
    )
    assert one.places == (1, 2, 0, 2)
    assert not [one for one in highlights(heads, pairs=close.iloc[:1]) if one.measure == "bc"]
    one_of_two = about("bc", highlights(table({"first": 0.1}, {"first": 0.1}, {}), pairs=close.iloc[::2]))
    assert one_of_two.sentence.startswith("1 of 2 pairs of heads in a layer has nearly the same pattern")
    alone = about("bc", highlights(table({"first": 0.1}, {"first": 0.1}), pairs=close.iloc[2:].replace("L0H2", "L0H0")))
    assert alone.sentence.startswith("1 of 1 pair of heads in a layer has nearly the same pattern (bc > 0.95): ")


def test_pairs_of_two_phases_are_told_apart() -> None:
    heads = table({"head": 0}, {"head": 1}, {"head": 0, "phase": "decode"}, {"head": 1, "phase": "decode"})
    close = pd.DataFrame([pair(0, 1, 0.5), pair(0, 1, 0.99, phase="decode")])
    one = about("bc", highlights(heads, pairs=close))
    assert one.sentence.startswith("While decoding, 1 of 1 pair")
    assert one.places == (2, 3)


def test_a_share_just_below_one_is_not_said_to_be_one() -> None:
    assert "(0.9999)" in about("previous", highlights(table({"previous": 0.9999}))).sentence
