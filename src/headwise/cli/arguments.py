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
