"""Wheels as pip builds them: with the native kernel, without a compiler, and without it because that was asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headwise.kernels.native.building import NAME
from tests.compiled import needs_native

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[1]
LIBRARY = f"headwise/kernels/native/{NAME}"
WARNING = "the native kernel was not compiled, the portable one runs"

MEASURED = """
import torch, headwise as hw
from headwise.kernels import choose
x = torch.randn(2, 300, 64)
mha = hw.MultiHeadAttention(64, 4).eval()
with torch.no_grad(), hw.watch(mha) as profile:
    mha(x, causal=True)
assert profile.unseen == [] and len(profile.table()) == 4
print(hw.__file__)
print(choose(hw.AttentionCall(x[None], x[None])).kernel)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What a release holds, and a library from another day."""
    folder = tmp_path / "source"
    shutil.copytree(PROJECT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", NAME))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, folder / name)
    (folder / "src" / LIBRARY).write_bytes(b"from another day")
    return folder


@pytest.fixture
def build(source: Path, tmp_path: Path) -> Callable[..., tuple[Path, str]]:
    """Build a wheel in another environment; the wheel, and what pip printed."""

    def built(*, without: tuple[str, ...] = (), **environment: str) -> tuple[Path, str]:
        made = tmp_path / "wheels"
        inherited = {name: value for name, value in os.environ.items() if name not in without}
        done = subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--wheel-dir", str(made), str(source)],
            env={**inherited, **environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        (wheel,) = made.iterdir()
        return wheel, done.stdout + done.stderr

    return built


def installed(wheel: Path, folder: Path) -> tuple[str, str]:
    """The kernel that runs where a wheel is installed, and what `headwise doctor` prints there."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(wheel)]
    subprocess.run(command, check=True)
    environment = {**os.environ, "PYTHONPATH": str(folder)}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True, check=True
        )
        return done.stdout

    place, kernel = run("-c", MEASURED).split()
    assert Path(place).is_relative_to(folder), "not the headwise of this repository"
    return kernel, run("-m", "headwise", "doctor")


@needs_native
def test_a_wheel_holds_the_kernel_of_its_platform(
    build: Callable[..., tuple[Path, str]], source: Path, tmp_path: Path
) -> None:
    wheel, printed = build()
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    assert WARNING not in printed
    library = zipfile.ZipFile(wheel).read(LIBRARY)
    for runtime in (b"libgomp", b"libomp", b"libiomp"):
        assert runtime not in library, "it links to no OpenMP runtime: torch's own is looked up"
    kernel, doctor = installed(wheel, tmp_path / "site")
    assert kernel == "native"
    assert "in the OpenMP threads of torch" in doctor


@needs_native
def test_a_library_exports_its_c_functions_alone(build: Callable[..., tuple[Path, str]], tmp_path: Path) -> None:
    if not (nm := shutil.which("nm")) or not sys.platform.startswith("linux"):
        pytest.skip("nm of binutils is not here, which lists symbols")
    wheel, _ = build()
    library = tmp_path / NAME
    library.write_bytes(zipfile.ZipFile(wheel).read(LIBRARY))
    listed = subprocess.run(
        [nm, "--dynamic", "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert "headwise_run" in names
    assert all(name.startswith("headwise_") for name in names), names


@pytest.mark.parametrize("how", ["no compiler", "a compiler that is not there"])
def test_without_a_compiler_it_installs_says_so_and_works(
    how: str, build: Callable[..., tuple[Path, str]], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    if how == "no compiler":
        wheel, printed = build(without=("CXX",), PATH=str(tmp_path / "empty"))
    else:
        wheel, printed = build(CXX="/nonexistent/c++")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert WARNING in printed
    assert LIBRARY not in zipfile.ZipFile(wheel).namelist()
    kernel, doctor = installed(wheel, tmp_path / "site")
    assert kernel == "portable"
    assert "native        none: it was not compiled" in doctor


@pytest.mark.parametrize("stale", [True, False])
def test_a_wheel_for_every_machine(
    stale: bool, build: Callable[..., tuple[Path, str]], source: Path, tmp_path: Path
) -> None:
    library = source / "src" / LIBRARY
    if not stale:
        library.unlink()
    wheel, printed = build(HEADWISE_NATIVE="0")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert WARNING not in printed
    assert LIBRARY not in zipfile.ZipFile(wheel).namelist()
    assert installed(wheel, tmp_path / "site")[0] == "portable"


def test_a_wheel_holds_the_twins(build: Callable[..., tuple[Path, str]]) -> None:
    wheel, _ = build(HEADWISE_NATIVE="0")
    held = set(zipfile.ZipFile(wheel).namelist())
    files = ("h1.safetensors", "h8.safetensors", "card.json", "card.md", "text.txt")
    assert {f"headwise/models/twins/{name}" for name in files} <= held
