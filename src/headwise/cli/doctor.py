"""Say what is installed, which devices there are, and which kernel would run and why others would not."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from headwise import __version__
from headwise.errors import MissingPackageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

# A package, and what to install for it.
_PACKAGES = {
    "torch": "headwise",
    "numpy": "headwise",
    "pandas": "headwise",
    "safetensors": "headwise",
    "jinja2": "headwise",
    "rich": "headwise",
    "transformers": "headwise[hf]",
    "gguf": "headwise[gguf]",
    "accelerate": "headwise[gguf]",
}

_COMPILERS = {
    "linux": "apt install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora)",
    "darwin": "xcode-select --install",
    "win32": "winget install LLVM.LLVM",
}
_AGAIN = "pip install --force-reinstall --no-deps --no-cache-dir headwise (from a clone: . instead of headwise)"

_NO_OPENMP = "torch gives no GOMP_parallel to run on all: one from PyPI does (pip install --force-reinstall torch)"
_NO_OPENMP_ON_WINDOWS = "on Windows torch's threads cannot be shared: in WSL it runs on all cores"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`headwise doctor` takes no arguments."""
    del parser


def run(arguments: argparse.Namespace) -> int:
    """Print the report; exit code 4 if a package is missing that headwise cannot do without."""
    del arguments
    needed = []
    print(f"headwise      {__version__}")
    print(f"python        {platform.python_version()} on {platform.platform()}")
    for package, install in _PACKAGES.items():
        found = _version(package)
        print(f"{package:<13} {found}" if found else f'{package:<13} missing: pip install "{install}"')
        if found is None and install == "headwise":
            needed.append(package)
    if "torch" not in needed:
        print("\n".join(("", *_devices(), "", *_kernels(), "", *_native())))
    if needed:
        raise MissingPackageError(f"headwise cannot run without {', '.join(needed)}; pip install headwise")
    return 0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> Iterator[str]:
    import torch

    from headwise.models.devices import present

    for device in present():
        if device.startswith("cuda"):
            memory = torch.cuda.get_device_properties(device).total_memory / 2**30
            yield f"device        {device}: {torch.cuda.get_device_name(device)}, {memory:.0f} GiB"
        else:
            about = f": {platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
            yield f"device        {device}{about if device == 'cpu' else ''}"


def _kernels() -> Iterator[str]:
    """The chooser's own words on a small call of each kind that a model makes."""
    import torch

    from headwise.call import AttentionCall
    from headwise.kernels import choose
    from headwise.models.devices import present

    for device in present():
        for dtype in (torch.float32, torch.bfloat16):
            q = torch.zeros(1, 2, 8, 16, device=device, dtype=dtype)
            name = f"{device}, {str(dtype).removeprefix('torch.')}"
            try:
                choice = choose(AttentionCall(q=q, k=q, v=q, causal="upper_left"))
            except ValueError as error:
                yield f"kernel        {name}: {error}"
                continue
            yield f"kernel        {name}: {choice.kernel} ({choice.reason})"
            for kernel, why in choice.refused:
                yield f"              {'':<{len(name)}}  not {kernel}: {why}"


def _native() -> Iterator[str]:
    """What the native kernel runs on: instructions and cores; where it is not there, how to get it."""
    import torch

    from headwise.kernels.native import LEVELS, library
    from headwise.kernels.native.building import BuildError, compiler

    found = library()
    if isinstance(found, str):
        yield f"native        none: {found}"
        try:
            yield f"              compiler: {compiler()[0]}"
        except BuildError as error:
            advice = _COMPILERS.get(sys.platform, "install g++ or clang++")
            yield f"              {error}: {advice}"
        yield f"              then: {_AGAIN}"
        return
    level, threads, cores = LEVELS[found.level], torch.get_num_threads(), os.cpu_count() or 1
    if not found.threaded:
        yield f"native        {level}, 1 of {cores} cores: torch's OpenMP runtime was not found"
        yield f"              {_NO_OPENMP_ON_WINDOWS if sys.platform == 'win32' else _NO_OPENMP}"
        return
    yield f"native        {level}, {threads} of {cores} cores, in the OpenMP threads of torch"
    if threads == 1 < cores:
        yield "              torch was told to use one thread: see OMP_NUM_THREADS and torch.set_num_threads"
