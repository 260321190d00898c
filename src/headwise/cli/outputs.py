"""The files a command writes: all checked before any work is done, then all written whole, or none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from headwise.errors import InputError
from headwise.models.places import user_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Makers: TypeAlias = "Mapping[str, Callable[[], bytes]]"
"""What makes the content of the file that a flag asks for."""


@dataclass(frozen=True)
class Output:
    """One file to write: the flag that asked for it, where it goes, and whether it may replace what is there."""

    flag: str
    path: Path
    replaces: bool = False


def plan(asked: Mapping[str, str | None], *, force: bool, reads: Sequence[Path] = ()) -> list[Output]:
    """The outputs that are asked for, each checked.

    Args:
        asked: A flag, and the file that it names; None where it was not given.
        force: Whether files that exist are replaced.
        reads: Files that the command reads, which no output may replace.

    Raises:
        InputError: An output cannot be written, or exists and may not be replaced.
    """
    outputs: list[Output] = []
    taken = {path.resolve(): "the input" for path in reads}
    for flag, value in asked.items():
        if value is None:
            continue
        output = Output(flag, user_path(value).resolve(), force)
        _check(output, value, force)
        if output.path in taken:
            raise InputError(f"{flag} {value} is the same file as {taken[output.path]}; give it another name")
        taken[output.path] = f"the one that {flag} writes"
        outputs.append(output)
    return outputs


def _check(output: Output, value: str, force: bool) -> None:
    path, asked = output.path, f"{output.flag} {value}"
    if not value or path.is_dir():
        raise InputError(f"{asked!r} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{asked}: there is no folder {path.parent}; create it first")
    if path.exists() and not path.is_file():
        raise InputError(f"{asked} is not an ordinary file; give the name of a new one")
    if path.exists() and not force:
        raise InputError(f"{asked} exists; give another name, or --force to replace it")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{asked}: the folder {path.parent} may not be written to")


def write(outputs: Sequence[Output], makers: Makers) -> None:
    """Make and write every output; nobody ever meets half a file.

    Raises:
        InputError: The disk refused; no output was replaced by half of another.
    """
    from headwise.profile.writing import replace_files

    contents = {output.path: makers[output.flag]() for output in outputs}
    replace_files(contents, new=[output.path for output in outputs if not output.replaces])
