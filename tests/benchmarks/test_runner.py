"""The runner: turns, samples, what fails, what an interruption keeps, what a second run takes over."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from headwise.benchmarks import runner
from headwise.benchmarks.cases import Case, Point
from headwise.benchmarks.results import Result
from tests.benchmarks import fakes
from tests.benchmarks.fakes import Recorder, Script

ROOT = Path(__file__).parents[2]


def run(case: Case, **options: object) -> runner.Outcome:
    return runner.run(case, Recorder(), **options)  # type: ignore[arg-type]


def test_variants_take_turns_and_every_other_turn_runs_backwards(script: Script) -> None:
    run(fakes.case(points=("one", "two"), turns=3))
    one = ["base", "double", "half", "half", "double", "base", "base", "double", "half"]
    assert script.ran == [*one, *one]


def test_the_baseline_comes_first_wherever_it_stands(script: Script) -> None:
    run(fakes.case(turns=1, baseline="half"))
    assert script.ran == ["half", "base", "double"]


def test_samples_medians_and_paired_ratios(script: Script) -> None:
    """By hand: the ratios of the turns are 2, 4, 3 (double) and 1/2, 1/4, 1 (half); the medians' ratio would be 5/2."""
    script.seconds = {"base": [1, 2, 4], "double": [2, 8, 12], "half": [0.5, 0.5, 4]}
    (point,) = run(fakes.case()).result.points
    assert [sample.seconds for sample in point.samples["double"]] == [2, 8, 12]
    assert point.seconds("base") == 2
    assert point.seconds("double") == 8
    assert point.ratio("double", "base") == 3
    assert point.ratio("half", "base") == 0.5
    assert point.ratio("base", "base") == 1
    assert [sample.more for sample in point.samples["half"]] == [{"html_bytes": 50.0}] * 3
    assert point.middle("half", "html_bytes") == 50
    assert point.middle("base", "html_bytes") is None


def test_warm_ups_are_run_and_not_kept(script: Script) -> None:
    script.seconds = {"base": [9, 9, 1, 1, 1]}
    watching = Recorder()
    outcome = runner.run(fakes.case("base", warmups=2), watching)
    assert [sample.seconds for sample in outcome.result.points[0].samples["base"]] == [1, 1, 1]
    assert [turn for _, _, turn in watching.steps] == [-2, -1, 0, 1, 2]
    assert watching.expected == watching.finished_points == ["one"]


def test_a_sample_of_a_few_runs_is_their_median(script: Script) -> None:
    script.seconds = {"base": [9, 1, 2, 8, 3, 3], "double": [2, 2, 2, 7, 6, 50]}
    case = fakes.case("base", "double", turns=2, repeats=3)
    result = run(case).result
    (point,) = result.points
    assert script.ran == ["base"] * 3 + ["double"] * 6 + ["base"] * 3
    assert [sample.seconds for sample in point.samples["base"]] == [2, 3]
    assert [sample.runs for sample in point.samples["double"]] == [(2, 2, 2), (7, 6, 50)]
    assert point.ratio("double", "base") == (1 + 7 / 3) / 2
    assert Result.from_json(result.as_json()).points == result.points
    again = run(replace(case, about="of another number of runs"), before=result).result
    assert [sample.seconds for sample in again.points[0].samples["base"]] == [1, 1], "measured anew"


def test_what_is_prepared_reaches_the_workload_but_not_the_result(script: Script) -> None:
    outcome = run(fakes.case(prepare=lambda: {"source": "/secret/place"}))
    assert script.parameters == [{"tokens": 8, "which": "one", "source": "/secret/place"}]
    assert "secret" not in outcome.result.packed().decode()


def test_a_variant_that_is_absent_stands_in_the_result_with_the_reason(script: Script) -> None:
    outcome = run(fakes.case("base", "absent"))
    (point,) = outcome.result.points
    assert point.not_run == {"absent": "absent is not installed: pip install absent"}
    assert set(point.samples) == {"base"}
    assert outcome.result.complete


def test_a_variant_that_fails_keeps_its_runs_and_is_not_run_again(script: Script) -> None:
    script.seconds = {"double": [2.0, RuntimeError("out of\nmemory"), 2.0]}
    outcome = run(fakes.case())
    (point,) = outcome.result.points
    assert point.not_run == {"double": "stopped after 1 of 3 runs: RuntimeError: out of memory"}
    assert [sample.seconds for sample in point.samples["double"]] == [2.0]
    assert script.ran.count("double") == 2
    assert point.ratio("double", "base") == 2
    assert len(point.samples["half"]) == 3
    assert outcome.result.complete


