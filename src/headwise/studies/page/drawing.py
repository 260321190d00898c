"""Charts as inline SVG that follow the page: its colours in both themes, its fonts, no style that a policy refuses.

matplotlib places everything; what it writes is then cut down to paths and text. Placeholder colours become the page's
CSS variables, styles become attributes (a page whose policy admits no inline style would ignore them), and a cloud of
dots becomes one path of strokes without length, whose round ends are the dots: 12 bytes a dot.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias
from xml.etree import ElementTree as ET

from headwise.errors import MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 300, 196
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 34
FONT = 11
DIGIT = 0.6
"""About how wide a digit is, of the font's size."""

Ink: TypeAlias = Literal["ink", "soft", "line", "paper", "s1", "s2", "s3", "s4", "s5"]
_PLACEHOLDERS: dict[Ink, str] = {
    "ink": "#010101", "soft": "#020202", "line": "#030303", "paper": "#040404",
    "s1": "#050505", "s2": "#060606", "s3": "#070707", "s4": "#080808", "s5": "#090909",
}  # fmt: skip
_VARIABLES = {hex_: f"var(--{ink})" for ink, hex_ in _PLACEHOLDERS.items()}

_KEPT = ("fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "stroke-opacity")
_SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Dots:
    """Dots at `x`, `y`, drawn as one; open ones are rings."""

    x: Sequence[float]
    y: Sequence[float]
    ink: Ink
    size: float = 4.5
    opacity: float = 1.0
    is_open: bool = False


@dataclass(frozen=True)
class Line:
    """A line through `x`, `y`."""

    x: Sequence[float]
    y: Sequence[float]
    ink: Ink
    width: float = 1.6
    dash: tuple[float, ...] = ()
    opacity: float = 1.0


@dataclass(frozen=True)
class Intervals:
    """Upright strokes from `low` to `high`."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    ink: Ink


Mark: TypeAlias = Dots | Line | Intervals


@dataclass(frozen=True)
class Chart:
    """One small chart.

    Attributes:
        marks: What it shows, what comes later above what came before.
        x_label: What runs along its lower edge.
        ticks: Places on that edge and their names; None: numbers.
        levels: Where thin lines across stand for a value that means something.
    """

    marks: Sequence[Mark]
    x_label: str
    ticks: Sequence[tuple[float, str]] | None = None
    levels: Sequence[float] = field(default=())


def require() -> None:
    """See that matplotlib is installed.

    Raises:
        MissingPackageError: It is not.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            'the plots of the page need matplotlib; install it with: pip install "headwise[study]"'
        ) from error


