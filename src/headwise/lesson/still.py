"""The working as it stands without a script: the main tables of each step, for the page's first state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwise.lesson.contents import maps, number
from headwise.lesson.working import CUTS, Numbers, State, visible

Matrix = list[list[float]]
HIDDEN = "–"


@dataclass(frozen=True)
class Cell:
    """A cell's text; of a weight also its place on the colour scale, in twentieths; or that a mask hides it."""

    text: str
    shade: int | None = None
    hidden: bool = False


@dataclass(frozen=True)
class Table:
    """A table with its caption and headers; `tokens` says that the row headers are tokens."""

    caption: str
    columns: Sequence[str]
    rows: list[tuple[str, list[Cell]]]
    head: str = ""


def tables(step: str, state: State, numbers: Numbers, ui: dict[str, str]) -> list[Table]:
    """The tables of one step.

    Args:
        step: The step's id.
        state: The state.
        numbers: What `work` made of it.
        ui: The words of the language.
    """
    made = _MAKERS.get(step)
    return made(state, numbers, ui) if made else []


def _tokens(state: State, numbers: Numbers, ui: dict[str, str]) -> list[Table]:
    return [plain("X", state["x"], state["tokens"])]


def _qkv(state: State, numbers: Numbers, ui: dict[str, str]) -> list[Table]:
    rows = [str(i + 1) for i in range(len(state["wq"]))]
    given = [plain(f"W^{name.upper()}", state[f"w{name}"], rows) for name in "qkv"]
    return given + [plain(name.upper(), numbers["qkv"][name], state["tokens"]) for name in "qkv"]


def _weights(state: State, numbers: Numbers, ui: dict[str, str]) -> list[Table]:
    tokens, found = state["tokens"], numbers["scores"]
    return [
        plain("Q Kᵀ", found["products"], tokens, tokens),
        plain("Q Kᵀ / √d_k" if state["scale"] else "Q Kᵀ", found["scores"], tokens, tokens),
        heat(ui["focus_map"], found["weights"], tokens, tokens, visible(len(tokens), causal=state["causal"])),
        Table(
            "",
            [ui["self_focus"], f"{ui['entropy']} ({ui['nats']})"],
            [
                (name, [Cell(number(own)), Cell(number(entropy))])
                for name, own, entropy in zip(
                    [*tokens, ui["mean"]],
                    [*found["self_focus"], found["mean_self_focus"]],
                    [*found["entropy"], found["mean_entropy"]],
                    strict=True,
                )
            ],
        ),
    ]


def _output(state: State, numbers: Numbers, ui: dict[str, str]) -> list[Table]:
    names = ("recurrent_steps", "attention_steps", "attention_products", "recurrent_multiplications")
    counts = Table(
        "",
        [number(one["tokens"]) for one in numbers["counts"]],
        [
            (ui[name], [Cell(number(one[name])) for one in numbers["counts"]])
            for name in (*names, "attention_multiplications")
        ],
        ui["tokens_count"],
    )
    return [plain("Z = P V", numbers["output"]["z"], state["tokens"]), counts]


def _scale(state: State, numbers: Numbers, ui: dict[str, str]) -> list[Table]:
    names, sides = ("deviation", "entropy", "largest", "gradient"), ("unscaled", "scaled")
    columns = [f"{ui[name]}, {ui[side]}" for name in names for side in sides]
    rows = [
        (number(one["d_k"]), [Cell(number(one[side][name])) for name in names for side in sides])
        for one in numbers["random"]
    ]
    return [Table("", columns, rows, "d_k")]


def _masks(state: State, numbers: Numbers, ui: dict[str, str]) -> list[Table]:
    tokens = [*state["tokens"], "[PAD]"]
    made = []
    for name in ("none", "padding", "causal", "both"):
        seen = visible(len(tokens), causal=name in ("causal", "both"))
        if name in ("padding", "both"):
            seen = [[*row[:-1], False] for row in seen]
        made.append(heat(ui[name], numbers["masks"][name], tokens, tokens, seen))
    return made


