"""Which device a model goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.errors import InputError

if TYPE_CHECKING:
    import torch


def present() -> list[str]:
    """The devices of this machine, the fastest first; the CPU is always there."""
    import torch

    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [*cuda, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def pick(name: str) -> torch.device:
    """The device called `name`; "auto" is the fastest there is.

    Raises:
        InputError: There is no such device; the message lists those that there are.
    """
    import torch

    there = present()
    if name == "auto":
        return torch.device(there[0])
    known = {
        *there,
        *(device.partition(":")[0] for device in there),
        "cpu:0",
        "mps:0" if "mps" in there else "cpu",
    }
    if name not in known:
        raise InputError(f"no such device: {name!r}; this machine has {', '.join(there)} (or say auto)")
    return torch.device(name)
