"""Verdicts on numbers that were made up, with answers worked out by hand, and on a real study's folder."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from headwise.errors import FileFormatError, InputError
from headwise.profile.writing import json_value
from headwise.studies import evidence, telling
from headwise.studies.claims import agreed, to_a_degree
from headwise.studies.estimands import FINAL, State
from headwise.studies.facts import facts_of
from headwise.studies.findings import Finding, Verdict
from headwise.studies.folders import StudyFolder
from headwise.studies.numbers import Numbers, Where
from headwise.studies.paired import Word
from headwise.studies.resplit import Cutting, Scale
from headwise.studies.verdict import Read, verdict_of
from tests.studies.small import small_plan

REGIME = "fixed_width"
ABOUT = ("self_lift", "own_largest", "self_focus", "least_self_focus", *FINAL)
Values = Mapping[tuple[str, int], Sequence[float]]


def read(
    values: Values,
    before: Values = MappingProxyType({}),
    *,
    label: str = "a",
    heads: tuple[int, ...] = (1, 2),
    **more: Any,
) -> Read:
    """A study in which these estimands, at these numbers of heads, came to so much for seeds 0, 1, ...; NaN: none."""
    seeds = max(map(len, values.values()))
    plan = small_plan(heads=heads, seeds=seeds, regimes=(REGIME,), init=more.pop("init", "fused"))
    found = {}
    states: tuple[tuple[State, Values], ...] = (("trained", values), ("untrained", before))
    for state, some in states:
        for (estimand, h), several in some.items():
            for seed, value in enumerate(several):
                if not math.isnan(value):
                    found[Where(estimand, REGIME, h, seed, state)] = value
    recuts = more.pop("recuts", {})
    return Read(Numbers(label, plan, found, score_name=more.pop("score_name", "accuracy"), **more), recuts)


def finding(verdict: Verdict, estimand: str, study: str = "a", heads: int = 2) -> Finding:
    (one,) = (f for f in verdict.findings if (f.estimand, f.study, f.heads) == (estimand, study, heads))
    return one


def p_of(t: float) -> float:
    """Two-sided, of three seeds."""
    return 1 - t / math.sqrt(t * t + 2)


def test_a_paired_difference_by_hand() -> None:
    """-0.1, -0.2, -0.3: t = -2 sqrt 3; seeds differ far more than heads, which pairing takes out."""
    verdict = verdict_of([read({("heldout_loss", 1): (1.0, 5.0, 9.0), ("heldout_loss", 2): (0.9, 4.8, 8.7)})])
    one = finding(verdict, "heldout_loss")
    assert (one.claim, one.regime, one.heads, one.seeds, one.sign, one.least) == ("2", REGIME, 2, (0, 1, 2), -1, 0.01)
    assert one.differences == pytest.approx((-0.1, -0.2, -0.3))
    assert (one.mean, one.d_z) == pytest.approx((-0.2, -2))
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert (one.low, one.high) == pytest.approx((-0.2 - half, -0.2 + half), abs=1e-6)
    assert one.p == pytest.approx(p_of(2 * math.sqrt(3)))
    assert one.p_short == pytest.approx(1 - p_of(1.9 * math.sqrt(3)) / 2)
    assert (one.family, one.p_corrected, one.word, one.control) == (1, one.p, "undecided", None)


def test_holm_goes_across_heads_and_tasks() -> None:
    """Of each estimand: two tasks with two numbers of heads are a family of four."""
    rng = np.random.default_rng(0)
    values = {(name, h): rng.normal(size=3).tolist() for name in ("heldout_loss", "score") for h in (1, 2, 4)}
    other = {place: rng.normal(size=3).tolist() for place in values}
    verdict = verdict_of([read(values, heads=(1, 2, 4)), read(other, heads=(1, 2, 4), label="b")])
    for name in ("heldout_loss", "score"):
        family = sorted((f for f in verdict.findings if f.estimand == name), key=lambda f: f.p or 0)
        assert [f.family for f in family] == [4] * 4
        raised = [min(1, (f.p or 0) * times) for f, times in zip(family, (4, 3, 2, 1), strict=True)]
        assert [f.p_corrected for f in family] == pytest.approx(np.maximum.accumulate(raised).tolist())
        short = sorted((f for f in verdict.findings if f.estimand == name), key=lambda f: f.p_short or 0)
        raised = [min(1, (f.p_short or 0) * times) for f, times in zip(short, (4, 3, 2, 1), strict=True)]
        assert [f.p_short_corrected for f in short] == pytest.approx(np.maximum.accumulate(raised).tolist())


def test_each_regime_has_families_and_answers_of_its_own() -> None:
    """The article's comes first; the other says the opposite, and changes nothing."""
    one = read({("score", 1): (0.1, 0.2, 0.3), ("score", 2): (0.5, 0.7, 0.6),
                ("heldout_loss", 1): (1.0, 2.0, 3.0), ("heldout_loss", 2): (0.5, 1.6, 2.4)})  # fmt: skip
    values = dict(one.numbers.values)
    for place, value in one.numbers.values.items():
        values[place._replace(regime="fixed_head_size")] = -value
    plan = small_plan(heads=(1, 2), seeds=3, regimes=("fixed_head_size", REGIME))
    verdict = verdict_of([one._replace(numbers=replace(one.numbers, plan=plan, values=values))])
    assert {f.family for f in verdict.findings} == {1}
    assert [(a.regime, a.word) for a in verdict.answers] == [
        (REGIME, "supported"),
        ("fixed_head_size", "not supported"),
    ]
    assert "supported at this size (a: supported)" in telling.lines(verdict)[3]
    assert "(fixed_head_size): not supported" in telling.lines(verdict)[4]


