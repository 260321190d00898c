"""headwise doctor about the native kernel: what it runs on, and what to do where it does not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headwise.kernels import native
from headwise.kernels.native import LEVELS, library
from tests.compiled import needs_native

AGAIN = "pip install --force-reinstall --no-deps --no-cache-dir headwise"


def about_native(out: str) -> list[str]:
    """The lines from "native" on, without indentation."""
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("native "))
    return [line.removeprefix("native").strip() for line in lines[start:]]


def pretend(monkeypatch: pytest.MonkeyPatch, *, threaded: bool, threads: int, level: int = 1) -> None:
    found = SimpleNamespace(level=level, threaded=threaded)
    monkeypatch.setattr(native, "library", lambda: found)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)


@needs_native
def test_what_this_machine_has(run: Any) -> None:
    found = library()
    assert not isinstance(found, str)
    assert found.threaded, "torch from PyPI has an OpenMP runtime, and tests run on it"
    (first, *_) = about_native(run("doctor").out)
    threads, cores = torch.get_num_threads(), os.cpu_count()
    assert first == f"{LEVELS[found.level]}, {threads} of {cores} cores, in the OpenMP threads of torch"


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_the_instruction_set(level: int, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, threaded=True, threads=8, level=level)
    assert about_native(run("doctor").out) == [f"{LEVELS[level]}, 8 of 8 cores, in the OpenMP threads of torch"]


def test_one_thread_where_there_are_more_cores(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, threaded=True, threads=1)
    first, second = about_native(run("doctor").out)
    assert first.startswith("AVX2, 1 of 8 cores")
    assert "OMP_NUM_THREADS" in second


@pytest.mark.parametrize(
    ("system", "words"), [("linux", "pip install --force-reinstall torch"), ("win32", "in WSL it runs on all cores")]
)
def test_without_a_runtime_to_share(system: str, words: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, threaded=False, threads=8)
    monkeypatch.setattr(sys, "platform", system)
    first, second = about_native(run("doctor").out)
    assert first == "AVX2, 1 of 8 cores: torch's OpenMP runtime was not found"
    assert words in second


@pytest.mark.parametrize(
    ("system", "words"), [("linux", "apt install g++"), ("darwin", "xcode-select --install"), ("win32", "LLVM.LLVM")]
)
def test_not_compiled_and_no_compiler(
    system: str, words: str, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native, "library", lambda: "it was not compiled")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", system)
    result = run("doctor")
    assert result.code == 0
    assert "cpu, float32: portable" in result.out
    first, second, third = about_native(result.out)
    assert first == "none: it was not compiled"
    assert second.startswith("no C++ compiler was found")
    assert words in second
    assert third.startswith(f"then: {AGAIN}")


def test_not_compiled_where_a_compiler_is(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: "it was not compiled")
    monkeypatch.setenv("CXX", "my-compiler -v")
    _, second, third = about_native(run("doctor").out)
    assert second == "compiler: my-compiler"
    assert AGAIN in third
