"""Result files: what goes in comes out, and what is no result is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwise.benchmarks import results
from headwise.benchmarks.results import Measured, Sample
from headwise.errors import FileFormatError, InputError
from tests.benchmarks import fakes

COMMITTED = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("*.json"))


@pytest.mark.parametrize("made", [fakes.attention_result(), fakes.model_result()], ids=lambda made: made.case)
def test_round_trip(made: results.Result, tmp_path: Path) -> None:
    made.points[0].samples["again"] = [Sample(1.25, None, {"html_bytes": 7.0})]
    made.save(tmp_path / "result.json")
    assert results.load(tmp_path / "result.json") == made


def test_the_json_holds_what_the_docstring_says(tmp_path: Path) -> None:
    import headwise.benchmarks

    made = fakes.model_result().as_json()
    said = headwise.benchmarks.__doc__ or ""
    (point,) = made["points"]
    for name in [*made, *point, *point["samples"]["watched"][0]]:
        assert name in said, name
    assert made["schema"] == 1
    assert made["complete"] is True
    assert point["median_seconds"] == {"unwatched": 0.5, "watched": 0.75}
    assert point["median_extra_bytes"] == {"unwatched": 100_000_000, "watched": 120_000_000}
    assert point["to_baseline"] == pytest.approx({"watched": 1.5})
    assert point["samples"]["unwatched"][0] == {"seconds": 0.4, "extra_bytes": 100_000_000}


def test_summary_by_kind() -> None:
    """By hand: ratios 1 and 4 have the geometric mean 2."""
    points = [
        Measured(str(n), {"kind": kind}, {"a": fakes.samples(1, 1), "b": fakes.samples(ratio, ratio)})
        for n, (kind, ratio) in enumerate((("full", 1), ("full", 4), ("causal", 3)))
    ]
    points.append(Measured("3", {"kind": "causal"}, {"a": fakes.samples(1)}, {"b": "why"}))
    summary = fakes.result("attention", ("a", "b"), points).summary()
    assert summary["full"]["b"] == pytest.approx({"geometric_mean": 2, "largest": 4, "points": 2})
    assert summary["causal"]["b"] == pytest.approx({"geometric_mean": 3, "largest": 3, "points": 1})


def test_memory_that_was_not_measured_is_none() -> None:
    point = Measured("one", {}, {"a": fakes.samples(1, 2, 3, extra_bytes=None)})
    assert point.extra_bytes("a") is None
    assert point.ratio("a", "a", "extra_bytes") is None
    assert point.seconds("nobody") is None


def test_complete_needs_every_point_turn_and_variant() -> None:
    made = fakes.model_result()
    assert made.complete
    made.planned = 2
    assert not made.complete
    made.planned = 1
    made.points[0].samples["watched"].pop()
    assert not made.complete
    made = fakes.model_result()
    del made.points[0].not_run["eager"]
    assert not made.complete, "a variant is neither run nor excused"


@pytest.mark.parametrize(("content", "words"), [
    ("", "it is not JSON"),
    ("[1, 2]", "it has no schema number"),
    ('{"case": "attention"}', "it has no schema number"),
    ('{"schema": 2}', "a newer headwise wrote it; update headwise"),
    ('{"schema": 0}', "run the benchmark again"),
    ('{"schema": 1}', "is damaged: KeyError: 'points'"),
    ('{"schema": 1, "points": [1]}', "is damaged: TypeError"),
])  # fmt: skip
def test_what_is_no_result(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text(content)
    with pytest.raises(FileFormatError, match=r"some\.json") as failed:
        results.load(path)
    assert words in str(failed.value)


def test_a_result_that_contradicts_itself(tmp_path: Path) -> None:
    data: dict[str, Any] = fakes.model_result().as_json()
    data["baseline"] = "nobody"
    (tmp_path / "some.json").write_text(json.dumps(data))
    with pytest.raises(FileFormatError, match="baseline 'nobody'"):
        results.load(tmp_path / "some.json")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        results.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_results_are_complete_and_of_this_schema(path: Path) -> None:
    result = results.load(path)
    assert result.case == path.stem
    assert result.complete
    assert result.as_json() == json.loads(path.read_text()), "what is derived is what the samples give"
