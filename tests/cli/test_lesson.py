"""headwise lesson: languages, steps, pipes and terminals, what is typed, what is written."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from headwise.cli.lesson import LATIN, default_language, parse_steps
from headwise.lesson.contents import maps, texts
from headwise.lesson.terminal import STEPS

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
COMMAND = [sys.executable, "-m", "headwise", "lesson"]


@pytest.fixture(autouse=True)
def locale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lesson's language and looks do not depend on who runs the tests."""
    for name in ("LC_ALL", "LC_MESSAGES", "NO_COLOR", "FORCE_COLOR", "PYTHONIOENCODING", "PYTHONUTF8"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("COLUMNS", "100")


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *arguments], env={**os.environ, **environment}, capture_output=True, check=False)


def terminal(*arguments: str, typed: list[bytes], **environment: str) -> tuple[str, int]:
    """What it prints on a terminal where each prompt is answered in turn, and its exit code."""
    pid, handle = pty.fork()
    if pid == 0:
        # What runs the tests in the background may ignore Ctrl-C, and a child inherits that.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.environ.update({"TERM": "xterm-256color", "COLORTERM": "truecolor", **environment})
        os.execv(sys.executable, [*COMMAND, *arguments])
    printed, waiting, end = b"", list(typed), time.monotonic() + 60
    while time.monotonic() < end and select.select([handle], [], [], 60)[0]:
        try:
            part = os.read(handle, 65536)
        except OSError:  # Linux says so that the other end is closed
            break
        printed += part
        if waiting and printed.endswith(b"> "):
            os.write(handle, waiting.pop(0))
    else:
        os.kill(pid, signal.SIGKILL)  # it waits for more: a failure, not a test that hangs
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(handle)
    return printed.decode().replace("\r\n", "\n"), code


# What it prints


def test_the_whole_lesson(run: Any) -> None:
    result = run("lesson")
    assert (result.code, result.err) == (0, "")
    words = texts("en")
    assert re.findall(r"^── Step (\d+) · ", result.out, re.MULTILINE) == [str(n) for n in STEPS]
    assert result.out.startswith(f"{words['title']}\n")
    assert "⎡ 0.70  0.20  0.10 ⎤" in result.out
    assert words["exercises"][4]["ask"] in result.words
    assert result.words.endswith(words["ui"]["terminal_next"])
    assert "\x1b" not in result.out
    assert max(map(cell_len, result.out.splitlines())) == 100
    assert not re.search(r" $", result.out, re.MULTILINE)


@pytest.mark.parametrize(("environment", "language"), [
    ({}, "en"),
    ({"LANG": "zh_CN.UTF-8"}, "zh"),
    ({"LANG": "zh_TW"}, "zh"),
    ({"LANG": "de_DE.UTF-8"}, "en"),
    ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
    ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN"}, "zh"),
    ({"LC_ALL": "", "LANG": "zh_CN"}, "zh"),
])  # fmt: skip
def test_the_language_is_the_locales(environment: dict[str, str], language: str) -> None:
    assert default_language(environment) == language