def test_without_a_baseline_nothing_else_is_run(script: Script) -> None:
    outcome = run(fakes.case("absent", "double", "half"))
    (point,) = outcome.result.points
    assert script.ran == []
    assert point.samples == {}
    assert point.not_run["absent"].startswith("absent is not installed")
    assert point.not_run["half"] == "not run: absent did not"


def test_an_interruption_keeps_whole_points_and_whole_turns(script: Script) -> None:
    script.seconds = {"double": [2, 2, 2, 3, 3, KeyboardInterrupt()]}
    kept: list[Result] = []
    outcome = run(fakes.case(points=("one", "two", "three")), keep=kept.append)
    assert outcome.interrupted
    assert not outcome.result.complete
    first, second = outcome.result.points
    assert [len(first.samples[v]) for v in fakes.VARIANTS] == [3, 3, 3]
    assert [len(second.samples[v]) for v in fakes.VARIANTS] == [2, 2, 2]
    assert second.ratio("double", "base") == 3
    assert len(kept) == 2, "after the first point, and at the end"


def test_an_interruption_in_the_first_turn_of_a_point_keeps_nothing_of_it(script: Script) -> None:
    script.seconds = {"half": [KeyboardInterrupt()]}
    kept: list[Result] = []
    outcome = run(fakes.case(), keep=kept.append)
    assert outcome.interrupted
    assert (outcome.result.points, kept) == ([], [])


def test_a_second_run_takes_over_whole_points_alone(script: Script) -> None:
    script.seconds = {"half": [5, 5, 5, 5, KeyboardInterrupt()]}
    case = fakes.case(points=("one", "two", "three"))
    before = run(case).result
    assert [point.name for point in before.points] == ["one", "two"]
    script.ran.clear()
    watching = Recorder()
    outcome = runner.run(case, watching, before=before)
    assert watching.expected == ["two", "three"]
    assert len(script.ran) == 2 * 9
    assert [point.name for point in outcome.result.points] == ["one", "two", "three"]
    assert outcome.result.points[0].seconds("half") == 5
    assert outcome.result.points[1].seconds("half") == 1
    assert outcome.result.complete


def test_a_result_of_another_machine_or_other_turns_is_not_taken_over(script: Script) -> None:
    case = fakes.case()
    before = run(case).result
    for changed in (
        replace(before, machine={**before.machine, "processor": "another"}),
        replace(before, versions={**before.versions, "torch": "1.0"}),
        replace(before, turns=2),
        replace(before, points=[replace(before.points[0], parameters={"tokens": 9})]),
    ):
        script.ran.clear()
        assert run(case, before=changed).result.complete
        assert len(script.ran) == 9
    script.ran.clear()
    assert run(case, before=before).result.complete
    assert script.ran == []


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Case:
    """Runs each sample in a process that finds the fakes."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    case = fakes.case("base", "before", "fails", "killed", workload="in_process", turns=2, repeats=2, fresh=True)
    return replace(case, points=(Point("one", {"tokens": 8, "megabytes": 200}),))


def test_fresh_processes(fresh: Case) -> None:
    (point,) = run(fresh).result.points
    processes = {sample.more["process"] for v in ("base", "before") for sample in point.samples[v]}
    assert len(processes) == 4
    assert os.getpid() not in processes
    assert {len(sample.runs) for sample in point.samples["base"]} == {2}
    assert point.not_run["fails"] == "ValueError: no good: 8 tokens"
    assert "killed" in point.not_run["killed"] and "memory" in point.not_run["killed"]
    extra = [point.extra_bytes(variant) for variant in ("base", "before")]
    if not Path("/proc/self/clear_refs").exists():
        assert extra == [None, None]
    else:  # what was held before the run is not counted
        assert all(190e6 < one < 230e6 for one in extra if one is not None) and None not in extra


def test_a_case_that_cannot_be_run_is_refused() -> None:
    with pytest.raises(ValueError, match="baseline must be one of"):
        fakes.case(baseline="nobody")
    with pytest.raises(ValueError, match="must be unique"):
        fakes.case("base", "base")
    with pytest.raises(ValueError, match="expected points, turns and repeats; got 1, 0 and 1"):
        fakes.case(turns=0)
    with pytest.raises(ValueError, match="expected points, turns and repeats; got 1, 3 and 0"):
        fakes.case(repeats=0)
