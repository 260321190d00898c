"""Files that survive, and folders that say what is in them."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from headwise.errors import FileFormatError, InputError
from headwise.studies import durable
from headwise.studies.durable import DiskError
from headwise.studies.folders import StudyFolder, log_lines
from headwise.studies.plans import RunKey
from tests.studies.small import small_plan


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    durable.replace_json(path, {"x": float("nan"), "y": [1.5, float("inf")]})
    assert json.loads(path.read_text()) == {"x": None, "y": [1.5, None]}

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match=r"a\.json: cannot be written: the disk is full: free some space"):
        durable.replace(path, b"other")
    assert json.loads(path.read_text()) == {"x": None, "y": [1.5, None]}
    assert list(tmp_path.iterdir()) == [path]


def test_other_refusals_say_what_the_system_says(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="cannot be written: No such file or directory"):
        durable.replace(tmp_path / "none" / "a", b"x")


def test_a_log_is_read_up_to_what_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert list(log_lines(path)) == []
    durable.append_line(path, {"step": 0, "loss": float("nan")})
    durable.append_line(path, {"step": 1, "loss": 0.1})
    with path.open("ab") as file:
        file.write(b'{"step": 2, "lo')
    assert list(log_lines(path)) == [{"step": 0, "loss": None}, {"step": 1, "loss": 0.1}]


def test_a_folder_says_which_runs_are_complete(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    with pytest.raises(InputError, match="holds no study"):
        folder.plan()
    plan = small_plan()
    durable.replace_json(folder.plan_file, plan.to_json())
    assert folder.plan() == plan
    run = folder.run(RunKey("fixed_width", 2, 0))
    assert run.path == tmp_path / "runs" / "fixed_width-h2-s0"
    assert folder.complete() == []
    run.path.mkdir(parents=True)
    run.final_file.write_text("[]")
    assert [one.key for one in folder.complete()] == [run.key]
    with pytest.raises(FileFormatError, match=r"final\.json: is damaged"):
        run.final()
    folder.plan_file.write_text("{")
    with pytest.raises(FileFormatError, match=r"plan\.json: is damaged"):
        folder.plan()