def svg(chart: Chart, described: str) -> str:
    """The chart as an SVG element.

    Args:
        chart: What it shows.
        described: What a reader who does not see it is told.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": "headwise", "font.size": FONT, "path.simplify": False}
    with mpl.rc_context(style):
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)
        axes = figure.add_axes((LEFT / WIDTH, BOTTOM / HEIGHT, 1 - (LEFT + RIGHT) / WIDTH, 1 - (TOP + BOTTOM) / HEIGHT))
        _frame(axes, chart)
        for mark in _within_reason(chart.marks):
            _draw(axes, mark)
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return _cleaned(stream.getvalue().decode(), {"x-label": chart.x_label}, described)


def _frame(axes: Axes, chart: Chart) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_facecolor("none")
    axes.figure.patch.set_visible(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_PLACEHOLDERS["line"])
    axes.tick_params(length=0, pad=5, labelcolor=_PLACEHOLDERS["soft"])
    axes.grid(axis="y", color=_PLACEHOLDERS["line"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.06, y=0.1)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    if chart.ticks is None:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    else:
        low, high = min(place for place, _ in chart.ticks) - 0.45, max(place for place, _ in chart.ticks) + 0.45
        shown = _with_room(chart.ticks, (WIDTH - LEFT - RIGHT) / (high - low))
        axes.set_xticks([place for place, _ in shown], [name for _, name in shown])
        axes.set_xlim(low, high)
    # matplotlib's own fonts may lack the language's characters: the words come in afterwards.
    axes.set_xlabel("x", color=_PLACEHOLDERS["soft"], labelpad=2).set_gid("x-label")
    for level in chart.levels:
        axes.axhline(level, color=_PLACEHOLDERS["soft"], linewidth=1, linestyle=(0, (3, 3)), clip_on=False)


def _with_room(ticks: Sequence[tuple[float, str]], unit: float) -> Sequence[tuple[float, str]]:
    """Every tick, or every second, third, ... one: so many that no name reaches into the next; `unit` is in pixels."""
    widths = {name: (len(name) + 1) * DIGIT * FONT for _, name in ticks}
    for step in range(1, len(ticks)):
        shown = ticks[::step]
        pairs = pairwise(shown)
        if all((b - a) * unit >= (widths[one] + widths[other]) / 2 for (a, one), (b, other) in pairs):
            return shown
    return ticks[:1]


def _within_reason(marks: Sequence[Mark]) -> list[Mark]:
    """The same, with intervals cut off where they would leave the values themselves no room (two seeds that differ)."""
    values = [value for mark in marks if not isinstance(mark, Intervals) for value in mark.y]
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = high - low
    if not span:
        return list(marks)
    return [
        mark if not isinstance(mark, Intervals) else
        Intervals(mark.x, [max(one, low - span) for one in mark.low], [min(one, high + span) for one in mark.high],
                  mark.ink)
        for mark in marks
    ]  # fmt: skip


def _number(value: float) -> str:
    return f"{round(value, 6):,.6g}".replace("-", "\u2212")


def _draw(axes: Axes, mark: Mark) -> None:
    colour = _PLACEHOLDERS[mark.ink]
    if isinstance(mark, Dots):
        (drawn,) = axes.plot(mark.x, mark.y, linestyle="none", marker="o", color=colour, clip_on=False)
        drawn.set_gid(f"dots {mark.ink} {mark.size} {mark.opacity} {int(mark.is_open)}")
    elif isinstance(mark, Line):
        style = (0, mark.dash) if mark.dash else "-"
        axes.plot(
            mark.x, mark.y, color=colour, linewidth=mark.width, linestyle=style, alpha=mark.opacity, clip_on=False
        )
    else:
        axes.vlines(mark.x, mark.low, mark.high, color=colour, linewidth=1.4, clip_on=False)


def _cleaned(drawn: str, words: dict[str, str], described: str) -> str:
    out = ET.Element(
        "svg", {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "aria-label": described, "font-size": str(FONT)}
    )
    out.extend(_elements(ET.fromstring(drawn), words))
    return ET.tostring(out, encoding="unicode")


def _elements(element: ET.Element, words: dict[str, str], name: str = "") -> Iterator[ET.Element]:
    """Paths and texts, wherever they stand; `name` is that of the group around them."""
    for child in element:
        kind, own = child.tag.removeprefix(_SVG), child.get("id", "")
        if kind == "g" and own.startswith("dots "):
            yield from _dots(child, own)
        elif kind == "g":
            yield from _elements(child, words, own)
        elif kind == "path" and (attributes := _attributes(child.get("style", ""))).keys() - {"fill"}:
            yield ET.Element("path", {"d": _rounded(child.get("d", "")), **attributes})
        elif kind == "text":
            yield _text(child, words.get(name, child.text or ""))


def _dots(group: ET.Element, name: str) -> Iterator[ET.Element]:
    _, ink, size, opacity, is_open = name.split(" ")
    places = [(use.get("x", "0"), use.get("y", "0")) for use in group.iter(f"{_SVG}use")]
    common = {
        "d": "".join(f"M{_rounded(x)} {_rounded(y)}h0" for x, y in places), "fill": "none", "stroke-linecap": "round",
        **({"stroke-opacity": opacity} if float(opacity) < 1 else {}),
    }  # fmt: skip
    yield ET.Element("path", {**common, "stroke": f"var(--{ink})", "stroke-width": size})
    if is_open == "1":
        common.pop("stroke-opacity", None)
        yield ET.Element("path", {**common, "stroke": "var(--paper)", "stroke-width": f"{float(size) - 2.2:g}"})


def _text(element: ET.Element, words: str) -> ET.Element:
    style = _declarations(element.get("style", ""))
    drawn = ET.Element("text", {"fill": "var(--soft)"})
    for axis in ("x", "y"):
        drawn.set(axis, _rounded(element.get(axis, "0")))
    if "text-anchor" in style:
        drawn.set("text-anchor", style["text-anchor"])
    drawn.text = words
    return drawn


def _attributes(style: str) -> dict[str, str]:
    """The declarations that matter, as attributes: colours of the page, and no more than differs from the default."""
    kept = {name: _VARIABLES.get(value, value) for name, value in _declarations(style).items() if name in _KEPT}
    return {name: value for name, value in kept.items() if (name, value) != ("stroke", "none")}


def _declarations(style: str) -> dict[str, str]:
    pairs = (one.partition(":") for one in style.split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip()}


def _rounded(numbers: str) -> str:
    """Numbers to a tenth, and white space as short as can be."""
    short = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), numbers)
    return " ".join(short.split())
