"""Peak resident memory of this process since a moment."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

STATUS = Path("/proc/self/status")


def resident() -> int:
    """Bytes resident now (Linux); elsewhere the peak so far."""
    return _field("VmRSS") or maximum()


def reset() -> None:
    """Forget the peak so far (Linux only: elsewhere a peak is that of the whole process)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def maximum() -> int:
    """Peak bytes since `reset`."""
    return _field("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _field(name: str) -> int:
    with suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return 0
