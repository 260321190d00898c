"""The lesson as one offline page: every number can be changed, and everything below follows."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from headwise.errors import shown
from headwise.lesson import prose, still
from headwise.lesson.contents import LANGUAGES, maps, texts
from headwise.lesson.formulas import FORMULAS
from headwise.lesson.working import State, example, work
from headwise.report.html import base_style, embedded_json, policy

SCRIPTS = (
    "work", "state", "elements", "words", "parts", "chart", "steps", "tally", "heads", "exercises", "painting",
    "hands", "lesson",
)  # fmt: skip
"""The files of the page's one script, in the order in which each uses the ones before it."""

_SAID = ("language", "title", "subtitle", "lead", "steps", "exercises", "ui")


def page(language: str, state: State | None = None) -> str:
    """The whole page, ready to be written as UTF-8.

    Args:
        language: The language it opens in, one of `LANGUAGES`; the other one is a switch away.
        state: The numbers it opens with; the article's when None.

    Returns:
        HTML that works offline; without JavaScript its text, formulas, answers and main tables can still be read.
    """
    if language not in LANGUAGES:
        raise ValueError(f"language: expected one of {', '.join(LANGUAGES)}; got {shown(language)}")
    opening = example() if state is None else state
    numbers = work(opening)
    words = texts(language)
    environment = Environment(
        loader=PackageLoader("headwise.lesson"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["inline"] = lambda text: prose.inline(text, opening, numbers)
    environment.filters["paragraphs"] = lambda text: prose.paragraphs(text, opening, numbers)
    environment.filters["symbols"] = prose.symbols
    environment.filters["token"] = prose.token
    style = base_style() + _static("lesson.css")
    script = "(() => {\n" + "\n".join(_static(f"{name}.js") for name in SCRIPTS) + "})();\n"
    data = {
        "language": language,
        "languages": {name: {key: texts(name)[key] for key in _SAID} for name in LANGUAGES},
        "example": example(),
        "opening": opening,
        "maps": maps(),
        "version": _version(),
        "word": prose.WORD,
        "symbol": prose.SYMBOL,
    }
    return environment.get_template("lesson.html.j2").render(
        language=language,
        words=words,
        ui=words["ui"],
        formulas={
            name: ([Markup(one) for one in formula.equations], formula.number) for name, formula in FORMULAS.items()
        },
        tables={step["id"]: still.tables(step["id"], opening, numbers, words["ui"]) for step in words["steps"]},
        version=_version(),
        # Past autoescape go only our own files, and JSON whose escapes leave nothing that HTML reads.
        json=Markup(embedded_json(data)),
        style=Markup(style),
        script=Markup(script),
        policy=policy(style, script),
    )


def _static(name: str) -> str:
    return (files("headwise.lesson") / "static" / name).read_text("utf-8")


def _version() -> str:
    try:
        return version("headwise")
    except PackageNotFoundError:
        return ""
