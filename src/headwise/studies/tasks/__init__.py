"""The tasks of a study: those of headwise by name, others as `mymodule:Task`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from headwise.errors import HeadwiseError, InputError
from headwise.studies.tasks.protocol import Settings, Task

HOMES = {
    "lookup": ("headwise.studies.tasks.lookup", "Lookup"),
    "text": ("headwise.studies.tasks.text", "Text"),
    "digits": ("headwise.studies.tasks.digits", "Digits"),
    "translation": ("headwise.studies.tasks.translation", "Translation"),
}


def find(name: str) -> type[Task]:
    """The class of a task.

    Args:
        name: A task of headwise, or `module:Class`; the module is looked for in the current folder too.

    Raises:
        InputError: There is none, its module cannot be imported, or it is no `Task`.
    """
    if name in HOMES:
        module_name, class_name = HOMES[name]
        return getattr(import_module(module_name), class_name)  # type: ignore[no-any-return]
    module_name, colon, class_name = name.partition(":")
    if not colon or not module_name or not class_name:
        raise InputError(f"--task {name}: expected {', '.join(HOMES)}, or a class of yours as mymodule:Task")
    with _current_folder():
        try:
            module = import_module(module_name)
        except Exception as error:
            raise InputError(
                f"--task {name}: the module {module_name} cannot be imported: {type(error).__name__}: {error}"
            ) from error
    task = getattr(module, class_name, None)
    if task is None:
        raise InputError(f"--task {name}: the module {module_name} ({module.__file__}) has no {class_name}")
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise InputError(f"--task {name}: expected a subclass of headwise.studies.tasks.protocol.Task; got {task!r}")
    missing = [attribute for attribute in ("name", "score_name") if not getattr(task, attribute)]
    missing += sorted(getattr(task, "__abstractmethods__", ()))
    if missing:
        raise InputError(f"--task {name}: {class_name} does not say its {', '.join(missing)}")
    return task


def make(name: str, settings: Settings) -> Task:
    """A task, ready to give batches.

    Raises:
        InputError: It refuses its settings, or fails; the message names the error.
    """
    task = find(name)
    with _told(name):
        return task(settings)


def prepare(name: str, settings: Settings) -> None:
    """Let a task make what all its runs need.

    Raises:
        InputError: It refuses its settings, or fails.
    """
    task = find(name)
    with _told(name):
        task.prepare(settings)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """A failure of a task's own code becomes a line that names it."""
    try:
        yield
    except HeadwiseError:
        raise
    except Exception as error:
        raise InputError(f"--task {name}: it failed: {type(error).__name__}: {error}") from error


@contextmanager
def _current_folder() -> Iterator[None]:
    """Modules of the current folder can be imported, as with `python -m`."""
    here = str(Path.cwd())
    if here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
