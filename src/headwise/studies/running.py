"""All runs of a study: several at a time, each in a process of its own, none of them twice."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from headwise.errors import HeadwiseError, InputError
from headwise.studies import durable, tasks
from headwise.studies.durable import DiskError
from headwise.studies.folders import RunFolder, StudyFolder
from headwise.studies.plans import Plan, RunKey
from headwise.studies.sharing import twin_of
from headwise.studies.workers import work

LOCK = ".lock"
PREPARED = ("subwords.json",)
"""What tasks prepare for all runs."""


class Watching(Protocol):
    """Who is told how far a study has come."""

    def begins(self, key: RunKey) -> None:
        """A run begins, or goes on."""

    def step(self, key: RunKey, step: int) -> None:
        """So many of its steps are done."""

    def finished(self, key: RunKey, final: dict[str, Any]) -> None:
        """It is complete."""

    def failed(self, key: RunKey, why: str) -> None:
        """It failed; others go on."""


@dataclass
class Outcome:
    """What became of the runs.

    Attributes:
        complete: Runs that are complete, also from before.
        failed: Runs that failed, and why, in one line.
        interrupted: Whether Ctrl-C ended it.
    """

    complete: list[RunKey] = field(default_factory=list)
    failed: dict[RunKey, str] = field(default_factory=dict)
    interrupted: bool = False


@dataclass
class _Job:
    key: RunKey
    run: RunFolder
    process: BaseProcess
    messages: Connection
    lifeline: Connection


def begin(plan: Plan, folder: StudyFolder) -> None:
    """Write the plan of a new study, and what its task prepares.

    Raises:
        InputError: The folder holds something already, or the task refuses its data.
        DiskError: The disk refused.
    """
    _require_room(folder)
    settings = plan.settings(folder.path)
    made = not folder.path.exists()
    with durable.refusals(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        _require_room(folder)  # another process may have begun one meanwhile
        try:
            tasks.prepare(plan.task, settings)
            check(plan, folder)
            # Last: a folder with a plan is a study that can be resumed.
            durable.replace_json(folder.plan_file, plan.to_json())
        except BaseException:
            _clear(folder, made)
            raise


def _require_room(folder: StudyFolder) -> None:
    """See that a study can begin in a folder: it is new, empty, or holds what one that was killed had prepared.

    Raises:
        InputError: It cannot.
    """
    if folder.plan_file.exists():
        raise InputError(f"--out {folder.path}: holds a study already; go on with --resume, or give another folder")
    if not folder.path.exists():
        return
    names = {path.name for path in folder.path.iterdir()} if folder.path.is_dir() else {""}
    prepared = {name for name in names if name in PREPARED or (name.startswith(".") and name.endswith(".part"))}
    if names and (LOCK not in names or names - prepared - {LOCK}):
        raise InputError(f"--out {folder.path}: exists and is no study; give the name of a new folder")


def check(plan: Plan, folder: StudyFolder) -> None:
    """Make the task once, and its first batch and models: what is wrong with them is told before any run.

    Raises:
        InputError: What.
    """
    from headwise.studies.transformer import build

    task = tasks.make(plan.task, plan.settings(folder.path))
    try:
        architecture = task.architecture()
        for key in plan.runs[: len(plan.heads) * len(plan.regimes)]:
            model = build(architecture, plan.sizes(key), key.seed)
        task.loss(model, task.batch(plan.seeds[0], 0))
        held_out = task.held_out()
    except HeadwiseError:
        raise
    except Exception as error:
        raise InputError(f"--task {plan.task}: it failed: {type(error).__name__}: {error}") from error
    if not held_out or not all(batch.counted for batch in held_out):
        raise InputError(f"--task {plan.task}: it has no held-out data, or a batch of them in which no target counts")


def run(plan: Plan, folder: StudyFolder, jobs: int, watching: Watching, *, tensorboard: bool = False) -> Outcome:
    """Train every run that is not complete.

    Args:
        plan: The plan that the folder holds.
        folder: The study's folder.
        jobs: Runs at a time.
        watching: Is told how far they have come.
        tensorboard: Whether runs write logs for TensorBoard.

    Raises:
        DiskError: The disk refused; what is complete stays.
        InputError: Another process works on this study.
    """
    outcome = Outcome()
    waiting: list[RunKey] = []
    for planned in plan.runs:
        (outcome.complete if folder.run(planned).is_complete else waiting).append(planned)
    running: list[_Job] = []
    with _locked(folder):
        if folder.plan() != plan:  # the same study, but its data lie elsewhere now
            durable.replace_json(folder.plan_file, plan.to_json())
        try:
            while waiting or running:
                while len(running) < jobs and (key := _next(plan, waiting, running)):
                    waiting.remove(key)
                    watching.begins(key)
                    running.append(_start(plan, folder, key, tensorboard))
                for job in _ready(running):
                    if not _hear(job, outcome, watching):
                        _close(job)
                        running.remove(job)
        except KeyboardInterrupt:
            outcome.interrupted = True
        finally:
            for job in running:
                job.process.kill()
                _close(job)
    return outcome


def _next(plan: Plan, waiting: Sequence[RunKey], running: Sequence[_Job]) -> RunKey | None:
    """The run to begin with; one that another will answer too waits for it."""
    before = {*waiting, *(job.key for job in running)}
    return next((key for key in waiting if twin_of(plan, key) not in before), None)


def _start(plan: Plan, folder: StudyFolder, key: RunKey, tensorboard: bool) -> _Job:
    context = multiprocessing.get_context("spawn")
    messages, theirs = context.Pipe(duplex=False)
    # The worker holds the other end: when it reads an end of file, we are gone, and it must not write on.
    their_line, lifeline = context.Pipe(duplex=False)
    process = context.Process(
        target=work, args=(plan.to_json(), str(folder.path), key, tensorboard, theirs, their_line), name=str(key)
    )
    process.start()
    theirs.close()
    their_line.close()
    return _Job(key, folder.run(key), process, messages, lifeline)


def _ready(running: Sequence[_Job]) -> list[_Job]:
    heard = wait([job.messages for job in running])
    return [job for job in running if job.messages in heard]


def _hear(job: _Job, outcome: Outcome, watching: Watching) -> bool:
    """Take a worker's next message; False if it was its last.

    Raises:
        DiskError: The disk refused what the worker wrote.
    """
    try:
        what, value = job.messages.recv()
    except (EOFError, OSError):  # it ended, perhaps in the middle of a message
        job.process.join()
        if job.run.final_file.is_file():
            what, value = "finished", job.run.final()
        else:
            what, value = "failed", f"its process ended (exit code {job.process.exitcode}); is there too little memory?"
            with suppress(OSError):
                job.run.error_file.write_text(value + "\n", "utf-8")
    if what == "step":
        watching.step(job.key, value)
        return True
    if what == "disk":
        raise DiskError(value)
    if what == "finished":
        outcome.complete.append(job.key)
        watching.finished(job.key, value)
    else:
        outcome.failed[job.key] = value
        watching.failed(job.key, value)
    return False


def _close(job: _Job) -> None:
    job.process.join()
    job.messages.close()
    job.lifeline.close()


@contextmanager
def _locked(folder: StudyFolder) -> Iterator[None]:
    """One process at a time works on a study; the lock goes with the process, however it ends.

    Raises:
        InputError: Another one does.
    """
    try:
        import fcntl
    except ImportError:  # Windows: nobody else is looked for
        yield
        return
    with durable.refusals(folder.path / LOCK):
        file = (folder.path / LOCK).open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"--out {folder.path}: another process works on this study; wait for it, or end it"
            ) from None
        yield


def _clear(folder: StudyFolder, made: bool) -> None:
    """Take away what a study that could not begin has left; only files that it made."""
    with suppress(OSError):
        for path in folder.path.iterdir():
            if path.is_file():
                path.unlink()
        if made:
            folder.path.rmdir()