def test_one_head_is_compared_with_uniform_attention_and_half_of_the_rows() -> None:
    values = {("self_lift", 1): (1.4, 1.5, 1.6), ("own_largest", 1): (0.2, 0.3, 0.4)}
    verdict = verdict_of([read(values, {("self_lift", 1): (1.0, 1.1, 0.9)})])
    lift, largest = finding(verdict, "self_lift", heads=1), finding(verdict, "own_largest", heads=1)
    assert lift.differences == pytest.approx((0.4, 0.5, 0.6))
    assert largest.differences == pytest.approx((-0.3, -0.2, -0.1))
    assert (lift.word, largest.word) == ("supported", "not supported")
    assert lift.control is not None
    assert (lift.control.mean, lift.control.sd, lift.control.seeds) == pytest.approx((0, 0.1, 3))
    assert [(a.claim, a.word) for a in verdict.answers] == [("1a", "undecided")], "its estimands do not agree"


def test_a_seed_that_lacks_one_of_a_pair_is_left_out() -> None:
    nan = math.nan
    values = {("heldout_loss", 1): (1.0, 1.0, nan, 1.0, 1.0), ("heldout_loss", 2): (0.5, nan, 0.1, 0.6, 0.4)}
    one = finding(verdict_of([read(values)]), "heldout_loss")
    assert (one.seeds, one.differences) == ((0, 3, 4), (-0.5, -0.4, -0.6))
    assert one.word == "supported"


def test_too_few_seeds_leave_it_undecided() -> None:
    one = finding(verdict_of([read({("score", 1): (0.1,), ("score", 2): (0.9,)})]), "score")
    assert (one.mean, one.low, one.d_z, one.p, one.p_corrected, one.family) == (0.8, None, None, None, None, 0)
    assert one.word == "undecided"
    two = finding(verdict_of([read({("score", 1): (0.1, 0.1), ("score", 2): (0.9, 0.8)})]), "score")
    assert (two.p, two.word) == (None, "undecided")
    assert two.low is not None


def test_a_ceiling_is_no_improvement() -> None:
    one = finding(verdict_of([read({("score", 1): (1.0,) * 3, ("score", 2): (1.0,) * 3})]), "score")
    assert (one.mean, one.d_z, one.p, one.word) == (0, None, 1, "not supported")


@pytest.mark.parametrize(
    ("more", "sign", "least", "word"),
    [
        ({"score_name": "bits_per_byte", "higher_is_better": False}, -1, 0.01, "not supported"),
        ({"score_name": "accuracy"}, 1, 0.01, "supported"),
        ({"score_name": "bleu"}, 1, 0.5, "not supported"),
        ({"score_name": "of their own"}, 1, 0.0, "supported"),
    ],
)
def test_which_scores_are_better(more: Any, sign: int, least: float, word: str) -> None:
    one = finding(verdict_of([read({("score", 1): (0.5,) * 3, ("score", 2): (0.6, 0.61, 0.62)}, **more)]), "score")
    assert (one.sign, one.least, one.word) == (sign, least, word)


def test_the_least_of_several_heads_is_judged_beyond_chance() -> None:
    """It falls by 0.1; in untrained models too, so training has done nothing."""
    fall = {("least_self_focus", 1): (0.3,) * 4, ("least_self_focus", 2): (0.20, 0.21, 0.19, 0.20)}
    one = finding(verdict_of([read(fall, fall)]), "least_self_focus")
    assert (one.differences, one.word) == ((0.0,) * 4, "not supported")
    assert one.control is not None
    assert one.control.mean == pytest.approx(-0.1)
    still = {("least_self_focus", 1): (0.3,) * 4, ("least_self_focus", 2): (0.29,) * 4}
    one = finding(verdict_of([read(fall, still)]), "least_self_focus")
    assert one.differences == pytest.approx((-0.09, -0.08, -0.10, -0.09))
    assert one.word == "supported"


