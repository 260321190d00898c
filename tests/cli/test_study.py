"""headwise study: what it refuses, what it leaves, how it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from safetensors.numpy import load_file

from headwise.studies import running
from headwise.studies.findings import Verdict
from headwise.studies.folders import StudyFolder
from headwise.studies.plans import RunKey
from headwise.studies.summary import rows
from tests.cli.conftest import Result
from tests.studies.small import assert_equal_bit_by_bit, finished, small_plan, trained

SMALL = (
    *("--option", "keys=4", "--option", "values=3", "--option", "queries=3", "--option", "held_out=3"),
    *("--d-model", 8, "--layers", 1, "--d-ff", 16, "--dropout", 0.1, "--batch", 4, "--length", 7, "--warmup", 2),
    *("--seeds", 1),
)

TASK = """
import pathlib
from headwise.studies.tasks.lookup import Lookup

class Fragile(Lookup):
    def loss(self, model, batch):
        heads = model.blocks[0].attention.num_heads
        if heads == 2 and pathlib.Path("broken").exists():
            raise ValueError("two heads are\\none too many")
        return super().loss(model, batch)
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--heads", "3"), "--heads 3: d_model = 64 does not divide into 3 heads; head counts that fit: 1, 2, 4, 8"),
        (("--heads", "2,x"), "expected a whole number, got 'x'"),
        (("--steps", "0"), "--steps: expected whole numbers of at least 1; got 0"),
        (("--jobs", "0"), "--jobs 0: expected at least 1"),
        (("--task", "texts"), "--task texts: expected lookup, text, digits, translation, or a class of yours"),
        (("--task", "nothere:Task"), "the module nothere cannot be imported: ModuleNotFoundError"),
        (("--task", "text", "--data", "empty.txt"), "empty.txt: is empty; give files with text"),
        (("--task", "text", "--data", "tiny.txt"), "5 bytes are too few"),
        (("--task", "text", "--data", "none.txt"), "none.txt: cannot be read: No such file or directory"),
        (("--task", "translation", "--data", "tiny.txt"), "expected a source and a target file"),
        (("--data", "tiny.txt"), "the task lookup makes its own data; leave out --data"),
        (("--option", "keys"), "--option keys: expected NAME=VALUE"),
        (("--resume",), "holds no study (there is no plan.json)"),
        (("--out", "tiny.txt"), "exists and is no study; give the name of a new folder"),
        (("--learning-rate", "fast"), "expected a number, got 'fast'"),
        (("--init", "xavier"), "--init: expected fused or per_head; got 'xavier'"),
        (("--json", "a.json"), "--json: belongs to --verdict; give that too, or leave it out"),
        (("--page", "a.html"), "--page: belongs to --verdict; give that too, or leave it out"),
        (("--tables",), "--tables: belongs to --verdict; give that too, or leave it out"),
        (("--lang", "zh"), "--lang: belongs to --verdict; give that too, or leave it out"),
        (("--verdict",), "study-lookup: holds no study (there is no plan.json)"),
        (("--verdict", "none"), "none: holds no study (there is no plan.json)"),
        (("--verdict", "a", "--out", "b"), "--verdict FOLDER: the folders are named there; leave out --out and --task"),
        (("--verdict", "a", "--steps", "9"), "--steps: --verdict reads runs and trains nothing; leave it out"),
        (("--verdict", "a", "--resume"), "--resume: --verdict reads runs and trains nothing; leave it out"),
        (("--verdict", "a", "--json", "tiny.txt"), "--json tiny.txt exists; give another name, or --force"),
        (("--verdict", "a", "--page", "tiny.txt"), "--page tiny.txt exists; give another name, or --force"),
    ],
)
def test_bad_input_is_a_line(
    refused: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").touch()
    Path("tiny.txt").write_text("tiny\n")
    assert words in refused("study", *arguments)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()], "no folder is left behind"


