"""Compile the native kernel: the commands, for the package's build and for tests. Needs a C++17 compiler, no torch."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent
NAME = "rows.bin"
"""The library's file name, on every system: with .so Python would take it for a module of its own."""

SOURCE_FILES = (
    "call.h",
    "entry.cpp",
    "export.h",
    "moments.cpp",
    "moments.h",
    "parallel.cpp",
    "parallel.h",
    "products.h",
    "rows.cpp",
    "sums.h",
    "tally.cpp",
    "vectors.h",
)

FLAGS = (
    "-std=c++17", "-O3", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
    "-fno-signed-zeros",
)  # fmt: skip


@dataclass(frozen=True)
class Level:
    """One compilation of rows.cpp: vectors of `width` floats, a register tile of `registers` = rows x `columns`."""

    name: str
    width: int
    columns: int
    registers: int
    flags: tuple[str, ...] = ()


X86 = (
    Level("avx512", 16, 4, 24, ("-march=skylake-avx512", "-mprefer-vector-width=512")),
    Level("avx2", 8, 2, 12, ("-march=haswell",)),
    Level("portable", 4, 2, 8),
)
OTHERS = (Level("portable", 4, 4, 24),)  # 32 vector registers, as on aarch64


class BuildError(Exception):
    """The kernel cannot be compiled here: why."""


def fingerprint() -> int:
    """A number for the sources as they are: a library built from others is not called."""
    digest = hashlib.sha256()
    for name in SOURCE_FILES:
        digest.update((SOURCES / name).read_bytes())
    return int.from_bytes(digest.digest()[:4], "big")


def compiler() -> list[str]:
    """The command of a C++ compiler: $CXX, else the first that is found.

    Raises:
        BuildError: There is none.
    """
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C++ compiler was found (c++, g++, clang++ or $CXX)")


def build(target: Path, extra: Sequence[str] = ()) -> Path:
    """Compile the kernel into `target`, which appears whole or not at all.

    Args:
        target: The library to write.
        extra: Further flags for every command (sanitizers, say).

    Raises:
        BuildError: No compiler, or it failed; the message has its first lines.
    """
    command = compiler()
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    with tempfile.TemporaryDirectory() as folder:
        jobs: list[tuple[list[str], Path]] = []
        for level in X86 if x86 else OTHERS:
            defines = {
                "HW_LEVEL": level.name,
                "W": level.width,
                "HW_COLUMNS": level.columns,
                "HW_REGISTERS": level.registers,
            }
            flags = [*level.flags, *(f"-D{name}={value}" for name, value in defines.items())]
            jobs.append(_compilation(command, "rows.cpp", Path(folder) / f"{level.name}.o", [*flags, *extra]))
        for name in ("entry", "parallel", "moments", "tally"):
            flags = [f"-DHW_SOURCES={fingerprint()}u", *(["-DHW_X86"] if x86 else [])]
            jobs.append(_compilation(command, f"{name}.cpp", Path(folder) / f"{name}.o", [*flags, *extra]))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, [arguments for arguments, _ in jobs]))
        part = target.with_name(f".{target.name}.{os.getpid()}")
        libraries = [] if sys.platform in ("darwin", "win32") else ["-ldl"]
        try:
            _run([*command, "-shared", *extra, *(str(made) for _, made in jobs), "-o", str(part), *libraries])
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    return target


def _compilation(command: list[str], source: str, made: Path, flags: Sequence[str]) -> tuple[list[str], Path]:
    # Windows has no position-dependent code, and clang there refuses the flag.
    position = [] if sys.platform == "win32" else ["-fPIC"]
    return [*command, *FLAGS, *position, *flags, "-c", str(SOURCES / source), "-o", str(made)], made


def _run(arguments: list[str]) -> None:
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{arguments[0]} cannot be run: {error}") from error
    if done.returncode:
        first = "\n".join(done.stderr.splitlines()[:10])
        raise BuildError(f"{shlex.join(arguments[:2])} ... failed:\n{first}")
