"""Which tokens are delimiters: special tokens, punctuation, and line breaks."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import torch
from torch import Tensor

_LETTERS = re.compile("[A-Za-z0-9]")
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_BREAKS = frozenset("\n\r\v\f\x85\u2028\u2029")


def is_delimiter(text: str) -> bool:
    """Whether a token's text is punctuation (Unicode category P) or a line break, and nothing else but spaces."""
    marks = "".join(text.split())
    if marks:
        return all(unicodedata.category(mark).startswith("P") for mark in marks)
    return not _BREAKS.isdisjoint(text)


def delimiters_of(tokenizer: Any) -> Tensor:
    """Which ids of a tokenizer are delimiters: bool `[ids]`.

    Args:
        tokenizer: A tokenizer of transformers, fast or slow, or anything with its `__len__`, `convert_ids_to_tokens`,
            `decode` and `all_special_ids`.

    Raises:
        ValueError: An object that is none.
    """
    for name in ("__len__", "convert_ids_to_tokens", "decode", "all_special_ids"):
        if not hasattr(tokenizer, name):
            kind = type(tokenizer).__name__
            raise ValueError(f"delimiters_of: expected a transformers tokenizer; got {kind}, which has no {name}")
    special = set(tokenizer.all_special_ids)
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    special |= {int(number) for number, token in added.items() if getattr(token, "special", False)}
    size = max(len(tokenizer), *(number + 1 for number in special), 1)
    table = torch.zeros(size, dtype=torch.bool)
    table[sorted(special)] = True
    for number, token in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))):
        # Whatever alphabet a vocabulary is written in, Latin letters and digits stand for themselves: most tokens
        # need not be decoded. Bytes are written <0x0A>.
        if token is None or table[number] or (_LETTERS.search(token) and not _BYTE.fullmatch(token)):
            continue
        table[number] = is_delimiter(_text(tokenizer, number))
    return table


def _text(tokenizer: Any, number: int) -> str:
    text = tokenizer.decode([number], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text if isinstance(text, str) else "".join(text)
