"""Opening models: what can be opened is ready to be read, what cannot says why."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from scripts import fetch_models

from headwise.errors import InputError, MissingPackageError
from headwise.models import places
from headwise.models.lengths import max_length
from headwise.models.opening import open_model
from tests.models.small import CLS, POSITIONS, SEP, save_bart, save_bert, save_llama

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


def test_a_real_folder(capfd: pytest.CaptureFixture[str]) -> None:
    opened = open_model(str(fetch_models.minilm()))
    assert (opened.kind, opened.max_length, opened.dtype, str(opened.device)) == (
        "encoder",
        512,
        "float32",
        "cpu",
    )
    assert opened.notes == ()
    assert not opened.model.training
    assert opened.tokenizer is not None
    assert opened.tokenizer("hello")["input_ids"] == [101, 7592, 102]
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_gguf_file(capfd: pytest.CaptureFixture[str]) -> None:
    opened = open_model(str(fetch_models.smollm2()))
    assert (opened.kind, opened.max_length, opened.dtype) == ("decoder", 8192, "float32")
    assert opened.model.config.num_key_value_heads == 3
    assert opened.tokenizer is not None
    out = opened.model(**opened.inputs([opened.tokenizer("hello world")["input_ids"]]))
    assert torch.isfinite(out[0]).all()
    assert capfd.readouterr() == ("", "")


def test_a_decoder_has_no_vocabulary_head_and_no_cache(tmp_path: Path) -> None:
    opened = open_model(str(save_llama(tmp_path)))
    assert (opened.kind, opened.max_length) == ("decoder", 8192)
    assert type(opened.model).__name__ == "LlamaModel"
    assert opened.notes == ()
    assert opened.model(**opened.inputs([[1, 2, 3]])).past_key_values is None


def test_an_encoder_decoder_is_fed_on_both_sides(tmp_path: Path) -> None:
    opened = open_model(str(save_bart(tmp_path)))
    assert opened.kind == "encoder-decoder"
    batch = opened.inputs([[CLS, 5, 6, SEP]])
    assert batch["decoder_input_ids"].tolist() == [[SEP, CLS, 5, 6]]
    assert opened.model(**batch)[0].shape == (1, 4, 16)


def test_as_asked_for(bert: Path) -> None:
    opened = open_model(str(bert), dtype="bfloat16", device="cpu", attn_implementation="eager")
    assert opened.dtype == "bfloat16"
    assert opened.model.config._attn_implementation == "eager"


def test_weights_that_the_file_lacks_are_named(tmp_path: Path) -> None:
    """As when a checkpoint has fewer layers than its config says."""
    folder = save_bert(tmp_path)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}), encoding="utf-8")
    [note] = open_model(str(folder)).notes
    assert "are not in the file, so they are random: encoder.layer.2." in note


def test_a_config_of_another_model(tmp_path: Path) -> None:
    folder = save_bert(tmp_path)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 30}), encoding="utf-8")
    with pytest.raises(InputError, match="do not belong together"):
        open_model(str(folder))


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{", encoding="utf-8")


def unknown_model(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "abacus"}', encoding="utf-8")


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def a_folder_above(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "config.json").rename(folder / "inner" / "config.json")


def an_adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def truncated_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def other_sizes(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 64}), encoding="utf-8")


def its_own_code(folder: Path) -> None:
    config = {"model_type": "abacus", "auto_map": {"AutoConfig": "beads.Config", "AutoModel": "beads.Model"}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize(("damage", "words"), [
    (break_config, "cannot be opened"),
    (unknown_model, "abacus"),
    (no_config, "has no config.json; give the folder that save_pretrained wrote"),
    (a_folder_above, "there is one below it: give that folder"),
    (an_adapter, "it holds an adapter"),
    (no_weights, "no weights: expected model.safetensors"),
    (truncated_weights, "cannot be opened"),
    (other_sizes, "cannot be opened"),
    (its_own_code, "brings its own code; if you trust it, add --trust-remote-code"),
])  # fmt: skip
def test_folders_that_cannot_be_opened(tmp_path: Path, damage: Any, words: str) -> None:
    folder = save_bert(tmp_path)
    damage(folder)
    with pytest.raises(InputError) as caught:
        open_model(str(folder))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(folder))


def test_pickled_weights_only_when_asked_for(tmp_path: Path) -> None:
    folder = save_bert(tmp_path)
    expected = open_model(str(folder)).model.state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(expected, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"only as pickle \(.bin\).*--allow-pickle"):
        open_model(str(folder))
    opened = open_model(str(folder), allow_pickle=True)
    assert opened.notes == ()
    assert all(torch.equal(expected[name], value) for name, value in opened.model.state_dict().items())


@pytest.mark.parametrize(("data", "words"), [
    (b"", "is not a GGUF file: it is empty"),
    (b"PK\x03\x04....", "is not a GGUF file: it starts with b'PK"),
    (b"GGUF\x03\0\0\0", "cannot be opened"),
])  # fmt: skip
def test_files_that_are_no_gguf(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        open_model(str(path))
    assert words in str(caught.value)


@pytest.mark.parametrize(("package", "extra"), [("transformers", "hf"), ("gguf", "gguf"), ("accelerate", "gguf")])
def test_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")

    def find_spec(name: str) -> Any:
        return None if name == package else importlib.util.find_spec(name)

    monkeypatch.setattr(places, "find_spec", find_spec)
    with pytest.raises(MissingPackageError) as caught:
        open_model(str(path))
    assert f'pip install "headwise[{extra}]"' in str(caught.value)


@pytest.mark.parametrize("options", [{"dtype": "float8"}, {"device": "abacus"}, {"device": "cuda:99"}])
def test_options_that_do_not_exist(bert: Path, options: dict[str, str]) -> None:
    with pytest.raises(InputError):
        open_model(str(bert), **options)  # type: ignore[arg-type]


def test_lengths(tmp_path: Path) -> None:
    from transformers import RobertaConfig, RobertaModel

    class Tokenizer:
        model_max_length = 128

    bert = open_model(str(save_bert(tmp_path))).model
    assert max_length(bert, Tokenizer()) == POSITIONS
    assert max_length(torch.nn.Linear(2, 2), Tokenizer()) == 128
    assert max_length(torch.nn.Linear(2, 2), None) is None
    Tokenizer.model_max_length = int(1e30)
    assert max_length(torch.nn.Linear(2, 2), Tokenizer()) is None
    config = RobertaConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=34, pad_token_id=1,
    )  # fmt: skip
    roberta = RobertaModel(config).eval()
    assert max_length(roberta, None) == 32
    assert roberta(torch.full((1, 32), 5))[0].shape == (1, 32, 8)
    with pytest.raises((IndexError, RuntimeError)):
        roberta(torch.full((1, 33), 5))
