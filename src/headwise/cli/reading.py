"""What a model reads: --text whole, --file in windows, or the text that is built in, a sequence a line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from headwise.cli import windows

if TYPE_CHECKING:
    from headwise.cli.windows import Windows
    from headwise.models.opening import OpenedModel

BUILT_IN = "built-in text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--text` and `--file`."""
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--text", action=_Once, help="what the model reads")
    text.add_argument(
        "--file", action=_Once, metavar="FILE", help="a UTF-8 text, cut into windows; - is standard input"
    )


def text_of(arguments: argparse.Namespace) -> str | None:
    """The text that the user gave, checked; None: none was given.

    Raises:
        InputError: There is nothing in it to read, or it cannot be read.
    """
    if arguments.text is not None:
        return windows.checked(arguments.text, "--text")
    return None if arguments.file is None else windows.read_text(arguments.file)


def source(arguments: argparse.Namespace) -> str:
    """Where the text comes from, for people."""
    if arguments.text is not None:
        return "--text"
    return {None: BUILT_IN, "-": "stdin"}.get(arguments.file) or str(arguments.file)


def cut(opened: OpenedModel, arguments: argparse.Namespace, text: str | None, window: int | None = None) -> Windows:
    """The text as the model reads it.

    Args:
        opened: The model.
        arguments: Say whether the text is a `--text` or a `--file`.
        text: What `text_of` gave.
        window: Tokens of a window of a `--file`.

    Raises:
        InputError: The text does not fit the model.
    """
    if text is None:
        from headwise.models.twins import built_in_text

        lines = [windows.whole(opened, line) for line in built_in_text().splitlines()]
        ids = [line.ids[0] for line in lines]
        return windows.Windows(ids, max(map(len, ids)), sum(line.tokens for line in lines))
    return windows.whole(opened, text) if arguments.text is not None else windows.cut(opened, text, window)


class _Once(argparse.Action):
    """An option that may be given once: a second one would silently replace the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} was given twice; to read several texts, write them to a --file, or profile each")
        setattr(namespace, self.dest, values)
