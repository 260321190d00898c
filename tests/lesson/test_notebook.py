"""The notebook: valid, its cells run in order, and their numbers are the lesson's."""

from __future__ import annotations

import contextlib
import io
import json
import re
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch

from headwise.lesson.contents import LANGUAGES, texts
from headwise.lesson.formulas import FORMULAS
from headwise.lesson.notebook import notebook
from headwise.lesson.working import example, work

NUMBERS = work(example())

each_language = pytest.mark.parametrize("language", LANGUAGES)


@pytest.fixture(scope="module", params=LANGUAGES)
def made(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A language, and its notebook."""
    return request.param, json.loads(notebook(request.param))


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def run(cells: list[dict[str, Any]], changed: dict[str, str] | None = None) -> tuple[dict[str, Any], str]:
    """The names that the code cells leave, and what they print; `changed` replaces text in them."""
    names: dict[str, Any] = {}
    printed = io.StringIO()
    text = "\n".join(source(cell) for cell in cells if cell["cell_type"] == "code")
    for old, new in (changed or {}).items():
        assert old in text
        text = text.replace(old, new)
    options = ("display.float_format", "display.width", "display.max_columns", "display.unicode.east_asian_width")
    kept = pd.option_context(*(part for name in options for part in (name, pd.get_option(name))))
    with kept, contextlib.redirect_stdout(printed):
        exec(compile(text, "notebook", "exec"), names)
    return names, printed.getvalue()


def test_it_is_valid_and_complete(made: tuple[str, dict[str, Any]]) -> None:
    language, document = made
    nbformat.validate(document)
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in document["cells"]]
    assert len(ids) == len(set(ids)) and all(re.fullmatch(r"[a-zA-Z0-9-]{1,64}", one) for one in ids)
    words = texts(language)
    said = "\n".join(source(cell) for cell in document["cells"] if cell["cell_type"] == "markdown")
    for n, step in enumerate(words["steps"], 1):
        assert f"## {words['ui']['step'].format(n=n)} · " in said
        assert step["figure"] in said
        if "formula" in step:
            assert f"$$\n{FORMULAS[step['formula']].latex}" in said
    assert said.count("$$\n") == 2 * sum("formula" in step for step in words["steps"])
    assert said.count("<details>") == said.count("</details>") == len(words["steps"]) + 2 * 5
    assert not re.search(r"\{[\w.]+(:\w)?\}(?<!\})", re.sub(r"\$+[^$]*\$+", "", said)), "every number is filled in"


def test_an_answer_is_folded_away(made: tuple[str, dict[str, Any]]) -> None:
    language, document = made
    words = texts(language)
    for cell, step in zip(
        [cell for cell in document["cells"] if cell["id"].endswith("-answer")], words["steps"], strict=True
    ):
        choice = "abc"[step["right"]]
        before, _, inside = source(cell).partition("<details>")
        assert f"**{choice}) " in inside and f"**{choice}) " not in before
    code = "\n".join(source(cell) for cell in document["cells"] if cell["cell_type"] == "code")
    assert "8000000" not in code and "1.386" not in code


def test_formulas_in_prose_are_formulas(made: tuple[str, dict[str, Any]]) -> None:
    _, document = made
    for cell in document["cells"]:
        if cell["cell_type"] == "markdown":
            text = source(cell)
            assert text.count("$") % 2 == 0, cell["id"]
            bare = re.sub(r"\$+[^$]*\$+", "", text)
            assert not re.search(r"\b[A-Za-z]_[a-z]\b|\^[QKVO]|ᵀ|√", bare), f"{cell['id']}: {bare}"
    assert "&lt;s&gt;" in "".join(source(cell) for cell in document["cells"]), "a token is no element"


def test_the_cells_run_in_order_and_give_the_lessons_numbers(made: tuple[str, dict[str, Any]]) -> None:
    _, document = made
    names, printed = run(document["cells"])
    assert [round(value, 1) for value in names["P"][0].tolist()] == [0.7, 0.2, 0.1]
    assert [round(value, 1) for value in names["P"][2].tolist()] == [0.2, 0.1, 0.7]
    for name, expected in (
        ("Q", NUMBERS["qkv"]["q"]),
        ("K", NUMBERS["qkv"]["k"]),
        ("V", NUMBERS["qkv"]["v"]),
        ("P", NUMBERS["scores"]["weights"]),
        ("output", NUMBERS["output"]["z"]),
        ("separate", NUMBERS["heads"]["out"]),
        ("fused", NUMBERS["heads"]["fused_out"]),
    ):
        np.testing.assert_allclose(names[name].detach().numpy(), expected, atol=1e-9, err_msg=name)
    for i, z in enumerate(names["Z"]):
        np.testing.assert_allclose(z.detach().numpy(), NUMBERS["heads"]["heads"][i]["z"], atol=1e-9)
    np.testing.assert_allclose(names["parts"].numpy(), NUMBERS["cuts"][2]["parts"], atol=1e-9)
    assert list(names["counts"]) == [count["tokens"] for count in NUMBERS["counts"]]
    for shown, count in zip(names["counts"].values(), NUMBERS["counts"], strict=True):
        assert list(shown.values()) == list(count.values())[1:]
    found = [list(row.values()) for row in names["found"].values()]
    expected = [list(one[kind].values()) for one in NUMBERS["random"] for kind in ("scaled", "unscaled")]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert printed.count("True") == 2 and "False" not in printed
    assert "|█               |" in printed, "the map of a head"


def test_its_outputs_are_what_its_cells_give(made: tuple[str, dict[str, Any]]) -> None:
    _, document = made
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    printed = "".join(
        "".join(output["text"]) for cell in code for output in cell["outputs"] if output["output_type"] == "stream"
    )
    assert printed == run(document["cells"])[1]
    shown = {
        cell["id"]: "".join(output["data"]["text/plain"])
        for cell in code
        for output in cell["outputs"]
        if output["output_type"] == "execute_result"
    }
    rows = [line.split() for line in shown["weights-code-1"].splitlines()]
    assert rows == [["我", "是", "谁"], ["我", "0.70", "0.20", "0.10"], ["是", "0.20", "0.50", "0.30"],
                    ["谁", "0.20", "0.10", "0.70"]]  # fmt: skip


def test_a_reader_may_change_numbers(made: tuple[str, dict[str, Any]]) -> None:
    language, document = made
    state = example() | {"causal": True, "tokens": ["I", "am", "who"]}
    changes = {"causal = False": "causal = True", '["我", "是", "谁"]': '["I", "am", "who"]', "h = 2  #": "h = 4  #"}
    names, _ = run(document["cells"], changes)
    np.testing.assert_allclose(names["P"].numpy(), work(state)["scores"]["weights"], atol=1e-9)
    assert len(names["Z"]) == 4
    ui = texts(language)["ui"]
    answers = '"softmax": 7 / 10, "width": 63, "sum": None, "entropy": None, "count": None'
    given = '"softmax": None, "width": None, "sum": None, "entropy": None, "count": None'
    _, printed = run(document["cells"], {given: answers})
    assert f"softmax {ui['correct']}\nwidth {ui['incorrect']}\n" in printed


def test_with_a_model_at_hand_it_is_measured(made: tuple[str, dict[str, Any]]) -> None:
    from scripts.fetch_models import minilm

    _, document = made
    names, printed = run(document["cells"], {'model_name = ""': f"model_name = {str(minilm())!r}"})
    assert "L5H11" in printed
    table = names["profile"].table()
    bundled = names["bundled"]
    np.testing.assert_allclose(table["self_focus"], np.ravel(bundled["self_focus"]), atol=1e-4)
    np.testing.assert_allclose(table["entropy"], np.ravel(bundled["entropy"]), atol=1e-4)


def test_making_it_leaves_no_trace() -> None:
    before = pd.get_option("display.width"), pd.get_option("display.float_format"), torch.get_default_dtype()
    notebook("en")
    assert (pd.get_option("display.width"), pd.get_option("display.float_format"), torch.get_default_dtype()) == before
