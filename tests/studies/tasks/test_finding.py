"""Tasks by name, and tasks of one's own: the example of the protocol, and what is refused."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwise.errors import InputError, MissingPackageError
from headwise.studies import boards, tasks
from headwise.studies.folders import StudyFolder
from headwise.studies.planning import planned
from headwise.studies.tasks import protocol
from headwise.studies.tasks.protocol import Batch, Settings
from headwise.studies.training import train


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder; modules that are imported from it are forgotten."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def example() -> str:
    """The example of the protocol's docstring."""
    text = str(protocol.__doc__)
    start, end = text.index("    import torch"), text.index("Whatever a task draws")
    return textwrap.dedent(text[start:end])


def test_the_example_is_a_task(here: Path) -> None:
    code = example()
    assert len(code.splitlines()) <= 35
    (here / "mytasks.py").write_text(code)
    plan = planned("mytasks:Recall", heads=(2,), seeds=1, steps=30, evaluate_every=15, learning_rate=1e-2)
    folder = StudyFolder(here / "out")
    task = tasks.make(plan.task, plan.settings(folder.path))
    (key, _) = plan.runs
    train(plan, key, task, folder.run(key))
    final = folder.run(key).final()
    assert final["score_name"] == "accuracy"
    assert final["heldout_loss"] < final["start"]["heldout_loss"]
    assert str(here) not in sys.path


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ("", "lookups", "--task lookups: expected lookup, text, digits, translation, or a class of yours as mymodule:"),
        ("", "nothere:Task", "the module nothere cannot be imported: ModuleNotFoundError: No module named 'nothere'"),
        ("1 / 0", "broken:Task", "the module broken cannot be imported: ZeroDivisionError: division by zero"),
        ("x = 1", "other:Task", "the module other (.*other.py) has no Task"),
        ("Task = 3", "three:Task", "expected a subclass of headwise.studies.tasks.protocol.Task; got 3"),
        (
            "from headwise.studies.tasks import protocol\nclass Mine(protocol.Task):\n    name = 'mine'",
            "half:Mine",
            "Mine does not say its score_name, architecture, batch, held_out, score",
        ),
    ],
)
def test_what_is_no_task(here: Path, code: str, name: str, words: str) -> None:
    if code:
        (here / f"{name.partition(':')[0]}.py").write_text(code)
    with pytest.raises(InputError) as refusal:
        tasks.find(name)
    assert words.replace("(.*other.py)", f"({here / 'other.py'})") in str(refusal.value)


def test_a_task_that_fails_is_named(here: Path) -> None:
    code = example() + "\n\nclass Fails(Recall):\n    def __init__(self, settings):\n        raise KeyError('corpus')\n"
    (here / "failing.py").write_text(code)
    with pytest.raises(InputError, match="--task failing:Fails: it failed: KeyError: 'corpus'"):
        tasks.make("failing:Fails", Settings(4, 8))


def test_targets_that_count() -> None:
    import torch

    assert Batch({}, torch.tensor([[1, -100, 0], [-100, -100, 2]])).counted == 3


@pytest.mark.parametrize("name", ["digits", "translation"])
def test_a_missing_package_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    kind = tasks.find(name)
    monkeypatch.setattr(sys.modules[kind.__module__], "find_spec", lambda package: None, raising=False)
    with pytest.raises(MissingPackageError, match=r'install it with: pip install "headwise\[study\]"'):
        tasks.make(name, Settings(4, 16, folder=tmp_path))


def test_curves_without_tensorboard_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "find_spec", lambda package: None)
    with pytest.raises(MissingPackageError, match=r'needs tensorboard; .* pip install "headwise\[study\]"'):
        boards.require()
