"""The command on the page plans the same study again."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headwise.cli import study
from headwise.studies.folders import StudyFolder
from headwise.studies.page.commands import command
from headwise.studies.planning import planned


@pytest.mark.parametrize(
    "given",
    [
        {"task": "lookup"},
        {"task": "lookup", "options": {"asked": "4"}, "seeds": 10},
        {"task": "lookup", "quick": True, "seeds": 3},
        {"task": "lookup", "init": "per_head", "regimes": ("fixed_width",), "steps": 40, "dropout": 0.25},
        {"task": "lookup", "heads": (2, 8), "head_dim": 12, "threads": 2, "learning_rate": 1e-5, "warmup": 7,
         "evaluate_every": 11, "num_layers": 2, "weight_decay": 0.0},
        {"task": "text", "data": [Path("some text.txt")], "length": 16, "batch": 2},
        {"task": "text", "heads": (1, 4)},
    ],
)  # fmt: skip
def test_there_and_back(given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("some text.txt").write_text("to be or not to be " * 100)
    plan = planned(given.pop("task"), **given)
    told = command(plan, "again")
    assert str(tmp_path) not in told
    parser = argparse.ArgumentParser()
    study.add_arguments(parser)
    headwise, name, *rest = shlex.split(told)
    assert (headwise, name) == ("headwise", "study")
    arguments = parser.parse_args(rest)
    assert study._begun(arguments, StudyFolder(study._out(arguments)), Console(quiet=True)) == plan
    assert Path("again", "plan.json").is_file()


def test_defaults_are_not_spelled_out() -> None:
    assert command(planned("lookup"), "a b") == "headwise study --task lookup --out 'a b'"
    assert command(planned("lookup", steps=50), "x") == "headwise study --task lookup --steps 50 --out x"
