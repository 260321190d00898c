"""What a profile is written as: page, file, JSON, CSV."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headwise.cli import outputs
from headwise.errors import MissingPackageError
from headwise.measures.catalogue import PAIR_MEASURES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from headwise.profile import Profile

STDOUT = "-"
PAIRS = tuple(measure.name for measure in PAIR_MEASURES)


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
    parser.add_argument("--parquet", metavar="FILE", help='write the table as Parquet: pip install "headwise[parquet]"')
    parser.add_argument("--force", action="store_true", help="replace outputs that exist")


def plan(arguments: argparse.Namespace, reads: Sequence[Path] = ()) -> list[outputs.Output]:
    """The outputs that the arguments ask for, each checked.

    Args:
        arguments: Parsed by a parser that went through add_arguments.
        reads: Files that the command reads, which no output may replace.

    Raises:
        InputError: An output cannot be written, or exists and --force was not given.
        MissingPackageError: Parquet needs pyarrow.
    """
    asked = {f"--{name}": getattr(arguments, name, None) for name in ("out", "save", "json", "csv", "parquet")}
    if asked["--json"] == STDOUT:
        asked["--json"] = None
    if asked["--parquet"] and find_spec("pyarrow") is None:
        raise MissingPackageError('--parquet: pyarrow is not installed: pip install "headwise[parquet]"')
    return outputs.plan(asked, force=arguments.force, reads=reads)


def write(planned: Sequence[outputs.Output], profile: Profile) -> None:
    """Write the profile as everything that was planned, or as nothing.

    Raises:
        InputError: The disk refused.
    """
    from headwise.profile import files
    from headwise.report import page

    makers: outputs.Makers = {
        "--out": lambda: page(profile).encode(),
        "--save": lambda: files.packed(profile),
        "--json": lambda: as_json(profile).encode(),
        "--parquet": lambda: as_parquet(profile),
        "--csv": lambda: profile.table().to_csv(index=False).encode(),
    }
    outputs.write(planned, makers)


def as_parquet(profile: Profile) -> bytes:
    """The table as Parquet, with what each measure means in the metadata of the file (key `measures`, JSON)."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_pandas(profile.table(), preserve_index=False)
    meanings = json.dumps({name: asdict(profile.entry(name)) for name in profile.measures})
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"measures": meanings.encode()})
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue())


def as_json(profile: Profile) -> str:
    """The whole profile as JSON; what is undefined (NaN) is null."""
    from headwise.profile.writing import json_value

    pairs = {name: profile.pairs(name).to_dict("records") for name in PAIRS if profile.pair_totals}
    content = {
        "info": dict(profile.info),
        "measures": list(profile.measures),
        "layers": [asdict(layer) for layer in profile.layers],
        "heads": profile.table().to_dict("records"),
        "highlights": [asdict(highlight) for highlight in profile.highlights()],
        "roles": profile.roles().to_dict("records"),
        "notes": profile.notes,
        "unseen": [asdict(unseen) for unseen in profile.unseen],
        "verified": profile.verified,
        "pairs": pairs,
    }
    return json.dumps(json_value(content), indent=1, allow_nan=False) + "\n"
