"""Logs for TensorBoard: the numbers of `log.jsonl` as curves."""

from __future__ import annotations

from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from headwise.errors import MissingPackageError
from headwise.studies import checkpoints
from headwise.studies.folders import RunFolder
from headwise.studies.training import Watching


def require() -> None:
    """See that TensorBoard's writer is installed.

    Raises:
        MissingPackageError: It is not.
    """
    if find_spec("tensorboard") is None:
        raise MissingPackageError('--tensorboard needs tensorboard; install it with: pip install "headwise[study]"')


class Board:
    """A `training.Watching` that writes what it hears, and passes it on."""

    def __init__(self, folder: RunFolder, passed_to: Watching) -> None:
        require()
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier process wrote beyond its checkpoint is forgotten: it will be written again.
        step = checkpoints.step_of(folder)
        self._writer: Any = SummaryWriter(str(folder.boards), purge_step=0 if step is None else step + 1)
        self._passed_to = passed_to

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def step(self, step: int) -> None:
        """So many steps are done."""
        self._passed_to.step(step)

    def evaluated(self, entry: dict[str, Any]) -> None:
        """A line was added to the log: its losses, scores, and every measure of every head."""
        step = entry["step"]
        for name in ("train_loss", "heldout_loss", "seconds_per_step"):
            if entry[name] is not None:
                self._writer.add_scalar(name, entry[name], step)
        for name, value in entry["score"].items():
            self._writer.add_scalar(f"score/{name}", value, step)
        for head in entry["heads"]:
            place = head["label"] + (f"-call{head['call']}" if head["call"] else "")
            for name, value in head.items():
                if isinstance(value, float):
                    self._writer.add_scalar(f"{name}/{place}", value, step)
        self._writer.flush()
        self._passed_to.evaluated(entry)
