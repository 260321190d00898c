"""All runs of a study: who may begin it, and what becomes of workers that die."""

from __future__ import annotations

import multiprocessing
import os
import struct
from pathlib import Path
from typing import Any, cast

import pytest

from headwise.errors import InputError
from headwise.studies import durable, running
from headwise.studies.folders import StudyFolder
from headwise.studies.plans import DataFile
from tests.studies.small import KEY, finished, small_plan, trained


class Heard:
    """A `running.Watching` that remembers what became of a run."""

    def __init__(self) -> None:
        self.finals: list[dict[str, Any]] = []
        self.reasons: list[str] = []

    def begins(self, key: object) -> None:
        """Nothing."""

    def step(self, key: object, step: int) -> None:
        """Nothing."""

    def finished(self, key: object, final: dict[str, Any]) -> None:
        self.finals.append(final)

    def failed(self, key: object, why: str) -> None:
        self.reasons.append(why)


class Dead:
    """A process that was killed."""

    exitcode = -9

    def join(self) -> None:
        """It is over."""


def broken_off(folder: StudyFolder, sent: bytes) -> tuple[running.Outcome, Heard]:
    """What is made of a worker whose last words were these."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    if sent:
        os.write(theirs.fileno(), sent)
    theirs.close()
    lifeline, _ = multiprocessing.Pipe(duplex=False)
    outcome, heard = running.Outcome(), Heard()
    job = running._Job(KEY, folder.run(KEY), cast(Any, Dead()), ours, lifeline)
    assert not running._hear(job, outcome, heard)
    ours.close()
    return outcome, heard


@pytest.mark.skipif(os.name != "posix", reason="writes into a pipe")
@pytest.mark.parametrize("sent", [b"", struct.pack("!i", 1000) + b"half"], ids=["silent", "within a message"])
def test_a_worker_that_dies_fails_alone(tmp_path: Path, sent: bytes) -> None:
    folder = StudyFolder(tmp_path)
    folder.run(KEY).path.mkdir(parents=True)
    outcome, heard = broken_off(folder, sent)
    assert outcome.failed == {KEY: "its process ended (exit code -9); is there too little memory?"}
    assert heard.reasons == list(outcome.failed.values())
    assert folder.run(KEY).error() == heard.reasons[0] + "\n"


@pytest.mark.skipif(os.name != "posix", reason="writes into a pipe")
def test_a_worker_that_dies_after_its_work_has_done_it(tmp_path: Path) -> None:
    run = trained(small_plan(), tmp_path)
    outcome, heard = broken_off(StudyFolder(tmp_path), struct.pack("!i", 1000) + b"half")
    assert (outcome.complete, outcome.failed) == ([KEY], {})
    assert heard.finals == [run.final()]


def test_a_study_whose_begin_was_killed_can_begin_again(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    folder.path.mkdir()
    for name in (running.LOCK, "subwords.json", ".plan.json.part"):
        (folder.path / name).write_text("")
    running.begin(small_plan(), folder)
    assert folder.plan() == small_plan()


@pytest.mark.parametrize("name", ["notes.txt", "subwords.json"])
def test_files_of_others_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match="exists and is no study; give the name of a new folder"):
        running.begin(small_plan(), StudyFolder(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(os.name != "posix", reason="locks files")
def test_two_processes_do_not_begin_one_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = StudyFolder(tmp_path / "study"), small_plan(steps=8)
    folder.path.mkdir()
    with running._locked(folder), pytest.raises(InputError, match="another process works on this study"):
        running.begin(small_plan(), folder)
    assert (folder.path / running.LOCK).exists()
    # Another one begins it between the look and the lock.
    look = running._require_room

    def late(folder: StudyFolder) -> None:
        look(folder)
        monkeypatch.setattr(running, "_require_room", look)
        durable.replace_json(folder.plan_file, other.to_json())

    monkeypatch.setattr(running, "_require_room", late)
    with pytest.raises(InputError, match="holds a study already"):
        running.begin(small_plan(), folder)
    assert folder.plan() == other


def test_where_the_data_lie_now_is_kept(tmp_path: Path) -> None:
    """So that the study can be gone on with, and shown, without saying it again."""
    from headwise.studies.planning import planned

    text = tmp_path / "a.txt"
    text.write_text("to be or not to be. " * 300)
    plan = planned(
        "text", data=[text], heads=(1,), seeds=1, d_model=8, num_layers=1, d_ff=0, steps=1, batch=2, length=8,
        regimes=("fixed_width",),
    )  # fmt: skip
    folder = finished(plan, tmp_path / "study")
    moved = text.rename(tmp_path / "b.txt")
    running.run(plan.with_data([moved]), folder, 1, Heard())
    assert [Path(one.path) for one in cast(tuple[DataFile, ...], folder.plan().data)] == [moved]
    folder.plan().check_data()
