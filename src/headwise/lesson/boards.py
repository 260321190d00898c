"""What each step of the lesson shows of its numbers in a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from rich import box
from rich.table import Table
from rich.text import Text

from headwise.lesson.contents import maps, number, tiny
from headwise.lesson.layout import Block, flow, sign, together, wrapped
from headwise.lesson.matrices import beside, matrix, picture
from headwise.lesson.working import Numbers, State, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Lines: TypeAlias = "list[Text | Table]"

PAD = "[PAD]"


@dataclass(frozen=True)
class Board:
    """What the steps draw from, and the room they have.

    Attributes:
        state: The state of the lesson.
        numbers: What `work` made of it.
        ui: The short texts of the language.
        width: Cells of a line.
        colour: Whether the terminal shows colours.
        layer: The layer of the real model that step 10 shows.
    """

    state: State
    numbers: Numbers
    ui: dict[str, str]
    width: int
    colour: bool = False
    layer: int = 1

    @property
    def tokens(self) -> list[str]:
        """The tokens of the sentence."""
        tokens: list[str] = self.state["tokens"]
        return tokens

    def seen(self) -> list[list[bool]]:
        """Which keys each token may see."""
        return visible(len(self.tokens), causal=bool(self.state["causal"]))

    def flow(self, *blocks: Block | str, gap: int = 3) -> Lines:
        """Matrices and operators in a row, or in several where one does not fit."""
        return [*flow([sign(block) if isinstance(block, str) else block for block in blocks], self.width, gap)]

    def text(self, text: str, style: str = "dim") -> Lines:
        """A line of text, or several."""
        return [Text(line, style) for line in wrapped(text, self.width)]

    def described_rows(self, operator: str, weights: Block, numbers: Numbers) -> list[Block]:
        """A matrix of weights after an operator, and beside each row its self-focus and entropy, where they fit."""
        titles = {"self_focus": self.ui["self_focus"], "entropy": self.ui["entropy"]}
        rows = [beside(title, numbers[name], head=weights.head) for name, title in titles.items()]
        whole = together([together([sign(operator), weights], 3), *rows], 2)
        return [whole] if whole.width <= self.width else [sign(operator), weights, together(rows, 2)]

    def split(self, title: str, rows: Sequence[Sequence[float]], **options: Any) -> list[Block]:
        """A wide matrix, in two halves of its columns where it does not fit."""
        whole = matrix(title, rows, **options)
        if whole.width <= self.width:
            return [whole]
        half = len(rows[0]) // 2
        parts = (("1", str(half), [row[:half] for row in rows]), (half + 1, len(rows[0]), [row[half:] for row in rows]))
        return [matrix(f"{title}, {self.ui['column']} {a}–{b}", part, **options) for a, b, part in parts]

    def described(self, weights: Numbers) -> list[str]:
        """Self-focus and entropy of a matrix of weights, to stand below it."""
        return [
            f"{self.ui['self_focus']} {number(weights['mean_self_focus'])}",
            f"{self.ui['entropy']} {number(weights['mean_entropy'])} {self.ui['nats']}",
        ]


def drawn(step: str, board: Board) -> Lines:
    """The numbers of a step, as lines and tables; nothing for a step that has none.

    Args:
        step: The step's id.
        board: What to draw from.
    """
    draw = _BOARDS.get(step)
    return draw(board) if draw else []


def _tokens(board: Board) -> Lines:
    return board.flow(matrix("X", board.state["x"], names=board.tokens))


def _qkv(board: Board) -> Lines:
    x = matrix("X", board.state["x"], names=board.tokens)
    lines: Lines = []
    for name, made in board.numbers["qkv"].items():
        product = matrix(name.upper(), made, names=board.tokens)
        lines += [
            *_space(lines),
            *board.flow(x, "·", matrix(f"W^{name.upper()}", board.state[f"w{name}"]), "=", product),
        ]
    return lines


def _weights(board: Board) -> Lines:
    tokens, found, seen = board.tokens, board.numbers["scores"], board.seen()
    q, k = board.numbers["qkv"]["q"], board.numbers["qkv"]["k"]
    keys = [list(column) for column in zip(*k, strict=True)]
    products = matrix("Q Kᵀ", found["products"], names=tokens, columns=tokens)
    title = f"Q Kᵀ / √d_k = Q Kᵀ / {number(found['divisor'])}" if board.state["scale"] else "Q Kᵀ"
    scores = matrix(title, found["scores"], names=tokens, columns=tokens, seen=seen)
    weights = matrix("P", found["weights"], names=tokens, columns=tokens, seen=seen, weights=True)
    return [
        *board.flow(matrix("Q", q, names=tokens), "·", matrix("Kᵀ", keys, columns=tokens), "=", products),
        Text(),
        *board.flow(scores, *board.described_rows("→ softmax →", weights, found)),
        *board.text(f"{board.ui['mean']}{board.ui['colon']}{' · '.join(board.described(found))}"),
    ]


def _output(board: Board) -> Lines:
    tokens, found = board.tokens, board.numbers["output"]
    weights, values = board.numbers["scores"]["weights"], board.numbers["qkv"]["v"]
    look = int(board.state["look"])
    p = matrix("P", weights, names=tokens, columns=tokens, seen=board.seen(), weights=True)
    v = matrix("V", values, names=tokens)
    row = matrix("p", [[value] for value in weights[look]], names=tokens, weights=True)
    parts = matrix(board.ui["code_of"].format(token=tokens[look]), found["parts"], total=found["sum"])
    counts = _table([board.ui["tokens_count"], *(number(count["tokens"]) for count in board.numbers["counts"])])
    for name in list(board.numbers["counts"][0])[1:]:
        counts.add_row(board.ui[name], *(number(count[name]) for count in board.numbers["counts"]))
    return [
        *board.flow(p, "·", v, "=", matrix("Z", found["z"], names=tokens)),
        Text(),
        *board.flow(row, "·", matrix("V", values), "=", parts),
        Text(),
        counts,
    ]


def _scale(board: Board) -> Lines:
    random = board.numbers["random"]
    table = _table(["d_k", *(str(one["d_k"]) for one in random)])
    for kind in ("scaled", "unscaled"):
        table.add_row(Text(board.ui[kind], "bold"))
        for name in ("deviation", "entropy", "largest", "gradient"):
            table.add_row(f"  {board.ui[name]}", *(number(one[kind][name]) for one in random))
    return [table]


def _masks(board: Board) -> Lines:
    tokens = [*board.tokens, PAD]
    blocks = []
    for name, weights in board.numbers["masks"].items():
        causal = visible(len(tokens), causal=name in ("causal", "both"))
        real = [True] * len(board.tokens) + [name not in ("padding", "both")]
        seen = [[a and b for a, b in zip(row, real, strict=True)] for row in causal]
        blocks.append(matrix(board.ui[name], weights, names=tokens, columns=tokens, seen=seen, weights=True))
    return [*board.flow(*blocks[:2]), Text(), *board.flow(*blocks[2:])]


def _places(board: Board) -> Lines:
    ui, source, target = board.ui, board.tokens, board.state["target"]
    said, blocks = [], []
    for place, queries, keys, context in (
        ("encoder", source, source, "source"),
        ("decoder", target, target, "target"),
        ("cross", target, source, "output_of"),
    ):
        asks = ui["target" if queries is target else "source"]
        mask = ui["padding"] if place != "decoder" else f"{ui['causal']} + {ui['padding']}"
        said.append((ui[place], asks, ui[context], mask, f"{len(queries)} × {len(keys)}"))
        seen = visible(len(queries), causal=True) if place == "decoder" else None
        weights = board.numbers["places"][place]
        blocks.append(matrix(ui[place], weights, names=queries, columns=keys, seen=seen, weights=True))
    headings = [ui[name] for name in ("place", "from_q", "from_kv", "mask", "shape")]
    if board.width >= 98:
        table = _table(headings, numbers=False)
        for cells in said:
            table.add_row(*cells)
    else:
        table = _table(["", ""], numbers=False)
        table.show_header = False
        for title, *row in said:
            table.add_row(Text(title, "bold"))
            for heading, value in zip(headings[1:], row, strict=True):
                table.add_row(f"  {heading}", value)
    return [table, Text(), *board.flow(*blocks)]


def _heads(board: Board) -> Lines:
    ui, tokens, found, state = board.ui, board.tokens, board.numbers["heads"], board.state
    lines: Lines = [Text(ui["separate"], "bold")]
    for i, head in enumerate(found["heads"], 1):
        projections = []
        for name in "qkv":
            w, made = matrix(f"W_{i}^{name.upper()}", head[f"w{name}"]), matrix(f"{name.upper()}_{i}", head[name])
            pair = [w, sign("→"), made]
            whole = together(pair)
            projections += [whole] if whole.width <= board.width else pair
        weights = matrix(
            f"P_{i}", head["weights"], names=tokens, columns=tokens, seen=board.seen(), weights=True,
            foot=board.described(head),
        )  # fmt: skip
        lines += [Text(), Text(f"{ui['head']} {i}", "bold"), *board.flow(*projections), Text()]
        lines += board.flow(weights, "·", matrix(f"V_{i}", head["v"]), "=", matrix(f"Z_{i}", head["z"]))
    d_k = found["d_k"]
    out, fused_out = (matrix("MultiHead(X)", found[name], names=tokens) for name in ("out", "fused_out"))
    concat = matrix("Concat(Z_i)", found["concat"], names=tokens, cuts=d_k)
    fused = [matrix(name.upper(), made, names=tokens, cuts=d_k) for name, made in board.numbers["qkv"].items()]
    lines += [Text(), *board.flow(concat, "·", matrix("W^O", state["wo"]), "=", out)]
    lines += [Text(), Text(ui["fused"], "bold"), Text(), *board.flow(*fused), Text(), *board.flow(fused_out)]
    return lines


def _cuts(board: Board) -> Lines:
    ui, tokens, state = board.ui, board.tokens, board.state
    first = board.numbers["cuts"][0]
    lines: Lines = []
    for title, rows in (("X", state["wide"]["x"]), ("Q", first["q"]), ("K", first["k"])):
        lines += [*_space(lines), *board.flow(*board.split(title, rows, names=tokens))]
    for cut in board.numbers["cuts"]:
        blocks = []
        for i, weights in enumerate(cut["weights"]):
            foot = board.described({"mean_self_focus": cut["self_focus"][i], "mean_entropy": cut["entropy"][i]})
            title = f"{ui['head']} {i + 1}"
            blocks.append(
                matrix(title, weights, names=tokens, columns=tokens, seen=board.seen(), weights=True, foot=foot)
            )
        lines += [Text(), Text(f"h = {cut['h']}, d_k = {cut['d_k']}", "bold"), *board.flow(*blocks, gap=2)]
    cut = next(cut for cut in board.numbers["cuts"] if cut["h"] == state["wide"]["heads"])
    terms: list[Block | str] = [matrix("Q Kᵀ", cut["sum"], names=tokens)]
    for i, part in enumerate(cut["parts"], 1):
        terms += ["=" if i == 1 else "+", matrix(f"Q_{i} K_{i}ᵀ", part)]
    lines += [Text(), Text(f"h = {cut['h']}{ui['colon']}{ui['parts']}", "bold"), *board.flow(*terms)]
    return [*lines, Text(f"{ui['difference']}{ui['colon']}{tiny(cut['difference'])}", "dim")]


def _model(board: Board) -> Lines:
    found, layer = maps(), board.layer
    size = len(found["tokens"])
    pictures = []
    for head, flat in enumerate(found["thousandths"][layer]):
        rows = [[value / 1000 for value in flat[i * size : (i + 1) * size]] for i in range(size)]
        values = {"mean_self_focus": found["self_focus"][layer][head], "mean_entropy": found["entropy"][layer][head]}
        foot = board.described(values)
        pictures.append(picture(f"L{layer}H{head}", rows, colour=board.colour, foot=foot))
    return [
        Text(f"{board.ui['layer']} {layer}", "bold"),
        *board.text(" ".join(found["tokens"])),
        Text(),
        *board.flow(*pictures),
        Text(),
        *board.text(board.ui["other_layer"].format(last=len(found["thousandths"]) - 1)),
    ]


_BOARDS: dict[str, Callable[[Board], Lines]] = {
    "tokens": _tokens,
    "qkv": _qkv,
    "weights": _weights,
    "output": _output,
    "scale": _scale,
    "masks": _masks,
    "places": _places,
    "heads": _heads,
    "cuts": _cuts,
    "model": _model,
}


def _table(headings: Sequence[str], *, numbers: bool = True) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for i, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if numbers and i else "left")
    return table


def _space(lines: Lines) -> Lines:
    return [Text()] if lines else []
