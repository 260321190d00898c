"""How a command fails: one line on stderr and an exit code, never a traceback for an expected failure."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = 130


def guarded(command: Callable[[], int]) -> int:
    """Run a command; expected failures become their one line and their exit code.

    With HEADWISE_TRACEBACK set in the environment the traceback is printed too.
    """
    try:
        return command()
    except HeadwiseError as error:
        if os.environ.get("HEADWISE_TRACEBACK"):
            traceback.print_exc()
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted: nothing was kept")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left (`| head`). Python would complain once more while it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as leaving:  # argparse, after --help or --version
        return leaving.code if isinstance(leaving.code, int) else 0


def say(message: str) -> None:
    """One line on stderr."""
    print(f"headwise: {' '.join(message.split())}", file=sys.stderr)
