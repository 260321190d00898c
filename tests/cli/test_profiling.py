"""headwise profile: what it prints and writes, and that every text reaches the model whole."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch

import headwise
from headwise.cli.profiling import parse_layers
from headwise.kernels.native import NativeKernel
from headwise.models import opening
from tests.compiled import needs_native
from tests.models.small import POSITIONS, save_bart, save_bert, save_llama

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwise.models.opening import OpenedModel

PAGE = Path(__file__).parents[2] / "examples" / "page.txt"
SENTENCE = "the keeper looks at the water . "


@pytest.fixture
def long_text(tmp_path: Path) -> Path:
    """100 tokens: windows of 30 words and two special tokens, 30, 30, 30 and 10."""
    path = tmp_path / "long.txt"
    path.write_text("the lamp turns . " * 25, encoding="utf-8")
    return path


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The input_ids of every forward pass of the models that are opened."""
    seen: list[torch.Tensor] = []
    watch_opened(monkeypatch, lambda arguments: seen.append(arguments["input_ids"]))
    return seen


def watch_opened(monkeypatch: pytest.MonkeyPatch, before: Callable[[dict[str, Any]], None]) -> None:
    """Call `before` with the arguments of each forward of every model opened from now on."""
    open_model = opening.open_model

    def opened(*args: Any, **kwargs: Any) -> OpenedModel:
        result = open_model(*args, **kwargs)
        result.model.register_forward_pre_hook(lambda _, __, given: before(given), with_kwargs=True)
        return result

    monkeypatch.setattr(opening, "open_model", opened)


def test_a_real_model_and_a_file(run: Any, minilm: Path, tmp_path: Path) -> None:
    page, saved, data, table = (tmp_path / name for name in ("r.html", "r.headwise", "r.json", "r.csv"))
    outputs = ["--out", page, "--save", saved, "--json", data, "--csv", table]
    result = run("profile", minilm, "--file", PAGE, "--verify", *outputs)
    assert result.code == 0, result.err
    assert result.err == ""
    assert "6 attention layers x 12 heads = 72" in result.out
    assert "2 windows" in result.words
    assert "float32 on cpu" in result.out
    assert "What stands out" in result.out
    assert re.findall(r"^(L\d+) ", result.out, re.MULTILINE) == [f"L{layer}" for layer in range(6)]
    assert "Verified:" in result.out
    assert all(len(line) <= 80 for line in result.out.splitlines() if not line.startswith("Wrote "))

    profile = headwise.load(saved)
    assert len(profile.layers) == 6
    assert profile.verified is not None
    assert profile.verified < 1e-5
    frame = pd.read_csv(table)
    assert len(frame) == 72
    np.testing.assert_allclose(frame["self_focus"], profile.table()["self_focus"], rtol=1e-12)
    heads = json.loads(data.read_text("utf-8"))["heads"]
    assert [head["label"] for head in heads] == list(frame["label"])
    assert "<html" in page.read_text("utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.csv", "r.headwise", "r.html", "r.json"]


def test_the_windows_cover_the_file_exactly(
    run: Any, tiny: Path, long_text: Path, forwards: list[torch.Tensor]
) -> None:
    result = run("profile", tiny, "--file", long_text)
    assert result.code == 0, result.err
    assert "4 windows, 108 tokens" in result.words
    tokenizer = opening.open_model(str(tiny)).tokenizer
    assert tokenizer is not None
    [first, *whole, last] = tokenizer(long_text.read_text("utf-8"))["input_ids"]
    rows = [row for batch in forwards for row in batch.tolist()]
    assert [len(row) for row in rows] == [32, 32, 32, 12]
    assert all((row[0], row[-1]) == (first, last) for row in rows)
    assert [token for row in rows for token in row[1:-1]] == whole


@pytest.mark.parametrize(("window", "batch", "shapes"), [
    (12, 4, [(4, 12)] * 2 + [(2, 12)]),
    (3, 64, [(64, 3), (36, 3)]),
    (32, 2, [(2, 32), (1, 32), (1, 12)]),
])  # fmt: skip
def test_windows_and_batches_as_asked_for(
    run: Any, tiny: Path, long_text: Path, forwards: list[torch.Tensor], window: int, batch: int, shapes: Any
) -> None:
    assert run("profile", tiny, "--file", long_text, "--window", window, "--batch-size", batch).code == 0
    assert [tuple(ids.shape) for ids in forwards] == shapes


def test_batching_does_not_change_the_numbers(run: Any, tiny: Path, long_text: Path, tmp_path: Path) -> None:
    tables = []
    for size in (1, 3):
        path = tmp_path / f"{size}.csv"
        assert run("profile", tiny, "--file", long_text, "--batch-size", size, "--csv", path).code == 0
        tables.append(pd.read_csv(path).select_dtypes("number"))
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-4, atol=1e-5)


def test_json_alone_prints_nothing_but_json(run: Any, tiny: Path) -> None:
    result = run("profile", tiny, "--text", SENTENCE, "--json")
    assert result.code == 0
    content = json.loads(result.out)
    assert {head["label"] for head in content["heads"]} == {f"L{layer}H{h}" for layer in (0, 1) for h in range(4)}
    assert content["info"]["tokens"] == 9
    assert content["verified"] is None
    assert result.err == ""