def test_layers_cut_anew() -> None:
    """The single head has 0.5; cut 0.4, and 0.45 at its own scale."""
    recuts = {}
    for seed in range(3):
        scales: tuple[tuple[Scale, float], ...] = (("trained", 0.4), ("own", 0.45))
        for scale, value in scales:
            recuts[seed, "self_focus", Cutting(2, scale)] = value + seed / 1000
    values = {("self_focus", 1): (0.5, 0.5, 0.5)}
    before = {("self_focus", 1): (0.3, 0.3, 0.3), ("self_focus", 2): (0.2, 0.3, 0.4)}
    verdict = verdict_of([read(values, before, recuts=recuts)])
    cut, both = finding(verdict, "cut"), finding(verdict, "cut_and_scale")
    assert cut.differences == pytest.approx((-0.1, -0.099, -0.098))
    assert both.differences == pytest.approx((-0.05, -0.049, -0.048))
    assert (cut.claim, cut.word, both.word, cut.control) == ("3", "supported", "supported", None)
    assert both.control is not None
    assert both.control.mean == pytest.approx(0)
    # With other initial weights at each h, a model with two heads is no cut of the one with one.
    other = verdict_of([read(values, before, recuts=recuts, init="per_head")])
    assert finding(other, "cut_and_scale").control is None
    levels = {level.estimand: level.trained.mean for level in verdict.levels}
    assert levels["self_focus: scale"] == pytest.approx(0.05)
    assert levels["self_focus: cut"] == pytest.approx(-0.099)


def test_how_words_are_joined() -> None:
    yes: Word = "supported"
    no: Word = "not supported"
    open_: Word = "undecided"
    assert [agreed(words) for words in ([yes, yes], [no], [yes, no], [yes, open_], [])] == [
        yes,
        no,
        open_,
        open_,
        open_,
    ]
    some: list[list[Word]] = [[open_, yes], [no, yes], [no, no], [no, open_], []]
    assert [to_a_degree(words) for words in some] == [yes, yes, no, open_, open_]


def test_tasks_must_agree_and_h_need_not() -> None:
    def study(label: str, at_4: float) -> Read:
        jitter = np.array([-0.001, 0.0, 0.001])
        return read(
            {(name, h): (start + jitter * h).tolist() for name, h, start in (
                ("heldout_loss", 1, 1.0), ("heldout_loss", 2, 1.0), ("heldout_loss", 4, 1.0 - at_4),
                ("score", 1, 0.5), ("score", 2, 0.5), ("score", 4, 0.5 + at_4))},
            label=label, heads=(1, 2, 4),
        )  # fmt: skip

    verdict = verdict_of([study("a", 0.3), study("b", 0.0)])
    (answer,) = verdict.answers
    assert [(f.study, f.heads, f.word) for f in verdict.findings if f.estimand == "score"] == [
        ("a", 2, "not supported"), ("a", 4, "supported"), ("b", 2, "not supported"), ("b", 4, "not supported"),
    ]  # fmt: skip
    assert (answer.word, answer.studies) == ("undecided", (("a", "supported"), ("b", "not supported")))
    (answer,) = verdict_of([study("a", 0.3), study("b", 0.2)]).answers
    assert answer.word == "supported"


def test_studies_with_other_initial_weights_have_answers_of_their_own() -> None:
    values = {("score", 1): (0.1, 0.2, 0.3), ("score", 2): (0.5, 0.7, 0.6),
              ("heldout_loss", 1): (1.0, 2.0, 3.0), ("heldout_loss", 2): (0.5, 1.6, 2.4)}  # fmt: skip
    control = read(dict(values) | {("score", 2): (0.2, 0.1, 0.2)}, label="c", init="per_head")
    verdict = verdict_of([read(values), control])
    assert [(f.study, f.is_control, f.family) for f in verdict.findings] == [
        ("a", False, 1), ("a", False, 1), ("c", True, 1), ("c", True, 1),
    ]  # fmt: skip
    assert [(a.is_control, a.studies) for a in verdict.answers] == [
        (False, (("a", "supported"),)), (True, (("c", "undecided"),)),
    ]  # fmt: skip


def test_a_claim_needs_all_its_numbers() -> None:
    verdict = verdict_of([read({("score", 1): (0.1, 0.1, 0.1), ("score", 2): (0.9, 0.9, 0.9)})])
    assert finding(verdict, "score").word == "supported"
    assert [answer.word for answer in verdict.answers] == ["undecided"]


