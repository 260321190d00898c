"""Token measures: the weight on tokens of some kind. They need to know which token stands at each key.

The token of a row is that of its own key self(i). An *earlier occurrence* is a key j < self(i) of the same sequence
with the same token, no padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import Geometry
from headwise.measures.delimiters import delimiters_of, is_delimiter
from headwise.measures.visibility import visible_rows

if TYPE_CHECKING:
    from headwise.measures.blockwise import Block

__all__ = ["Tokens", "delimiter", "delimiters_of", "duplicate", "induction", "tokens_of", "tokens_of_strings"]

NO_TOKEN = -1
NO_ROW = -2
"""Never equal to the id of a key."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a call; ids are int64. `b` is B or 1.

    Attributes:
        keys: The token at each key `[b, M]`; -1 for padding, which is no occurrence of anything.
        before: The token at the key before it, in the same sequence `[b, M]`; -1 where there is none.
        rows: The token at each row's own key `[b, N]`; -2 where unknown.
        delimiters: Which keys hold a delimiter, bool `[b, M]`; None: unknown.
    """

    keys: Tensor
    before: Tensor
    rows: Tensor
    delimiters: Tensor | None = None


def tokens_of(call: AttentionCall, geometry: Geometry, ids: Tensor, delimiters: Tensor | None = None) -> Tokens:
    """The tokens of a call from the ids of its keys.

    Args:
        call: The call.
        geometry: Its geometry.
        ids: The id of the token at each key `[B, M]` or `[1, M]` (with a cache: of all keys); negative: no token, for
            padding that the mask does not tell (a key that no real row may see is padding).
        delimiters: Which ids are delimiters, bool `[ids]`: from `delimiters_of`. None: unknown.

    Raises:
        ValueError: Ids of another shape or dtype.
    """
    B, _, N, M = call.sizes
    if ids.dim() != 2 or ids.shape[0] not in (1, B) or ids.shape[1] != M or ids.is_floating_point():
        came = f"{tuple(ids.shape)} of {ids.dtype}"
        raise ValueError(f"tokens: expected an integer id for each key, [B, M] = {(B, M)}; got {came}")
    ids = ids.to(call.q.device, torch.int64)
    listed = None
    if delimiters is not None:
        table = delimiters.to(ids.device)
        known = (ids >= 0) & (ids < len(table))
        listed = known & table[ids.clamp(0, len(table) - 1)]
    present = ids >= 0
    if call.mask is not None:  # else nothing is padding: a window may leave keys that no row of this call sees
        present = present & (visible_rows(call, geometry, geometry.real[:, None]) > 0).any(1)
    if N == M and not call.is_cross:
        present = present & geometry.real
    keys = torch.where(present, ids, NO_TOKEN)
    before = torch.nn.functional.pad(keys[:, :-1], (1, 0), value=NO_TOKEN)
    if geometry.segment is not None:
        begins = torch.nn.functional.pad(geometry.segment.diff(dim=-1) != 0, (1, 0), value=True)
        before = torch.where(begins, NO_TOKEN, before)
    own = geometry.own.expand(len(keys), N)
    at = keys.gather(-1, own.clamp(min=0))
    return Tokens(keys, before, torch.where((own >= 0) & (at >= 0), at, NO_ROW), listed)


def tokens_of_strings(
    call: AttentionCall, geometry: Geometry, strings: Sequence[Sequence[str]], special: Sequence[str] = ()
) -> Tokens:
    """The tokens of a call from plain strings: the same string is the same token.

    Args:
        call: The call.
        geometry: Its geometry.
        strings: B lists of M strings, one for each key; a shorter list leaves the keys after it without a token.
        special: Strings that are delimiters whatever they hold ("[SEP]", "<s>").

    Raises:
        ValueError: Another number of lists, or a list longer than the keys.
    """
    B, _, _, M = call.sizes
    if len(strings) not in (1, B) or any(len(one) > M for one in strings):
        came = f"{len(strings)} of {', '.join(str(len(one)) for one in strings[:4])}"
        raise ValueError(f"tokens: expected {B} lists of up to {M} strings, one string for each key; got {came}")
    number = {text: i for i, text in enumerate(dict.fromkeys(text for one in strings for text in one))}
    ids = torch.full((len(strings), M), NO_TOKEN)
    for row, one in zip(ids, strings, strict=True):
        row[: len(one)] = torch.tensor([number[text] for text in one], dtype=torch.int64)
    listed = torch.tensor([text in special or is_delimiter(text) for text in number] or [False])
    return tokens_of(call, geometry, ids, listed)


def delimiter(block: Block) -> Tensor:
    """`sum_j p_ij [t_j is a delimiter]`, `[b, H, R]`: the weight on special, punctuation and line-break tokens.

    Range 0..1. Source: Clark et al. 2019.
    """
    assert block.tokens is not None
    assert block.tokens.delimiters is not None
    return block.weighed(block.of_keys(block.tokens.delimiters)[:, None, None])


def duplicate(block: Block) -> Tensor:
    """`sum_{j < self(i)} p_ij [t_j = t_i]`, `[b, H, R]`: the weight on earlier occurrences of the same token.

    Range 0..1. Undefined for a row that may see no earlier occurrence. Source: Wang et al. 2022.
    """
    assert block.tokens is not None
    return _matched(block, block.tokens.keys, block.own - 1)


def induction(block: Block) -> Tensor:
    """`sum_{j <= self(i)} p_ij [t_{j-1} = t_i]`, `[b, H, R]`: on the token after an earlier occurrence of the current.

    Range 0..1. Undefined for a row that may see no such key. The own key is one if the token before it is the same.
    Source: Olsson et al. 2022 (prefix matching).
    """
    assert block.tokens is not None
    return _matched(block, block.tokens.before, block.own)


def _matched(block: Block, words: Tensor, last: Tensor) -> Tensor:
    """The weight on keys up to `last [b, R]` at which `words [b, M]` is the row's token."""
    assert block.tokens is not None
    mine = block.of_rows(block.tokens.rows)
    same = mine[..., None] == block.of_keys(words)[:, None, block.keys]
    same = (same & (block.key_numbers <= last[..., None]))[:, None]
    defined = (same & block.visible_part).any(-1)
    value = (block.part * same).sum(-1)
    return torch.where(defined, value, math.nan)
