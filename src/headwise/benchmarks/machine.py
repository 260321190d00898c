"""What a result was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from headwise.benchmarks import peak, peers


def machine() -> dict[str, str | int]:
    """Processor, threads, instruction set, memory, and the native kernel's level."""
    import torch

    from headwise.kernels.native import LEVELS, library

    found = library()
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "memory_bytes": peak.total() or 0,
        "native": found if isinstance(found, str) else LEVELS[found.level],
    }


def versions() -> dict[str, str | None]:
    """Versions of Python, torch, transformers, headwise and the peers; None where one is not installed."""
    own = {name: peers.installed(name) for name in ("torch", "transformers", "headwise")}
    return {"python": platform.python_version(), **own, **peers.versions()}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
