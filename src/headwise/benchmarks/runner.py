"""Runs a case: variants take turns, every sample is kept, and an interruption keeps what is there."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from headwise.benchmarks import peak
from headwise.benchmarks.cases import Case, NotRunError, Operation, Parameters, Point, load_workload
from headwise.benchmarks.machine import machine, versions
from headwise.benchmarks.results import Measured, Result, Sample

Sampler = Callable[[str], Sample]
"""Runs a variant once."""


class Watching(Protocol):
    """Who is told how far a run has come."""

    def starts(self, case: Case, points: Sequence[Point]) -> None:
        """A case starts; `points` are those that have to be run."""

    def step(self, case: Case, point: Point, variant: str, turn: int) -> None:
        """A variant is about to run; turns before 0 are warm-ups."""

    def finished(self, case: Case, measured: Measured) -> None:
        """A point is done."""


@dataclass(frozen=True)
class Outcome:
    """A result, and whether Ctrl-C ended it early."""

    result: Result
    interrupted: bool = False


@dataclass
class _Turns:
    """The turns of one point."""

    case: Case
    point: Point
    watching: Watching
    measured: Measured = field(init=False)

    def __post_init__(self) -> None:
        self.measured = Measured(self.point.name, dict(self.point.parameters))

    def run(self, sample: Sampler) -> None:
        """All turns, warm-ups first; a variant that fails is left out from then on, and all are without a baseline."""
        for turn in range(-self.case.warmups, self.case.turns):
            for variant in self._order(backwards=(turn + self.case.warmups) % 2 == 1):
                if self.case.baseline in self.measured.not_run and not self.measured.samples:
                    self.measured.not_run.setdefault(variant, f"not run: {self.case.baseline} did not")
                    continue
                self.watching.step(self.case, self.point, variant, turn)
                try:
                    taken = sample(variant)
                except Exception as error:  # noqa: BLE001 (a peer may fail with anything; the reason is kept)
                    self._leave_out(variant, turn, reason(error))
                    continue
                if turn >= 0:
                    self.measured.samples.setdefault(variant, []).append(taken)

    def _order(self, *, backwards: bool) -> list[str]:
        """The variants of a turn, the baseline first (every other turn: last); none that is left out."""
        names = [self.case.baseline, *(v.name for v in self.case.variants if v.name != self.case.baseline)]
        return [name for name in (names[::-1] if backwards else names) if name not in self.measured.not_run]

    def _leave_out(self, variant: str, turn: int, why: str) -> None:
        ran = len(self.measured.samples.get(variant, ()))
        self.measured.not_run[variant] = f"stopped after {ran} of {self.case.turns} runs: {why}" if ran else why

    def cut(self) -> bool:
        """Drop the turn that was not finished; whether a whole one is left."""
        running = {v: s for v, s in self.measured.samples.items() if v not in self.measured.not_run}
        expected = [v.name for v in self.case.variants if v.name not in self.measured.not_run]
        whole = min((len(running.get(name, ())) for name in expected), default=0)
        self.measured.samples = {
            variant: samples[: min(whole, len(samples))] for variant, samples in self.measured.samples.items()
        }
        return whole > 0


def run(
    case: Case,
    watching: Watching,
    *,
    before: Result | None = None,
    keep: Callable[[Result], None] | None = None,
) -> Outcome:
    """Run a case, or what is left of it.

    Args:
        case: The case.
        watching: Is told of every step.
        before: An earlier result of the case: its whole points are taken over if it was measured on this machine
            with these versions, variants and turns.
        keep: Is given the result after each point, to write it.

    Returns:
        The result; after Ctrl-C with the points that are done, and the finished turns of the one at hand.
    """
    result = _empty(case)
    if before is not None and _alike(before, result):
        kept = {point.name: point for point in before.points if before.whole(point)}
        result.points = [kept[point.name] for point in case.points if _is_point(kept.get(point.name), point)]
    there = {point.name for point in result.points}
    left = [point for point in case.points if point.name not in there]
    watching.starts(case, left)
    try:
        hidden = case.prepare() if case.prepare and left else {}
        for point in left:
            turns = _Turns(case, point, watching)
            try:
                turns.run(_sampler(case, point, hidden))
            except KeyboardInterrupt:
                if turns.cut():
                    _insert(case, result, turns.measured)
                raise
            _insert(case, result, turns.measured)
            watching.finished(case, turns.measured)
            if keep:
                keep(result)
    except KeyboardInterrupt:
        if keep and result.points:
            keep(result)
        return Outcome(result, interrupted=True)
    return Outcome(result)


def reason(error: BaseException) -> str:
    """Why a variant did not run, in a line."""
    from headwise.errors import HeadwiseError
    from headwise.models.loading import one_line

    text = one_line(error)
    return text if isinstance(error, NotRunError | HeadwiseError) else f"{type(error).__name__}: {text}"


def _empty(case: Case) -> Result:
    return Result(
        case=case.name,
        level=case.level,
        about=case.about,
        baseline=case.baseline,
        variants={variant.name: variant.about for variant in case.variants},
        turns=case.turns,
        planned=len(case.points),
        machine=machine(),
        versions=versions(),
    )


def _alike(before: Result, now: Result) -> bool:
    fields = ("case", "about", "baseline", "variants", "turns", "machine", "versions")
    return all(getattr(before, name) == getattr(now, name) for name in fields)


def _is_point(kept: Measured | None, point: Point) -> bool:
    return kept is not None and kept.parameters == dict(point.parameters)


def _insert(case: Case, result: Result, measured: Measured) -> None:
    """Points stand in the order of the case, whatever order they were measured in."""
    order = [point.name for point in case.points]
    result.points = sorted([*result.points, measured], key=lambda one: order.index(one.name))


def _sampler(case: Case, point: Point, hidden: Parameters) -> Sampler:
    parameters = {**point.parameters, **hidden}
    if case.fresh:
        return lambda variant: _in_fresh_process(case, parameters, variant)
    made: dict[str, Operation] = {}
    operations: list[Callable[[str], Operation]] = []

    def sample(variant: str) -> Sample:
        if not operations:
            gc.collect()  # what the point before has held
            operations.append(load_workload(case.workload)(parameters))
        if variant not in made:
            made[variant] = operations[0](variant)
        return measure(made[variant], case.repeats)

    return sample


def measure(operation: Operation, repeats: int = 1) -> Sample:
    """Run an operation, once or a few times: its time, and the peak of memory above what is held now."""
    held = peak.start()
    first, more = _timed(operation)
    extra = peak.since(held)
    if repeats == 1:
        return Sample(first, extra, more)
    runs = (first, *(_timed(operation)[0] for _ in range(repeats - 1)))
    return Sample(median(runs), extra, more, runs)


def _timed(operation: Operation) -> tuple[float, dict[str, float]]:
    started = time.perf_counter()
    more = operation()
    return time.perf_counter() - started, dict(more or {})


def _in_fresh_process(case: Case, parameters: Parameters, variant: str) -> Sample:
    """One sample by `worker.py`.

    Raises:
        NotRunError: The variant did not run there, and why.
    """
    asked = json.dumps(
        {"workload": case.workload, "parameters": dict(parameters), "variant": variant, "repeats": case.repeats}
    )
    command = [sys.executable, "-P", "-m", "headwise.benchmarks.worker"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotRunError(_death(done.returncode, done.stderr))
    answer = json.loads(done.stdout.splitlines()[-1])
    if "not_run" in answer:
        raise NotRunError(answer["not_run"])
    return Sample.from_json(answer)


def _death(code: int, said: str) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed: probably for want of memory"
    last = said.strip().splitlines()[-1:] or ["it said nothing"]
    how = f"signal {-code}" if code < 0 else f"code {code}"
    return f"its process ended with {how}: {last[0][:200]}"
