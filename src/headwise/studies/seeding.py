"""Random numbers as a function of what they are for: nothing has to be remembered to go on where a run stopped."""

from __future__ import annotations

import hashlib

import torch


def derived(*parts: int | str) -> int:
    """A seed made of numbers and names; other parts give an unrelated one. 0 .. 2^63 - 1, the same everywhere."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A generator of its own for what the parts name."""
    return torch.Generator().manual_seed(derived(*parts))
