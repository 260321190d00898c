"""The process of one run: it trains, tells how far it has come, and ends when nobody listens any more."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.studies.durable import DiskError
from headwise.studies.folders import RunFolder, StudyFolder
from headwise.studies.plans import Plan, RunKey

PAUSE = 0.2
"""Seconds between two messages about steps."""


def work(
    plan: dict[str, Any], folder: str, key: RunKey, tensorboard: bool, messages: Connection, lifeline: Connection
) -> None:
    """Train one run, and say what became of it.

    Args:
        plan: The plan, as plain values.
        folder: The study's folder.
        key: Which run.
        tensorboard: Whether to write logs for TensorBoard.
        messages: Where to say `("step", n)`, and at the end `("finished", final)`, `("failed", why)` or
            `("disk", why)`.
        lifeline: Ends when the study's process does.
    """
    # Ctrl-C reaches every process of the terminal; the study's decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    study = StudyFolder(Path(folder))
    run = study.run(key)
    try:
        _train(Plan.from_json(plan), study, run, tensorboard, messages)
        _tell(messages, "finished", run.final())
    except DiskError as error:
        _tell(messages, "disk", str(error))
    except Exception as error:  # noqa: BLE001 - a task's own code can raise anything; other runs go on
        why = str(error) if isinstance(error, HeadwiseError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):
            run.path.mkdir(parents=True, exist_ok=True)
            run.error_file.write_text(traceback.format_exc(), "utf-8")
        _tell(messages, "failed", " ".join(why.split()))


def _train(plan: Plan, study: StudyFolder, run: RunFolder, tensorboard: bool, messages: Connection) -> None:
    from headwise.studies import tasks
    from headwise.studies.sharing import taken_over
    from headwise.studies.training import train

    if taken_over(plan, study, run):
        return
    telling = Telling(messages)
    if tensorboard:
        from headwise.studies.boards import Board

        with Board(run, telling) as board:
            train(plan, run.key, tasks.make(plan.task, plan.settings(study.path)), run, board)
    else:
        train(plan, run.key, tasks.make(plan.task, plan.settings(study.path)), run, telling)


class Telling:
    """Tells the study's process how far the run has come, not too often."""

    def __init__(self, messages: Connection) -> None:
        self._messages, self._last = messages, 0.0

    def step(self, step: int) -> None:
        """So many steps are done."""
        now = time.monotonic()
        if now - self._last > PAUSE:
            _tell(self._messages, "step", step)
            self._last = now

    def evaluated(self, entry: dict[str, Any]) -> None:
        """A line was added to the log."""
        _tell(self._messages, "step", entry["step"])
        self._last = time.monotonic()


def _tell(messages: Connection, what: str, value: Any) -> None:
    try:
        messages.send((what, value))
    except OSError:  # nobody listens: the study's process is gone, and another one may go on with this run
        os._exit(1)


def _end_with(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)
