"""A way to run a command as a user would, and models to run it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from scripts import fetch_models

from headwise.cli import main
from tests.models.small import save_bert

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """What it printed, without line breaks: paths of temporary folders are long."""
        return " ".join(self.out.split())


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run a command in this process."""

    def command(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return command


@pytest.fixture
def refused(run: Callable[..., Result], tmp_path: Path) -> Callable[..., str]:
    """Run a command that must fail: one line on stderr, nothing on stdout, no file left or changed."""

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def command(*arguments: object, code: int = 2) -> str:
        before = files()
        result = run(*arguments)
        assert (result.code, result.out) == (code, ""), result
        assert result.err.startswith("headwise: ")
        assert result.err.count("\n") == 1, result.err
        assert "Traceback" not in result.err
        assert files() == before
        return result.err

    return command


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small encoder."""
    return save_bert(tmp_path_factory.mktemp("tiny-bert"))


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real model: all-MiniLM-L6-v2."""
    return fetch_models.minilm()
