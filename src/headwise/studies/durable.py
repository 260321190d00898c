"""Files that survive a process that is killed: written beside their place, forced to the disk, then moved into it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.profile.writing import json_value

FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskError(HeadwiseError):
    """The disk refused a file of a study: it is full, or may not be written to."""


def replace(path: Path, data: bytes) -> None:
    """Make `path` hold `data`: whoever reads it meets the old content or the new, never a part.

    Raises:
        DiskError: The disk refused; the old content stays.
    """
    part = path.with_name(f".{path.name}.part")
    with refusals(path):
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            _settle(path.parent)
        except OSError:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise


def replace_json(path: Path, value: Any, indent: int | None = 1) -> None:
    """Make `path` hold a value as JSON; NaN and infinities become null, which every reader knows."""
    replace(path, (json.dumps(json_value(value), indent=indent, allow_nan=False) + "\n").encode())


def append_line(path: Path, value: Any) -> None:
    """Add a value as one line of JSON.

    Raises:
        DiskError: The disk refused; a part of the line may stand there, which `headwise.studies.logs` skips.
    """
    line = json.dumps(json_value(value), allow_nan=False) + "\n"
    with refusals(path), path.open("ab") as file:
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """A refusal of the disk becomes one line that names the file, and what to do."""
    try:
        yield
    except OSError as error:
        why = "the disk is full: free some space" if error.errno in FULL else str(error.strerror or error)
        raise DiskError(f"{path}: cannot be written: {why}") from error


def _settle(folder: Path) -> None:
    """The folder's entry reaches the disk too, where the system knows how."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
