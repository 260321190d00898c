"""headwise bench: what it refuses, what it prints and writes; nothing is said of how long anything takes."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from headwise.benchmarks import peers, registry, results, runner
from headwise.cli import bench
from headwise.cli.failures import INTERRUPTED
from tests.benchmarks import fakes

needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")


@pytest.fixture
def never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring takes long: what can be refused before must be."""
    monkeypatch.setattr(runner, "run", lambda *_, **__: pytest.fail("something was measured"))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Cases that would be measured; each gives a made-up result of its level."""
    cases: list[Any] = []

    def run(case: Any, watching: Any) -> runner.Outcome:
        cases.append(case)
        made = fakes.attention_result() if case.level == "attention" else fakes.model_result("model", "tiny", 1, 20)
        return runner.Outcome(made)

    monkeypatch.setattr(runner, "run", run)
    return cases


@pytest.mark.usefixtures("never_measured")
@pytest.mark.parametrize(("arguments", "words"), [
    (["--tokens", "8"], "give --model too"),
    (["--batch", "8"], "give --model too"),
    (["--turns", "0"], "at least 1, got '0'"),
    (["--tokens", "many", "--model", "x"], "at least 1, got 'many'"),
    (["--model", "./nowhere"], "no such file or folder"),
    (["--model", "x", "--full"], "leave out --full or --model"),
    (["--out", "no/such/results.json"], "there is no folder"),
    (["--out", "there"], "exists; give another name, or --force to replace it"),
    (["--plot", "plot.pdf"], "expected a name that ends in .svg or .png"),
    (["--out", "same.svg", "--plot", "./same.svg"], "is the same file as the one that --out writes"),
    (["--force"], "--force replaces the files of --out and --plot"),
    (["--list", "--full"], "--list measures nothing"),
    (["--from", "there", "--full"], "leave out --full"),
    (["--from", "there", "--out", "x.json"], "leave out --out"),
    (["--from", "there", "--plot", "there", "--force"], "is the same file as the input"),
    (["--from", "nowhere.json"], "cannot be read"),
    (["model"], "unrecognized arguments"),
])  # fmt: skip
def test_refusals(
    refused: Any, arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("mine")
    assert words in refused("bench", *arguments)


@pytest.mark.usefixtures("never_measured")
def test_a_file_that_is_no_result(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    assert "is no result of headwise bench" in refused("bench", "--from", tmp_path / "other.json", code=3)


@pytest.mark.usefixtures("never_measured")
def test_plots_without_matplotlib_are_refused_before_anything_is_measured(
    refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = refused("bench", "--plot", tmp_path / "plot.svg", code=4)
    assert said == 'headwise: plots need matplotlib: pip install "headwise[bench]"\n'


def test_attention_is_measured_and_its_ratios_are_printed(run: Any, measured: list[Any], tmp_path: Path) -> None:
    result = run("bench", "--out", tmp_path / "r.json", "--turns", "2")
    assert result.code == 0, result.err
    (case,) = measured
    assert (case.name, case.turns) == ("attention-quick", 2)
    assert "full 512 32 2.00 s 1.50x 0.50x " in result.words
    assert "causal geometric mean 1.50x 0.50x largest 1.50x 0.50x" in result.words
    assert "portable: not run beyond 2,048 tokens" in result.words
    assert "Abacus 3, 2 threads, torch 2.13.0" in result.words
    assert results.load(tmp_path / "r.json") == fakes.attention_result()


def test_full_is_the_whole_grid(run: Any, measured: list[Any]) -> None:
    assert run("bench", "--full").code == 0
    assert measured == [registry.CASES["attention"]]


def test_a_model_of_the_user(run: Any, measured: list[Any], tiny: Path) -> None:
    result = run("bench", "--model", tiny, "--tokens", "20", "--batch", "3")
    assert result.code == 0, result.err
    (case,) = measured
    assert case.points[0].parameters == {"model": tiny.name, "batch": 3, "tokens": 20}
    assert case.prepare() == {"source": str(tiny)}
    assert "unwatched 0.50 s 1.00x 100 MB watched 0.75 s 1.50x 120 MB" in result.words
    assert "eager: would need 72 GB for weights; 8 GB are free" in result.words


@needs_matplotlib
def test_a_result_is_shown_and_drawn_again(run: Any, tmp_path: Path, measured: list[Any]) -> None:
    first, plot = tmp_path / "r.json", tmp_path / "plot.svg"
    fakes.model_result().save(first)
    fakes.model_result("long", "smollm2", 1, 2048).save(tmp_path / "long.json")
    result = run("bench", "--from", first, tmp_path / "long.json", "--plot", plot)
    assert result.code == 0, result.err
    assert measured == []
    assert "minilm, 8 x 512" in result.words and "smollm2, 1 x 2,048" in result.words
    assert f"Wrote {plot}" in result.out
    assert "smollm2, 1 x 2,048: time" in plot.read_text("utf-8")
    fakes.attention_result().save(first)
    assert run("bench", "--from", first, "--plot", tmp_path / "plot.png").code == 0
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_an_interruption_keeps_what_is_done(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fakes.attention_result()
    part = replace(made, planned=8, points=made.points[:3])
    monkeypatch.setattr(runner, "run", lambda *_: runner.Outcome(part, interrupted=True))
    result = run("bench", "--out", tmp_path / "r.json")
    assert result.code == INTERRUPTED
    assert result.err == "headwise: interrupted: kept 3 of 8 points\n"
    assert len(results.load(tmp_path / "r.json").points) == 3
    part.points[2].samples["fused"].pop()
    assert run("bench").err == "headwise: interrupted: kept 3 of 8 points, the last in part\n"
    nothing = replace(made, points=[])
    monkeypatch.setattr(runner, "run", lambda *_: runner.Outcome(nothing, interrupted=True))
    result = run("bench", "--out", tmp_path / "other.json")
    assert (result.code, result.out) == (INTERRUPTED, "")
    assert result.err == "headwise: interrupted: nothing was kept\n"
    assert not (tmp_path / "other.json").exists()


def test_a_baseline_that_cannot_run_is_an_error(
    refused: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fakes.model_result()
    made.points[0].samples.clear()
    made.points[0].not_run["unwatched"] = "the model reads at most 32 tokens, not 512; give --tokens less"
    monkeypatch.setattr(runner, "run", lambda *_: runner.Outcome(made))
    said = refused("bench", "--model", tiny, "--out", tmp_path / "r.json")
    assert said.startswith("headwise: minilm, 8 x 512 could not be run: the model reads at most 32 tokens, not 512")


@pytest.mark.usefixtures("never_measured")
def test_the_list_names_everything_and_what_to_install(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "installed", lambda package: "9.9" if package == "bertviz" else None)
    result = run("bench", "--list")
    assert result.code == 0
    for case in registry.CASES.values():
        assert f"{case.name}: " in result.out
    for name in (*registry.MODEL_VARIANTS, *(variant.name for variant in registry.ATTENTION_VARIANTS)):
        assert f"  {name} " in result.out
    assert "bertviz 9.9 is installed" in result.out
    assert "attnread is not installed: pip install --no-deps attnread" in result.out
    assert 'plots need matplotlib: pip install "headwise[bench]"' in result.out


def test_help_names_what_it_measures(run: Any) -> None:
    assert "what watching costs" in run("bench", "--help").out
    assert bench.__doc__


@pytest.mark.slow
def test_a_small_model_from_end_to_end(run: Any, tiny: Path, tmp_path: Path) -> None:
    result = run("bench", "--model", tiny, "--tokens", "20", "--turns", "1", "--out", tmp_path / "r.json")
    assert result.code == 0, result.err
    (point,) = results.load(tmp_path / "r.json").points
    assert {"unwatched", "watched", "fused", "eager", "page"} <= set(point.samples)
    assert point.not_run["attnread"]
