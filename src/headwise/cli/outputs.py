"""The files a command writes: all checked before any work is done, then all written whole, or none."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import InputError
from headwise.models.places import user_path

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from headwise.profile import Profile

STDOUT = "-"


@dataclass(frozen=True)
class Output:
    """One file to write: the flag that asked for it, where it goes, and what writes it."""

    flag: str
    path: Path
    write: Callable[[Profile, Path], None]
    replaces: bool = False


def add_arguments(parser: argparse.ArgumentParser, *, save: bool) -> None:
    """The flags that name outputs; `save` adds --save, for commands that make a profile."""
    parser.add_argument("--out", metavar="PAGE.html", help="write the report page: one file, works offline")
    if save:
        parser.add_argument("--save", metavar="RUN.headwise", help="write the profile, for headwise view")
    parser.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const=STDOUT,
        help="write everything as JSON; without FILE to stdout, instead of the tables",
    )
    parser.add_argument("--csv", metavar="FILE", help="write the table, a row a head")
    parser.add_argument("--force", action="store_true", help="replace outputs that exist")


def plan(arguments: argparse.Namespace, reads: Sequence[Path] = ()) -> list[Output]:
    """The outputs that the arguments ask for, each checked.

    Args:
        arguments: Parsed by a parser that went through add_arguments.
        reads: Files that the command reads, which no output may replace.

    Raises:
        InputError: An output cannot be written, or exists and --force was not given.
    """
    writers: dict[str, Callable[[Profile, Path], None]] = {
        "out": _write_page,
        "save": _write_profile,
        "json": _write_json,
        "csv": _write_csv,
    }
    outputs: list[Output] = []
    taken = {path.resolve(): "the input" for path in reads}
    for name, write in writers.items():
        value = getattr(arguments, name, None)
        if value is None or (name == "json" and value == STDOUT):
            continue
        output = Output(f"--{name}", user_path(value).resolve(), write, arguments.force)
        _check(output, value, arguments.force)
        if output.path in taken:
            raise InputError(f"{output.flag} {value} is the same file as {taken[output.path]}; give it another name")
        taken[output.path] = f"the one that {output.flag} writes"
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


def write(outputs: Sequence[Output], profile: Profile) -> None:
    """Write every output beside its place, then move all into place: nobody ever meets half a file.

    Raises:
        InputError: The disk refused; no output was replaced by half of another.
    """
    staged = {o: o.path.with_name(f".headwise-{os.getpid()}-{i}.part") for i, o in enumerate(outputs)}
    try:
        for output, part in staged.items():
            try:
                output.write(profile, part)
            except OSError as error:
                raise InputError(f"{output.flag} {output.path} cannot be written: {error.strerror}") from error
        for output, part in staged.items():
            if output.path.exists() and not output.replaces:
                raise InputError(
                    f"{output.flag} {output.path} was made by somebody else meanwhile; it is left as it is"
                )
            try:
                part.replace(output.path)
            except OSError as error:
                raise InputError(f"{output.flag} {output.path} cannot be written: {error.strerror}") from error
    finally:
        for part in staged.values():
            part.unlink(missing_ok=True)


def as_json(profile: Profile) -> str:
    """The whole profile as JSON; what is undefined (NaN) is null."""
    content = {
        "info": dict(profile.info),
        "measures": list(profile.measures),
        "layers": [asdict(layer) for layer in profile.layers],
        "heads": profile.table().to_dict("records"),
        "highlights": [asdict(highlight) for highlight in profile.highlights()],
        "unseen": [asdict(unseen) for unseen in profile.unseen],
        "verified": profile.verified,
    }
    return json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_page(profile: Profile, path: Path) -> None:
    from headwise.report import page

    path.write_text(page(profile), encoding="utf-8")


def _write_profile(profile: Profile, path: Path) -> None:
    profile.save(path)


def _write_json(profile: Profile, path: Path) -> None:
    path.write_text(as_json(profile), encoding="utf-8")


def _write_csv(profile: Profile, path: Path) -> None:
    profile.table().to_csv(path, index=False)
