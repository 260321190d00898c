"""The documents: their examples run, their links lead somewhere, and what they name exists."""

from __future__ import annotations

import argparse
import ast
import keyword
import re
import shlex
import webbrowser
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from scripts import fetch_models, figures

from headwise import errors
from headwise.cli import _parser, main
from headwise.cli.failures import INTERRUPTED
from headwise.measures.catalogue import BY_NAME

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ERRORS = DOCS / "errors"
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
PAGES = [*READMES, ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
ERROR_PAGES = sorted(page for page in ERRORS.glob("*.md") if page.name != "README.md")

TEXT = "The animal did not cross the street because it was too tired."
SUFFIX = re.compile(r"_(std|min|max|se)$")
# Names in the documents that are other projects'.
FOREIGN = {"eager", "flash", "head", "merge_and_unload", "save_pretrained", "sdpa"}


@dataclass(frozen=True)
class Fence:
    """A fenced block of a page: its language, the line after its fence, its text."""

    language: str
    line: int
    text: str


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=named)


@cache
def read(page: Path) -> tuple[str, tuple[Fence, ...]]:
    """The prose of a page, with its fences emptied, and its fences."""
    prose, fences, inside = [], [], None
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        fence = re.match(r"(\s*)```(\S*)", line)
        if inside is None and fence:
            inside = (fence[2], number + 1, len(fence[1]), [])
        elif inside is not None and fence:
            fences.append(Fence(inside[0], inside[1], "\n".join(inside[3]) + "\n"))
            inside = None
        elif inside is not None:
            inside[3].append(line[inside[2] :])
        else:
            prose.append(line)
    assert inside is None, f"{named(page)}: a fence does not end"
    return "\n".join(prose), tuple(fences)


def fences(page: Path, language: str) -> list[Fence]:
    return [fence for fence in read(page)[1] if fence.language == language]


# Examples


