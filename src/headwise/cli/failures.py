"""How a command fails: one line on stderr and an exit code, never a traceback for an expected failure."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERRUPTED = 130


def guarded(command: Callable[[], int]) -> int:
    """Run a command; expected failures become their one line and their exit code.

    With HEADWISE_TRACEBACK set in the environment the traceback is printed too.
    """
    try:
        code = command()
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk behind it must be met here, not while Python ends
        return code
    except HeadwiseError as error:
        if os.environ.get("HEADWISE_TRACEBACK"):
            traceback.print_exc()
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt as error:
        say(f"interrupted: {error}" if str(error) else "interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # whoever read our output has left (`| head`)
        return 1
    except OSError as error:
        if os.environ.get("HEADWISE_TRACEBACK"):
            traceback.print_exc()
        if error.filename is None:
            _drop_output()
        where = f"{str(error.filename)[:200]}: " if error.filename else ""
        say(f"{where}{error.strerror or error}")
        return 1
    except SystemExit as leaving:  # argparse, after --help or --version
        return leaving.code if isinstance(leaving.code, int) else 0


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Ctrl-C within this block leaves nothing behind, and the command says so."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing was kept") from None


def _drop_output() -> None:
    """What is still to be written goes nowhere: Python would complain once more while it closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(message: str) -> None:
    """One line on stderr."""
    print(f"headwise: {' '.join(message.split())}", file=sys.stderr)
