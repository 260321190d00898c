"""UTF-8 as tokens: a token is a byte, and its id is the byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

BYTES = 256


class ByteTokenizer:
    """Reads any text and knows no special tokens; it has what a tokenizer of transformers is asked for here.

    Attributes:
        model_input_names: What a model is fed.
        all_special_ids: None.
    """

    model_input_names = ("input_ids",)
    all_special_ids: tuple[int, ...] = ()

    def __len__(self) -> int:
        return BYTES

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        """The ids of a text; options of other tokenizers change nothing."""
        return {"input_ids": self.encode(text)}

    def encode(self, text: str, **options: Any) -> list[int]:
        """The bytes of a text, 0..255."""
        return list(text.encode())

    def decode(self, ids: Iterable[int], **options: Any) -> str:
        """The text of some bytes; U+FFFD stands for what is no character."""
        return bytes(ids).decode("utf-8", "replace")

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """ASCII as it is, other bytes as in "<0xE6>"."""
        return [chr(one) if one < 0x80 else f"<0x{one:02X}>" for one in ids]
