"""The lesson as a Jupyter notebook: its texts, and code that computes each step with headwise."""

from __future__ import annotations

import ast
import contextlib
import html
import io
import json
import re
from string import Template
from typing import Any, TypeAlias

from headwise.lesson.cells import CODE, EXERCISES, SETUP
from headwise.lesson.contents import filled, texts
from headwise.lesson.formulas import FORMULAS
from headwise.lesson.prose import SYMBOL, WORD
from headwise.lesson.terminal import letter, solution
from headwise.lesson.working import CUTS, LENGTHS, WIDTHS, Numbers, State, example, work

Cell: TypeAlias = dict[str, Any]

_PARTS = re.compile(r"([A-Za-z]+)(?:_([a-z0-9]+))?(?:\^([A-Z]))?(ᵀ)?")


def notebook(language: str) -> str:
    """The notebook as JSON (nbformat 4.5), with what its cells print when they are run in order.

    Args:
        language: One of `contents.LANGUAGES`.
    """
    cells = _cells(language)
    _run(cells)
    document = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _cells(language: str) -> list[Cell]:
    words, state = texts(language), example()
    ui, numbers = words["ui"], work(state)
    labels = _labels(language, words, state)
    lead = f"# {words['title']}\n\n{words['subtitle']}\n\n{words['lead'].strip()}\n\n*{words['notebook']['lead']}*"
    cells = [_markdown("title", lead), _code("setup", SETUP)]
    for n, step in enumerate(words["steps"], 1):
        cells.append(_markdown(step["id"], _opening(n, step, ui, state, numbers)))
        for i, source in enumerate(CODE.get(step["id"], "").split("\n#\n")):
            if source.strip():
                cells.append(_code(f"{step['id']}-code-{i}", Template(source).substitute(labels)))
        cells.append(_markdown(f"{step['id']}-answer", _closing(step, ui, state, numbers)))
    asked = [f"{i}. {_marked(exercise['ask'])}" for i, exercise in enumerate(words["exercises"], 1)]
    cells.append(_markdown("exercises", "\n\n".join([f"## {ui['exercises']}", *asked])))
    cells.append(_code("exercises-code", Template(EXERCISES).substitute(labels)))
    for i, exercise in enumerate(words["exercises"], 1):
        hint = _folded(f"{i}. {ui['hint']}", _marked(exercise["hint"]))
        answer = _folded(f"{i}. {ui['answer']}", f"**{solution(exercise)}**  {_marked(exercise['because'])}")
        cells.append(_markdown(f"exercise-{exercise['id']}", f"{hint}\n\n{answer}"))
    return cells


def _labels(language: str, words: dict[str, Any], state: State) -> dict[str, str]:
    """What stands for the `$names` in the code."""
    matrices = {name: _literal(state[name]) for name in ("x", "wq", "wk", "wv", "wo", "y")}
    return {
        **words["ui"],
        **words["notebook"],
        **matrices,
        "tokens": json.dumps(state["tokens"], ensure_ascii=False),
        "target": json.dumps(state["target"], ensure_ascii=False),
        "pad": repr(state["pad"]),
        "look": str(state["look"]),
        "heads": str(state["heads"]),
        "wide_heads": str(state["wide"]["heads"]),
        **{name: str(value) for name, value in state["random"].items()},
        "lengths": repr((len(state["x"]), *LENGTHS)),
        "widths": repr(WIDTHS),
        "cuts": repr(CUTS),
        "exercises": ", ".join(f'"{exercise["id"]}": None' for exercise in words["exercises"]),
        "code": language,
    }


def _literal(rows: list[list[float]]) -> str:
    return "matrix(\n" + "".join(f"    {row!r},\n" for row in rows) + ")"


def _opening(n: int, step: dict[str, Any], ui: dict[str, str], state: State, numbers: Numbers) -> str:
    parts = [
        f"## {ui['step'].format(n=n)} · {_marked(step['title'])}",
        f"*{ui['article']} · {step['figure']}*",
        _marked(filled(step["text"].strip(), state, numbers)),
    ]
    if "formula" in step:
        formula = FORMULAS[step["formula"]]
        tag = rf" \tag{{{formula.number}}}" if formula.number else ""
        parts.append(f"$$\n{formula.latex}{tag}\n$$")
    choices = "\n".join(f"- {letter(i)}) {_marked(choice)}" for i, choice in enumerate(step["choices"]))
    parts += [f"**{ui['ask']}** · {_marked(filled(step['ask'], state, numbers))}", choices]
    return "\n\n".join(parts)


def _closing(step: dict[str, Any], ui: dict[str, str], state: State, numbers: Numbers) -> str:
    right = step["right"]
    answer = (
        f"**{letter(right)}) {_marked(step['choices'][right])}**  {_marked(filled(step['answer'], state, numbers))}"
    )
    parts = [_marked(filled(step["after"].strip(), state, numbers))] if "after" in step else []
    parts.append(_folded(ui["answer"], answer))
    if "note" in step:
        parts.append(f"> **{ui['note']}** · {_marked(filled(step['note'], state, numbers))}")
    return "\n\n".join(parts)


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{inside}\n\n</details>"


def _marked(text: str) -> str:
    """Text as Markdown in which `d_k` is a formula."""
    escaped = html.escape(text, quote=False)
    marked = re.sub(WORD, lambda word: _symbol(word[0]) if re.fullmatch(SYMBOL, word[0]) else word[0], escaped)
    marked = re.sub(r"√\$([^$]+)\$", r"$\\sqrt{\1}$", marked)
    return re.sub(r"\$( (?:[=/] )?)\$", r"\1", marked)  # $Z$ = $P$ $V$ is one formula


def _symbol(word: str) -> str:
    match = _PARTS.fullmatch(word)
    assert match is not None
    name, below, above, transposed = match.groups()
    base = name if len(name) == 1 else rf"\mathrm{{{name}}}"
    if below:
        base += f"_{below}" if len(below) == 1 else rf"_\mathrm{{{below}}}"
    if above or transposed:
        base += f"^{above}" if above else r"^\mathsf{T}"
    return f"${base}$"


def _markdown(name: str, text: str) -> Cell:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}


def _code(name: str, source: str) -> Cell:
    lines = source.strip("\n").splitlines(keepends=True)
    return {"cell_type": "code", "id": name, "metadata": {}, "execution_count": None, "outputs": [], "source": lines}


def _run(cells: list[Cell]) -> None:
    """Run the code cells in order and keep what they print and show."""
    import pandas as pd

    names: dict[str, Any] = {"__name__": "__main__"}
    # The notebook sets options of pandas; they are its own.
    options = ("display.float_format", "display.width", "display.max_columns", "display.unicode.east_asian_width")
    with pd.option_context(*(part for name in options for part in (name, pd.get_option(name)))):
        for count, cell in enumerate((one for one in cells if one["cell_type"] == "code"), 1):
            body = ast.parse("".join(cell["source"])).body
            last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
            printed, shown = io.StringIO(), None
            with contextlib.redirect_stdout(printed):
                exec(compile(ast.Module(body, []), cell["id"], "exec"), names)
                if isinstance(last, ast.Expr):
                    shown = eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)
            cell["execution_count"] = count
            if printed.getvalue():
                text = printed.getvalue().splitlines(keepends=True)
                cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": text})
            if shown is not None:
                data = {"text/plain": repr(shown).splitlines(keepends=True)}
                result = {"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}}
                cell["outputs"].append(result)
