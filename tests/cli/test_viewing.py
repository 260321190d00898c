"""headwise view and headwise doctor."""

from __future__ import annotations

import io
import json
import sys
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Any

import pytest

import headwise
from headwise.cli import doctor, main
from tests.report.recorded import filled

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def saved(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of a small model."""
    path = tmp_path_factory.mktemp("saved") / "run.headwise"
    assert main(["profile", str(tiny), "--text", "the lamp turns at night", "--save", str(path)]) == 0
    return path


def test_view_prints_what_profile_printed(run: Any, tiny: Path, saved: Path) -> None:
    shown = run("view", saved)
    first = run("profile", tiny, "--text", "the lamp turns at night")
    assert shown.code == 0
    assert shown.out == first.out


def test_a_hostile_profile_is_shown_as_plain_text(run: Any, saved: Path, tmp_path: Path) -> None:
    profile = headwise.load(saved)
    profile.info["model"] = "[bold]x[/nothing]\x1b[2J"
    profile.info["notes"] = "[link=http://x]y"
    profile.save(tmp_path / "hostile.headwise")
    result = run("view", tmp_path / "hostile.headwise")
    assert result.code == 0
    assert "[bold]x[/nothing]\u241b[2J" in result.out
    assert "Note: [link=http://x]y" in result.out
    assert "\x1b" not in result.out


def test_view_writes_the_page_and_the_table(run: Any, saved: Path, tmp_path: Path) -> None:
    result = run("view", saved, "--out", tmp_path / "page.html", "--csv", tmp_path / "t.csv", "--json")
    assert result.code == 0, result.err
    assert len(json.loads(result.out)["heads"]) == 8
    assert len((tmp_path / "t.csv").read_text("utf-8").splitlines()) == 9
    assert "<html" in (tmp_path / "page.html").read_text("utf-8")


def test_view_refuses(refused: Any, saved: Path, tmp_path: Path) -> None:
    assert "does not exist" in refused("view", tmp_path / "nowhere.headwise")
    assert "is a folder" in refused("view", tmp_path)
    other = tmp_path / "other.headwise"
    other.write_bytes(b"something else")
    assert "no headwise profile" in refused("view", other, code=3)
    other.write_bytes(saved.read_bytes()[:-100])
    assert "damaged" in refused("view", other, code=3)
    assert "is the same file as the input; give" in refused("view", saved, "--csv", saved, "--force")


def test_doctor(run: Any) -> None:
    result = run("doctor")
    assert result.code == 0
    for words in (
        "python ",
        "torch ",
        "transformers ",
        "device        cpu",
        "threads",
        "cpu, float32: ",
        "not reference: ",
    ):
        assert words in result.out


def test_doctor_without_packages(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    version = doctor.version

    def without(package: str) -> str:
        if package in ("gguf", "rich"):
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(doctor, "version", without)
    result = run("doctor")
    assert result.code == 4
    assert 'gguf          missing: pip install "headwise[gguf]"' in result.out
    assert result.err == "headwise: headwise cannot run without rich; pip install headwise\n"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_an_encoding_that_lacks_signs(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a pipe on Windows: something like each sign is printed, and no traceback after the work is done."""
    profile = filled({"self_focus": [[0.25, 0.5]]})
    profile.info["model"] = "模型 − é"
    profile.save(tmp_path / "run.headwise")
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["view", str(tmp_path / "run.headwise"), "--csv", str(tmp_path / "é−.csv")]) == 0
    said = out.buffer.getvalue().decode(encoding)
    assert said.startswith("???? - " + ("?" if encoding == "ascii" else "é"))
    assert (tmp_path / "é−.csv").exists()
