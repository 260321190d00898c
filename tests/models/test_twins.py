"""The built-in twins: alike but for their heads, trained, and as their card says."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from scripts import corpus
from scripts.twins import SIZES, command
from scripts.twins import bits as held_out_bits
from torch import nn

from headwise.errors import FileFormatError, InputError
from headwise.models import twins
from headwise.models.byte_tokens import ByteTokenizer
from headwise.models.opening import open_model
from headwise.models.transformer import Architecture, Sizes
from headwise.studies.transformer import build

PLACE = Path(twins.__file__).parent
MOST = 4_000_000
SAMPLES = {
    "English": "In the morning the old king went down to the river, and there he found that the boat was gone. "
    "“Where are my men?” he said, but nobody would answer him.",
    "Chinese": "如果要在文档中插入新的表格，请先选择需要的单元格，然后点击鼠标右键，在打开的菜单中选择“插入”。"
    "这个命令也可以用来更改文本的格式。",
}
"""Written for this test: no part of what was trained on."""


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return {name: (PLACE / f"{name.removeprefix('twins:')}.safetensors").read_bytes() for name in twins.NAMES}


def bits(model: nn.Module, text: str) -> float:
    """Bits per byte, of all bytes but the first."""
    ids = torch.tensor([ByteTokenizer().encode(text)])
    with torch.no_grad():
        return F.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:]).item() / math.log(2)


def untrained(name: str, files: dict[str, bytes]) -> nn.Module:
    facts = twins.facts_of(files[name])
    return build(Architecture(**facts["architecture"]), Sizes(**facts["sizes"]), facts["seed"]).eval()


@pytest.mark.parametrize("name", twins.NAMES)
def test_a_twin_is_ready_to_be_read(name: str) -> None:
    opened = open_model(name)
    assert (opened.kind, opened.max_length, opened.name, opened.notes) == ("decoder", 256, name, ())
    assert opened.dtype == "float32"
    assert not opened.model.training
    assert not any(parameter.requires_grad for parameter in opened.model.parameters())
    assert opened.tokenizer is not None
    batch = opened.inputs([opened.tokenizer("注!")["input_ids"]])
    assert batch["input_ids"].tolist() == [[0xE6, 0xB3, 0xA8, 0x21]]
    assert list(batch) == ["input_ids"]
    with torch.no_grad():
        logits = opened.model(**batch)
    assert logits.shape == (1, 4, 256)
    assert torch.isfinite(logits).all()


def test_they_differ_in_nothing_but_the_cut(files: dict[str, bytes]) -> None:
    one, eight = (load(files[name]) for name in twins.NAMES)
    assert {name: tensor.shape for name, tensor in one.items()} == {name: t.shape for name, t in eight.items()}
    first, second = (twins.facts_of(files[name]) for name in twins.NAMES)
    assert (first["sizes"].pop("num_heads"), first["sizes"].pop("head_dim")) == (1, 128)
    assert (second["sizes"].pop("num_heads"), second["sizes"].pop("head_dim")) == (8, 16)
    assert first == second
    assert any(not torch.equal(one[name], eight[name]) for name in one), "two trainings, not one file twice"
    assert [twins.read_twin(name).blocks[0].attention.num_heads for name in twins.NAMES] == [1, 8]


def test_they_began_alike(files: dict[str, bytes]) -> None:
    one, eight = (untrained(name, files).state_dict() for name in twins.NAMES)
    assert all(torch.equal(one[name], eight[name]) for name in one)


def test_they_are_small(files: dict[str, bytes]) -> None:
    assert sum(map(len, files.values())) <= MOST


def test_weights_are_those_of_the_file(files: dict[str, bytes]) -> None:
    for name, data in files.items():
        model = twins.read_twin(name, torch.float64)
        for key, tensor in load(data).items():
            assert torch.equal(model.state_dict()[key], tensor.double())


@pytest.mark.parametrize("language", SAMPLES)
@pytest.mark.parametrize("name", twins.NAMES)
def test_they_have_learned(name: str, language: str, files: dict[str, bytes]) -> None:
    reached = bits(twins.read_twin(name), SAMPLES[language])
    assert reached < 3.4
    assert reached < bits(untrained(name, files), SAMPLES[language]) - 3


@pytest.mark.parametrize("name", twins.NAMES)
def test_a_character_that_has_begun_is_finished(name: str) -> None:
    """After the first bytes of a character nearly all probability is on bytes that can continue it."""
    content = "表格中的文字".encode()
    ids = torch.tensor([list(content)])
    with torch.no_grad():
        chances = twins.read_twin(name)(ids).softmax(-1)[0]
    within = [place for place in range(len(content)) if place % 3 < 2]
    continued = chances[within, 0x80:0xC0].sum(-1)
    assert continued.mean() > 0.95
    assert continued.min() > 0.8


def test_the_card_says_what_is_so(files: dict[str, bytes]) -> None:
    card, page = twins.card(), (PLACE / "card.md").read_text("utf-8")
    assert set(card["twins"]) == set(twins.NAMES)
    for name, data in files.items():
        about = card["twins"][name]
        assert (about["sha256"], about["bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
        assert about["parameters"] == sum(p.numel() for p in twins.read_twin(name).parameters())
        assert about["heads"] * about["d_k"] == 128
        assert about["bits_per_byte"]["Chinese"] < 4
        assert abs(about["bits_per_byte"]["all"] - about["bits_per_byte_before_rounding"]) < 0.01
        assert about["bits_per_byte"]["all"] < about["bits_per_byte_untrained"] - 3
        for fact in (about["sha256"], f"{about['bytes']:,}", f"{about['bits_per_byte']['English']:.3f}"):
            assert fact in page
    assert card["command"] in page
    assert {part["part"] for part in card["data"]} == set(corpus.PARTS)
    for part in card["data"]:
        source = corpus.SOURCES[corpus.PARTS[part["part"]].source]
        assert (part["licence"], part["source_sha256"]) == (source.licence, source.sha256)
        assert f"| {part['part']} | {part['bytes']:,} | {source.title} ({part['source']}) | {source.licence} |" in page
    assert sum(part["bytes"] for part in card["data"] if part["language"] == "Chinese") > 1_000_000


@pytest.mark.parametrize("name", twins.NAMES)
def test_the_loss_of_the_card_is_that_of_the_weights(name: str) -> None:
    lines = twins.built_in_text().splitlines()
    sizes = [len(line.encode()) - 1 for line in lines]
    measured = sum(bits(twins.read_twin(name), line) * size for line, size in zip(lines, sizes, strict=True)) / sum(
        sizes
    )
    assert measured == pytest.approx(twins.card()["twins"][name]["bits_per_byte_of_the_built_in_text"], abs=1e-3)


def test_the_built_in_text_fits() -> None:
    text = twins.built_in_text()
    lines = text.splitlines()
    assert 200 <= len(text) <= 400
    assert max(len(line.encode()) for line in lines) <= 256
    assert all(len(line.encode()) > 20 for line in lines)
    assert {"一", "👀", "é", "д", "東"} <= set(text)
    assert "一" in lines[0], "the page shows the first"


def test_reading_one_draws_no_random_number() -> None:
    before = torch.get_rng_state()
    twins.read_twin(twins.DEFAULT)
    assert torch.equal(torch.get_rng_state(), before)


def test_as_asked_for() -> None:
    assert open_model("twins:h1", dtype="bfloat16", device="cpu").dtype == "bfloat16"
    with pytest.raises(InputError, match="is for models of transformers"):
        open_model("twins:h1", attn_implementation="eager")
    with pytest.raises(InputError, match="there is no built-in 'twins:h2'; there are twins:h1 and twins:h8"):
        open_model("twins:h2")
    with pytest.raises(InputError, match="unknown dtype"):
        open_model("twins:h8", dtype="int8")


@pytest.mark.parametrize("damage", [b"", b"\x08\0\0\0\0\0\0\0{}      ", None])
def test_a_damaged_installation_says_so(damage: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> bytes:
        if damage is None:
            raise FileNotFoundError(name)
        return damage

    monkeypatch.setattr(twins, "_bytes", broken)
    with pytest.raises(FileFormatError, match=r"twins:h8 that come with headwise cannot be read .*; install it again"):
        twins.read_twin("twins:h8")


@given(st.text())
def test_bytes_are_the_text(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids: Any = tokenizer(text, add_special_tokens=True, verbose=False)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert [one if len(one) == 1 else int(one[3:5], 16) for one in tokenizer.convert_ids_to_tokens(ids)] == [
        chr(byte) if byte < 0x80 else byte for byte in ids
    ]
    assert len(tokenizer) == 256


def test_the_sizes_are_those_of_the_plan(files: dict[str, bytes]) -> None:
    plan = twins.card()["plan"]
    for data in files.values():
        facts = twins.facts_of(data)
        assert {name: plan[name] for name in ("d_model", "num_layers", "d_ff", "dropout", "init")} == {
            name: facts["sizes"][name] for name in ("d_model", "num_layers", "d_ff", "dropout", "init")
        }
        assert (facts["architecture"]["length"], facts["steps"]) == (plan["length"], plan["steps"])
        assert asdict(Sizes(**facts["sizes"])) == facts["sizes"]


def test_the_command_of_the_card_is_the_one_that_trains(tmp_path: Path) -> None:
    card = twins.card()
    words = [Path(word).name if word.endswith(".txt") else word for word in command(tmp_path)]
    assert " ".join(words[2:]).startswith(card["command"])
    begun = {name.replace("-", "_").replace("layers", "num_layers"): value for name, value in SIZES.items()}
    for name in ("d_model", "num_layers", "d_ff", "length", "batch", "steps", "warmup", "learning_rate"):
        assert card["plan"][name] == begun[name]
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "plan.json").write_text("{}")
    assert "--resume" in command(tmp_path)


def test_how_held_out_text_is_measured() -> None:
    """Every window counts once, and each predicts what follows it."""

    class Follows(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return 3.0 * F.one_hot((ids + 1) % 256, 256).float()

    content = torch.arange(1001) % 256
    sure = -math.log2(math.exp(3) / (math.exp(3) + 255))
    assert held_out_bits(Follows(), content, 10, 1000) == pytest.approx(sure, rel=1e-6)
    assert held_out_bits(Follows(), content, 10, 7) == pytest.approx(sure, rel=1e-6)
    assert held_out_bits(Follows(), content.flip(0), 10, 1000) > sure + 4
