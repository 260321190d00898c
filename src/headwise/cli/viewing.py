"""Show a saved profile again: its table, its report page. The model is not needed.

headwise view run.headwise
headwise view run.headwise --out report.html
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from headwise.errors import InputError
from headwise.models.places import user_path

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `headwise view`."""
    from headwise.cli import exports

    parser.add_argument("file", metavar="FILE.headwise", help="what `headwise profile --save` wrote")
    exports.add_arguments(parser, save=False)


def run(arguments: argparse.Namespace) -> int:
    """Load the profile, write what was asked for, print the rest."""
    from headwise import load
    from headwise.cli import exports, tables

    path = user_path(arguments.file)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"{arguments.file} {what}; give a file that `headwise profile --save` wrote")
    planned = exports.plan(arguments, reads=[path])
    profile = load(path)
    exports.write(planned, profile)
    if arguments.json == exports.STDOUT:
        sys.stdout.write(exports.as_json(profile))
    else:
        tables.show(profile, planned)
    return 0
