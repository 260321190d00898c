"""scripts/figures.py: the README's table from result files."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import figures

from headwise.benchmarks.results import Sample
from tests.benchmarks import fakes


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The three result files that the table is made of: eager did not run."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    fakes.model_result("minilm-512", "minilm", 8, 512).save(tmp_path / "minilm-512.json")
    fakes.model_result("smollm2-2048", "smollm2", 1, 2048).save(tmp_path / "smollm2-2048.json")
    fakes.model_result("smollm2-8192", "smollm2", 1, 8192).save(tmp_path / "smollm2-8192.json")
    return tmp_path


def test_what_nothing_has_measured_has_no_column(results: Path) -> None:
    assert figures.table("en").splitlines() == [
        "| model, tokens | unwatched | `headwise.watch`, 14 measures |",
        "|---|---|---|",
        "| MiniLM-L6 (72 heads), 8 x 512 | 0.50 s, +100 MB | 0.75 s (1.5x), +120 MB |",
        "| SmolLM2-135M (270 heads), 1 x 2,048 | 0.50 s, +100 MB | 0.75 s (1.5x), +120 MB |",
        "| SmolLM2-135M (270 heads), 1 x 8,192 | 0.50 s, +100 MB | 0.75 s (1.5x), +120 MB |",
    ]


def test_what_did_not_fit_says_what_it_would_need(results: Path) -> None:
    made = fakes.model_result("smollm2-2048", "smollm2", 1, 2048)
    made.points[0].samples["eager"] = [Sample(2.0, 5_000_000_000)] * 3
    made.points[0].not_run.clear()
    made.save(results / "smollm2-2048.json")
    lines = figures.table("en").splitlines()
    assert lines[0].endswith("| `output_attentions=True`, 2 measures |")
    assert lines[3].endswith("| 2.0 s (4.0x), +5,000 MB |")
    # 4 x 30 x 9 x 8192 x 8192 bytes
    assert lines[4].endswith("| would need 72 GB of weights |")


def test_the_table_replaces_the_one_between_the_marks(results: Path) -> None:
    text = f"before\n{figures.BEGIN}\nold\n{figures.END}\nafter"
    for language in figures.WORDS:
        new = figures.with_figures(text, language)
        assert new == f"before\n{figures.BEGIN}\n{figures.table(language)}\n{figures.END}\nafter"
    assert "个头" in figures.table("zh")
