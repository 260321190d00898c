"""One run: equal bit by bit when repeated, and when it was stopped anywhere and resumed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.errors import FileFormatError, InputError
from headwise.measures.catalogue import BY_NAME
from headwise.studies import checkpoints, durable
from headwise.studies.durable import DiskError
from headwise.studies.folders import RunFolder, StudyFolder
from headwise.studies.plans import RunKey
from headwise.studies.training import DivergedError, Silent, learning_rate, reproducible
from tests.studies.small import KEY, assert_equal_bit_by_bit, small_plan, task_of, timeless, trained


class Stop(Silent):
    """Raises when a run has come to a step, as if the process ended there."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, step: int) -> None:
        if step == self.at:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run without any interruption."""
    return trained(small_plan(), tmp_path_factory.mktemp("whole"))


def test_two_runs_of_one_seed_are_equal(whole: RunFolder, tmp_path: Path) -> None:
    torch.randn(7)  # another random state of the caller
    assert_equal_bit_by_bit(whole, trained(small_plan(), tmp_path))


def test_another_seed_gives_another_run(whole: RunFolder, tmp_path: Path) -> None:
    plan = small_plan(seeds=2)
    other = trained(plan, tmp_path, RunKey("fixed_width", 2, 1))
    assert other.final()["heldout_loss"] != whole.final()["heldout_loss"]


@pytest.mark.parametrize("at", [1, 2, 3, 5, 6])
def test_a_run_that_was_stopped_ends_as_if_it_was_not(whole: RunFolder, tmp_path: Path, at: int) -> None:
    plan = small_plan()
    with pytest.raises(KeyboardInterrupt):
        trained(plan, tmp_path, watching=Stop(at))
    run = StudyFolder(tmp_path).run(KEY)
    assert not run.is_complete
    done = [entry["step"] for entry in run.log()]
    assert done == list(range(0, at, 2)), "it loses at most the interval in which it was stopped"
    assert json.loads(run.about_checkpoint.read_text())["step"] == done[-1]
    assert_equal_bit_by_bit(whole, trained(plan, tmp_path))


def test_what_a_log_says_beyond_its_checkpoint_is_said_again(whole: RunFolder, tmp_path: Path) -> None:
    """Killed after a line was written and before its checkpoint, and in the middle of the next line."""
    plan = small_plan()
    with pytest.raises(KeyboardInterrupt):
        trained(plan, tmp_path, watching=Stop(3))
    run = StudyFolder(tmp_path).run(KEY)
    durable.append_line(run.log_file, {"step": 4, "heldout_loss": -1.0})
    with run.log_file.open("ab") as file:
        file.write(b'{"step": 6, "heldo')
    assert_equal_bit_by_bit(whole, trained(plan, tmp_path))


def test_a_run_that_is_complete_but_for_its_end_is_only_measured(whole: RunFolder, tmp_path: Path) -> None:
    run = trained(small_plan(), tmp_path)
    run.final_file.unlink()
    steps: list[int] = []

    class Counting(Silent):
        def step(self, step: int) -> None:
            steps.append(step)

    trained(small_plan(), tmp_path, watching=Counting())
    assert steps == [6]
    assert_equal_bit_by_bit(whole, run)


KILLED = """
import sys
from pathlib import Path
from tests.studies.small import small_plan, trained
import torch

class Telling:
    def step(self, step): print("step", step, flush=True)
    def evaluated(self, entry): pass

