"""What a result was measured on."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path


def machine() -> dict[str, str | int]:
    """Versions, processor, threads, instruction set, and the native kernel's level."""
    import torch

    from headwise.kernels.native import LEVELS, library

    facts: dict[str, str | int] = {name: version(name) for name in ("torch", "transformers", "headwise")}
    found = library()
    native = found if isinstance(found, str) else LEVELS[found.level]
    facts |= {"python": platform.python_version(), "system": platform.system(), "processor": _processor()}
    return facts | {
        "threads": torch.get_num_threads(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "native": native,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
