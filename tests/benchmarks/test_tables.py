"""Results in words, and the bar while they are measured."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from headwise.benchmarks import peak, progress, runner, tables
from headwise.benchmarks.cases import Point
from headwise.benchmarks.results import Measured
from tests.benchmarks import fakes
from tests.benchmarks.fakes import Script


def length_result() -> fakes.Result:
    """By hand: 8 times the tokens take 64 times the work; fused takes 80 times as long."""
    points = [
        Measured(str(tokens), {"tokens": tokens}, {"sdpa": fakes.samples(a, a, a), "fused": fakes.samples(b, b, b)})
        for tokens, a, b in ((8192, 0.5, 0.25), (65536, 32.0, 20.0))
    ]
    return fakes.result("length", ("sdpa", "fused"), points)


def test_time_against_n_times_n() -> None:
    assert list(tables.scaling_lines(length_result())) == [
        "sdpa, 8,192 to 65,536 tokens: 64.0 times as long; N x N is 64 times the work",
        "fused, 8,192 to 65,536 tokens: 80.0 times as long; N x N is 64 times the work",
    ]
    assert list(tables.scaling_lines(fakes.model_result())) == []


def test_what_was_not_run_is_said_once_a_reason() -> None:
    made = fakes.attention_result()
    assert list(tables.not_run_lines(made)) == ["portable: not run beyond 2,048 tokens: seconds a call"]
    made.points[0].not_run = {"flex": "no compiler"}
    lines = list(tables.not_run_lines(made))
    assert lines[0] == "flex (512 x 32, full): no compiler"
    assert lines[1] == "portable (7 of 8 points): not run beyond 2,048 tokens: seconds a call"


def test_a_line_of_a_point() -> None:
    point = fakes.attention_result().points[0]
    assert tables.line_of("sdpa", point) == "512 x 32, full: sdpa 2.00 s; fused 1.50x, statistics 0.50x"
    bare = Measured("one", {}, {}, {"sdpa": "no torch"})
    assert tables.line_of("sdpa", bare) == "one: sdpa did not run: no torch"


@pytest.mark.parametrize(("value", "words"), [(None, "-"), (0.0004, "0.4 ms"), (0.5, "0.50 s"), (72.25, "72.2 s")])
def test_seconds(value: float | None, words: str) -> None:
    assert tables.seconds(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(None, "-"), (4e5, "0.4 MB"), (136.4e6, "136 MB"), (999e6, "999 MB"), (5e9, "5.0 GB")]
)
def test_sizes(value: float | None, words: str) -> None:
    assert tables.size(value) == words


def test_names_are_shown_as_they_are() -> None:
    """Names of models and reasons are no markup."""
    made = fakes.model_result(model="[bold]x[/nothing]")
    made.points[0].not_run["eager"] = "[red]why"
    console = Console(file=io.StringIO(), width=100)
    tables.show(made, console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]x[/nothing], 8 x 512" in said and "eager: [red]why" in said


def test_the_bar_weighs_points_by_their_cost_and_is_full_at_the_end(script: Script) -> None:
    case = fakes.case("base", "absent", turns=2)
    points = (Point("one", {"tokens": 1}), Point("two", {"tokens": 2}, cost=3.0))
    case = type(case)(**{**vars(case), "points": points})
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with progress.shown(console) as bar:
        seen: list[float] = []
        step = bar.step

        def recording(*asked: object) -> None:
            step(*asked)  # type: ignore[arg-type]
            seen.append(bar._bar.tasks[0].completed)

        bar.step = recording  # type: ignore[method-assign]
        runner.run(case, bar)
        (task,) = bar._bar.tasks
        # Two variants and two turns at costs 1 and 3; what is absent is tried once.
        assert task.total == task.completed == 4 + 12
        assert seen == [0, 1, 2, 4, 7, 10]
        assert task.description == "fake: two: base, run 2 of 2"


def test_memory_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peak, "CLEAR", tmp_path / "no" / "such")
    assert peak.since(peak.start()) is None
    monkeypatch.setattr(peak, "MEMORY", tmp_path / "nowhere")
    assert peak.available() is None and peak.total() is None


def test_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       2000 kB\nMemFree:  5 kB\nMemAvailable:    1000 kB\n")
    monkeypatch.setattr(peak, "MEMORY", tmp_path / "meminfo")
    assert (peak.total(), peak.available()) == (2_048_000, 1_024_000)
