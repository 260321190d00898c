"""What `measures="all"` adds to the page: roles with their evidence, keys with their tokens, pairs, labels, limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from headwise.measures.roles import Thresholds
from headwise.report import keys, labels, page, pairs, payload
from headwise.report import payload as payload_of
from headwise.report.roles import KINDS, role_words
from tests.report.recorded import HOSTILE, TEXTS, alike, filled, whole
from tests.report.test_report import Reader
from tests.synthetic import synthetic

payload_module = __import__("headwise.report.payload", fromlist=["payload"])


def text_of(html: str) -> str:
    return " ".join("".join(Reader(html).text).split())


# Roles


def test_every_role_has_a_tag_of_its_own_and_a_threshold() -> None:
    assert len({kind.tag for kind in KINDS.values()}) == len(KINDS)
    assert {kind.threshold for kind in KINDS.values()} == set(Thresholds.__dataclass_fields__)


def test_roles_are_told_with_number_threshold_and_spread() -> None:
    profile = whole()
    data = payload(profile)["roles"]
    by_name = {kind["name"]: kind for kind in data["kinds"]}
    assert {name: kind["heads"] for name, kind in by_name.items()} == {"positional": 2, "sink": 2, "self": 2}
    assert by_name["sink"]["threshold"] == "> 0.3"
    assert by_name["positional"]["threshold"] == "≥ 90%"
    table, found = profile.table(), profile.roles()
    for row, roles in enumerate(data["of"]):
        expected = found[(found["label"] == table["label"][row]) & (found["role"] != "mixed")]
        assert role_words(data, row) == ", ".join(expected["role"])
        for (_, value, spread, *_offset), one in zip(roles, expected.to_dict("records"), strict=True):
            assert value == pytest.approx(one["value"], rel=1e-3)
            assert (
                spread is None
                if one["spread"] is None or math.isnan(one["spread"])
                else spread == pytest.approx(one["spread"], rel=0.1)
            )
    strongest = by_name["self"]["strongest"]
    assert [(one["label"], one["says"]) for one in strongest] == [("L0H0", "0.9999 ± 0.058"), ("L1H2", "0.6 ± 0.035")]
    assert by_name["positional"]["strongest"][0]["says"] == "99.9% at 0"
    assert data["mixed"] == 2
    assert set(data["untested"]) == {"previous", "next", "delimiter", "duplicate", "induction", "broad"}


def test_the_page_names_roles_without_javascript() -> None:
    said = text_of(page(whole()))
    assert "weight that the first key receives from a row that may see it > 0.3 L0H2 0.8 ± 0, L0H1 0.7 ± 0" in said
    assert "2 heads passed no threshold (mixed)." in said
    assert "positional(0), self" in said
    assert "Roles" not in text_of(page(synthetic(2, 2))).replace("What the columns mean", "")


# Keys


def test_keys_are_told_with_tokens_that_all_texts_share() -> None:
    data = payload(whole())["keys"]
    assert data["sink_rate"] == pytest.approx(2 / 6)  # exactly 0.3 is not above it
    assert data["strongest"][3] == [[1, 0.4, 0], [0, 0.2, 0], [2, 0.1, 0]]
    assert data["tokens"] == {"0": HOSTILE, "2": "b"}
    (view,) = data["views"]
    first = view["keys"][0]
    assert (first["position"], first["label"], first["most"], first["above"]) == (0, "L0H2", 0.8, 2)
    assert first["alpha"] == pytest.approx(np.mean([0.1, 0.7, 0.8, 0.2, 0.3, 0.1]), rel=1e-3)
    assert (data["few"], view["keys"][1]["token"]) == (0, None)


@pytest.mark.parametrize("why", ["cross", "not kept", "packed", "without tokens"])
def test_a_token_is_not_named_where_positions_are_not_those_of_the_texts(why: str) -> None:
    profile = filled({"first": [[0.5]]}, alpha=[[[0.5, 0.2]]], kind="cross" if why == "cross" else "self")
    assert payload(filled({"first": [[0.5]]}, alpha=[[[0.5, 0.2]]]))["keys"]["tokens"] == {"0": "<s>"}
    if why == "not kept":
        profile.record_sequences([], 1)
    if why == "packed":
        profile.read.total = TEXTS - 1
    if why == "without tokens":
        profile.sequences[1].tokens = None
    assert payload(profile)["keys"]["tokens"] == {}


def test_keys_that_few_rows_may_see_are_not_ranked_under_a_causal_limit() -> None:
    alpha = np.zeros((1, 1, 20))
    alpha[..., 12], alpha[..., 13], alpha[..., 0] = 0.3, 0.9, 0.2
    assert payload(filled({"first": [[0.5]]}, alpha=alpha))["keys"]["strongest"][0][0][:2] == [13, 0.9]
    data = payload(filled({"first": [[0.5]]}, alpha=alpha, causal="upper_left"))["keys"]
    # Of 20 rows 8 may see key 12, and 7 may see key 13.
    assert data["strongest"][0][:2] == [[12, 0.3, 0], [0, 0.2, 0]]
    assert (data["few"], keys.FEW_ROWS) == (8, 8)


# Pairs


def test_pairs_lie_in_the_order_of_their_heads_and_the_most_alike_come_first() -> None:
    data = payload(whole())["pairs"]
    assert [measure["name"] for measure in data["measures"]] == ["bc", "hellinger", "js", "output_similarity"]
    assert data["places"][0]["values"]["bc"] == [0.5, 0.25, 0.975]
    assert data["places"][1]["values"]["hellinger"] == [0.875, 0.25, 0.00004]
    assert data["places"][1]["values"]["bc"][2] == 0.99996, "four digits would make 1 of it"
    assert data["top"]["bc"][:2] == [[1, 1, 2, 0.99996, 0], [0, 1, 2, 0.975, 0]]
    assert [top[:3] for top in data["top"]["js"][:2]] == [[1, 1, 2], [0, 1, 2]], "a small distance is alike"
    assert data["measures"][0]["ends"] == [0.125, 0.99996]
    assert payload(synthetic(1, 1))["pairs"] is None
    assert payload(filled({"first": [[0.5]]}, pairs=[alike(heads=1)]))["pairs"] is None, "one head is no pair"


def test_the_most_alike_pairs_can_be_read_without_javascript() -> None:
    said = text_of(page(whole()))
    assert "L1H1 – L1H20.999960 L0H1 – L0H20.9750" in said, "heads, value and error in their cells"


# Labels


def test_labels_are_aligned_with_the_rows_of_the_page() -> None:
    profile = whole()
    # A label that has no rows in layer 1.
    del profile.labelled["question"][next(group for group in profile.groups if group.layer == 1)]
    question, hostile = payload(profile)["labels"]
    assert question["values"]["self_focus"]["mean"] == [0.3] * 3 + [None] * 3
    assert question["rows"] == [192] * 3 + [0] * 3
    assert hostile["name"] == HOSTILE
    assert hostile["values"]["entropy"]["mean"] == [4] * 6
    assert payload(filled({"first": [[0.5]]}))["labels"] == []


# Size


def test_what_is_too_much_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = whole()
    assert payload(profile)["left_out"] == []
    monkeypatch.setattr(pairs, "EMBEDDED", 13)
    monkeypatch.setattr(labels, "EMBEDDED", 6 * 4 * 5)
    data = payload(profile)
    assert [measure["left_out"] for measure in data["pairs"]["measures"]] == [False, False, True, True]
    assert data["pairs"]["places"][0]["errors"] == {}
    assert set(data["pairs"]["places"][0]["values"]) == {"bc", "hellinger"}
    assert len(data["pairs"]["top"]["js"]) == 6
    assert [label["name"] for label in data["labels"]] == ["question"]
    said = text_of(page(profile))
    assert "too large for one page, so left out: the errors of all but the most alike pairs" in said
    assert "all but the most alike pairs by js, output_similarity (profile.pairs(name) has them)" in said
    monkeypatch.setattr(payload_module, "EMBEDDED", 10)
    fewer = payload_of(profile)
    assert set(fewer["values"]["first"]) == {"mean", "se"}
    assert "the standard deviation" in fewer["left_out"][0]


# Numbers and notes


def test_a_share_below_one_is_never_shown_as_one() -> None:
    reader = Reader(page(filled({"self_focus": [[0.9999, 1.0, 0.00004, 0.0]]})))
    cells = [text.strip() for text in reader.text]
    assert {">0.999", "1.000", "<0.001", "0.000"} <= set(cells)
    other = Reader(page(filled({"distance": [[0.9999, 2.0]]})))
    assert "1.000" in [text.strip() for text in other.text], "a distance of 1 is not all there is"


def test_notes_of_the_profile_are_told() -> None:
    profile = whole()
    profile.note("delimiter is <b>undefined</b>: no tokenizer")
    html = page(profile)
    assert "Note: delimiter is &lt;b&gt;undefined&lt;/b&gt;: no tokenizer." in html


def test_hostile_labels_and_tokens_stay_text() -> None:
    reader = Reader(page(whole()))
    tags: list[Any] = [tag for tag, _ in reader.elements]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert "".join(reader.text).count("window.hacked=1") >= 2
