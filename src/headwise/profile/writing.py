"""Files that are whole or not there: written beside their places first, then moved into them."""

from __future__ import annotations

import math
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


def replace_files(contents: Mapping[Path, bytes], *, new: Collection[Path] = ()) -> None:
    """Write files, replacing those that exist; none is moved into place before all are written.

    Args:
        contents: What each file is to hold.
        new: Those that must not exist: one that somebody else made meanwhile is left as it is.

    Raises:
        InputError: A file cannot be written, or was made meanwhile.
    """
    staged: dict[Path, Path] = {}
    try:
        for path, data in contents.items():
            with _naming(path):
                handle, neighbour = tempfile.mkstemp(prefix=".headwise-", dir=path.parent)
                staged[path] = Path(neighbour)
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                # A temporary file is private; what it becomes follows the user's umask like any other file.
                umask = os.umask(0)
                os.umask(umask)
                staged[path].chmod(0o666 & ~umask)
        for path, part in staged.items():
            if path in new and path.exists():
                raise InputError(f"{path}: was made by somebody else meanwhile; it is left as it is")
            with _naming(path):
                part.replace(path)
    finally:
        for part in staged.values():
            with suppress(OSError):
                part.unlink(missing_ok=True)


def json_value(value: Any) -> Any:
    """A value as JSON can hold it: numpy's numbers as Python's own, and what is no finite number as None."""
    if isinstance(value, dict):
        return {str(key): json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A refusal of the disk becomes an error that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
