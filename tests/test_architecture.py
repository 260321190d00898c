"""The rooms of the house: who imports whom, what names are free, and how long a start takes."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import headwise

HOUSE = Path(__file__).parents[1] / "src" / "headwise"
FILES = sorted(HOUSE.rglob("*.py"))

EVERYWHERE = {"errors"}
ALL = {"*"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "equations": set(),
    "call": set(),
    "catalogue": set(),
    "kernels": {"call", "equations"},
    "blocks": {"call", "kernels"},
    "measures": {"call", "kernels", "blocks", "catalogue"},
    "profile": {"catalogue"},
    "layer": {"equations", "call", "kernels"},
    "capture": {"call", "kernels", "blocks", "measures", "catalogue", "profile"},
    "models": {"layer"},
    "report": {"profile", "catalogue"},
    "effects": {"capture", "profile", "measures", "catalogue", "layer"},
    "studies": {"layer", "capture", "effects", "models", "profile", "report"},
    "lesson": {"equations", "layer", "models", "capture", "report"},
    "benchmarks": {"call", "equations", "kernels", "capture", "models", "profile", "layer"},
    "cli": ALL,
    "": ALL,  # headwise/__init__.py: the public face
    "__main__": {"cli"},
}
# (file, room) that may be imported inside a function, though the table says no.
EXCEPTIONS = {
    ("profile/profiles.py", "report"),  # Profile.show, to_html, _repr_html_
    ("profile/kept_reading.py", "capture"),  # Profile.weights, map, output: arithmetic on what capture kept, with torch
}
WITHOUT_TORCH = ("errors", "catalogue", "profile", "report")

# The public functions that exist or will: none may be shadowed by a file.
FUNCTIONS = {"watch", "attention", "load", "compare", "ablate", "importance"}


@dataclass(frozen=True)
class Import:
    """One import statement's target."""

    file: Path
    line: int
    module: str
    at_top: bool


def imports_of(file: Path) -> list[Import]:
    """Every import of a file, wherever it stands; a relative one with its full name."""
    tree = ast.parse(file.read_text("utf-8"))
    package = ["headwise", *file.relative_to(HOUSE).parent.parts]
    inside = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # "from headwise.measures import catalogue" means the module, if there is one of that name.
            modules = [f"{base}.{alias.name}" if is_module(f"{base}.{alias.name}") else base for alias in node.names]
        found += [Import(file, getattr(node, "lineno", 0), module, node not in inside) for module in modules]
    return found


def is_module(name: str) -> bool:
    place = HOUSE.parent.joinpath(*name.split("."))
    return name.startswith("headwise.") and (place.is_dir() or place.with_suffix(".py").is_file())


def room_of(module: str) -> str:
    """The room of a module's dotted name; "" is the public face."""
    parts = module.split(".")[1:]
    if parts[:2] in (["measures", "catalogue"], ["measures", "roles"]):  # plain numbers in, words out
        return "catalogue"
    return parts[0] if parts else ""


def module_of(file: Path) -> str:
    parts = file.relative_to(HOUSE).with_suffix("").parts
    return ".".join(["headwise", *(part for part in parts if part != "__init__")])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(HOUSE).as_posix())
def test_a_room_imports_only_what_it_may(file: Path) -> None:
    room = room_of(module_of(file))
    assert room in MAY_IMPORT, f"{file} is in no room of the house"
    allowed = MAY_IMPORT[room] | EVERYWHERE | {room}
    for one in imports_of(file):
        if one.module.split(".")[0] != "headwise" or "*" in allowed:
            continue
        target = room_of(one.module)
        excepted = (file.relative_to(HOUSE).as_posix(), target) in EXCEPTIONS and not one.at_top
        assert target in allowed or excepted, (
            f"{file}:{one.line}: {room} may not import {one.module}, only {', '.join(sorted(allowed))}"
        )


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_what_reads_profiles_needs_no_torch(room: str) -> None:
    files = [file for file in FILES if room_of(module_of(file)) == room]
    assert files
    heavy = [one for file in files for one in imports_of(file) if one.module.split(".")[0] in ("torch", "transformers")]
    assert not heavy, f"{heavy[0].file}:{heavy[0].line} imports {heavy[0].module}"


def test_no_file_bears_a_public_functions_name() -> None:
    public = FUNCTIONS | set(headwise.__all__)
    for path in [*FILES, *(path for path in HOUSE.rglob("*") if path.is_dir())]:
        assert path.stem not in public, f"{path} would shadow headwise.{path.stem}"


def test_public_names_stay_what_they_are_when_every_submodule_is_imported() -> None:
    for module in pkgutil.walk_packages(headwise.__path__, "headwise."):
        importlib.import_module(module.name)
    assert headwise.__all__, "the public names are one list"
    for name in headwise.__all__:
        value = getattr(headwise, name)
        assert not isinstance(value, ModuleType), f"headwise.{name} is a module"
        assert callable(value) or name.startswith("__")


def fresh(code: str) -> str:
    """What a new Python prints for `code`."""
    path = os.pathsep.join([str(HOUSE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def seconds(code: str) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        fresh(code)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


IMPORT = "import headwise"
HELP = "import headwise.cli as cli; assert cli.main(['--help']) == 0"


@pytest.mark.slow  # a busy machine may need longer
@pytest.mark.parametrize(("code", "limit"), [(IMPORT, 0.3), (HELP, 0.5)], ids=["import", "help"])
def test_starting_is_quick(code: str, limit: float) -> None:
    """Beyond what Python itself takes to start on this machine."""
    assert seconds(code) - seconds("pass") < limit


@pytest.mark.parametrize("code", [IMPORT, HELP, "import headwise.report, headwise.profile"])
def test_starting_imports_no_torch(code: str) -> None:
    heavy = "[name for name in ('torch', 'transformers') if name in sys.modules]"
    assert fresh(f"import sys\n{code}\nprint({heavy})").splitlines()[-1] == "[]"


def test_looking_at_a_profile_imports_no_torch(tmp_path: Path) -> None:
    saved = tmp_path / "empty.headwise"
    code = f"""
import sys, headwise
headwise.Profile().save({str(saved)!r})
headwise.load({str(saved)!r}).table()
print('torch' in sys.modules)
"""
    assert fresh(code).splitlines()[-1] == "False"