def test_a_verdict_comes_back_from_json(study: StudyFolder) -> None:
    verdict = verdict_of(evidence.read([study.path]))
    assert {one.claim for one in verdict.findings} == {"1a", "1b", "2", "3"}
    document = json.loads(json.dumps(json_value(verdict.to_json()), allow_nan=False))
    assert Verdict.from_json(document) == verdict
    for change, words in (
        ({"format": "other"}, "v.json: is no verdict of a headwise study"),
        ({"schema": 2}, "is of format 2; this headwise reads 1"),
        ({"levels": [{"study": "a"}]}, "is damaged"),
        ({"studies": [{"surprise": 1}]}, "is damaged: unknown: surprise"),
    ):
        with pytest.raises(FileFormatError, match=words):
            Verdict.from_json(document | change, "v.json")


def test_evidence_of_a_folder(study: StudyFolder, tmp_path: Path) -> None:
    """It needs no models; heads that could not be cut anew are told of."""
    (found,) = evidence.read([study.path])
    assert {(seed, c.heads) for seed, _, c in found.recuts} == {(0, 2), (1, 2), (2, 2)}
    assert found.notes == ()
    shutil.copytree(study.path, tmp_path / "part")
    part = StudyFolder(tmp_path / "part")
    for run in part.runs():
        run.model_file.unlink()
        if run.key.heads == 1:
            facts = replace(facts_of(run), recut={}, recut_failed="its heads share keys")
            run.facts_file.write_text(json.dumps(facts.to_json()))
    told: list[str] = []
    first, second = evidence.read([study.path, part.path], told.append)
    assert told == [f"Reading {study.path} ...", f"Reading {part.path} ..."]
    assert second.recuts == {}
    assert second.notes == ("its single heads could not be cut anew: its heads share keys",)
    assert first.numbers.label != second.numbers.label, "two studies of one kind are told apart"
    assert second.numbers.label.endswith(f"({part.path})")
    assert first.numbers.values == second.numbers.values
    with pytest.raises(InputError, match="is named twice; its runs would count twice"):
        evidence.read([study.path, study.path / "."])
    with pytest.raises(InputError, match="holds no study"):
        evidence.read([study.path, tmp_path / "none"])


def test_a_verdict_in_words() -> None:
    values = {("score", 1): (0.1, 0.1, 0.1), ("score", 2): (0.5, 0.6, 0.55),
              ("heldout_loss", 1): (1.0, 1.0, 1.0), ("heldout_loss", 2): (0.5, 0.6, 0.55)}  # fmt: skip
    partly = read(values)
    partly = partly._replace(
        numbers=replace(partly.numbers, missing=tuple(f"{REGIME}-h2-s{n} (begun)" for n in range(4))), notes=("a note",)
    )
    verdict = verdict_of([partly])
    lines = telling.lines(verdict)
    assert lines[1:] == [
        "1a. One head attends too much to its own position: no run can answer it yet",
        "1b. More heads relieve it: no run can answer it yet",
        "2.  More heads make a stronger model: supported at this size (a: supported)",
        f"a: missing: 4 of 6 runs: {REGIME}-h2-s0 (begun), {REGIME}-h2-s1 (begun), {REGIME}-h2-s2 (begun), ...",
        "a: a note",
    ]
    chinese = telling.lines(verdict, "zh")
    assert len(chinese) == len(lines)
    assert "2.  头越多，模型的表达能力越强: 支持" in chinese[3]
    assert telling._WORDS["en"].keys() == telling._WORDS["zh"].keys()
    for name in ("findings", "levels", "cuts"):
        columns = [telling._WORDS[language][name].count("|") for language in ("en", "zh")]  # type: ignore[index]
        assert columns[0] == columns[1]


def test_no_run_is_complete() -> None:
    verdict = verdict_of([Read(Numbers("a", small_plan(), missing=("all",)), {})])
    assert (verdict.answers, verdict.findings, verdict.levels) == ((), (), ())
    assert telling.lines(verdict)[-1] == "a: missing: 1 of 4 runs: all"
    assert len(list(telling.tables(verdict))) == 1


def test_notes_are_told_in_the_language() -> None:
    one = read({("score", 1): (0.1, 0.1)})
    missing = (f"{REGIME}-h2-s0 (not begun)",)
    one = one._replace(numbers=replace(one.numbers, missing=missing), notes=("it has runs with one head alone",))
    *_, left, note = telling.lines(verdict_of([one]), "zh")
    assert (left.endswith("(not begun)"), note.isascii()) == (False, False)
    assert telling.lines(verdict_of([one]))[-1] == "a: it has runs with one head alone"
