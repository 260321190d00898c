"""The study that docs/results holds: it was run as planned, and its verdict is the one that its runs give."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from scripts import results

from headwise.cli import study as command
from headwise.profile.writing import json_value
from headwise.studies import telling
from headwise.studies.findings import Verdict
from headwise.studies.folders import StudyFolder
from headwise.studies.plans import REGIMES

KEPT = results.kept()


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return results.judged(KEPT)[1]


def commands() -> dict[str, argparse.Namespace]:
    """The commands of the plan, by the name of the study."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    (block,) = re.findall(r"```console\n(.*?)```", (results.RESULTS / "plan.md").read_text("utf-8"), re.DOTALL)
    lines = block.replace("\\\n", " ").strip().splitlines()
    asked = [parser.parse_args(shlex.split(line)[2:]) for line in lines]
    return {Path(one.out).name: one for one in asked if one.out}


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_a_study_was_run_as_planned(path: Path) -> None:
    plan, asked = StudyFolder(path).plan(), commands()[path.name]
    assert plan.task == asked.task
    assert len(plan.seeds) == asked.seeds
    assert plan.init == (asked.init or "fused")
    assert plan.regimes == (REGIMES if asked.regimes is None else tuple(asked.regimes.split(",")))
    assert plan.heads == (asked.heads or (1, 2, 4, 8, 16))
    if asked.steps is not None:
        assert plan.steps == asked.steps
    for option in asked.option or ():
        name, _, value = option.partition("=")
        assert str(plan.options[name]) == value
    assert [one.path for one in plan.data] == [Path(one).name for one in asked.data or [x.path for x in plan.data]]
    if plan.data:
        assert not any("/" in one.path for one in plan.data), "no folder of the machine that trained it"


def test_the_verdict_is_that_of_its_runs(verdict: Verdict) -> None:
    kept: Any = json.loads((results.RESULTS / "verdict.json").read_text("utf-8"))
    again = json_value(verdict.to_json())
    assert [one["word"] for one in kept["findings"]] == [one["word"] for one in again["findings"]]
    for a, b in zip(kept["findings"], again["findings"], strict=True):
        assert a["differences"] == pytest.approx(b["differences"], rel=1e-9)
        assert a["p_corrected"] == pytest.approx(b["p_corrected"], rel=1e-6)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_answers_are_told_as_they_are(language: telling.Language, verdict: Verdict) -> None:
    text = (results.RESULTS / "README.md").read_text("utf-8")
    assert results.with_answers(text, language, KEPT, results.judged(KEPT)[0]) == text
    html = (results.RESULTS / results.LANGUAGES[language]).read_text("utf-8")
    for one in verdict.studies:
        assert one.study in html
    assert "/work" not in html
    assert "http://" not in re.sub(r'xmlns="[^"]*"', "", html)
