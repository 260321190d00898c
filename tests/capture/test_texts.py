"""Tokens as text, also where one character is several tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.capture.texts import bytes_of, token_texts


class Bytes:
    """Every byte is a token; those that are no ASCII are written <0xE8>, as sentencepiece does."""

    @staticmethod
    def decode(ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    @staticmethod
    def convert_ids_to_tokens(ids: Sequence[int]) -> list[str]:
        return [chr(one) if one < 0x80 else f"<0x{one:02X}>" for one in ids]


class Pieces:
    """A byte-level BPE as GPT-2 writes it: its pieces are the tokens."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(filter(None, (bytes_of(self)(one) for one in ids))).decode("utf-8", "replace")

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.pieces[one] for one in ids]


def shown(text: str | bytes) -> list[str]:
    content = text if isinstance(text, bytes) else text.encode()
    return token_texts(list(content), Bytes.decode, bytes_of(Bytes))


def test_bytes_of_one_character_are_shown_as_that_character() -> None:
    assert shown("a谁!") == ["a", "谁₁", "谁₂", "谁₃", "!"]
    assert shown("🗼") == ["🗼₁", "🗼₂", "🗼₃", "🗼₄"]
    assert shown("é") == ["é₁", "é₂"]
    assert shown("שא") == ["ש₁", "ש₂", "א₁", "א₂"]
    assert shown("ع") == ["ع₁", "ع₂"]


def test_a_combining_mark_stands_on_a_circle_of_its_own() -> None:
    assert shown("e\u0301") == ["e", "◌\u0301₁", "◌\u0301₂"]
    assert shown("कि") == ["क₁", "क₂", "क₃", "◌ि₁", "◌ि₂", "◌ि₃"]
    assert token_texts([0], lambda ids: "\u0301") == ["◌\u0301"]


def test_what_shows_nothing_is_named_by_its_number() -> None:
    joined = shown("👩\u200d💻")
    assert joined == [f"👩{n}" for n in "₁₂₃₄"] + [f"U+200D{n}" for n in "₁₂₃"] + [f"💻{n}" for n in "₁₂₃₄"]
    assert shown("\ufe0f")[0] == "U+FE0F₁"
    assert shown("\u3000") == ["U+3000₁", "U+3000₂", "U+3000₃"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xffa", ["\\xff", "a"]),
        (b"a\xe8", ["a", "\\xe8"]),
        (b"\xb0\x81!", ["\\xb0", "\\x81", "!"]),
        ("谁".encode()[1:] + "谁".encode()[:2], ["\\xb0", "\\x81", "\\xe8", "\\xb0"]),
        (b"\xe8" + "谁".encode(), ["\\xe8", "谁₁", "谁₂", "谁₃"]),
        (b"\xed\xa0\x80", ["\\xed", "\\xa0", "\\x80"]),  # half of a surrogate pair is no character
        (b"\xc0\xafx", ["\\xc0", "\\xaf", "x"]),  # nor is an overlong one
    ],
)
def test_bytes_that_are_no_character_are_shown_as_bytes(content: bytes, expected: list[str]) -> None:
    assert shown(content) == expected


def test_the_replacement_character_itself_is_told_by_its_bytes() -> None:
    assert shown("\ufffd!") == ["\ufffd₁", "\ufffd₂", "\ufffd₃", "!"]
    assert token_texts([0], Pieces("ï¿½").decode, bytes_of(Pieces("ï¿½"))) == ["\ufffd"]


def test_where_bytes_are_unknown_the_tokenizers_own_text_stays() -> None:
    assert token_texts([0xFF, 0x61], Bytes.decode) == ["\ufffd", "a"]
    assert token_texts([0x61, 0xE8], Bytes.decode) == ["a", "\ufffd"]
    assert token_texts([], Bytes.decode) == []
    assert bytes_of(object())(3) is None
    assert bytes_of(Pieces("谁"))(0) is None


def test_pieces_of_several_bytes() -> None:
    """GPT-2 writes " 注意" as pieces that end within a character."""
    tokenizer = Pieces("Ġæ³", "¨", "æ", "ĦıĠ", "ok", "æ³")
    assert token_texts([0, 1, 4], tokenizer.decode, bytes_of(tokenizer)) == [" 注₁", " 注₂", "ok"]
    assert token_texts([2, 3], tokenizer.decode, bytes_of(tokenizer)) == ["意 ₁", "意 ₂"]
    assert token_texts([0, 4], tokenizer.decode, bytes_of(tokenizer)) == [" \\xe6\\xb3", "ok"]


@pytest.mark.parametrize("name", ["byte-level BPE", "byte fallback"])
def test_tokenizers_of_transformers(name: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    if name == "byte-level BPE":
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        model = tokenizers.models.BPE(vocab={sign: n for n, sign in enumerate(alphabet)}, merges=[])
        inner = tokenizers.Tokenizer(model)
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = tokenizers.decoders.ByteLevel()
    else:
        vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"a": 256, "<unk>": 257}
        inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
        inner.decoder = tokenizers.decoders.ByteFallback()
    tokenizer: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=inner)
    ids = tokenizer("a注👀")["input_ids"]
    expected = ["a", "注₁", "注₂", "注₃", "👀₁", "👀₂", "👀₃", "👀₄"]
    assert token_texts(ids, tokenizer.decode, bytes_of(tokenizer)) == expected
    assert token_texts(ids[2:], tokenizer.decode, bytes_of(tokenizer))[:3] == ["\\xb3", "\\xa8", "👀₁"]


@given(st.text(), st.integers(0, 3), st.integers(0, 3))
def test_a_label_for_every_token_and_the_text_can_be_read_from_them(text: str, before: int, after: int) -> None:
    content = text.encode()
    cut = content[before : len(content) - after]
    labels = shown(cut)
    assert len(labels) == len(cut)
    assert all(labels)
    firsts = [one.removesuffix("₁") for one in labels if not one.endswith(tuple("₂₃₄")) and not one.startswith("\\x")]
    printed = [sign for sign in cut.decode("utf-8", "ignore") if sign.isprintable() and sign not in "\\₂₃₄₁"]
    for sign in printed:
        assert any(sign in one or one == f"U+{ord(sign):04X}" for one in firsts)
