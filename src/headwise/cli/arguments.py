"""What several commands read from the command line alike."""

from __future__ import annotations

import argparse


def count(value: str) -> int:
    """A whole number of at least 1.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {value!r}")
    return int(value)


def size(value: str) -> int:
    """A size in bytes, as in "200MB".

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    from headwise.profile.kept import bytes_of

    try:
        return bytes_of(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a size as in 1GB, 200MB or 512kB, got {value!r}") from None
