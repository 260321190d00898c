"""The errors that a user can meet: each says what was expected, what came, and what to do."""

from __future__ import annotations


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
