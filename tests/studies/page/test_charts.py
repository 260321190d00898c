"""Charts show the verdict's numbers: every mean and interval is one of its levels."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from headwise.studies.estimands import mean_of
from headwise.studies.findings import Level, Spread, Verdict
from headwise.studies.page import charts
from headwise.studies.page.drawing import Chart, Dots, Intervals, Line, Mark
from headwise.studies.page.gathered import Gathered
from headwise.studies.plans import RunKey


def of_kind(chart: Chart | None, kind: type[Mark]) -> list[Mark]:
    assert chart is not None
    return [mark for mark in chart.marks if isinstance(mark, kind)]


@pytest.mark.parametrize("estimand", ["heldout_loss", "score", "entropy_ratio"])
def test_means_and_intervals_by_heads(gathered: Gathered, verdict: Verdict, estimand: str) -> None:
    chart = charts.by_heads(gathered, estimand)
    levels = [level for level in verdict.levels if level.estimand == estimand]
    assert [level.heads for level in levels] == [1, 2]
    (line,) = of_kind(chart, Line)
    (intervals,) = of_kind(chart, Intervals)
    assert isinstance(line, Line)
    assert isinstance(intervals, Intervals)
    assert line.y == [level.trained.mean for level in levels]
    assert list(zip(intervals.low, intervals.high, strict=True)) == [(x.trained.low, x.trained.high) for x in levels]
    rings = [mark for mark in of_kind(chart, Dots) if isinstance(mark, Dots) and mark.is_open]
    before = [level.untrained.mean for level in levels if level.untrained is not None]
    assert [list(mark.y) for mark in rings] == ([pytest.approx(before)] if estimand == "entropy_ratio" else [])


def test_every_head_is_a_dot_and_every_layer_a_line(gathered: Gathered) -> None:
    """Three seeds, two layers: 6 heads at h = 1 and 12 at h = 2."""
    chart = charts.each_head(gathered, "self_focus", "fixed_width")
    untrained, trained = of_kind(chart, Dots)
    assert isinstance(trained, Dots)
    assert isinstance(untrained, Dots)
    assert (untrained.is_open, trained.is_open) == (True, False)
    expected = []
    for heads in (1, 2):
        for seed in range(3):
            of_heads = mean_of(gathered.folder.run(RunKey("fixed_width", heads, seed)).profile(), "self_focus")
            expected += [value for layer in of_heads.values() for value in layer.values()]
    assert list(trained.y) == expected
    assert len(untrained.y) == 18
    lines = [mark for mark in of_kind(chart, Line) if isinstance(mark, Line)]
    assert [len(line.y) for line in lines] == [2, 2]
    assert lines[0].y[0] == pytest.approx(fmean(expected[0:6:2]))
    assert lines[1].y[0] == pytest.approx(fmean(expected[1:6:2]))


def test_the_course_of_training_is_that_of_the_logs(gathered: Gathered) -> None:
    chart = charts.over_training(gathered, "self_lift", "steps")
    *faint, one, two = [mark for mark in of_kind(chart, Line) if isinstance(mark, Line)]
    assert list(one.x) == list(two.x) == [0, 2, 4]
    logs = [gathered.folder.run(RunKey("fixed_width", 2, seed)).log() for seed in range(3)]
    at_end = [head["self_lift"] for log in logs for head in log[-1]["heads"]]
    assert two.y[-1] == pytest.approx(fmean(at_end))
    assert len(faint) == 4, "each head of one run with two heads and two layers"
    assert [line.y[-1] for line in faint] == at_end[:4]


def test_lift_by_position(gathered: Gathered, verdict: Verdict) -> None:
    chart = charts.lift_by_position(gathered, "positions")
    assert chart is not None
    (line,) = of_kind(chart, Line)
    levels = [one for one in verdict.levels if one.estimand.startswith("self_lift at ") and one.heads == 1]
    assert not isinstance(line, Intervals)
    assert list(line.y) == [level.trained.mean for level in levels]
    assert [name for _, name in chart.ticks or ()] == [
        start if start == end else f"{start}–{end}"
        for start, end in (level.estimand.removeprefix("self_lift at ").split("-") for level in levels)
    ]


def test_cuts(verdict: Verdict) -> None:
    """Made up beside the study's own: none but the study's is shown."""
    other = Level("other", "fixed_width", 4, "self_focus: cut", Spread(0.5, None, None, None, 1))
    chart = charts.cuts((*verdict.levels, other), verdict.studies[0].study)
    assert chart is not None
    assert [name for _, name in chart.ticks or ()] == ["2"]
    levels = {level.estimand: level.trained for level in verdict.levels if level.estimand.startswith("self_focus: ")}
    heights = {mark.ink: list(mark.y) for mark in of_kind(chart, Line) if isinstance(mark, Line)}
    assert heights == {ink: [levels[f"self_focus: {effect}"].mean] for effect, ink in charts.EFFECTS.items()}
    assert charts.cuts((other,), "none") is None


def test_numbers_beside_the_verdict(gathered: Gathered) -> None:
    """At h = 1 no head has a partner; at h = 2 each layer has one pair."""
    assert gathered.over_seeds("bc", "fixed_width", 1) == []
    key = RunKey("fixed_width", 2, 1)
    run = gathered.folder.run(key)
    bc = run.profile().pairs("bc")["bc"].tolist()
    assert gathered.over_seeds("bc", "fixed_width", 2)[1] == pytest.approx(fmean(bc))
    assert len(bc) == 2
    written = [fmean(pair["written"]) for layer in run.final()["subspaces"] for pair in layer["pairs"]]
    assert gathered.over_seeds("angle", "fixed_width", 2)[1] == pytest.approx(fmean(written))
    ranks = [head["rank_99"] for head in run.final()["score_ranks"]]
    assert gathered.over_seeds("rank_99", "fixed_width", 2)[1] == pytest.approx(fmean(ranks))
    assert gathered.over_seeds("max_score", "fixed_width", 2, "untrained")[1] == pytest.approx(
        run.start_profile().table()["max_score"].max()
    )
    assert gathered.costs["fixed_width", 2].bytes == pytest.approx(
        fmean(gathered.folder.run(RunKey("fixed_width", 2, seed)).final()["step_bytes"] for seed in range(3))
    )


def test_a_run_of_which_no_head_has_a_number(gathered: Gathered) -> None:
    """No row of it sees two keys: its facts have no heads."""
    without = replace(gathered, heads={})
    assert charts.each_head(without, "self_focus", "fixed_width") is None
