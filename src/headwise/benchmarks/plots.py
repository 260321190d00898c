"""Plots from result files alone: ratios by length, and what each variant of a model costs.

An SVG is readable on light and dark pages: it brings both palettes and follows the reader's setting. Colours are
Okabe and Ito's, told apart with any colour vision; each variant has a marker of its own too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from headwise.benchmarks.peers import EXTRA
from headwise.benchmarks.registry import FUSED, PAGE, PORTABLE, STATISTICS, WATCHED
from headwise.benchmarks.results import Measured, Result
from headwise.benchmarks.tables import machine_words, seconds, size
from headwise.errors import InputError, MissingPackageError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")

PAPER, INK, FAINT = "#fdfdfb", "#1c1f24", "#8d939c"
DARK = {PAPER: "#14171c", INK: "#e6e8eb", FAINT: "#7d848e"}
"""What the colours of the page become on a dark one."""

# Okabe-Ito, its yellow left out: it is too faint on paper.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DARK_COLOURS = ("#4aa3df", "#f07f36", "#2fc79a", "#e09bc2", "#8fd0f5", "#f2b632")
BASELINE, OURS, THEIRS = FAINT, COLOURS[0], COLOURS[1]
OWN = (WATCHED, FUSED, STATISTICS, PORTABLE, PAGE)
MARKERS = ("o", "s", "^", "D", "v", "P")


def draw(results: Sequence[Result], format: str) -> bytes:
    """The plot of results of one level.

    Args:
        results: Of attention one; of models and lengths any number.
        format: ".svg" or ".png".

    Raises:
        InputError: They cannot be drawn together, or hold nothing.
        MissingPackageError: matplotlib is not installed.
    """
    levels = {"attention" if result.level == "attention" else "model" for result in results}
    if len(levels) != 1 or (levels == {"attention"} and len(results) > 1):
        found = ", ".join(f"{result.case} ({result.level})" for result in results)
        raise InputError(f"a plot shows one result of attention, or results of models; got {found}")
    if not any(point.samples for result in results for point in result.points):
        raise InputError(f"nothing to plot: {results[0].case} holds no samples; run it again")
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingPackageError(f"plots need matplotlib: {EXTRA}") from error
    style = {
        "figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER, "text.color": INK,
        "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": FAINT, "grid.color": FAINT,
        "axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "axes.titlesize": 9,
        "svg.fonttype": "none", "svg.hashsalt": "headwise", "font.family": "sans-serif", "figure.dpi": 100,
        "text.parse_math": False,  # a model's name may hold dollars
    }  # fmt: skip
    with mpl.rc_context(style):
        figure = _ratios(results[0]) if levels == {"attention"} else _costs(results)
        return _written(figure, format)


def checked_format(path: str) -> str:
    """The format that a file's name asks for.

    Raises:
        InputError: It is none that can be drawn.
    """
    format = Path(path).suffix.lower()
    if format not in FORMATS:
        raise InputError(f"--plot {path}: expected a name that ends in {' or '.join(FORMATS)}")
    return format


def _ratios(result: Result) -> Figure:
    """A panel for each kind (down) and head size (across; kinds, if there is one): ratio to the baseline by length."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    kinds = list(dict.fromkeys(str(point.parameters["kind"]) for point in result.points))
    widths = sorted({int(point.parameters["head_dim"]) for point in result.points})
    variants = [v for v in result.variants if v != result.baseline and any(v in p.samples for p in result.points)]
    down, across = (1, len(kinds)) if len(widths) == 1 else (len(kinds), len(widths))
    figure = Figure(figsize=(1.2 + 2.5 * across, 1.5 + 1.9 * down), layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for row, kind in enumerate(kinds):
        for column, width in enumerate(widths):
            axes: Axes = panels.flat[row * len(widths) + column]
            axes.axhline(1, color=INK, linewidth=1, zorder=1)
            here = [p for p in result.points if (p.parameters["kind"], p.parameters["head_dim"]) == (kind, width)]
            for index, variant in enumerate(variants):
                line = _by_length(result, here, variant)
                axes.plot(
                    *line, color=COLOURS[index], marker=MARKERS[index], markersize=5, linewidth=1.6, label=variant
                )
            axes.set_title(f"{kind}, d_k = {width}")
            axes.grid(axis="y", linewidth=0.5, alpha=0.4)
            lengths = sorted({int(point.parameters["tokens"]) for point in result.points})
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.xaxis.set_major_locator(FixedLocator(lengths))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_xlim(lengths[0] / 1.5, lengths[-1] * 1.5)
    figure.supxlabel("tokens", fontsize=9)
    figure.supylabel(f"time, as a multiple of {result.baseline}", fontsize=9)
    handles, labels = panels[0][0].get_legend_handles_labels()
    _legend(figure, handles, labels, _title(result))
    return figure


def _by_length(result: Result, points: Sequence[Measured], variant: str) -> tuple[list[int], list[float]]:
    found = sorted(
        (int(point.parameters["tokens"]), ratio)
        for point in points
        if (ratio := point.ratio(variant, result.baseline)) is not None
    )
    return [tokens for tokens, _ in found], [ratio for _, ratio in found]


def _costs(results: Sequence[Result]) -> Figure:
    """For each point a pair of panels with a bar a variant: seconds, and extra memory."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = [(result, point) for result in results for point in result.points if point.samples or point.not_run]
    heights = [len(result.variants) + 1.6 for result, _ in rows]
    figure = Figure(figsize=(8.4, 0.9 + 0.27 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(rows), 2, squeeze=False, height_ratios=heights)
    for (result, point), (left, right) in zip(rows, panels, strict=True):
        bars = [Bar(v, _colour(result, v), *_time(result, point, v)) for v in result.variants]
        _bars(left, f"{point.name}: time", bars)
        bars = [Bar("", bar.colour, *_memory(point, bar.label)) for bar in bars]
        _bars(right, "extra memory", bars)
    whose = {BASELINE: "what others are compared with", OURS: "headwise", THEIRS: "others"}
    _legend(figure, [Patch(color=colour) for colour in whose], list(whose.values()), _title(*results))
    return figure


def _legend(figure: Figure, handles: Sequence[Artist], labels: Sequence[str], title: str) -> None:
    figure.legend(
        handles, labels, title=title, loc="outside upper center", ncols=min(len(labels), 5), frameon=False, fontsize=9
    )


def _colour(result: Result, variant: str) -> str:
    if variant == result.baseline:
        return BASELINE
    return OURS if variant in OWN else THEIRS


@dataclass(frozen=True)
class Bar:
    """One bar: whose, its colour, how long, and the words at its end."""

    label: str
    colour: str
    value: float
    words: str


def _time(result: Result, point: Measured, variant: str) -> tuple[float, str]:
    value, ratio = point.seconds(variant), point.ratio(variant, result.baseline)
    if value is None:
        return 0.0, shorten(f"not run: {point.not_run.get(variant, 'interrupted')}", 58, placeholder=" ...")
    return value, seconds(value) + ("" if ratio is None or variant == result.baseline else f" ({ratio:.1f}x)")


def _memory(point: Measured, variant: str) -> tuple[float, str]:
    value, page = point.extra_bytes(variant), point.middle(variant, "html_bytes")
    words = ([] if value is None else [size(value)]) + ([f"page {size(page)}"] if page else [])
    return value or 0.0, ", ".join(words)


def _bars(axes: Axes, title: str, bars: Sequence[Bar]) -> None:
    for place, bar in enumerate(bars):
        axes.barh(place, bar.value, height=0.66, color=bar.colour)
        axes.annotate(bar.words, (bar.value, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max((bar.value for bar in bars), default=0.0) or 1.0)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(title, loc="left")


def _title(*results: Result) -> str:
    return "; ".join(dict.fromkeys(", ".join(machine_words(result)) for result in results))


def _written(figure: Figure, format: str) -> bytes:
    stream = io.BytesIO()
    if format == ".png":
        figure.savefig(stream, format="png", dpi=160)
        return stream.getvalue()
    # No date: the same result gives the same file.
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": "headwise bench"})
    return _following_the_reader(stream.getvalue().decode()).encode()


def _following_the_reader(svg: str) -> str:
    """The drawing with a second palette, for readers whose pages are dark."""
    pairs: list[tuple[str, str]] = [*DARK.items(), *zip(COLOURS, DARK_COLOURS, strict=True)]
    rules: list[str] = []
    for light, dark in pairs:
        rules += [f'[style*="{what}: {light}"] {{ {what}: {dark} !important; }}' for what in ("fill", "stroke")]
    style = "<style>@media (prefers-color-scheme: dark) {\n" + "\n".join(rules) + "\n}</style>"
    return re.sub(r"(<svg[^>]*>)", lambda found: found[1] + "\n" + style, svg, count=1)
