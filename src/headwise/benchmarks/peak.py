"""Peak resident memory of this process since a moment."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
MEMORY = Path("/proc/meminfo")


def start() -> int | None:
    """Forget the peak so far; bytes resident now, or None where the system has no peak that can be reset."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return None
    return _field(STATUS, "VmRSS")


def since(before: int | None) -> int | None:
    """Peak bytes above what `start` returned."""
    peak = _field(STATUS, "VmHWM")
    return None if before is None or peak is None else max(0, peak - before)


def available() -> int | None:
    """Bytes that new allocations can take without swapping; None where the system does not say."""
    return _field(MEMORY, "MemAvailable")


def total() -> int | None:
    """Bytes of memory of the machine; None where the system does not say."""
    return _field(MEMORY, "MemTotal")


def _field(file: Path, name: str) -> int | None:
    with suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return None
