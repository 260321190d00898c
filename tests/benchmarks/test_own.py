"""The project's own runner: `python -m benchmarks`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import __main__ as own
from benchmarks import cases
from headwise.benchmarks import registry, results
from tests.benchmarks import fakes
from tests.benchmarks.fakes import Script


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results go, with the made-up case among those that can be run."""
    monkeypatch.setattr(own, "RESULTS", tmp_path)
    monkeypatch.setitem(registry.CASES, "fake", fakes.case(points=("one", "two")))
    return tmp_path


def test_a_result_is_written_and_shown(script: Script, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.seconds = {"double": [2.0] * 6}
    assert own.main(["fake"]) == 0
    result = results.load(folder / "fake.json")
    assert result.complete
    assert [path.name for path in folder.iterdir()] == ["fake.json"]
    said = capsys.readouterr()
    assert "2.00x" in said.out
    assert "one: base 1.00 s; double 2.00x, half 1.00x" in said.err


def test_an_interruption_keeps_a_part_and_resume_goes_on(
    script: Script, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.seconds = {"half": [1, 1, 1, KeyboardInterrupt()]}
    (folder / "fake.json").write_text("the last complete one")
    assert own.main(["fake"]) == own.INTERRUPTED
    assert "interrupted; kept 1 of 2 points" in capsys.readouterr().err
    assert (folder / "fake.json").read_text() == "the last complete one"
    script.ran.clear()
    assert own.main(["fake", "--resume"]) == 0
    assert len(script.ran) == 9
    assert results.load(folder / "fake.json").complete
    script.ran.clear()
    assert own.main(["fake", "--resume"]) == 0
    assert script.ran == []
    assert own.main(["fake"]) == 0
    assert len(script.ran) == 18


def test_an_interruption_before_anything_is_done(
    script: Script, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.seconds = {"base": [KeyboardInterrupt()]}
    assert own.main(["fake"]) == own.INTERRUPTED
    assert "interrupted; kept none" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_an_unknown_case(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        own.main(["nonesuch"])
    assert "no benchmark 'nonesuch'; there are attention," in capsys.readouterr().err


def test_the_cases_that_the_project_has_to_show() -> None:
    for name in cases.DEFAULT:
        assert registry.CASES[name].name == name
    for name, sizes in (("minilm-512", (8, 512)), ("smollm2-2048", (1, 2048)), ("smollm2-8192", (1, 8192))):
        case = registry.CASES[name]
        (point,) = case.points
        assert (point.parameters["batch"], point.parameters["tokens"]) == sizes
        assert [variant.name for variant in case.variants] == ["unwatched", "watched", "fused", "eager"]
    assert "length-65536" in cases.DEFAULT and "attention" in cases.DEFAULT


def test_names_are_given_once() -> None:
    with pytest.raises(ValueError, match="there is a benchmark 'attention' already"):
        registry.add(registry.CASES["attention"])
