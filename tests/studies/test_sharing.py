"""A run that both regimes ask for is trained once: what the other takes over is what it would have come to itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headwise.errors import InputError
from headwise.studies import facts, running
from headwise.studies.folders import RunFolder, StudyFolder
from headwise.studies.plans import RunKey
from headwise.studies.sharing import taken_over, twin_of
from tests.studies.small import contents, small_plan, timeless, trained

PLAN = small_plan()
WIDE, SIZED = RunKey("fixed_width", 2, 0), RunKey("fixed_head_size", 2, 0)
"""Both have two heads of d_k 4."""


class Silent:
    """A `running.Watching` that remembers which runs begin and finish."""

    def __init__(self) -> None:
        self.begun: list[RunKey] = []
        self.seconds: dict[RunKey, float] = {}

    def begins(self, key: RunKey) -> None:
        self.begun.append(key)

    def step(self, key: RunKey, step: int) -> None:
        """Nothing."""

    def finished(self, key: RunKey, final: dict[str, float]) -> None:
        self.seconds[key] = final["seconds"]

    def failed(self, key: RunKey, why: str) -> None:
        raise AssertionError(f"{key}: {why}")


def test_which_runs_are_one() -> None:
    assert twin_of(PLAN, SIZED) == WIDE
    assert [key for key in PLAN.runs if key != SIZED and twin_of(PLAN, key)] == []
    two_seeds = small_plan(seeds=2)
    assert twin_of(two_seeds, replace(SIZED, seed=1)) == replace(WIDE, seed=1)
    assert not any(twin_of(plan, key) for plan in [small_plan(head_dim=3)] for key in plan.runs)
    # Initial weights and the scale depend on the width of a head in the control as well, and agree where it does.
    control = small_plan(init="per_head")
    assert twin_of(control, SIZED) == WIDE


def test_what_is_taken_over_is_what_training_comes_to(tmp_path: Path) -> None:
    by_itself = trained(PLAN, tmp_path / "by itself", SIZED)
    trained(PLAN, tmp_path / "shared", WIDE)
    study = StudyFolder(tmp_path / "shared")
    run = study.run(SIZED)
    assert taken_over(PLAN, study, run)
    assert run.is_complete
    for name in ("model_file", "start_file", "profile_file"):
        assert contents(getattr(run, name)) == contents(getattr(by_itself, name)), name
    assert timeless(run.log()) == timeless(by_itself.log())
    assert timeless(run.final()) == timeless(by_itself.final() | {"same_as": str(WIDE)})
    assert without_clock(run) == without_clock(by_itself)


def test_a_single_head_of_fixed_size_is_not_cut_anew(tmp_path: Path) -> None:
    plan = small_plan(head_dim=8)
    key = RunKey("fixed_head_size", 1, 0)
    one = trained(plan, tmp_path, RunKey("fixed_width", 1, 0))
    assert one.final()["recut"]
    assert facts.facts_of(one).recut
    study = StudyFolder(tmp_path)
    assert taken_over(plan, study, study.run(key))
    assert study.run(key).final()["recut"] is None
    assert not facts.facts_of(study.run(key)).recut


def test_nothing_is_taken_over_too_early(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    assert not taken_over(PLAN, study, study.run(WIDE)), "it is nobody's twin"
    assert not taken_over(PLAN, study, study.run(SIZED)), "its twin is not complete"
    trained(PLAN, tmp_path, WIDE)
    own = study.run(SIZED)
    own.path.mkdir()
    own.checkpoint_file.write_bytes(b"begun")
    assert not taken_over(PLAN, study, own), "it has begun by itself"
    own.checkpoint_file.unlink()
    twin = study.run(WIDE)
    for file in (twin.facts_file, twin.profile_file, twin.model_file):
        hidden = file.rename(file.with_suffix(".hidden"))
        with pytest.raises(InputError, match=rf"{file.name}: cannot be read"):
            taken_over(PLAN, study, own)
        assert not own.is_complete
        hidden.rename(file)
    assert taken_over(PLAN, study, own)


def test_a_study_trains_it_once(tmp_path: Path) -> None:
    """With a worker for every run, too: the twin waits."""
    study, seen = StudyFolder(tmp_path / "study"), Silent()
    plan = small_plan(heads=(2,))
    running.begin(plan, study)
    outcome = running.run(plan, study, 2, seen)
    assert sorted(outcome.complete) == sorted([WIDE, SIZED])
    assert seen.begun[-1] == SIZED
    assert seen.seconds[SIZED] == seen.seconds[WIDE], "its time is that of the training they share"
    assert study.run(SIZED).final()["same_as"] == str(WIDE)


def without_clock(run: RunFolder) -> facts.Facts:
    return replace(facts.facts_of(run), seconds=None)


def test_a_twin_that_was_killed_before_its_end_is_not_complete(tmp_path: Path) -> None:
    trained(PLAN, tmp_path, WIDE)
    study = StudyFolder(tmp_path)
    run = study.run(SIZED)
    assert taken_over(PLAN, study, run)
    final = run.final()
    run.final_file.unlink()  # the last of its files
    assert not run.is_complete
    assert taken_over(PLAN, study, run)
    assert run.final() == final


def test_the_run_of_fixed_width_is_trained_whatever_comes_first(tmp_path: Path) -> None:
    """Its single head is cut anew, which the other's is not."""
    plan = small_plan(heads=(1, 2), head_dim=8, regimes=("fixed_head_size", "fixed_width"))
    wide, sized = RunKey("fixed_width", 1, 0), RunKey("fixed_head_size", 1, 0)
    assert plan.runs.index(sized) < plan.runs.index(wide)
    assert (twin_of(plan, sized), twin_of(plan, wide)) == (wide, None)
    study, seen = StudyFolder(tmp_path / "study"), Silent()
    running.begin(plan, study)
    running.run(plan, study, 1, seen)
    assert seen.begun.index(wide) < seen.begun.index(sized)
    assert study.run(wide).final()["recut"]
    assert study.run(sized).final()["same_as"] == str(wide)
