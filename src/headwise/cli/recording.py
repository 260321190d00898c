"""Running a model over windows under a watch, with a progress bar; Ctrl-C keeps what was recorded."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwise.errors import HeadwiseError, InputError, ModelError
from headwise.profile.kept import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwise.cli.windows import Windows
    from headwise.models.opening import OpenedModel
    from headwise.profile import Profile


@dataclass(frozen=True)
class Recording:
    """A profile, and how far the recording came.

    Attributes:
        profile: What was recorded.
        windows: Windows that were read whole.
        tokens: Their tokens, special tokens included.
        stopped: Whether Ctrl-C ended it early.
    """

    profile: Profile
    windows: int
    tokens: int
    stopped: bool


def record(
    opened: OpenedModel,
    windows: Windows,
    *,
    batch_size: int | None = None,
    layers: list[int | str] | None = None,
    measures: str | list[str] = "default",
    fuse: bool = False,
    verify: bool = False,
    keep: str | None = None,
    keep_limit: int | str | None = None,
) -> Recording:
    """Run the model over every window.

    Raises:
        InputError: A layer is asked for that the model does not have.
        ModelError: The model itself failed.
        KeyboardInterrupt: Ctrl-C before any window was read whole, or a second time.
    """
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    import headwise

    try:
        watching = headwise.watch(
            opened.model,
            measures=measures,
            layers=layers,
            fuse=fuse,
            verify=verify,
            tokenizer=opened.tokenizer,
            keep=keep,
            keep_limit=LIMIT if keep_limit is None else keep_limit,
        )
    except ValueError as error:  # a module path that the model does not have
        raise InputError(f"--layers: {str(error).removeprefix('layers: ')}") from error
    read = tokens = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with (
        _stop_on_interrupt() as stop,
        warnings.catch_warnings(),
        bar,
        torch.no_grad(),
        watching as profile,
    ):
        warnings.simplefilter("ignore")  # what headwise itself warns of stands in profile.unseen, and is printed
        task = bar.add_task("Reading windows", total=len(windows.ids))
        for batch in windows.batches(batch_size):
            _forward(opened, batch)
            read += len(batch)
            tokens += sum(map(len, batch))
            bar.update(task, completed=read)
            if stop.is_set():
                break
    return Recording(profile, read, tokens, stopped=read < len(windows.ids))


def _forward(opened: OpenedModel, batch: list[list[int]]) -> None:
    try:
        opened.model(**opened.inputs(batch))
    except HeadwiseError:
        raise
    except Exception as error:
        from headwise.models.loading import one_line

        hint = "; try a smaller --batch-size or --window" if "out of memory" in str(error).lower() else ""
        raise ModelError(
            f"{opened.name} failed on {len(batch)} x {len(batch[0])} tokens: "
            f"{type(error).__name__}: {one_line(error)}{hint} (HEADWISE_TRACEBACK=1 shows where)"
        ) from error


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """Ctrl-C asks to stop after the batch at hand; a second one stops at once.

    Stopping between batches leaves every layer with the same windows.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return

    def ask(*_: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if sys.stderr.isatty():
            # Not print: a signal may come in the middle of one.
            os.write(2, b"\nStopping after this batch; Ctrl-C again stops at once and keeps nothing.\n")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
