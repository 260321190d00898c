"""One run: trained, evaluated as it goes, resumed where it stopped.

Every step is a function of the plan, the seed and the step's number: its batch, its dropout and its learning rate. So
a checkpoint is the model and the optimizer, and a run that was killed at any moment ends, bit by bit, as one that was
not.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError, InputError
from headwise.studies import checkpoints, durable, finishing, measuring
from headwise.studies.checkpoints import Checkpoint
from headwise.studies.folders import RunFolder
from headwise.studies.memory import peak_resident
from headwise.studies.plans import Plan, RunKey
from headwise.studies.seeding import derived
from headwise.studies.tasks.protocol import Task
from headwise.studies.transformer import build

BETAS = (0.9, 0.98)
LEAST_RATE = 0.1
"""Where the learning rate ends, as a part of its peak."""


class DivergedError(HeadwiseError):
    """Training came to a loss that is no number."""


def diverged(what: str, value: float) -> DivergedError:
    """What to say of a loss that is no number, and what to do."""
    return DivergedError(
        f"{what} is {value}: training diverged; give a smaller --learning-rate, or more --warmup, to a new study"
    )


class Watching(Protocol):
    """Who is told how far a run has come."""

    def step(self, step: int) -> None:
        """So many steps are done."""

    def evaluated(self, entry: dict[str, Any]) -> None:
        """A line was added to the log."""


class Silent:
    """A `Watching` that does nothing."""

    def step(self, step: int) -> None:
        """Nothing."""

    def evaluated(self, entry: dict[str, Any]) -> None:
        """Nothing."""


def train(plan: Plan, key: RunKey, task: Task, folder: RunFolder, watching: Watching | None = None) -> None:
    """Train and measure one run, from its checkpoint if it has one.

    Args:
        plan: The plan.
        key: Which of its runs.
        task: The plan's task.
        folder: Where the run is kept.
        watching: Is told of every step and evaluation.

    Raises:
        DiskError: The disk refused; what was kept before stays.
        DivergedError: The loss, of training or of held-out data, became NaN or infinite.
        InputError: The task's score lacks what the task names.
        FileFormatError: The checkpoint is damaged.
    """
    watching = watching or Silent()
    with durable.refusals(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.error_file.unlink(missing_ok=True)
    with reproducible(plan.threads):
        _Run(plan, key, task, folder, watching).go()


class _Run:
    def __init__(self, plan: Plan, key: RunKey, task: Task, folder: RunFolder, watching: Watching) -> None:
        self.plan, self.key, self.task, self.folder, self.watching = plan, key, task, folder, watching
        self.model = build(task.architecture(), plan.sizes(key), key.seed)
        self.optimizer = optimizer_of(self.model, plan)
        self.at = Checkpoint(0, plan.digest)

    def go(self) -> None:
        known = checkpoints.read(self.folder, self.model, self.optimizer, self.plan.digest)
        checkpoints.cut_log(self.folder, None if known is None else known.step)
        if known is None:
            self.evaluate(0, None, [])
            start = measuring.profile_of(self.model, self.task, measuring.KEPT)
            durable.replace(self.folder.start_file, measuring.packed(start))
            self.keep(0, 0.0)
        else:
            self.at = known
        self.watching.step(self.at.step)
        for stop in self.plan.evaluations():
            if stop > self.at.step:
                times, losses = self.steps_to(stop)
                self.evaluate(stop, statistics.fmean(losses), times)
                self.keep(stop, self.at.seconds + sum(times))
        finishing.finish(self.plan, self.key, self.task, self.folder, self.model, self.at)

    def steps_to(self, stop: int) -> tuple[list[float], list[float]]:
        """Train up to a step: the processor's seconds, which other programs do not lengthen, and the loss of each."""
        times, losses = [], []
        self.model.train()
        for step in range(self.at.step, stop):
            began = time.process_time()
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.plan, step)
            torch.manual_seed(derived(self.key.seed, "dropout", step))
            loss = one_step(self.model, self.optimizer, self.task, self.key.seed, step, self.plan.clip)
            value = loss.item()
            if not math.isfinite(value):
                raise diverged(f"the loss of step {step + 1}", value)
            losses.append(value)
            times.append(time.process_time() - began)
            self.watching.step(step + 1)
        return times, losses

    def evaluate(self, step: int, train_loss: float | None, times: list[float]) -> None:
        """Add a line to the log."""
        self.model.eval()
        with torch.no_grad():
            loss = measuring.heldout_loss(self.model, self.task)
            score = self.task.score(self.model, final=step == self.plan.steps)
        if not math.isfinite(loss):
            raise diverged(f"the held-out loss after step {step}", loss)
        if self.task.score_name not in score:
            raise InputError(
                f"--task {self.plan.task}: score() must return {self.task.score_name!r} (its score_name); "
                f"got {', '.join(map(repr, score)) or 'nothing'}"
            )
        entry = {
            "step": step,
            "train_loss": train_loss,
            "heldout_loss": loss,
            "score": score,
            "seconds_per_step": statistics.median(times) if times else None,
            "peak_bytes": max(peak_resident() or 0, self.at.peak_bytes) or None,
            "heads": measuring.heads_of(measuring.profile_of(self.model, self.task)),
        }
        durable.append_line(self.folder.log_file, entry)
        self.watching.evaluated(entry)

    def keep(self, step: int, seconds: float) -> None:
        peak = max(peak_resident() or 0, self.at.peak_bytes)
        self.at = replace(self.at, step=step, seconds=seconds, peak_bytes=peak)
        checkpoints.write(self.folder, self.model, self.optimizer, self.at)


def one_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, task: Task, seed: int, step: int, clip: float
) -> Tensor:
    """A step of training; the loss before it."""
    optimizer.zero_grad(set_to_none=True)
    loss = task.loss(model, task.batch(seed, step))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.detach()


def optimizer_of(model: nn.Module, plan: Plan) -> torch.optim.AdamW:
    """AdamW; matrices decay, biases and norms do not."""
    named = [parameter for _, parameter in checkpoints.parameters_in_order(model)]
    matrices = [parameter for parameter in named if parameter.dim() >= 2]
    rest = [parameter for parameter in named if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=plan.learning_rate, betas=BETAS)


def learning_rate(plan: Plan, step: int) -> float:
    """Of the step with this number, from 0: a line up to the peak, then a cosine down to a tenth of it."""
    if step < plan.warmup:
        return plan.learning_rate * (step + 1) / plan.warmup
    along = (step - plan.warmup) / max(1, plan.steps - plan.warmup)
    return plan.learning_rate * (LEAST_RATE + (1 - LEAST_RATE) * (1 + math.cos(math.pi * min(along, 1.0))) / 2)


@contextmanager
def reproducible(threads: int) -> Iterator[None]:
    """Deterministic operations on so many threads; everything is put back."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Memory is filled for programs that read what they did not write; here it would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
