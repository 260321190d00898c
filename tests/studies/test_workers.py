"""The process of a run ends when the study's process is gone."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headwise.studies.workers import Telling, _end_with


class Ended(Exception):  # noqa: N818 - no error
    """Stands for the end of the process."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit codes with which the process would have ended."""
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    return codes


def quietly(function: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(Ended):
        function(*arguments)


def test_it_ends_when_its_lifeline_does(ends: list[int]) -> None:
    theirs, ours = multiprocessing.Pipe(duplex=False)
    thread = threading.Thread(target=quietly, args=(_end_with, theirs), daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    assert not ends
    ours.close()
    thread.join(10)
    assert ends == [1]
    theirs.close()


def test_it_ends_when_nobody_listens(ends: list[int]) -> None:
    theirs, ours = multiprocessing.Pipe(duplex=False)
    telling = Telling(ours)
    telling.step(3)
    assert theirs.recv() == ("step", 3)
    telling.step(4)  # too soon after the last
    telling.evaluated({"step": 5})
    assert theirs.recv() == ("step", 5)
    theirs.close()
    quietly(telling.evaluated, {"step": 6})
    assert ends == [1]
    ours.close()
