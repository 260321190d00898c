"""Teach why there is more than one head: the article's worked example, step by step.

headwise lesson
headwise lesson --ask --step 3-5
headwise lesson --out lesson.html
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

from headwise.errors import InputError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

STEPS = 11
EXERCISES = "exercises"
LAYERS = 6
LATIN = ("wo", "shi", "shei")
"""The article's tokens for a terminal that cannot show 我 是 谁."""

# Options of the printed lesson alone; and those that change its numbers, which the page takes too.
_PRINTED = ("step", "ask", "layer")
_NUMBERS = ("tokens", "heads", "causal", "no_scale")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `headwise lesson`."""
    parser.add_argument("--lang", choices=("en", "zh"), help="language (default: the locale's)")
    parser.add_argument(
        "--step", metavar="N", action="append", help=f"only these: 3, 3-5, {EXERCISES}; may be given again"
    )
    parser.add_argument("--ask", action="store_true", help="wait for your answer before the numbers are shown")
    parser.add_argument("--tokens", metavar="'A B C'", help="other tokens, as many as the example has")
    parser.add_argument("--heads", metavar="H", help="heads of step 8")
    parser.add_argument("--causal", action="store_true", help="hide later tokens (steps 3, 4, 8 and 9)")
    parser.add_argument("--no-scale", action="store_true", help="leave out the division by sqrt(d_k)")
    parser.add_argument("--layer", metavar="L", help=f"layer of the real model in step 10, 0 to {LAYERS - 1}")
    parser.add_argument("--out", metavar="FILE", help="write it as a page (.html) or a notebook (.ipynb) instead")
    parser.add_argument("--force", action="store_true", help="replace an output that exists")


def run(arguments: argparse.Namespace) -> int:
    """Check the arguments; then write the lesson, or print it, or go through it with the reader."""
    language = arguments.lang or default_language(os.environ)
    if arguments.out is not None:
        return _write(arguments, language)
    if arguments.force:
        raise InputError("--force replaces the file of --out; give --out too, or leave it out")
    steps, exercises = parse_steps(arguments.step)
    layer = _number("--layer", arguments.layer, range(LAYERS), default=1)

    from rich.console import Console

    from headwise.cli.signs import can_print
    from headwise.lesson.terminal import Lesson, show

    state = _state(arguments)
    if arguments.tokens is None and not can_print("".join(state["tokens"])):
        state["tokens"] = list(LATIN)
    lesson = Lesson(language, state, Console(highlight=False), layer=layer)
    if arguments.ask:
        return _converse(arguments, lesson, steps, exercises)
    show(lesson, steps, exercises=exercises, whole=arguments.step is None)
    return 0


def default_language(environment: Any) -> str:
    """The language of the locale's messages: zh or en."""
    names = (environment.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    return "zh" if next(filter(None, names), "").lower().startswith("zh") else "en"


def parse_steps(values: Sequence[str] | None) -> tuple[list[int], bool]:
    """What `--step` asks for: the steps in order, and whether the exercises too.

    Raises:
        InputError: There is no such step.
    """
    if values is None:
        return list(range(1, STEPS + 1)), True
    steps: set[int] = set()
    exercises = False
    for entry in (part.strip() for value in values for part in value.split(",")):
        span = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", entry)
        if entry == EXERCISES:
            exercises = True
        elif not span:
            raise InputError(f"--step {entry!r}: expected a number, a range or {EXERCISES}, as in 3-5")
        else:
            first, last = int(span[1]), int(span[2] or span[1])
            if first > last:
                raise InputError(f"--step {entry}: the range runs backwards; write {last}-{first}")
            if not 1 <= first <= last <= STEPS:
                raise InputError(f"--step {entry}: the lesson has steps 1 to {STEPS}")
            steps.update(range(first, last + 1))
    return sorted(steps), exercises


def _state(arguments: argparse.Namespace) -> dict[str, Any]:
    """The article's example with what the arguments change."""
    from headwise.lesson.working import example
    from headwise.report.payload import plain

    state = example()
    width = len(state["x"][0])
    if arguments.tokens is not None:
        tokens = [plain(token) for token in arguments.tokens.split()]
        if len(tokens) != len(state["x"]):
            raise InputError(f"--tokens: expected {len(state['x'])} words, as many as X has rows; got {len(tokens)}")
        state["tokens"] = tokens
    divisors = [h for h in range(1, width + 1) if width % h == 0]
    state["heads"] = _number("--heads", arguments.heads, divisors, default=state["heads"])
    state["causal"] = state["causal"] or arguments.causal
    state["scale"] = state["scale"] and not arguments.no_scale
    return state


def _number(flag: str, value: str | None, allowed: Sequence[int], *, default: int) -> int:
    if value is None:
        return default
    if not value.isdecimal() or len(value) > 9 or int(value) not in allowed:
        *most, last = map(str, allowed)
        raise InputError(f"{flag} {value}: expected {', '.join(most)} or {last}")
    return int(value)


def _write(arguments: argparse.Namespace, language: str) -> int:
    from headwise.cli import outputs

    suffix = arguments.out.rpartition(".")[2].lower()
    if arguments.out and suffix not in ("html", "ipynb"):
        raise InputError(f"--out {arguments.out}: expected a name that ends in .html (page) or .ipynb (notebook)")
    for name in _PRINTED + (_NUMBERS if suffix == "ipynb" else ()):
        if getattr(arguments, name):
            flag, what = name.replace("_", "-"), "notebook" if suffix == "ipynb" else "page"
            raise InputError(f"--{flag} is for the lesson in the terminal, not for a {what}; leave it out")
    planned = outputs.plan({"--out": arguments.out}, force=arguments.force)
    state = _state(arguments)
    outputs.write(planned, {"--out": lambda: _made(suffix, language, state).encode()})
    for output in planned:
        print(f"Wrote {output.path}")
    return 0


def _made(suffix: str, language: str, state: dict[str, Any]) -> str:
    if suffix == "html":
        from headwise.lesson.page import page

        return page(language, state)
    from headwise.lesson.notebook import notebook

    return notebook(language)


def _converse(arguments: argparse.Namespace, lesson: Any, steps: Sequence[int], exercises: bool) -> int:
    from headwise.cli.failures import INTERRUPTED, say
    from headwise.lesson import asking

    if sys.stdin is None:
        raise InputError("--ask: standard input is closed, so nothing can be typed; leave out --ask")
    try:
        asking.converse(lesson, steps, exercises=exercises, read=lesson.console.input)
    except asking.Left as left:
        lesson.console.print()
        rest = [step for step in steps if isinstance(left.at, int) and step >= left.at]
        say(lesson.ui["stopped"].format(command=_again(arguments, _listed(rest, exercises))))
        return INTERRUPTED if isinstance(left.__cause__, KeyboardInterrupt) else 0
    return 0


def _again(arguments: argparse.Namespace, rest: str) -> str:
    """The command that goes on with the steps that are left, on the same numbers."""
    command = ["headwise", "lesson", "--ask", "--step", rest]
    for name in ("lang", "tokens", "heads", "layer"):
        if (value := getattr(arguments, name)) is not None:
            command += [f"--{name}", value]
    command += [flag for flag in ("--causal", "--no-scale") if getattr(arguments, flag[2:].replace("-", "_"))]
    return shlex.join(command)


def _listed(steps: Sequence[int], exercises: bool) -> str:
    """Steps as `--step` takes them: 3-5,8."""
    spans: list[list[int]] = []
    for step in steps:
        if spans and spans[-1][-1] == step - 1:
            spans[-1] = [spans[-1][0], step]
        else:
            spans.append([step])
    return ",".join(["-".join(map(str, span)) for span in spans] + ([EXERCISES] if exercises else []))
