"""The answers in plain words: for each claim its word, and for each study a sentence with numbers and intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwise.studies.claims import CUT, CUT_AND_SCALE, FIRST, QUESTIONS, REGIME, agreed
from headwise.studies.findings import Answer, Finding, Verdict
from headwise.studies.page.words import named, ranged
from headwise.studies.verdict import Read

_SHARES = ("self_focus", "least_self_focus", "own_largest", "cut", "cut_and_scale")
_AGAINST = {question.estimand: question.against for question in QUESTIONS if question.against is not None}
_ASKED = {
    claim: [question.estimand for question in (*QUESTIONS, CUT, CUT_AND_SCALE) if question.claim == claim]
    for claim in (*FIRST, "3")
}


@dataclass(frozen=True)
class Said:
    """What one study says of a claim."""

    study: str
    word: str
    sentence: str


@dataclass(frozen=True)
class Told:
    """A claim with its answer.

    Attributes:
        claim: "1a", "1b", "2" or "3".
        about: Which regime, and whether a control; "" where the article's setting is meant.
        word: A key of the texts' `words`.
        said: What each study says.
    """

    claim: str
    about: str
    word: str
    said: tuple[Said, ...] = ()


def first(verdict: Verdict, reads: Mapping[str, Read], words: dict[str, Any]) -> list[Told]:
    """The article's claims in its own setting, answered or not."""
    found = verdict.leading()
    return [
        _told(found[claim], verdict, reads, words) if claim in found else Told(claim, "", "unanswered")
        for claim in FIRST
    ]


def rest(verdict: Verdict, reads: Mapping[str, Read], words: dict[str, Any]) -> list[Told]:
    """The re-split, the other regime, the controls."""
    return [_told(answer, verdict, reads, words) for answer in verdict.others()]


def _told(answer: Answer, verdict: Verdict, reads: Mapping[str, Read], words: dict[str, Any]) -> Told:
    about = [words["regimes"][answer.regime]] if answer.regime != REGIME else []
    about += [words["regimes"]["control"]] if answer.is_control else []
    said = []
    for study, word in answer.studies:
        own = [
            one for one in verdict.findings
            if (one.study, one.claim, one.regime, one.is_control)
            == (study, answer.claim, answer.regime, answer.is_control)
        ]  # fmt: skip
        said.append(Said(study, word, _sentence(quoted(own, word), reads[study], words)))
    return Told(answer.claim, words["list"].join(about), answer.word, tuple(said))


def quoted(findings: Sequence[Finding], word: str) -> list[Finding]:
    """The findings of one h: of those that have the study's word, the one that speaks most for the article.

    Args:
        findings: All of one study, claim and regime.
        word: The study's word.
    """
    by_heads: dict[int, list[Finding]] = {}
    for one in findings:
        by_heads.setdefault(one.heads, []).append(one)
    same = [several for several in by_heads.values() if agreed(one.word for one in several) == word]
    leading = _ASKED[findings[0].claim][0]

    def favour(several: list[Finding]) -> float:
        # An h that lacks the leading number is quoted last.
        return max((one.sign * one.mean for one in several if one.estimand == leading), default=float("-inf"))

    return max(same or list(by_heads.values()), key=favour)


def _sentence(findings: Sequence[Finding], read: Read, words: dict[str, Any]) -> str:
    claim, numbers = findings[0].claim, read.numbers
    values = dict.fromkeys(_ASKED[claim], words["says"]["unknown"])
    values |= {one.estimand: _value(one, words) for one in findings}
    return str(
        words["says"][claim].format(
            **values,
            heads=findings[0].heads,
            score_name=named(words, "scores", numbers.score_name),
            better=words["says"]["higher" if numbers.higher_is_better else "lower"],
        )
    )


def _value(one: Finding, words: dict[str, Any]) -> str:
    """The difference with its interval; of claim 1a the number itself."""
    against = _AGAINST.get(one.estimand, 0.0) or 0.0
    factor = 100.0 if one.estimand in _SHARES else 1.0
    low = None if one.low is None else factor * (one.low + against)
    high = None if one.high is None else factor * (one.high + against)
    sign = "" if one.estimand in _AGAINST else "+"
    form = ".1f" if one.estimand in _SHARES else ".2f" if one.estimand in _AGAINST else ".3f"
    unit = words["units"].get(one.estimand, "")
    return ranged(factor * (one.mean + against), low, high, sign + form, words, unit)
