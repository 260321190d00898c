"""The errors that a user can meet: each says what was expected, what came, and what to do."""

from __future__ import annotations

MOST_SHOWN = 80
"""Characters of what came that a message repeats."""


def shown(value: object) -> str:
    """What came, for a message of one line: of an array its shape, of anything else its repr, cut where it is long."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{type(value).__name__} of shape {tuple(shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def require(where: str, kind: type, **values: object) -> None:
    """Refuse what is of another type than `kind`; None passes.

    Raises:
        TypeError: Which argument of `where`, what was expected, and what came.
    """
    for name, value in values.items():
        if value is not None and not isinstance(value, kind):
            expected = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
            raise TypeError(f"{where}: {name}: expected a {expected}; got {shown(value)}")


class HeadwiseError(Exception):
    """An expected failure: the command line prints its one line and exits with `exit_code`."""

    exit_code = 1


class InputError(HeadwiseError):
    """What was given cannot be used (a folder that is no model, empty text, an unreadable file)."""

    exit_code = 2


class FileFormatError(HeadwiseError):
    """A profile file is damaged, or was written by a newer headwise."""

    exit_code = 3


class MissingPackageError(HeadwiseError):
    """An optional package is needed; the message names the `pip install` to run."""

    exit_code = 4


class ModelError(HeadwiseError):
    """The model ran, but nothing meaningful can be said of it (its scores are NaN, say)."""

    exit_code = 5
