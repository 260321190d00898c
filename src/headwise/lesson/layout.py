"""Laying out text in a terminal: lines of so many cells, and blocks of lines side by side.

Everything is counted in cells: a Chinese character takes two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len, chop_cells
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GAP = 3
"""Cells between blocks that stand side by side."""

# No line begins with one of the first, or ends with one of the second.
_CLOSING = frozenset("，。：；？！、）”》」…")
_OPENING = frozenset("（“《「")
# A short formula stays in one line: its spaces do not break.
_BOUND = re.compile(r"(?<=\S) (?=[=×/·+−] ?\S)|(?<=[=×/·+−]) (?=\S)|(?<=\b[A-Z]) (?=[A-Z](?:[_^]\w+)?ᵀ?(?!\w))")
_HELD = "\u00a0"


def wrapped(text: str, width: int) -> list[str]:
    """A paragraph as lines of at most so many cells, broken at spaces and between Chinese characters."""
    lines: list[str] = []
    line = ""
    for space, piece in _pieces(text):
        joined = f"{line}{space if line else ''}{piece}"
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        *full, line = chop_cells(piece, width)
        lines += full
    return [one.replace(_HELD, " ") for one in (*lines, line)]


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """What must stay together, each with the space that stands before it unless a line begins there."""
    held = _BOUND.sub(_HELD, " ".join(text.split()))
    found: list[tuple[str, str]] = []
    for match in re.finditer(r"( ?)([^ ])", held):
        space, character = match.groups()
        if found:
            before = found[-1][1][-1]
            breaks = space or _breaks(before) or _breaks(character)
            if not breaks or (not space and (character in _CLOSING or before in _OPENING)):
                found[-1] = (found[-1][0], found[-1][1] + space + character)
                continue
        found.append((space, character))
    yield from found


def _breaks(character: str) -> bool:
    """Whether a line may end beside this character without a space."""
    return character in _CLOSING or character in _OPENING or cell_len(character) == 2


def clipped(label: str, width: int) -> str:
    """A label in at most so many cells."""
    return label if cell_len(label) <= width else chop_cells(label, width - 1)[0] + "…"


def padded(label: str, width: int, *, right: bool = False) -> str:
    """A label filled up with spaces to so many cells."""
    space = " " * (width - cell_len(label))
    return space + label if right else label + space


@dataclass(frozen=True)
class Block:
    """Lines that belong together.

    Attributes:
        lines: From top to bottom.
        head: How many of them stand above its rows.
        rows: How many rows it has.
    """

    lines: tuple[Text, ...]
    head: int = 0
    rows: int = 0

    @property
    def width(self) -> int:
        """Cells of its longest line."""
        return max((line.cell_len for line in self.lines), default=0)


def sign(text: str) -> Block:
    """An operator, which stands beside the middle of the blocks' rows."""
    return Block((Text(text),))


def together(blocks: Sequence[Block], gap: int = 1) -> Block:
    """Blocks that are never parted, as one."""
    return Block(tuple(side_by_side(blocks, gap)), max(b.head for b in blocks), max(b.rows for b in blocks))


def side_by_side(blocks: Sequence[Block], gap: int = GAP) -> list[Text]:
    """Blocks next to each other, their rows in one line."""
    head = max(block.head for block in blocks)
    rows = max(block.rows for block in blocks)
    columns = []
    for block in blocks:
        if block.rows:
            # The title stays on top, the rows begin together.
            before = [*block.lines[:1], *[Text()] * (head - block.head), *block.lines[1:]] if block.head else []
            columns.append((before or [*[Text()] * head, *block.lines], block.width))
        else:
            columns.append(([*[Text()] * (head + (rows - 1) // 2), *block.lines], block.width))
    lines = []
    for i in range(max(len(column) for column, _ in columns)):
        line = Text()
        for k, (column, width) in enumerate(columns):
            part = column[i].copy() if i < len(column) else Text()
            part.pad_right(width - part.cell_len + (gap if k < len(columns) - 1 else 0))
            line.append_text(part)
        line.rstrip()
        lines.append(line)
    return lines


def flow(blocks: Sequence[Block], width: int, gap: int = GAP) -> list[Text]:
    """Blocks next to each other where they fit, and the rest below; equally many in each line where that can be.

    An operator begins a line rather than ending one.
    """
    groups: list[list[Block]] = []  # a block with rows, and the operators before it
    for block in blocks:
        if groups and not groups[-1][-1].rows:
            groups[-1].append(block)
        else:
            groups.append([block])
    for each in range(len(groups), 0, -1):
        count = -(-len(groups) // each)
        each = -(-len(groups) // count)
        parts = [[one for group in groups[i : i + each] for one in group] for i in range(0, len(groups), each)]
        if each == 1 or all(sum(b.width + gap for b in part) - gap <= width for part in parts):
            break
    lines: list[Text] = []
    for part in parts:
        lines += ([Text()] if lines else []) + side_by_side(part, gap)
    return lines