def test_the_language_can_be_chosen(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert run("lesson", "--step", 1).out.startswith("\n── 第 1 步 · ")
    assert run("lesson", "--step", 1, "--lang", "en").out.startswith("\n── Step 1 · ")
    monkeypatch.setenv("LANG", "en_GB")
    assert "第 1 步" in run("lesson", "--step", 1, "--lang", "zh").out


@pytest.mark.parametrize(("values", "steps", "exercises"), [
    (None, list(STEPS), True),
    (["3"], [3], False),
    (["3-5"], [3, 4, 5], False),
    (["9", "2", "2-3"], [2, 3, 9], False),
    (["11,1", "exercises"], [1, 11], True),
    (["exercises"], [], True),
])  # fmt: skip
def test_steps_are_numbers_ranges_and_exercises(values: list[str] | None, steps: list[int], exercises: bool) -> None:
    assert parse_steps(values) == (steps, exercises)


def test_only_some_steps(run: Any) -> None:
    result = run("lesson", "--step", "4", "--step", "1-2")
    assert re.findall(r"── Step (\d+)", result.out) == ["1", "2", "4"]
    assert texts("en")["title"] not in result.out
    assert "Five exercises" not in result.out
    assert "── Step" not in run("lesson", "--step", "exercises").out


def test_other_numbers(run: Any) -> None:
    out = run("lesson", "--step", "3,8", "--tokens", "you a b", "--causal", "--no-scale", "--heads", 4).out
    assert "you ⎡ 1.00  ░░░░  ░░░░ ⎤" in out
    assert "W_4^V" in out
    assert "/ 2.00" not in out


def test_hostile_tokens_are_plain_text(run: Any) -> None:
    out = run("lesson", "--step", "1,3", "--tokens", "[/bold] [red]x me\x1b[2J").out
    assert "The sentence is [/bold] [red]x me␛[2J." in " ".join(out.split())
    assert "\x1b" not in out


def test_another_layer(run: Any) -> None:
    assert "L4H11" in run("lesson", "--step", 10, "--layer", 4).out
    assert len(maps()["thousandths"]) == 6


# Where it prints


@pytest.mark.parametrize(("columns", "language"), [("60", "zh"), ("200", "en")])
def test_a_pipe_gets_plain_text_that_fits(columns: str, language: str) -> None:
    done = process("--lang", language, COLUMNS=columns)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    assert max(cell_len(line) for line in done.stdout.decode().splitlines()) == min(int(columns), 100)


def test_a_reader_that_leaves_early() -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout and running.stderr
        running.stdout.read(10)
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 1


@pytest.mark.parametrize(("environment", "language"), [
    ({"PYTHONIOENCODING": "ascii"}, "en"),
    ({"PYTHONIOENCODING": "ascii"}, "zh"),
    ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "en"),
    ({"PYTHONIOENCODING": "gbk"}, "zh"),
])  # fmt: skip
def test_terminals_that_lack_signs(environment: dict[str, str], language: str) -> None:
    done = process("--lang", language, **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("gbk" if "gbk" in environment.values() else "utf-8", "replace")
    assert "0.70  0.20  0.10" in text
    if environment.get("PYTHONIOENCODING") == "ascii":
        assert done.stdout.isascii()
        lines = done.stdout.decode().splitlines()
        assert all(token in done.stdout.decode() for token in LATIN)
        start = next(i for i, line in enumerate(lines) if line.strip().startswith("wo   [ 1  0  1  0 ]"))
        assert [line.strip() for line in lines[start : start + 3]] == [
            "wo   [ 1  0  1  0 ]", "shi  | 0  2  0  1 |", "shei [ 1  1  0  2 ]",
        ]  # fmt: skip


def test_colours_on_a_terminal_and_none_with_no_color() -> None:
    shown, code = terminal("--step", "3,10", typed=[])
    assert code == 0
    assert re.search(r"\x1b\[[0-9;]*48;2;", shown) and "▀" in shown
    plain, _ = terminal("--step", "10", typed=[], NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*(3[0-79]|4[0-9]|9[0-7]);?[0-9;]*m", plain) and "▀" not in plain and "█" in plain
    assert max(cell_len(line) for line in ANSI.sub("", shown).splitlines()) <= 100


def test_wide_tokens_keep_their_room_where_they_cannot_be_shown() -> None:
    done = process("--step", "1", "--tokens", "我 abc 吗", PYTHONIOENCODING="ascii")
    lines = done.stdout.decode().splitlines()
    assert "  ??  [ 1  0  1  0 ]" in lines and "  abc | 0  2  0  1 |" in lines


# Asking


def test_asking_on_a_terminal() -> None:
    shown, code = terminal("--ask", "--step", "1-3", typed=[b"q\r", b"b\r", b"c\r", b"\r"])
    assert code == 0
    plain = ANSI.sub("", shown)
    assert plain.count("Right.") == 1 and plain.count("Not quite.") == 1
    assert plain.index("> b") < plain.index("Right.") < plain.index("X  3 × 4")
    assert len(re.findall(r"Enter alone shows the answer > ", plain)) == 4


@pytest.mark.parametrize(("key", "code"), [(b"\x03", 130), (b"\x04", 0)])
def test_leaving_a_terminal(key: bytes, code: int) -> None:
    shown, left = terminal("--ask", typed=[b"b\r", key])
    assert left == code
    assert shown.rstrip().splitlines()[-1] == (
        "headwise: stopped; headwise lesson --ask --step 2-11,exercises goes on from here"
    )
    assert "Traceback" not in shown


def test_asking_reads_what_is_piped(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("b\n\n0.7\n"))
    result = run("lesson", "--ask", "--lang", "zh", "--step", "1,exercises")
    assert result.code == 0
    assert "对。" in result.out
    assert result.err == "headwise: 已停止；用 headwise lesson --ask --step exercises --lang zh 从这里继续\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("b\n0.7\n64\n1.6\n1.386\n8000000\n"))
    result = run("lesson", "--ask", "--step", "1,exercises")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("Correct.") == 5


def test_asking_without_standard_input(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "--ask: standard input is closed" in refused("lesson", "--ask")


# Writing


def test_the_notebook_is_written(run: Any, tmp_path: Path) -> None:
    from headwise.lesson.notebook import notebook

    path = tmp_path / "课.IPYNB"
    result = run("lesson", "--out", path, "--lang", "zh")
    assert (result.code, result.out, result.err) == (0, f"Wrote {path}\n", "")
    assert path.read_text("utf-8") == notebook("zh")
    assert json.loads(path.read_text("utf-8"))["nbformat"] == 4
    assert run("lesson", "--out", path).code == 2
    assert run("lesson", "--out", path, "--force").code == 0
    assert path.read_text("utf-8") == notebook("en")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_the_page_is_written_with_the_numbers_that_are_asked_for(run: Any, tmp_path: Path) -> None:
    from headwise.lesson.page import page
    from headwise.lesson.working import example

    path = tmp_path / "lesson.html"
    assert run("lesson", "--out", path).code == 0
    assert path.read_text("utf-8") == page("en")
    assert run("lesson", "--out", path, "--force", "--causal", "--tokens", "a b c").code == 0
    assert path.read_text("utf-8") == page("en", example() | {"causal": True, "tokens": ["a", "b", "c"]})


# Refusals


@pytest.mark.parametrize(("arguments", "words"), [
    (["--lang", "de"], "invalid choice: 'de'"),
    (["--step", "0"], "the lesson has steps 1 to 11"),
    (["--step", "12"], "the lesson has steps 1 to 11"),
    (["--step", "3-12"], "the lesson has steps 1 to 11"),
    (["--step", "5-3"], "write 3-5"),
    (["--step", "three"], "expected a number, a range or exercises, as in 3-5"),
    (["--step", "3,,4"], "--step '': expected"),
    (["--step", "9" * 5000], "expected a number"),
    (["--tokens", "a b"], "expected 3 words, as many as X has rows; got 2"),
    (["--tokens", ""], "got 0"),
    (["--heads", "3"], "--heads 3: expected 1, 2 or 4"),
    (["--heads", "many"], "expected 1, 2 or 4"),
    (["--heads", "9" * 5000], "expected 1, 2 or 4"),
    (["--layer", "6"], "--layer 6: expected 0, 1, 2, 3, 4 or 5"),
    (["--force"], "give --out too"),
    (["--out", "lesson.pdf"], "ends in .html (page) or .ipynb (notebook)"),
    (["--out", "lesson"], "ends in .html (page) or .ipynb (notebook)"),
    (["--out", ""], "is a folder"),
    (["--out", "no/such/lesson.html"], "there is no folder"),
    (["--out", "lesson.html", "--ask"], "--ask is for the lesson in the terminal, not for a page"),
    (["--out", "lesson.html", "--step", "3"], "--step is for the lesson in the terminal"),
    (["--out", "lesson.ipynb", "--no-scale"], "--no-scale is for the lesson in the terminal, not for a notebook"),
    (["--out", "lesson.html", "--heads", "3"], "expected 1, 2 or 4"),
])  # fmt: skip
def test_arguments(refused: Any, arguments: list[str], words: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused("lesson", *arguments)


def test_an_output_that_exists(refused: Any, tmp_path: Path) -> None:
    path = tmp_path / "lesson.html"
    path.write_text("mine", encoding="utf-8")
    assert "exists; give another name, or --force" in refused("lesson", "--out", path)


def test_what_was_left_goes_on_with_the_same_numbers(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    asked = ("--tokens", "my cat sat", "--heads", "1", "--causal", "--no-scale")
    result = run("lesson", "--ask", "--step", "4-5", *asked)
    assert (
        result.err == "headwise: stopped; headwise lesson --ask --step 4-5 --tokens 'my cat sat' --heads 1 --causal "
        "--no-scale goes on from here\n"
    )


def test_a_number_with_many_noughts_is_that_number(run: Any, refused: Any) -> None:
    assert "expected 1, 2 or 4" in refused("lesson", "--heads", "0000000013")
    assert "expected 1, 2 or 4" in refused("lesson", "--heads", "0000000003")
    assert run("lesson", "--step", 6, "--heads", "002").code == 0
