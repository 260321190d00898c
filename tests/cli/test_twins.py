"""The built-in models on the command line: nothing is named, nothing is fetched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headwise
from headwise.models import twins

ALONE = """
import socket, sys

class Absent:
    @staticmethod
    def find_spec(name, *_):
        if name.split(".")[0] in ("transformers", "huggingface_hub", "tokenizers"):
            raise ImportError(f"{name} was imported")

sys.meta_path.insert(0, Absent)

def refuse(*_, **__):
    raise OSError("there is no network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from headwise.cli import main
sys.exit(main(sys.argv[1:]))
"""


def alone(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command where there is neither a network nor transformers."""
    command = [sys.executable, "-c", ALONE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


def test_profile_without_anything(tmp_path: Path) -> None:
    page, saved = tmp_path / "page.html", tmp_path / "run.headwise"
    done = alone("profile", "--out", page, "--save", saved, "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    words = " ".join(done.stdout.split())
    assert "twins:h8: 4 attention layers x 8 heads = 32" in words
    assert "no MODEL was named, so this is twins:h8, a small model of bytes that is built into headwise" in words
    assert f"built-in text: {len(twins.built_in_text().splitlines())} windows" in words
    assert "Verified" in words
    profile = headwise.load(saved)
    assert profile.info["kind"] == "decoder"
    (first, *_), lines = profile.sequences, twins.built_in_text().splitlines()
    assert len(profile.sequences) == len(lines)
    assert first.ids == list(lines[0].encode())
    assert {"一₁", "一₂", "一₃", "👀₄"} <= set(first.tokens or ())
    assert "一₁" in page.read_text("utf-8")
    assert profile.unseen == []


def test_compare_the_twins_without_anything(tmp_path: Path) -> None:
    done = alone("compare", "--twins", "--json", tmp_path / "d.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "a: twins:h1 (float32, built-in text" in done.stdout
    assert "b: twins:h8 (float32, built-in text" in done.stdout
    assert "Paired: both profiles read the same 10 texts." in done.stdout
    content = json.loads((tmp_path / "d.json").read_text("utf-8"))
    assert (content["a"]["file"], content["b"]["file"], content["match"]) == (*twins.NAMES, "layer")
    assert {row["label"] for row in content["differences"]} >= {"L0 mean", "L3 most"}


def test_the_comparison_is_that_of_two_profiles(run: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The lamp turns at night. 灯在夜里转。\n" * 30, "utf-8")
    for name in twins.NAMES:
        assert run("profile", name, "--file", text, "--save", tmp_path / name[6:]).code == 0
    by_hand = run("compare", tmp_path / "h1", tmp_path / "h8", "--match", "layer", "--json")
    at_once = run("compare", "--twins", "--file", text, "--json")
    assert at_once.code == 0
    assert json.loads(at_once.out)["differences"] == json.loads(by_hand.out)["differences"]
    assert "text.txt" in json.loads(at_once.out)["a"]["info"]["source"]


def test_a_text_of_the_users(run: Any, tmp_path: Path) -> None:
    result = run("profile", "--text", "一个 head", "--json")
    content = json.loads(result.out)
    assert (content["info"]["model"], content["info"]["source"]) == ("twins:h8", "--text")
    assert content["info"]["tokens"] == len("一个 head".encode())
    path = tmp_path / "long.txt"
    path.write_text("头" * 200, "utf-8")
    result = run("profile", "twins:h1", "--file", path, "--window", 100, "--save", tmp_path / "run")
    assert "twins:h1: 4 attention layers x 1 heads = 4" in result.words
    assert "this is twins:h1, a small model of bytes" in result.words
    assert "no MODEL" not in result.words
    first, second = headwise.load(tmp_path / "run").sequences[:2]
    assert first.tokens is not None
    assert second.tokens is not None
    assert (first.tokens[98:], second.tokens[:3]) == (["头₃", "\\xe5"], ["\\xa4", "\\xb4", "头₁"])


@pytest.mark.parametrize(("arguments", "words"), [
    (["profile", "twins:h2"], "there is no built-in 'twins:h2'; there are twins:h1 and twins:h8"),
    (["profile", "--attn-implementation", "eager"], "is for models of transformers"),
    (["profile", "--window", "8"], "--window cuts a --file"),
    (["profile", "--text", ""], "--text is empty"),
    (["profile", "--text", "x" * 300], "--text has 300 tokens and twins:h8 reads at most 256"),
    (["profile", "--json", "my-model", "--text", "x"], "put it last"),
    (["profile", "my-model"], "--text --file is required: what is my-model to read?"),
    (["compare"], "two profiles are required: A.headwise B.headwise; or --twins"),
    (["compare", "a.headwise"], "two profiles are required"),
    (["compare", "a.headwise", "--twins"], "leave out a.headwise, or --twins"),
    (["compare", "a.headwise", "b.headwise", "--text", "x"], "--text is what the twins read: it goes with --twins"),
    (["compare", "a.headwise", "b.headwise", "--file", "x"], "--file is what the twins read: it goes with --twins"),
    (["compare", "--twins", "--text", " "], "--text is empty"),
    (["compare", "--twins", "--match", "place"], "--match layer compares what the heads"),
])  # fmt: skip
def test_refusals(
    refused: Any, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(*arguments)


def test_no_output_replaces_the_text_that_is_read(refused: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a lamp", "utf-8")
    assert "is the same file as the input" in refused("compare", "--twins", "--file", text, "--csv", text, "--force")
