"""What every attention head of a PyTorch model does, measured exactly from its own fused attention."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from headwise.cli.failures import guarded
from headwise.cli.signs import any_encoding
from headwise.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

# A command and its module, which has add_arguments(parser) and run(arguments) -> exit code. Its docstring
# is the command's help; what it runs is imported only inside run, so that help comes at once.
COMMANDS = {
    "profile": "profiling",
    "view": "viewing",
    "compare": "comparing",
    "study": "study",
    "lesson": "lesson",
    "bench": "bench",
    "doctor": "doctor",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The arguments after the program's name; None takes the process's own.
    """
    with any_encoding():
        return guarded(lambda: _run(argv))


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are errors like any other: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


class _Version(argparse.Action):
    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from headwise import __version__

        print(f"headwise {__version__}")
        parser.exit()


def _run(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 0
    try:
        parsed = parser.parse_args(arguments)
    except InputError as error:
        if "--json" in arguments and "required" in str(error):
            raise InputError(f"{error}; --json takes the next word as its FILE: put it last") from None
        raise
    return int(import_module(f"headwise.cli.{COMMANDS[parsed.command]}").run(parsed))


def _parser() -> _Parser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="headwise", description=__doc__, formatter_class=plain, allow_abbrev=False)
    parser.add_argument("--version", action=_Version, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, module_name in COMMANDS.items():
        module = import_module(f"headwise.cli.{module_name}")
        about = (module.__doc__ or "").strip()
        command = commands.add_parser(
            name,
            help=about.splitlines()[0],
            description=about,
            formatter_class=plain,
            allow_abbrev=False,
        )
        module.add_arguments(command)
    return parser
