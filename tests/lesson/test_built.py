"""The built lesson in docs is what is built now: `make docs` builds it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headwise.lesson.notebook import notebook
from headwise.lesson.page import page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page() -> None:
    assert (DOCS / "lesson.html").read_text("utf-8") == page("en"), "run make docs"


def test_the_notebook() -> None:
    """What its cells print may be laid out otherwise by another pandas."""

    def parts(text: str) -> tuple[Any, list[str]]:
        document, said = json.loads(text), []
        for cell in document["cells"]:
            for output in cell.pop("outputs", []):
                said += "".join(output.get("text") or output["data"]["text/plain"]).split()
        return document, said

    assert parts((DOCS / "lesson.ipynb").read_text("utf-8")) == parts(notebook("en")), "run make docs"