torch.set_num_threads(1)
trained(small_plan(steps=4000, evaluate_every=7), Path(sys.argv[1]), watching=Telling())
"""


@pytest.mark.skipif(os.name != "posix", reason="kills with SIGKILL")
def test_a_run_that_was_killed_ends_as_if_it_was_not(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "killed")],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if line == "step 24\n":
                os.kill(process.pid, signal.SIGKILL)
                break
        reached = max([24, *(int(line.split()[1]) for line in process.stdout if line.endswith("\n"))])
    assert process.wait() == -signal.SIGKILL
    plan = small_plan(steps=4000, evaluate_every=7)
    run = StudyFolder(tmp_path / "killed").run(KEY)
    kept = json.loads(run.about_checkpoint.read_text())["step"]
    assert reached - 7 <= kept <= reached + 7
    assert not run.is_complete

    # Both go on to the evaluation after next, which is enough to tell.
    end = kept + 14

    class Until(Silent):
        def evaluated(self, entry: dict[str, Any]) -> None:
            if entry["step"] > end:
                raise KeyboardInterrupt

    runs = []
    for name in ("killed", "whole"):
        with pytest.raises(KeyboardInterrupt):
            trained(plan, tmp_path / name, watching=Until())
        runs.append(StudyFolder(tmp_path / name).run(KEY))
    logs = [timeless(one.log()) for one in runs]
    assert logs[0] == logs[1]
    assert logs[0][-1]["step"] > end
    from safetensors.numpy import load_file

    tensors = [load_file(one.checkpoint_file) for one in runs]
    assert all(tensors[0][name].tobytes() == tensors[1][name].tobytes() for name in tensors[0])


def test_all_numbers_of_heads_see_the_same_data_in_the_same_order(tmp_path: Path) -> None:
    plan = small_plan(heads=(1, 2, 4), steps=3, evaluate_every=3)
    seen: dict[int, list[bytes]] = {}
    for heads in plan.heads:
        task = task_of(plan, tmp_path)
        draw, batches = task.batch, seen.setdefault(heads, [])

        def noting(seed: int, step: int, draw: Any = draw, batches: list[bytes] = batches) -> Any:
            batch = draw(seed, step)
            batches.append(batch.inputs["input_ids"].numpy().tobytes())
            return batch

        task.batch = noting  # type: ignore[method-assign]
        from headwise.studies.training import train

        train(plan, RunKey("fixed_width", heads, 0), task, StudyFolder(tmp_path).run(RunKey("fixed_width", heads, 0)))
    assert seen[1] == seen[2] == seen[4]
    # Three steps, and one that measures memory.
    assert len(set(seen[1])) == 4


def test_what_a_run_leaves(whole: RunFolder) -> None:
    log = whole.log()
    assert [entry["step"] for entry in log] == [0, 2, 4, 6]
    assert log[0]["train_loss"] is None
    assert all(0 < entry["heldout_loss"] < 3 for entry in log)
    assert log[-1]["train_loss"] > 0
    assert set(log[-1]["score"]) == {"accuracy", "place_accuracy"}
    assert [(head["layer"], head["head"], head["kind"]) for head in log[-1]["heads"]] == [
        (0, 0, "self"), (0, 1, "self"),
    ]  # fmt: skip
    assert set(BY_NAME) <= set(log[-1]["heads"][0])
    assert log[-1]["heads"][0]["next"] is None, "undefined under a causal mask"

    final = whole.final()
    assert (final["key"], final["d_k"], final["steps"], final["threads"]) == ("fixed_width-h2-s0", 4, 6, 1)
    # 4 + 3 + 8 + 1 tokens and 7 places of 8; 4 matrices and biases of attention; 3 norms; 8 x 16 twice; 2 x 3 answers
    assert final["attention_parameters"] == 4 * 8 * 9
    assert final["parameters"] == (16 + 7) * 8 + 4 * 8 * 9 + 3 * 8 + (8 * 16 + 16) + (16 * 8 + 8) + 8 * 6
    assert final["heldout_loss"] == log[-1]["heldout_loss"]
    assert final["start"] == {"heldout_loss": log[0]["heldout_loss"], "score": log[0]["score"]}
    assert [len(layer["pairs"]) for layer in final["subspaces"]] == [1]
    assert [one["head"] for one in final["score_ranks"]] == [0, 1]
    assert final["unseen"] == []
    assert final["step_bytes"] > 0
    assert final["seconds"] > 0
    trained_heads, start_heads = whole.profile().table(), whole.start_profile().table()
    assert list(trained_heads["label"]) == list(start_heads["label"]) == ["L0H0", "L0H1"]
    assert list(trained_heads["rows"]) == list(start_heads["rows"])
    assert trained_heads["self_focus"].tolist() != start_heads["self_focus"].tolist()
    pairs = whole.profile().pairs("bc")
    assert pairs[["a", "b"]].to_numpy().tolist() == [["L0H0", "L0H1"]]
    assert 0 < pairs["bc"][0] <= 1
    assert set(whole.profile().roles()["label"]) <= {"L0H0", "L0H1"}
    focus = [head["self_focus"] for head in log[-1]["heads"]]
    assert trained_heads["self_focus"].tolist() == pytest.approx(focus, abs=1e-12)


def test_the_learning_rate_rises_along_a_line_and_falls_along_a_cosine() -> None:
    plan = small_plan(steps=102, warmup=2, learning_rate=0.5)
    rates = [learning_rate(plan, step) for step in (0, 1, 2, 52, 101)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.5, 0.5 * (0.1 + 0.9 / 2)])
    assert rates[4] == pytest.approx(0.05, abs=1e-3)


def test_matrices_decay_and_nothing_else_does() -> None:
    from headwise.studies.training import optimizer_of
    from headwise.studies.transformer import build

    plan = small_plan(weight_decay=0.3)
    model = build(task_of(plan, Path()).architecture(), plan.sizes(KEY), 0)
    groups = optimizer_of(model, plan).param_groups
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert {p.dim() for p in groups[0]["params"]} == {2}
    assert {p.dim() for p in groups[1]["params"]} == {1}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_a_training_that_diverges_says_so(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="training diverged; give a smaller --learning-rate"):
        trained(small_plan(steps=40, learning_rate=1e30, evaluate_every=40), tmp_path)


def test_a_checkpoint_of_another_plan_is_refused(tmp_path: Path) -> None:
    run = trained(small_plan(), tmp_path)
    run.final_file.unlink()
    with pytest.raises(FileFormatError, match="is of another plan"):
        trained(small_plan(steps=8), tmp_path)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    run = trained(small_plan(), tmp_path)
    run.final_file.unlink()
    run.checkpoint_file.write_bytes(run.checkpoint_file.read_bytes()[:-40])
    with pytest.raises(FileFormatError, match=r"checkpoint\.safetensors: is damaged"):
        trained(small_plan(), tmp_path)


def test_a_full_disk_ends_a_run_and_keeps_what_was_there(
    whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, room, fsync = small_plan(), 12, os.fsync

    def full(handle: int) -> None:
        nonlocal room
        room -= 1
        if room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskError, match="cannot be written: the disk is full: free some space"):
            trained(plan, tmp_path)
    run = StudyFolder(tmp_path).run(KEY)
    assert not run.is_complete
    assert not list(run.path.glob(".*.part"))
    assert run.log(), "what was written before stays"
    assert_equal_bit_by_bit(whole, trained(plan, tmp_path))


def test_the_caller_keeps_its_settings() -> None:
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    state = torch.get_rng_state()
    with reproducible(2):
        torch.manual_seed(5)
        assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (2, True)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before
    assert torch.equal(torch.get_rng_state(), state)


def test_an_error_of_an_earlier_try_is_gone(tmp_path: Path) -> None:
    run = StudyFolder(tmp_path).run(KEY)
    run.path.mkdir(parents=True)
    run.error_file.write_text("a traceback")
    assert trained(small_plan(), tmp_path).error() is None


def test_a_training_that_diverges_in_its_last_step_says_so(tmp_path: Path) -> None:
    """No training loss follows it; the held-out loss tells."""
    with pytest.raises(DivergedError, match=r"the held-out loss after step 1 is (nan|inf): training diverged"):
        trained(small_plan(steps=1, learning_rate=1e30, warmup=0, evaluate_every=1), tmp_path)
    assert not StudyFolder(tmp_path).run(KEY).is_complete


def test_a_task_that_does_not_score_what_it_names_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small_plan()
    monkeypatch.setattr(type(task_of(plan, tmp_path)), "score", lambda *_, final: {"other": 1.0})
    with pytest.raises(InputError, match=r"score\(\) must return 'accuracy' \(its score_name\); got 'other'"):
        trained(plan, tmp_path)
    assert not StudyFolder(tmp_path).run(KEY).log()


def test_a_checkpoint_says_its_step_in_both_files(tmp_path: Path) -> None:
    run = trained(small_plan(), tmp_path)
    assert checkpoints.step_of(run) == json.loads(run.about_checkpoint.read_text())["step"] == 6
    # A kill may come between the two files.
    run.final_file.unlink()
    run.about_checkpoint.write_text(json.dumps({"step": 4}))
    trained(small_plan(), tmp_path)
    assert json.loads(run.about_checkpoint.read_text())["step"] == 6
    run.checkpoint_file.write_bytes(b"damaged")
    assert checkpoints.step_of(run) is None
    run.checkpoint_file.unlink()
    assert checkpoints.step_of(run) is None