def test_standard_input(run: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\ufeffthe lamp".encode())))
    result = run("profile", tiny, "--file", "-")
    assert result.code == 0, result.err
    assert "stdin: 1 window, 4 tokens" in result.out


def test_force_replaces_outputs(run: Any, tiny: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("old", encoding="utf-8")
    assert run("profile", tiny, "--text", SENTENCE, "--out", page, "--force").code == 0
    assert "<html" in page.read_text("utf-8")


def test_only_some_layers(run: Any, tiny: Path) -> None:
    for layers in ("1", "L1", "encoder.layer.1"):
        result = run("profile", tiny, "--text", SENTENCE, "--layers", layers)
        assert "1 attention layer x 4 heads = 4" in result.out, result.err


def test_layers_are_numbers_ranges_and_paths() -> None:
    assert parse_layers("0, 3-5,L7,encoder.layer.2") == [0, 3, 4, 5, 7, "encoder.layer.2"]
    assert parse_layers(None) is None


def test_a_model_that_reads_very_long_texts_gets_a_default_window(run: Any, tmp_path: Path) -> None:
    model = save_llama(tmp_path / "llama")
    text = tmp_path / "text.txt"
    text.write_text("the lamp " * 1100, encoding="utf-8")
    result = run("profile", model, "--file", text)
    assert result.code == 0, result.err
    words = result.words
    assert "2 windows" in words
    assert "windows have 2,048 tokens by default (the model reads up to 8,192, --window N changes it)" in words


def test_an_encoder_decoder_reads_the_text_on_both_sides(run: Any, tmp_path: Path) -> None:
    result = run("profile", save_bart(tmp_path / "bart"), "--text", SENTENCE)
    assert result.code == 0, result.err
    assert "3 attention layers x 2 heads = 6" in result.words
    kinds = re.findall(r"^L\d+ +(self|cross) ", result.out, re.MULTILINE)
    assert kinds == ["self", "self", "cross"]  # the encoder's own, the decoder's own, and between them
    assert "the decoder read the same text, one token later" in result.words


@pytest.mark.parametrize("after", [1, 3])
def test_ctrl_c_keeps_what_was_recorded(
    run: Any, tiny: Path, long_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
    reads: list[int] = []

    def interrupt(_: object) -> None:
        reads.append(1)
        if len(reads) == after:
            signal.raise_signal(signal.SIGINT)

    watch_opened(monkeypatch, interrupt)
    page, saved = tmp_path / "page.html", tmp_path / "run.headwise"
    result = run("profile", tiny, "--file", long_text, "--batch-size", 1, "--out", page, "--save", saved)
    assert result.code == 130
    assert result.err == f"headwise: interrupted: kept {after} of 4 windows\n"
    assert f"Note: interrupted: {after} of 4 windows were read" in result.out
    assert "<html" in page.read_text("utf-8")
    table = headwise.load(saved).table()
    assert set(table["rows"]) == {after * POSITIONS}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_stops_at_once(
    refused: Any, tiny: Path, long_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def twice(_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    watch_opened(monkeypatch, twice)
    said = refused("profile", tiny, "--file", long_text, "--out", tmp_path / "page.html", code=130)
    assert "nothing was kept" in said


def test_ctrl_c_while_the_model_is_opened(refused: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **__: Any) -> OpenedModel:
        raise KeyboardInterrupt

    monkeypatch.setattr(opening, "open_model", opened)
    assert "nothing was kept" in refused("profile", tiny, "--text", "x", code=130)


def test_nan_in_the_weights(refused: Any, tmp_path: Path) -> None:
    from transformers import AutoModel

    folder = save_bert(tmp_path / "broken")
    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
    model.save_pretrained(folder)
    said = refused("profile", folder, "--text", SENTENCE, "--out", tmp_path / "page.html", code=5)
    assert "layer 1 (encoder.layer.1.attention.self)" in said
    assert "encoder.layer.0.output.dense.weight" in said
    assert "layer 0 (" not in said


def test_an_attention_that_cannot_be_seen(refused: Any, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    said = refused("profile", tiny, "--text", SENTENCE, "--attn-implementation", "eager", "--out", out, code=5)
    assert "encoder.layer.0.attention.self" in said
    assert "--attn-implementation sdpa" in said


def test_a_forward_that_fails(refused: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("the wires\nare crossed")

    watch_opened(monkeypatch, fail)
    said = refused("profile", tiny, "--text", "the lamp", code=5)
    assert "RuntimeError: the wires are crossed" in said


def test_a_failed_verification_has_an_exit_code_of_its_own(
    run: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwise.profile.Profile.passed", False)
    result = run("profile", tiny, "--text", "a few words", "--verify", "--out", tmp_path / "page.html")
    assert result.code == 5
    assert "NOT VERIFIED" in result.out and "not verified" in result.err
    assert (tmp_path / "page.html").exists()


@needs_native
def test_fused_gives_the_same_table(run: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    attend = NativeKernel.attend
    monkeypatch.setattr(NativeKernel, "attend", lambda *given: ran.append(1) or attend(*given))
    plain = run("profile", tiny, "--text", "the lamp on the table", "--json")
    assert ran == []
    fused = run("profile", tiny, "--text", "the lamp on the table", "--fuse", "--verify", "--json")
    assert ran
    assert fused.code == 0
    one, other = (json.loads(result.out)["heads"] for result in (plain, fused))
    assert [head["entropy"] for head in one] == pytest.approx([head["entropy"] for head in other], abs=1e-5)


def test_a_limit_of_what_is_not_kept_is_refused(refused: Any, tiny: Path) -> None:
    assert "--keep-limit: how much of what --keep keeps" in refused(
        "profile", tiny, "--text", "x", "--keep-limit", "1MB"
    )
