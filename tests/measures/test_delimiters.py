"""Which tokens are delimiters: by their text, and by the vocabularies of tokenizers of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwise.measures.delimiters import delimiters_of, is_delimiter

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers (of transformers) is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".", True), (" ,", True), ("...", True), ("?!", True), ("\n", True), ("\n\n", True), ("\r\n", True),
        (" \n  ", True), (".\n", True), ("。", True), ("“", True), (" - ", True), ("(", True), ("_", True), ("#", True),
        ("a", False), (" ", False), ("", False), ("\t", False), ("   ", False), ("a.", False), ("3", False),
        ("+", False), ("$", False), ("é", False), ("中", False), ("�", False), ("a\n", False),
    ],
)  # fmt: skip
def test_by_text(text: str, expected: bool) -> None:
    assert is_delimiter(text) is expected


def listed(tokenizer: Any) -> set[str]:
    table = delimiters_of(tokenizer)
    assert len(table) >= len(tokenizer)
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return {name for name, yes in zip(names, table.tolist(), strict=False) if yes}


def byte_level() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, "Ġ,", "Ġthe", "ĊĊ", "Ċa", "ãĢĤ", "Ã©", "<s>", "<|user|>"]
    one = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    one.decoder = decoders.ByteLevel()
    one.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=one, bos_token="<s>")
    fast.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    return fast


def test_a_byte_level_vocabulary() -> None:
    found = listed(byte_level())
    assert {",", ".", "Ġ,", "Ċ", "ĊĊ", "ãĢĤ", "<s>", "<|user|>", "č"} <= found
    assert not found & {"a", "Ġthe", "Ċa", "Ã©", "Ġ", "ĉ", "ã", "Ã", "5"}


def test_a_sentencepiece_vocabulary() -> None:
    from tokenizers import Tokenizer, decoders, models

    words = ["<unk>", "<s>", "</s>", "<0x0A>", "<0x41>", "▁", "▁,", ".", "▁the", "。", "é", "<custom>"]
    one = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[], unk_token="<unk>"))
    one.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=one, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    assert listed(fast) == {"<unk>", "<s>", "</s>", "<0x0A>", "▁,", ".", "。"}


def test_a_word_piece_vocabulary() -> None:
    from tokenizers import Tokenizer, decoders, models

    words = ["[PAD]", "[CLS]", "[SEP]", "a", "##b", ",", "##.", "##é", "5"]
    one = Tokenizer(models.WordPiece(vocab={w: i for i, w in enumerate(words)}, unk_token="[PAD]"))
    one.decoder = decoders.WordPiece(prefix="##")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=one, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )
    assert listed(fast) == {"[PAD]", "[CLS]", "[SEP]", ",", "##."}


def test_a_slow_tokenizer(tmp_path: Path) -> None:
    """Written in Python: bytes are its tokens."""
    from transformers.models.byt5.tokenization_byt5 import ByT5Tokenizer

    found = listed(ByT5Tokenizer(extra_ids=2))
    assert {".", ",", "\n", "<pad>", "</s>"} <= found
    assert not found & {"a", "5", " ", "+"}


def test_added_tokens_that_are_special_lie_beyond_the_vocabulary() -> None:
    fast = byte_level()
    before = len(fast)
    fast.add_special_tokens({"pad_token": "<pad>"})
    fast.add_tokens(["word", ";;", tokenizers.AddedToken("<|im_start|>", special=True)])
    table = delimiters_of(fast)
    assert table[before:].tolist() == [True, False, True, True]


@pytest.mark.parametrize("what", ["gpt2", 3, None])
def test_what_is_no_tokenizer(what: Any) -> None:
    with pytest.raises(ValueError, match=f"expected a transformers tokenizer; got {type(what).__name__}, which has no"):
        delimiters_of(what)