@pytest.mark.parametrize("page", [page for page in PAGES if fences(page, "python")], ids=named)
def test_examples_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Block after block in one namespace; what `print(...)  # value` says is what it prints."""
    from scripts.fetch_models import minilm

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda *_: True)
    names: dict[str, object] = {"name": str(minilm()), "text": TEXT}
    for fence in fences(page, "python"):
        tree = ast.parse(fence.text.replace("sentence-transformers/all-MiniLM-L6-v2", str(minilm())), named(page))
        ast.increment_lineno(tree, fence.line - 1)
        lines = fence.text.splitlines()
        for statement in tree.body:
            capsys.readouterr()
            exec(compile(ast.Module([statement], []), named(page), "exec"), names)
            last = lines[(statement.end_lineno or 0) - fence.line]
            if said := re.match(r"print\(.*\)  # (.*)", last):
                assert capsys.readouterr().out.strip() == said[1], f"{named(page)}: {last}"


def commands() -> list[tuple[Path, str]]:
    return [
        (page, line.strip())
        for page in PAGES
        for fence in fences(page, "console")
        for line in fence.text.replace("\\\n", " ").splitlines()
        if line.strip().startswith("headwise ")
    ]


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda value: None if isinstance(value, Path) else value)
def test_commands_parse(page: Path, line: str) -> None:
    words = shlex.split(line, comments=True)
    end = next((i for i, word in enumerate(words) if word in {"|", "<", ">", "&&"}), len(words))
    try:
        _parser().parse_args(words[1:end])
    except SystemExit as left:  # --help, --version
        assert left.code in (0, None)


def test_every_option_of_the_guide_exists_and_every_option_is_there() -> None:
    parser = _parser()
    (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    options = {
        option
        for command in subparsers.choices.values()
        for action in command._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }
    prose = read(DOCS / "guide.md")[0]
    assert set(re.findall(r"(?<![-\w])--[a-z][-a-z]*", prose)) == options
    assert all(f"headwise {command}" in (DOCS / "guide.md").read_text("utf-8") for command in subparsers.choices)


def test_exit_codes_are_those_of_the_code() -> None:
    codes = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type)} | {0, INTERRUPTED}
    section = read(DOCS / "guide.md")[0].partition("### Exit codes")[2]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)} == codes


# Links


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for title in re.findall(r"^#{1,6} (.+)$", read(page)[0], re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title.strip().lower())
        base = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        anchor, again = base, 0
        while anchor in found:
            again += 1
            anchor = f"{base}-{again}"
        found.add(anchor)
    return found


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", read(page)[0])
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    targets += re.findall(r'\b(?:src|srcset|href)="([^"\s]+)"', prose)
    broken = []
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        there = file.exists() and file.is_relative_to(ROOT)
        if not there or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken, f"{named(page)}: {', '.join(broken)}"


@each_page
def test_rows_of_a_table_have_as_many_cells_as_its_head(page: Path) -> None:
    rows: list[str] = []
    for line in [*read(page)[0].splitlines(), ""]:
        if line.startswith("|"):
            rows.append(line)
            continue
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1, f"{named(page)}: {rows[0]}"
        rows = []


# The two READMEs


@pytest.mark.parametrize("page", READMES, ids=named)
def test_figures_are_those_of_the_results(page: Path) -> None:
    missing = [name for name in figures.CASES if not (figures.RESULTS / f"{name}.json").is_file()]
    if missing:
        pytest.skip(f"no result file of {', '.join(missing)}: run make bench")
    text = page.read_text("utf-8")
    assert figures.with_figures(text, figures.PAGES[page.name]) == text, "run python scripts/figures.py"


def test_both_readmes_have_one_structure() -> None:
    def structure(page: Path) -> list[object]:
        prose, blocks = read(page)
        marks = re.findall(r"^(#{1,6}) |(<!-- .* -->)|^(\s*- )|^(\|)", prose, re.MULTILINE)
        return [*marks, *((block.language, block.text.count("\n")) for block in blocks)]

    def code(page: Path) -> list[str]:
        return [re.sub(r"\s*#.*", "", block.text) for block in read(page)[1] if block.language != "text"]

    def links(page: Path) -> set[str]:
        return set(re.findall(r"\]\(([^)]+)\)", read(page)[0])) - {readme.name for readme in READMES}

    english, chinese = READMES
    assert structure(english) == structure(chinese)
    assert code(english) == code(chinese)
    assert links(english) == links(chinese)


# Messages


def test_every_message_page_is_in_the_index_and_says_what_why_and_what_to_do() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", read(ERRORS / "README.md")[0]))
    assert linked == {page.name for page in ERROR_PAGES}
    for page in ERROR_PAGES:
        headings = re.findall(r"^## (.+)$", read(page)[0], re.MULTILINE)
        assert headings == ["What you see", "Why", "What to do"], named(page)


def reasons() -> list[str]:
    """Why attention may not be measured, in the code's words."""
    from headwise.capture import compiled, sdpa, unseen

    said = [reason for reason, _ in unseen.OTHER_ATTENTION.values()]
    said += [unseen.OUTSIDE, compiled.REASON, *unseen.REASONS.values()]
    for module in (unseen, sdpa):
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text("utf-8"))):
            first = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "UnmeasurableError":
                first = node.args[0]
            elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                first = node.value.elts[0]
            if isinstance(first, ast.JoinedStr):
                first = first.values[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                said.append(first.value)
    return said


def test_every_reason_is_explained() -> None:
    page = (ERRORS / "attention-not-measured.md").read_text("utf-8")
    said = reasons()
    assert len(said) >= 12
    assert [reason for reason in said if reason not in page] == []


# Names


def test_the_measures_are_those_of_the_catalogue() -> None:
    prose = read(DOCS / "measures.md")[0].partition("## Row measures")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", prose, re.MULTILINE)
    assert [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] == list(BY_NAME)


@cache
def names_of_the_code() -> set[str]:
    """Every identifier of the sources, and every word that stands in a string by itself."""
    found: set[str] = set()
    for file in (ROOT / "src" / "headwise").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            for field in ("id", "attr", "arg", "name"):
                value = getattr(node, field, None)
                found.update([value] if isinstance(value, str) else [])
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                found.add(node.value)
    return found


@each_page
def test_no_measure_is_named_that_the_catalogue_lacks(page: Path) -> None:
    """A name in backticks is a measure, one of its columns, or a name of the code; formulas in measures.md are not."""
    prose = read(page)[0]
    if page.name == "measures.md":
        prose = "\n".join(line for line in prose.splitlines() if "Profile." in line)
    known = set(BY_NAME) | names_of_the_code() | set(keyword.kwlist) | FOREIGN
    mentioned = re.findall(r"`([a-z][a-z0-9_]*)`", prose)
    assert [name for name in mentioned if name not in known and SUFFIX.sub("", name) not in BY_NAME] == []
    asked = re.findall(r'by_position\("(\w+)"\)', page.read_text("utf-8"))
    assert [name for name in asked if name not in BY_NAME] == []


@pytest.mark.parametrize("page", READMES, ids=named)
def test_the_table_of_the_readme_has_columns_of_the_catalogue(page: Path) -> None:
    shown = read(page)[0].partition("<!-- table: of MiniLM -->")[2].partition("<!-- end of table -->")[0]
    for header in re.findall(r"^\|(.+)\|\n\|[-:| ]+\|$", shown, re.MULTILINE):
        columns = [column.strip(" `") for column in header.split("|")]
        assert [c for c in columns if "_" in c and c not in BY_NAME] == []


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_table_of_make_demo_is_what_make_demo_prints(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["profile", str(fetch_models.minilm()), "--file", str(ROOT / "examples" / "page.txt")]) == 0
    printed = _layer_lines(capsys.readouterr().out)
    shown = _layer_lines((ROOT / page).read_text("utf-8"))
    assert len(shown) == 6
    for a, b in zip(shown, printed, strict=True):
        assert [a[0], a[-2]] == [b[0], b[-2]]
        numbers = [[float(x) for x in (*line[1:-2], line[-1])] for line in (a, b)]
        assert numbers[0] == pytest.approx(numbers[1], rel=2e-3, abs=2e-3)


def _layer_lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if re.match(r"L\d +\d", line)]
