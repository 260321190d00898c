"""headwise compare: two files in, differences out."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise
from headwise.profile import Layer, Profile
from tests.profile.simulating import GROUP, drawn, part_of, profile_with

OLD = Path(__file__).parents[1] / "profile" / "schema1.headwise"
NAMES = ("entropy", "first", "max_score")


def profile(seed: int, heads: int = 3, effect: float = 0.0, texts: Any = range(1, 11), **more: Any) -> Profile:
    S, N = drawn(np.random.default_rng(seed), (3, heads, 10), spread=0.2)
    S[0, 1] += effect * N[0, 1]
    made = profile_with(S, N, texts, NAMES, **more)
    made.info = {"model": "[bold]x\x1b[2J", "dtype": "float32", "created": "2026-01-02"}
    return made


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path]:
    """Two profiles of the same texts, of which entropy of L0H1 differs."""
    a, b = tmp_path / "a.headwise", tmp_path / "b.headwise"
    profile(0).save(a)
    profile(1, effect=4).save(b)
    return a, b


def test_it_prints_what_differs_the_largest_first(run: Any, saved: tuple[Path, Path]) -> None:
    result = run("compare", *saved)
    assert (result.code, result.err) == (0, "")
    assert "[bold]x␛[2J, float32, 2026-01-02, 10 sequences)" in result.out
    assert "\x1b" not in result.out
    assert "Paired: both profiles read the same 10 texts." in result.out
    assert "1 of 6 differences are beyond chance at 5 % (Holm, 3 heads x 2 measures), in 1 head: L0H1." in result.words
    rows = [line.split() for line in result.out.splitlines() if line.startswith("L0H")]
    table = headwise.compare(*map(headwise.load, saved)).table()
    assert [row[:2] for row in rows] == table[["label", "measure"]].to_numpy().tolist()
    assert float(rows[0][4]) == pytest.approx(table["difference"].iloc[0], rel=0.01)
    assert rows[0][4].startswith("+")
    assert float(rows[0][-1]) == pytest.approx(table["p_holm"].iloc[0], rel=0.01)
    assert rows[-1][-1] == "-"


def test_options_reach_the_comparison(run: Any, saved: tuple[Path, Path]) -> None:
    few = run("compare", *saved, "--measure", "entropy", "--top", 1)
    assert "(Holm, 3 heads x 1 measure)" in few.words
    assert sum(line.startswith("L0H") for line in few.out.splitlines()) == 1
    assert "and 2 more: --top N" in few.out
    two = run("compare", *saved, "--measure", "entropy", "first", "--correct-over", "heads", "--correction", "fdr")
    assert "at 5 % (false discovery rate, 3 heads within each measure)" in two.words
    strict = run("compare", *saved, "--alpha", "1e-12")
    assert "Nothing differs beyond chance at 1e-10 % (Holm" in strict.words
    assert "chose" not in strict.out
    layers = run("compare", *saved, "--match", "layer", "--layers", "0")
    assert "L0 mean" in layers.out


def test_json_and_csv_hold_everything(run: Any, saved: tuple[Path, Path], tmp_path: Path) -> None:
    expected = headwise.compare(*map(headwise.load, saved)).table()
    result = run("compare", *saved, "--csv", tmp_path / "d.csv", "--json", tmp_path / "d.json")
    assert result.code == 0
    assert f"Wrote {(tmp_path / 'd.csv').resolve()}" in result.words
    with (tmp_path / "d.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["difference"]) for row in rows] == expected["difference"].tolist()
    assert tuple(rows[0]) == tuple(expected.columns)
    written = json.loads((tmp_path / "d.json").read_text("utf-8"))
    assert json.loads(run("compare", *saved, "--json").out) == written
    assert [row["label"] for row in written["differences"]] == expected["label"].tolist()
    assert written["differences"][-1]["p"] is None
    assert written["differences"][0]["paired"] is True
    assert written["a"]["sequences"] == 10
    assert written["findings"][0].startswith("1 of 6 differences")
    assert (written["alpha"], written["correction"], written["correct_over"]) == (0.05, "holm", "all")


def test_a_profile_and_itself(run: Any, saved: tuple[Path, Path]) -> None:
    result = run("compare", saved[0], saved[0])
    assert "Nothing differs: all 6 values that can be tested are equal within rounding." in result.words


def test_a_file_of_another_format(run: Any, tmp_path: Path) -> None:
    headwise.load(OLD).save(tmp_path / "new")
    result = run("compare", OLD, tmp_path / "new")
    assert result.code == 0
    assert "Not paired: a profile's file is of format 1" in result.words


def test_what_is_in_one_only_is_noted(run: Any, saved: tuple[Path, Path], tmp_path: Path) -> None:
    other = profile_with(np.ones((1, 3, 4)), 1, None, ("entropy",))
    other.save(tmp_path / "c")
    assert "Note: only a has the measures first, max_score." in run("compare", saved[0], tmp_path / "c").words


def test_refusals(refused: Any, saved: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = saved
    assert "does not exist; give a file" in refused("compare", a, tmp_path / "none")
    assert "is a folder" in refused("compare", tmp_path, b)
    (tmp_path / "no").write_bytes(b"something else")
    assert "no headwise profile" in refused("compare", a, tmp_path / "no", code=3)
    assert "--measure: expected names among entropy, first, max_score; got 'frist'" in refused(
        "compare", a, b, "--measure", "frist"
    )
    assert "--layers: neither profile has a layer 4" in refused("compare", a, b, "--layers", "4")
    for alpha in ("0", "1", "5%", "nan"):
        assert "expected a number between 0 and 1" in refused("compare", a, b, "--alpha", alpha)
    assert "expected a whole number of at least 1" in refused("compare", a, b, "--top", "0")
    assert "is the same file as the input" in refused("compare", a, b, "--csv", a, "--force")
    (tmp_path / "d.csv").write_text("mine")
    assert "exists; give another name, or --force" in refused("compare", a, b, "--csv", tmp_path / "d.csv")
    assert "required" in refused("compare", a)


def test_other_head_counts_and_layers_name_the_flag(refused: Any, saved: tuple[Path, Path], tmp_path: Path) -> None:
    profile(0, heads=2).save(tmp_path / "two")
    assert "--match layer compares what the heads" in refused("compare", saved[0], tmp_path / "two")
    more = profile(0)
    for number in (1, 2):
        part = part_of(np.ones((3, 2, 4)), 1, range(1, 5))
        more.record(Layer(number, f"l{number}", 2, 2, 8), GROUP._replace(layer=number), part)
    more.save(tmp_path / "more")
    assert "b has layers 1, 2 alone; --layers 0 compares" in refused("compare", saved[0], tmp_path / "more")


def test_real_profiles_of_two_texts(run: Any, tiny: Path, tmp_path: Path) -> None:
    """As a user would: profile twice, compare."""
    for name, text in (("a", "the lamp turns at night " * 40), ("b", "a small lamp at the turn of night " * 40)):
        (tmp_path / f"{name}.txt").write_text(text)
        made = run("profile", tiny, "--file", tmp_path / f"{name}.txt", "--window", 16, "--save", tmp_path / name)
        assert made.code == 0, made.err
    result = run("compare", tmp_path / "a", tmp_path / "b")
    assert result.code == 0
    assert "heads x " in result.words
    same = run("compare", tmp_path / "a", tmp_path / "a")
    assert "Paired: both profiles read the same" in same.words


def test_numbers_are_whole_on_a_narrow_terminal(
    run: Any, saved: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = run("compare", *saved).out
    monkeypatch.setenv("COLUMNS", "40")
    narrow = run("compare", *saved).out
    assert "…" not in narrow
    rows = [[line.split() for line in out.splitlines() if line.startswith("L0H")] for out in (wide, narrow)]
    assert rows[0] == rows[1]
