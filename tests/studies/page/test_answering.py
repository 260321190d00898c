"""Which number is quoted, and in which words."""

from __future__ import annotations

import pytest

from headwise.studies.findings import Verdict
from headwise.studies.page import answering
from headwise.studies.page.words import texts
from headwise.studies.verdict import verdict_of
from tests.studies.test_verdict import read

LOSSES = {
    ("heldout_loss", 1): (1.0, 1.0, 1.0),
    ("heldout_loss", 2): (0.80, 0.81, 0.79),
    ("heldout_loss", 4): (0.7, 0.1, 0.4),
}
SCORES = {("score", 1): (0.5, 0.5, 0.5), ("score", 2): (0.7, 0.71, 0.69), ("score", 4): (0.8, 0.2, 0.9)}


def told(verdict: Verdict, reads: dict[str, object]) -> dict[str, answering.Told]:
    return {one.claim: one for one in answering.first(verdict, reads, texts("en"))}  # type: ignore[arg-type]


def test_the_h_with_the_answers_word_is_quoted() -> None:
    """h = 4 has the larger mean difference, but h = 2 is what makes the claim supported."""
    one = read({**LOSSES, **SCORES}, heads=(1, 2, 4))
    verdict = verdict_of([one])
    assert {f.heads: f.word for f in verdict.findings if f.estimand == "heldout_loss"} == {
        2: "supported",
        4: "undecided",
    }
    found = told(verdict, {"a": one})
    assert found["2"].word == "supported"
    (said,) = found["2"].said
    assert said.sentence == (
        "with h = 2, the held-out loss changes by −0.200 nats [−0.225, −0.175] against h = 1, accuracy by "
        "+0.200 [+0.175, +0.225] (more is better)."
    )
    assert (found["1a"].word, found["1b"].word, found["1a"].said) == ("unanswered", "unanswered", ())


def test_an_undecided_claim_quotes_what_speaks_most_for_the_article() -> None:
    values = {
        ("self_focus", 1): (0.5, 0.5, 0.5),
        ("self_focus", 2): (0.4, 0.6, 0.45),
        ("self_focus", 4): (0.5, 0.7, 0.6),
    }
    one = read(values, heads=(1, 2, 4))
    found = told(verdict_of([one]), {"a": one})
    assert "with h = 2," in found["1b"].said[0].sentence
    assert "by −1.7 percentage points [" in found["1b"].said[0].sentence
    assert "beyond untrained models, by (unknown)" in found["1b"].said[0].sentence


def test_one_head_is_told_by_the_number_itself() -> None:
    """Not by the difference to uniform attention and to half of the rows."""
    one = read({("self_lift", 1): (1.4, 1.5, 1.6), ("own_largest", 1): (0.2, 0.3, 0.4)})
    (said,) = told(verdict_of([one]), {"a": one})["1a"].said
    half = 4.302653 * 0.1 / 3**0.5
    assert said.sentence == (
        f"the own key gets 1.50 [{1.5 - half:.2f}, {1.5 + half:.2f}] times the weight of uniform attention; it is the "
        f"largest in 30.0 % [{30 - 100 * half:.1f}, {30 + 100 * half:.1f}] of the rows."
    )


def test_the_rest_stands_apart() -> None:
    main = read({**LOSSES, **SCORES}, heads=(1, 2, 4))
    control = read({**LOSSES, **SCORES}, heads=(1, 2, 4), label="b", init="per_head")
    verdict = verdict_of([main, control])
    reads = {"a": main, "b": control}
    rest = answering.rest(verdict, reads, texts("en"))
    assert [(one.claim, one.about, one.word) for one in rest] == [("2", "initial weights per head", "supported")]
    assert [said.study for said in rest[0].said] == ["b"]
    assert [said.study for said in told(verdict, dict(reads))["2"].said] == ["a"]


@pytest.mark.parametrize("word", ["supported", "undecided"])
def test_quoted_falls_back_on_any_h(word: str) -> None:
    verdict = verdict_of([read(LOSSES, heads=(1, 2, 4))])
    found = answering.quoted([f for f in verdict.findings if f.heads == 2], word)
    assert {one.heads for one in found} == {2}
