"""A result in words: a table for the terminal, and a line a point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headwise.benchmarks.results import Measured, Result

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

DASH = "-"
NAMED = 3
"""Points that are named one by one."""


def show(result: Result, console: Console) -> None:
    """Print a result: what was measured, the table, the summary, and what was not run and why."""
    from rich.text import Text

    console.print(Text(f"{result.case}: {result.about}", style="bold"))
    native = [f"native kernel {result.machine['native']}"] if "native" in result.machine else []
    runs = "one run each" if result.turns == 1 else f"medians of {result.turns} runs"
    console.print(Text(", ".join([*machine_words(result), *native, runs])))
    console.print(Text(f"Ratios are to {result.baseline}, run by run: below 1x is faster."))
    console.print()
    if result.level == "attention":
        console.print(_ratios(result))
    else:
        for point in result.points:
            console.print(_costs(result, point))
    console.print()
    if result.level == "attention":
        console.print(_summary(result))
    for line in (*scaling_lines(result), *not_run_lines(result)):
        console.print(Text(line))
    for name, about in result.variants.items():
        console.print(Text(f"{name}: {about}", style="dim"))


def machine_words(result: Result) -> list[str]:
    """Processor, threads, torch."""
    threads = result.machine.get("threads")
    return [
        str(result.machine.get("processor")),
        f"{threads} thread{'' if threads == 1 else 's'}",
        f"torch {result.versions.get('torch')}",
    ]


def line_of(baseline: str, point: Measured) -> str:
    """`2048 x 64, causal: sdpa 21.0 ms; fused 1.02x, statistics 0.60x`."""
    first = point.seconds(baseline)
    if first is None:
        return f"{point.name}: {baseline} did not run: {point.not_run.get(baseline, '')}"
    ratios = ((v, point.ratio(v, baseline)) for v in point.samples if v != baseline)
    rest = ", ".join(f"{v} {ratio:.2f}x" for v, ratio in ratios if ratio is not None)
    return f"{point.name}: {baseline} {seconds(first)}" + (f"; {rest}" if rest else "")


def scaling_lines(result: Result) -> Iterator[str]:
    """Of great lengths: the time against what N x N work would take, from the shortest point."""
    if result.level != "length" or len(result.points) < 2:
        return
    first, *others = result.points
    for point in others:
        times = int(point.parameters["tokens"]) / int(first.parameters["tokens"])
        for variant in point.samples:
            short, long = first.seconds(variant), point.seconds(variant)
            if short and long:
                yield (
                    f"{variant}, {first.parameters['tokens']:,} to {point.parameters['tokens']:,} tokens: "
                    f"{long / short:.1f} times as long; N x N is {times**2:.0f} times the work"
                )


def not_run_lines(result: Result) -> Iterator[str]:
    """What was not run and why: a line a variant and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for point in result.points:
        for variant, why in point.not_run.items():
            reasons.setdefault((variant, why), []).append(point.name)
    for (variant, why), points in reasons.items():
        listed = ", ".join(points) if len(points) <= NAMED else f"{len(points)} of {len(result.points)} points"
        where = "" if len(points) == len(result.points) else f" ({listed})"
        yield f"{variant}{where}: {why}"


def _ratios(result: Result) -> Table:
    """A row a point: the baseline's time, and the ratios to it."""
    table = _table("mask", "tokens", "d_k", result.baseline, *_compared(result))
    for point in result.points:
        size_of = (str(point.parameters.get(name, DASH)) for name in ("kind", "tokens", "head_dim"))
        ratios = (_times(point.ratio(variant, result.baseline)) for variant in _compared(result))
        table.add_row(*size_of, seconds(point.seconds(result.baseline)), *ratios)
    return table


def _summary(result: Result) -> Table:
    """Of each kind of mask the geometric mean of the ratios, and the largest."""
    table = _table("mask", f"to {result.baseline}", *_compared(result))
    for kind, found in result.summary().items():
        for words, number in (("geometric mean", "geometric_mean"), ("largest", "largest")):
            ratios = (_times(found.get(variant, {}).get(number)) for variant in _compared(result))
            table.add_row(kind if number == "geometric_mean" else "", words, *ratios)
    return table


def _compared(result: Result) -> list[str]:
    """The variants that ran anywhere, the baseline left out."""
    ran = {variant for point in result.points for variant in point.samples}
    return [variant for variant in result.variants if variant in ran and variant != result.baseline]


def _times(ratio: float | None) -> str:
    return DASH if ratio is None else f"{ratio:.2f}x"


def _costs(result: Result, point: Measured) -> Table:
    pages = any(sample.more for samples in point.samples.values() for sample in samples)
    table = _table(point.name, "time", f"to {result.baseline}", "extra memory", *(["page"] if pages else []))
    for variant in result.variants:
        ratio = _times(point.ratio(variant, result.baseline))
        cells = [seconds(point.seconds(variant)), ratio, size(point.extra_bytes(variant))]
        table.add_row(variant, *cells, *([size(point.middle(variant, "html_bytes"))] if pages else []))
    return table


def _table(*headings: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if index else "left", no_wrap=index > 0)
    return table


def seconds(value: float | None) -> str:
    """`21.0 ms`, `3.2 s`."""
    if value is None:
        return DASH
    return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s" if value >= 0.5 else f"{value * 1e3:.1f} ms"


def size(value: float | None) -> str:
    """`136 MB` (10^6 bytes), `5.0 GB`."""
    if value is None:
        return DASH
    return (
        f"{value / 1e9:.1f} GB"
        if value >= 1e9
        else f"{value / 1e6:,.1f} MB"
        if value < 1e7
        else f"{value / 1e6:,.0f} MB"
    )