def test_a_run_that_fails_leaves_the_others(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again on --resume, and those that are complete are not."""
    monkeypatch.chdir(tmp_path)
    Path("fragile.py").write_text(TASK)
    Path("broken").touch()
    arguments = ("--task", "fragile:Fragile", "--heads", "2,1", "--regimes", "fixed_width", "--steps", 4)
    result = run("study", *SMALL, *arguments, "--evaluate-every", 2, "--jobs", 2, "--out", "study")
    assert result.code == 1
    *lines, last = result.err.splitlines()
    assert any(line.startswith("fixed_width-h1-s0: accuracy") for line in lines)
    assert "fixed_width-h2-s0 failed: ValueError: two heads are one too many" in lines
    assert last.startswith("headwise: 1 of 2 runs failed, the first: fixed_width-h2-s0: ValueError: two heads are one ")
    assert "error.txt" in last
    assert "1 of 2 runs are complete and kept" in last
    folder = StudyFolder("study")
    failed, complete = folder.runs()
    assert "in loss" in str(failed.error())
    assert (failed.is_complete, complete.is_complete) == (False, True)
    assert [(row.heads, row.d_k, len(row.scores)) for row in rows(folder)] == [(1, 8, 1)]

    Path("broken").unlink()
    before = complete.final_file.stat().st_mtime_ns
    result = run("study", "--out", "study", "--resume")
    assert result.code == 0, result.err
    assert "Kept in" in result.words
    assert failed.is_complete
    assert failed.error() is None
    assert complete.final_file.stat().st_mtime_ns == before
    result = run("study", "--out", "study", "--resume", "--steps", 9)
    assert (result.code, "--steps: a study that goes on keeps its plan" in result.err) == (2, True)
    result = run("study", "--out", "study", "--resume", "--task", "text")
    assert (result.code, "the study in study is of the task fragile:Fragile" in result.err) == (2, True)
    result = run("study", "--out", "study")
    assert (result.code, "holds a study already; go on with --resume" in result.err) == (2, True)


def test_a_verdict_on_a_study_that_is_not_finished(run: Callable[..., Result], tmp_path: Path) -> None:
    """The claims first, then what is missing, then numbers; none is cut off in a narrow terminal."""
    plan = small_plan(heads=(1, 2), seeds=3, steps=2, regimes=("fixed_width",))
    folder = finished(plan, tmp_path / "study", but=[RunKey("fixed_width", 2, 1)])
    result = run("study", "--verdict", folder.path, "--json", tmp_path / "verdict.json", "--lang", "en")
    assert result.code == 0, result.err
    first, *lines = result.out.splitlines()
    assert first.startswith("Is the article right?")
    assert [line[:2] for line in lines[:6:2]] == ["1a", "1b", "2."]
    assert "at this size" in lines[0]
    assert ": the own key gets " in lines[1]
    assert "changes by" in lines[5]
    assert lines[-1].startswith("All numbers: --tables prints them")
    assert len(lines) < 15
    short, result = result.out, run("study", "--verdict", folder.path, "--tables", "--lang", "en")
    assert result.out.startswith(short[: short.index("All numbers")])
    assert any(line.endswith("missing: 1 of 6 runs: fixed_width-h2-s1 (not begun)") for line in lines)
    verdict = Verdict.from_json(json.loads((tmp_path / "verdict.json").read_text()))
    assert {finding.seeds for finding in verdict.findings if finding.claim in ("1b", "2")} == {(0, 2)}
    for finding in verdict.findings:
        assert f"{finding.mean:+.4f} [" in result.out
    assert "…" not in result.out
    result = run("study", "--out", folder.path, "--verdict", "--lang", "zh")
    assert (result.code, result.out.splitlines()[0]) == (0, "文章说得对吗？在 d_model 固定、模型与数据为此规模时：")


def test_a_verdict_as_a_page(run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the lines of the terminal; without matplotlib a line, and no file."""
    pytest.importorskip("matplotlib", reason="needs matplotlib (pip install headwise[study])")
    folder = finished(small_plan(heads=(1, 2), steps=2, regimes=("fixed_width",)), tmp_path / "study")
    page = tmp_path / "verdict.html"
    result = run("study", "--verdict", folder.path, "--page", page, "--lang", "zh")
    assert result.code == 0, result.err
    assert result.out.splitlines()[0].startswith("文章说得对吗？")
    assert f"Wrote {page}" in result.out
    assert '<html lang="zh-CN">' in page.read_text("utf-8")
    assert run("study", "--verdict", folder.path, "--page", page).code == 2
    result = run("study", "--verdict", folder.path, "--page", page, "--force", "--lang", "en")
    assert (result.code, '<html lang="en">' in page.read_text("utf-8")) == (0, True)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("study", "--verdict", folder.path, "--page", tmp_path / "none.html")
    assert (result.code, result.out) == (4, "")
    assert 'need matplotlib; install it with: pip install "headwise[study]"' in result.err
    assert not (tmp_path / "none.html").exists()


def test_other_initial_weights_reach_the_runs(run: Callable[..., Result], tmp_path: Path) -> None:
    """As many draws, in a range 1.15 times as wide: d_k = 4 of a width of 8."""
    out = tmp_path / "control"
    arguments = ("--heads", 2, "--regimes", "fixed_width", "--steps", 1, "--init", "per_head", "--jobs", 1)
    result = run("study", *SMALL, *arguments, "--learning-rate", 1e-9, "--out", out)
    assert result.code == 0, result.err
    folder = StudyFolder(out)
    assert folder.plan().init == "per_head"
    weights = load_file(folder.complete()[0].model_file)["blocks.0.attention.qkv_proj.weight"]
    largest = float(abs(weights).max())
    assert (6 / 16) ** 0.5 < largest <= (6 / 12) ** 0.5 + 1e-6
    result = run("study", "--out", out, "--resume", "--init", "fused")
    assert (result.code, "--init: a study that goes on keeps its plan" in result.err) == (2, True)


@pytest.mark.skipif(os.name != "posix", reason="kills with SIGKILL")
@pytest.mark.slow
def test_a_study_that_was_killed_goes_on(run: Callable[..., Result], tmp_path: Path) -> None:
    """Its workers end with it, so that nobody writes into the runs while they are resumed."""
    out = tmp_path / "killed"
    command = [
        sys.executable, "-m", "headwise", "study", *map(str, SMALL), "--heads", "2", "--regimes", "fixed_width",
        "--steps", "600", "--evaluate-every", "20", "--out", str(out),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    folder = StudyFolder(out)
    key = RunKey("fixed_width", 2, 0)
    deadline = time.monotonic() + 120
    while len(folder.run(key).log()) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    assert not folder.run(key).is_complete
    assert folder.run(key).error() is None
    about = json.loads(folder.run(key).about_checkpoint.read_text())
    assert about["step"] >= 20
    result = run("study", "--out", out, "--resume")
    assert result.code == 0, result.err
    plan = folder.plan()
    assert plan == small_plan(heads=(2,), regimes=("fixed_width",), steps=600, evaluate_every=20)
    assert_equal_bit_by_bit(folder.run(key), trained(plan, tmp_path / "whole"))


@pytest.mark.skipif(os.name != "posix", reason="interrupts with SIGINT")
@pytest.mark.slow
def test_an_interrupted_study_says_how_it_goes_on(tmp_path: Path) -> None:
    """Ctrl-C reaches the workers too, as in a terminal; what is complete is shown."""
    out = tmp_path / "interrupted"
    command = [
        sys.executable, "-m", "headwise", "study", *map(str, SMALL), "--heads", "2,1", "--regimes", "fixed_width",
        "--steps", "400", "--evaluate-every", "100", "--out", str(out), "--jobs", "1",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    folder = StudyFolder(out)
    deadline = time.monotonic() + 120
    while not folder.run(RunKey("fixed_width", 1, 0)).log():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    shown, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in told
    assert told.splitlines()[-1] == (
        "headwise: interrupted: 1 of 2 runs are complete and kept; the others go on from their last evaluation with: "
        f"headwise study --out {out} --resume"
    )
    assert "fixed_width" in shown


@pytest.mark.skipif(os.name != "posix", reason="locks files")
def test_two_processes_do_not_work_on_one_study(refused: Callable[..., str], tmp_path: Path) -> None:
    import fcntl

    folder = StudyFolder(tmp_path / "study")
    running.begin(small_plan(), folder)
    with (folder.path / running.LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another process works on this study" in refused("study", "--out", folder.path, "--resume")


def test_a_disk_that_refuses_ends_the_study_with_a_line(refused: Callable[..., str], tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    running.begin(small_plan(), folder)
    (folder.path / running.LOCK).touch()
    (folder.path / "runs").write_text("in the way")
    told = refused("study", "--out", folder.path, "--resume", "--jobs", 1, code=1)
    assert "fixed_width-h1-s0: cannot be written: " in told
    assert f"0 of 4 runs are complete and kept; go on with: headwise study --out {folder.path} --resume" in told


@pytest.mark.slow
def test_a_demonstration_says_that_it_is_one(run: Callable[..., Result], tmp_path: Path) -> None:
    before = os.times()
    result = run("study", "--quick", "--out", tmp_path / "quick")
    assert result.code == 0, result.err
    assert "Only a demonstration: one seed and 400 steps" in result.words
    after = os.times()
    spent = sum(getattr(after, what) - getattr(before, what) for what in ("user", "system", "children_user"))
    assert spent < 90, "seconds of one core: half of what two cores have in 90 seconds"
    found = {(row.regime, row.heads): row.scores[0] for row in rows(StudyFolder(tmp_path / "quick"))}
    assert found["fixed_width", 2] > 0.95
    assert found["fixed_width", 1] < 0.3