def _places(state: State, numbers: Numbers, ui: dict[str, str]) -> list[Table]:
    source, target, found = state["tokens"], state["target"], numbers["places"]
    return [
        heat(ui["encoder"], found["encoder"], source, source),
        heat(ui["decoder"], found["decoder"], target, target, visible(len(target), causal=True)),
        heat(ui["cross"], found["cross"], target, source),
    ]


def _heads(state: State, numbers: Numbers, ui: dict[str, str]) -> list[Table]:
    tokens, found = state["tokens"], numbers["heads"]
    seen = visible(len(tokens), causal=state["causal"])
    made = []
    for i, head in enumerate(found["heads"], 1):
        made += [
            heat(f"{ui['head']} {i}", head["weights"], tokens, tokens, seen),
            plain(f"Z_{i}", head["z"], tokens),
        ]
    return [*made, plain("Concat(Z_1 … Z_h) W^O", found["out"], tokens), plain(ui["fused"], found["fused_out"], tokens)]


def _cuts(state: State, numbers: Numbers, ui: dict[str, str]) -> list[Table]:
    tokens = state["tokens"]
    seen = visible(len(tokens), causal=state["causal"])
    summary = Table(
        "",
        ["d_k", ui["self_focus"], f"{ui['entropy']} ({ui['nats']})"],
        [
            (str(h), [Cell(str(cut["d_k"])), _mean(cut["self_focus"]), _mean(cut["entropy"])])
            for h, cut in zip(CUTS, numbers["cuts"], strict=True)
        ],
        "h",
    )
    return [summary] + [
        heat(f"h = {h}, {ui['head']} {i}", p, tokens, tokens, seen)
        for h, cut in zip(CUTS, numbers["cuts"], strict=True)
        for i, p in enumerate(cut["weights"], 1)
    ]


def _model(state: State, numbers: Numbers, ui: dict[str, str]) -> list[Table]:
    found = maps()
    columns = [f"H{head}" for head in range(len(found["self_focus"][0]))]
    return [
        Table(
            ui[name],
            columns,
            [(f"L{layer}", [_weight(value) for value in row]) for layer, row in enumerate(found[name])]
            if name == "self_focus"
            else [(f"L{layer}", [Cell(number(value)) for value in row]) for layer, row in enumerate(found[name])],
        )
        for name in ("self_focus", "entropy")
    ]


_MAKERS: dict[str, Any] = {
    "tokens": _tokens, "qkv": _qkv, "weights": _weights, "output": _output, "scale": _scale, "masks": _masks,
    "places": _places, "heads": _heads, "cuts": _cuts, "model": _model,
}  # fmt: skip


def plain(caption: str, matrix: Matrix, rows: Sequence[str], columns: Sequence[str] = ()) -> Table:
    """A matrix of numbers, with as few decimals as they need and two at most."""
    places = decimals(matrix)
    body = [[Cell(number(float(value), places)) for value in row] for row in matrix]
    return Table(caption, columns or _counted(matrix), list(zip(rows, body, strict=True)))


def heat(
    caption: str,
    matrix: Matrix,
    rows: Sequence[str],
    columns: Sequence[str],
    seen: list[list[bool]] | None = None,
) -> Table:
    """A matrix of weights."""
    body = [
        [_weight(value) if seen is None or seen[i][j] else Cell(HIDDEN, hidden=True) for j, value in enumerate(row)]
        for i, row in enumerate(matrix)
    ]
    return Table(caption, columns, list(zip(rows, body, strict=True)))


def decimals(matrix: Matrix) -> int:
    """How many decimals show all numbers of a matrix as they are, 2 at most."""
    for places in (0, 1):
        if all(abs(value - round(value, places)) < 1e-9 * max(1, abs(value)) for row in matrix for value in row):
            return places
    return 2


def _weight(value: float) -> Cell:
    return Cell(number(value), round(20 * value))


def _mean(values: list[float]) -> Cell:
    return Cell(number(sum(values) / len(values)))


def _counted(matrix: Matrix) -> list[str]:
    return [str(j + 1) for j in range(len(matrix[0]))]
