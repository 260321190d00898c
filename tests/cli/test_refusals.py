"""What cannot be done is said in one line, before any work, and leaves no file."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwise.cli import exports, main
from headwise.cli.failures import guarded
from headwise.models import opening
from headwise.profile import writing
from tests.models.small import save_bert


@pytest.fixture
def never_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a model takes long: what can be refused before must be."""

    def opened(*_: Any, **__: Any) -> None:
        pytest.fail("the model was opened")

    monkeypatch.setattr(opening, "open_model", opened)


@pytest.mark.usefixtures("never_opened")
@pytest.mark.parametrize(("arguments", "words"), [
    (["--text", ""], "--text is empty"),
    (["--text", " \n\t"], "--text is empty"),
    (["--text", "x", "--file", "notes.txt"], "not allowed with argument"),
    ([], "--text --file is required"),
    (["--file", "nowhere.txt"], "No such file"),
    (["--file", "."], "Is a directory"),
    (["--text", "x", "--window", "8"], "--window cuts a --file"),
    (["--text", "x", "--text", "y"], "--text was given twice"),
    (["--text", "x", "--measures", "nonsense,first"], "names among self_focus"),
    (["--text", "x", "--measures", "all,entropy"], "default and all stand alone"),
    (["--text", "x", "--parquet", "no/such/table.parquet"], "there is no folder"),
    (["--text", "x", "--batch-size", "0"], "at least 1, got '0'"),
    (["--text", "x", "--batch-size", "many"], "at least 1, got 'many'"),
    (["--text", "x", "--layers", "5-3"], "write 3-5"),
    (["--text", "x", "--layers", "0,,2"], "got ''"),
    (["--text", "x", "--layers", "-1"], "expected"),
    (["--text", "x", "--frobnicate"], "--frobnicate"),
    (["--text", "x", "--out", "no/such/page.html"], "there is no folder"),
    (["--text", "x", "--out", "."], "is a folder"),
    (["--text", "x", "--out", ""], "is a folder"),
    (["--text", "x", "--csv", "/dev/null"], "is not an ordinary file"),
    (["--text", "x", "--out", "same", "--save", "./same"], "is the same file as the one that --out writes"),
])  # fmt: skip
def test_arguments(
    refused: Any,
    tiny: Path,
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused("profile", tiny, *arguments)


@pytest.mark.usefixtures("never_opened")
@pytest.mark.parametrize(("data", "words"), [
    (b"", "is empty"),
    (b" \n \n", "is empty"),
    (b"\xef\xbb\xbf", "is empty"),
    (b"GIF89a\0\0", "is not plain text: it has a zero byte at 6"),
    (b"na\xefve", "is not UTF-8 text: byte 0xef at 2; save it as UTF-8"),
])  # fmt: skip
def test_files_that_hold_no_text(
    refused: Any, tiny: Path, tmp_path: Path, data: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(data)
    assert words in refused("profile", tiny, "--file", path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert f"standard input {words}" in refused("profile", tiny, "--file", "-")


@pytest.mark.usefixtures("never_opened")
@pytest.mark.parametrize("flag", ["--out", "--save", "--json", "--csv"])
def test_outputs_that_exist(refused: Any, tiny: Path, tmp_path: Path, flag: str) -> None:
    path = tmp_path / "there"
    path.write_text("mine", encoding="utf-8")
    said = refused("profile", tiny, "--text", "x", flag, path)
    assert "exists; give another name, or --force to replace it" in said


@pytest.mark.usefixtures("never_opened")
@pytest.mark.usefixtures("never_opened")
def test_parquet_without_its_package(refused: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "find_spec", lambda _: None)
    said = refused("profile", tiny, "--text", "x", "--parquet", tmp_path / "table.parquet", code=4)
    assert said == 'headwise: --parquet: pyarrow is not installed: pip install "headwise[parquet]"\n'


def test_no_output_replaces_what_is_read(refused: Any, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("the lamp", encoding="utf-8")
    assert "is the same file as the input; give" in refused("profile", tiny, "--file", path, "--out", path, "--force")


@pytest.mark.parametrize(("arguments", "words"), [
    (["--device", "tpu"], "no such device: 'tpu'; this machine has"),
    (["--device", "cuda:77"], "no such device"),
    (["--dtype", "int8"], "unknown dtype 'int8': expected auto, float32"),
    (["--attn-implementation", "magic"], "cannot run with this attention implementation"),
    (["--layers", "7"], "chose no attention layer"),
    (["--layers", "decoder"], "no module 'decoder'"),
])  # fmt: skip
def test_what_a_model_cannot_do(refused: Any, tiny: Path, arguments: list[str], words: str) -> None:
    assert words in refused("profile", tiny, "--text", "the lamp turns", *arguments)


def test_lengths_that_do_not_fit(refused: Any, tiny: Path, tmp_path: Path) -> None:
    said = refused("profile", tiny, "--text", "the lamp " * 50)
    assert "--text has 102 tokens" in said
    assert "at most 32" in said
    assert "use --file" in said
    path = tmp_path / "notes.txt"
    path.write_text("the lamp", encoding="utf-8")
    assert "--window 33 is more than" in refused("profile", tiny, "--file", path, "--window", 33)
    assert "leaves no room for text" in refused("profile", tiny, "--file", path, "--window", 2)


@pytest.mark.parametrize(("name", "words"), [
    ("./nowhere", "no such file or folder"),
    ("nobody/nothing", "the hub cannot be reached"),
    ("not a name", "no such file or folder"),
])  # fmt: skip
def test_names_of_no_model(refused: Any, name: str, words: str) -> None:
    assert words in refused("profile", name, "--text", "x")


def test_a_model_without_a_tokenizer(refused: Any, tmp_path: Path) -> None:
    folder = save_bert(tmp_path / "bare")
    for file in folder.glob("token*"):
        file.unlink()
    said = refused("profile", folder, "--text", "the lamp")
    assert "has no tokenizer" in said
    assert "headwise.watch(model)" in said


def test_json_that_takes_the_model_for_its_file(refused: Any, tiny: Path) -> None:
    assert "put it last" in refused("profile", "--json", tiny, "--text", "x")


def test_an_unknown_command(refused: Any) -> None:
    assert "choose from" in refused("frobnicate")


def test_a_disk_that_refuses(refused: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is written first; that the profile then fails leaves neither."""
    open_ = os.fdopen
    opened: list[int] = []

    def full(handle: int, *rest: Any) -> Any:
        opened.append(handle)
        if len(opened) == 2:
            os.close(handle)
            raise OSError(28, "No space left on device")
        return open_(handle, *rest)

    monkeypatch.setattr(writing.os, "fdopen", full)
    outputs = ["--out", tmp_path / "page.html", "--save", tmp_path / "run.headwise"]
    said = refused("profile", tiny, "--text", "the lamp", *outputs)
    assert "run.headwise: cannot be written: No space left on device" in said


def test_a_bug_keeps_its_traceback() -> None:
    def bug() -> int:
        return [0][1]

    with pytest.raises(IndexError):
        guarded(bug)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        ([], "profile"),
        (["--help"], "profile"),
        (["profile", "--help"], "heads, not time"),
        (["--version"], "headwise "),
    ):
        assert main(arguments) == 0
        out, err = capsys.readouterr()
        assert words in out
        assert err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["profile", "~nosuchuser/x", "--text", "a"],
        ["profile", "x", "--file", "~nosuchuser/y"],
        ["view", "~nosuchuser/z"],
        ["view", "a" * 5000],
        ["profile", "a" * 5000, "--text", "a"],
        ["profile", "x", "--text", "a", "--layers", "9" * 5000],
        ["profile", "x", "--text", "a", "--layers", "0-99999999999999"],
    ],
)
def test_odd_arguments_are_one_line(arguments: list[str], run: Any) -> None:
    result = run(*arguments)
    assert result.code in (1, 2)
    assert result.err.count("\n") == 1 and result.err.startswith("headwise: ") and result.out == ""


def test_an_output_that_somebody_else_made_meanwhile_is_left_alone(
    run: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwise.cli import recording

    page, record = tmp_path / "page.html", recording.record

    def slow(*args: Any, **kwargs: Any) -> Any:
        page.write_text("theirs")
        return record(*args, **kwargs)

    monkeypatch.setattr(recording, "record", slow)
    result = run("profile", tiny, "--text", "a few words", "--out", page)
    assert result.code == 2 and "made by somebody else meanwhile" in result.err
    assert page.read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_long_name_for_an_output(run: Any, tiny: Path, tmp_path: Path) -> None:
    page = tmp_path / ("x" * 240 + ".html")
    assert run("profile", tiny, "--text", "a few words", "--out", page).code == 0
    assert page.exists()


def test_a_full_disk_behind_the_output_is_one_line() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with full.open("w") as target:
        done = subprocess.run([sys.executable, "-m", "headwise", "doctor"], stdout=target, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.decode().strip() == "headwise: No space left on device"
