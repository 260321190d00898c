"""Matrices and maps of weights as blocks of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.text import Text

from headwise.lesson.contents import number
from headwise.lesson.layout import Block, clipped, padded

if TYPE_CHECKING:
    from collections.abc import Sequence

LABEL = 8
"""Cells of a token at most, beside or above a matrix."""

_HIDDEN = "░"
_SHADES = " ░▒▓█"
_UPPER_HALF = "▀"
# Viridis: dark to bright evenly, told apart by all eyes, and an image of its own on dark and light terminals.
_HEAT = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))


def matrix(
    title: str,
    rows: Sequence[Sequence[float]],
    *,
    names: Sequence[str] = (),
    columns: Sequence[str] = (),
    seen: Sequence[Sequence[bool]] | None = None,
    weights: bool = False,
    cuts: int = 0,
    total: Sequence[float] = (),
    foot: Sequence[str] = (),
) -> Block:
    """A matrix between brackets, with its shape.

    Args:
        title: Its name.
        rows: Its numbers.
        names: A label for each row.
        columns: A label for each column.
        seen: Which entries are visible; what a mask hides is hatched.
        weights: Numbers 0 .. 1 in two decimals, on a colour from dark to bright.
        cuts: A line between columns after each so many.
        total: A further row, below the brackets.
        foot: Lines below it.
    """
    decimals = 2 if weights else _decimals([*rows, total])
    cells = [[number(float(value), decimals) for value in row] for row in rows]
    labels = [clipped(column, LABEL) for column in columns]
    totals = [number(float(value), decimals) for value in total]
    width = max(cell_len(cell) for cell in (*(cell for row in cells for cell in row), *labels, *totals))
    names = [clipped(name, LABEL) for name in names]
    margin = max(map(cell_len, names), default=-1) + 1

    lines = [_title(title, f"{len(rows)} × {len(rows[0])}")]
    if labels:
        above = "".join(f" {padded(label, width, right=True)} " for label in labels)
        lines.append(Text(" " * (margin + 1) + above, "dim"))
    for i, row in enumerate(cells):
        left, right = _brackets(i, len(cells))
        line = Text(padded(names[i], margin) if names else "", "dim")
        line = Text().append_text(line).append(left)
        for j, cell in enumerate(row):
            if cuts and j and j % cuts == 0:
                line.append("│", "dim")
            if seen is not None and not seen[i][j]:
                line.append(f" {_HIDDEN * width} ", "dim")
            else:
                line.append(f" {padded(cell, width, right=True)} ", heat(rows[i][j]) if weights else "")
        lines.append(line.append(right))
    if totals:
        below = "".join(f" {padded(cell, width, right=True)} " for cell in totals)
        lines.append(Text(f"{padded('Σ', margin) if names else ''} {below}", "bold"))
    return Block((*lines, *(Text(line, "dim") for line in foot)), head=2 if labels else 1, rows=len(cells))


def beside(title: str, values: Sequence[float], *, head: int) -> Block:
    """Numbers that belong to a matrix's rows, to stand beside it."""
    cells = [number(value, 2) for value in values]
    width = max(map(cell_len, (title, *cells)))
    above = [Text()] * (head - 1) + [Text(padded(title, width, right=True), "dim")]
    return Block((*above, *(Text(padded(cell, width, right=True)) for cell in cells)), head, len(cells))


def picture(title: str, rows: Sequence[Sequence[float]], *, colour: bool, foot: Sequence[str] = ()) -> Block:
    """A map of weights 0 .. 1, a cell a weight: two rows a line in colour, else a shade a weight."""
    lines = [_title(title)]
    if colour:
        for i in range(0, len(rows), 2):
            line = Text()
            for j, upper in enumerate(rows[i]):
                lower = rows[i + 1][j] if i + 1 < len(rows) else 0.0
                line.append(_UPPER_HALF, Style(color=_colour(_lifted(upper)), bgcolor=_colour(_lifted(lower))))
            lines.append(line)
    else:
        # Nothing below 0.04, full from 0.64 on.
        lines += [Text("".join(_SHADES[min(int(5 * _lifted(value)), 4)] for value in row)) for row in rows]
    return Block((*lines, *(Text(line, "dim") for line in foot)), head=1, rows=len(lines) - 1)


def heat(weight: float) -> Style:
    """The colours of a weight's number and of the ground it stands on."""
    ground = _mixed(weight)
    # Relative luminance (WCAG 2): white and black are equally readable at about 0.18.
    linear = [(c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in ground]
    dark = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] < 0.18
    return Style(color=Color.from_rgb(*((255,) * 3 if dark else (0,) * 3)), bgcolor=Color.from_rgb(*ground))


def _lifted(weight: float) -> float:
    """Small weights of long rows are lifted, so that they can be seen."""
    return float(max(0.0, weight) ** 0.5)


def _colour(weight: float) -> Color:
    return Color.from_rgb(*_mixed(weight))


def _mixed(weight: float) -> tuple[int, int, int]:
    place = min(max(weight, 0.0), 1.0) * (len(_HEAT) - 1)
    i = min(int(place), len(_HEAT) - 2)
    red, green, blue = (round(a + (b - a) * (place - i)) for a, b in zip(_HEAT[i], _HEAT[i + 1], strict=True))
    return red, green, blue


def _title(name: str, shape: str = "") -> Text:
    title = Text(name, "bold")
    return title.append(f"  {shape}", "not bold dim") if shape else title


def _decimals(rows: Sequence[Sequence[float]]) -> int:
    """As few as show the numbers exactly, two at most."""
    values = [value for row in rows for value in row]
    return next((d for d in (0, 1) if all(abs(value - round(value, d)) < 1e-9 for value in values)), 2)


def _brackets(row: int, rows: int) -> tuple[str, str]:
    if rows == 1:
        return "[", "]"
    return ("⎡", "⎤") if row == 0 else ("⎣", "⎦") if row == rows - 1 else ("⎢", "⎥")
