"""The bar of a study, and TensorBoard's curves."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from headwise.studies.folders import StudyFolder
from headwise.studies.plans import RunKey
from headwise.studies.progress import Shown, shown
from headwise.studies.training import Silent
from tests.studies.small import KEY, small_plan, trained

ONE, TWO = RunKey("fixed_width", 1, 0), RunKey("fixed_width", 2, 0)
THREE = RunKey("fixed_head_size", 1, 0)


def test_the_bar_counts_steps_of_this_process_alone() -> None:
    """Four runs of 6 steps; one is complete, one goes on from step 4: 14 steps are to be done."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with shown(console, small_plan(), 1) as watching:
        task = watching._bar.tasks[0]
        assert (task.completed, task.total) == (0, 18)
        watching.begins(ONE)
        watching.step(ONE, 4)
        assert (task.completed, task.total) == (0, 14)
        watching.step(ONE, 6)
        assert task.description == "1 of 4 runs, fixed_width-h1-s0"
        watching.finished(ONE, {"score_name": "accuracy", "score": {"accuracy": 0.5}})
        assert (task.completed, task.total, task.description) == (2, 14, "2 of 4 runs")
        watching.begins(TWO)
        watching.failed(TWO, "no memory")
        # None of its six steps was done, and none will be: twelve are left.
        assert (task.completed, task.total, task.description) == (2, 8, "3 of 4 runs")


def test_without_a_terminal_it_says_a_line_a_run() -> None:
    out = io.StringIO()
    with shown(Console(file=out, width=40), small_plan(), 0) as watching:
        assert isinstance(watching, Shown)
        watching.begins(ONE)
        watching.step(ONE, 0)
        watching.finished(ONE, {"score_name": "accuracy", "score": {"accuracy": 0.51234}})
        watching.begins(TWO)
        watching.failed(TWO, "[red]no memory[/red]")
        watching.begins(THREE)
        watching.finished(THREE, {"score_name": "accuracy", "score": {"accuracy": None}})
    assert out.getvalue().splitlines() == [
        "fixed_width-h1-s0: accuracy 0.5123 (1 of 4 runs)",
        "fixed_width-h2-s0 failed: [red]no memory[/red]",
        "fixed_head_size-h1-s0: accuracy undefined (3 of 4 runs)",
    ]


def test_curves_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="curves need tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from headwise.studies.boards import Board

    run = StudyFolder(tmp_path).run(KEY)
    run.path.mkdir(parents=True)
    with Board(run, Silent()) as board:
        trained(small_plan(), tmp_path, watching=board)
    events = EventAccumulator(str(run.boards)).Reload()
    log = run.log()
    curve = [(one.step, one.value) for one in events.Scalars("heldout_loss")]
    assert curve == [(entry["step"], pytest.approx(entry["heldout_loss"])) for entry in log]
    heads = [one.value for one in events.Scalars("self_focus/L0H1")]
    assert heads == pytest.approx([entry["heads"][1]["self_focus"] for entry in log])


def test_curves_of_a_run_that_was_killed_between_log_and_checkpoint(tmp_path: Path) -> None:
    """The step that the log has and the checkpoint has not is written once."""
    pytest.importorskip("tensorboard", reason="curves need tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from headwise.studies.boards import Board

    class Killed(Silent):
        def evaluated(self, entry: dict[str, object]) -> None:
            if entry["step"] == 4:
                raise KeyboardInterrupt

    run = StudyFolder(tmp_path).run(KEY)
    run.path.mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt), Board(run, Killed()) as board:
        trained(small_plan(), tmp_path, watching=board)
    assert [entry["step"] for entry in run.log()] == [0, 2, 4]
    with Board(run, Silent()) as board:
        trained(small_plan(), tmp_path, watching=board)
    events = EventAccumulator(str(run.boards)).Reload()
    assert [one.step for one in events.Scalars("heldout_loss")] == [0, 2, 4, 6]
