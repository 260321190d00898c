"""What is left of matplotlib's SVG: paths and texts in the page's colours, at the right places."""

from __future__ import annotations

import re
import sys

import pytest

from headwise.errors import MissingPackageError
from headwise.studies.page import drawing
from headwise.studies.page.drawing import Chart, Dots, Intervals, Line, svg

TICKS = [(0, "1"), (1, "8")]


def places(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"M(-?[\d.]+) (-?[\d.]+)h0", path)]


def paths_of(drawn: str) -> list[str]:
    return re.findall(r"<path [^>]*>", drawn)


def test_dots_stand_where_their_values_are() -> None:
    """Equal steps of the value are equal steps upwards; both columns stand above their ticks."""
    drawn = svg(Chart([Dots([0, 0, 0, 1], [1.0, 2.0, 3.0, 3.0], "s2")], "h", TICKS), "about")
    (dots,) = [path for path in paths_of(drawn) if "h0" in path]
    (x0, low), (x1, middle), (x2, high), (x3, same) = places(dots)
    assert x0 == x1 == x2 < x3
    assert same == high < middle < low
    assert middle - high == pytest.approx(low - middle, abs=0.11)
    texts = dict(re.findall(r'<text [^>]*?x="([\d.]+)"[^>]*>([^<]*)</text>', drawn))
    assert [name for x, name in texts.items() if float(x) == pytest.approx(x0, abs=0.11)] == ["1"]
    assert [name for x, name in texts.items() if float(x) == pytest.approx(x3, abs=0.11)] == ["8"]


def test_rings_are_paper_on_ink() -> None:
    drawn = svg(Chart([Dots([0, 1], [1.0, 2.0], "s1", 6, is_open=True)], "h", TICKS), "about")
    outer, inner = [path for path in paths_of(drawn) if "h0" in path]
    assert places(outer) == places(inner)
    assert ('stroke="var(--s1)"' in outer, 'stroke-width="6"' in outer) == (True, True)
    assert ('stroke="var(--paper)"' in inner, 'stroke-width="3.8"' in inner) == (True, True)


def test_only_attributes_and_colours_of_the_page() -> None:
    """The policy refuses styles; a colour that is no variable would stay as it is in the dark."""
    marks = [Line([0, 1], [1, 2], "s3", dash=(3, 3), opacity=0.5), Intervals([0], [0.5], [1.5], "s4"),
             Dots([0], [1], "s5", opacity=0.3)]  # fmt: skip
    drawn = svg(Chart(marks, "h", TICKS, (1.0,)), "about")
    assert " style=" not in drawn
    assert " id=" not in drawn
    assert "#" not in drawn
    assert set(re.findall(r'(?:fill|stroke)="([^"]*)"', drawn)) == {
        "none", *(f"var(--{ink})" for ink in ("soft", "line", "s3", "s4", "s5"))
    }  # fmt: skip
    (line,) = [path for path in paths_of(drawn) if "--s3" in path]
    assert "stroke-dasharray" in line
    assert 'opacity="0.5"' in line


def test_words_come_in_whatever_they_hold() -> None:
    drawn = svg(Chart([Dots([0], [1], "s1")], "训练步数 <b>", None), 'a "label" & <more>')
    assert ">训练步数 &lt;b&gt;</text>" in drawn
    assert 'aria-label="a &quot;label&quot; &amp; &lt;more&gt;"' in drawn


def test_an_interval_cannot_dwarf_the_values() -> None:
    """Values of 1 and 2: an interval of a thousand ends one span above and below them."""
    marks = [Line([0, 1], [1.0, 2.0], "s1"), Intervals([0, 1], [-1000.0, 1.9], [1000.0, 2.1], "s1")]
    _, intervals = drawing._within_reason(marks)
    assert isinstance(intervals, Intervals)
    assert (intervals.low, intervals.high) == ([0.0, 1.9], [3.0, 2.1])


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["1", "2", "4", "8", "16"], ["1", "2", "4", "8", "16"]),
        (["1-2", "3-6", "7-14", "15-30", "31-62", "63-126", "127-254"], ["1-2", "7-14", "31-62", "127-254"]),
        ([f"{10**9 + n}" for n in range(9)], ["1000000000", "1000000003", "1000000006"]),
        (["0"], ["0"]),
    ],
)
def test_no_name_reaches_into_the_next(names: list[str], shown: list[str]) -> None:
    places = list(range(len(names)))
    drawn = svg(Chart([Dots(places, places, "s1")], "h", list(enumerate(names))), "a")
    told = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert [name for name in told if name in names][: len(shown)] == shown
    assert len(set(names) & set(told[: told.index("h")])) == len(shown)


def test_without_matplotlib_it_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        MissingPackageError, match=r'need matplotlib; install it with: pip install "headwise\[study\]"$'
    ):
        drawing.require()
