"""Token ids: which token stands at each key of an attention call, those in a cache among them."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.capture.forwards import Forward, are_ids
from headwise.kernels import Geometry
from headwise.measures.delimiters import delimiters_of, is_delimiter
from headwise.measures.tokens import NO_TOKEN, Tokens, tokens_of

REMEMBERED = 4
"""Batches whose ids are kept for the forwards that continue them."""


@dataclass
class _Read:
    """What the rows of a batch have read.

    Attributes:
        ids: `[B, L]`.
        layer: The layer whose keys they are known by; -1: none yet.
        keys: A sum of the keys of each row there `[B]`.
    """

    ids: Tensor
    layer: int = -1
    keys: Tensor | None = None

    def order(self, call: AttentionCall, past: int) -> Tensor | None:
        """Which row each row of the cache was before: beam search moves them. None: that cannot be told."""
        if self.keys is None or call.place.layer != self.layer or call.k.shape[2] <= past:
            return None
        now = _sums(call, past)
        if len(now) != len(self.keys):
            return None
        near = (now[:, None] - self.keys).abs() <= 1e-9 * (1 + self.keys.abs())
        stayed = near.diagonal()
        moved = torch.where(stayed, torch.arange(len(now), device=now.device), near.int().argmax(1))
        return moved if bool(near.any(1).all()) else None


def _sums(call: AttentionCall, length: int) -> Tensor:
    """A sum `[B]` of the first keys of each row, with weights so that no two texts share it."""
    keys = call.k[:, 0, :length].double()
    by_place = torch.arange(1, length + 1, device=keys.device, dtype=torch.float64).sqrt()
    return (keys * by_place[:, None]).sum((1, 2))


class TokenIds:
    """Knows the tokens of every call of a watch, from the ids that the model was given or from `tokens=`.

    Args:
        tokenizer: Says which ids are delimiters; None: not known, unless the tokens are given as strings.
        tokens: The tokens as strings, a list for each sequence in the order in which they are read: they stand in
            for ids.
    """

    def __init__(self, tokenizer: Any, tokens: Many[Many[str]] | None) -> None:
        self._tokenizer = tokenizer
        self._strings = tokens
        self._number: dict[str, int] = {}
        self._table: Tensor | None = None
        self._no_table = tokenizer is None
        self._kept: dict[tuple[int, ...], _Read] = {}

    @property
    def delimiters(self) -> Tensor | None:
        """Which ids are delimiters, bool `[ids]`; None: unknown."""
        if self._strings is not None:
            if self._table is None or len(self._table) < len(self._number):
                self._table = torch.tensor([is_delimiter(text) for text in self._number] or [False])
            return self._table
        if self._table is None and not self._no_table:
            try:
                self._table = delimiters_of(self._tokenizer)
            except ValueError:
                self._no_table = True  # an object that only decodes
        return self._table

    def of(self, call: AttentionCall, geometry: Geometry, forward: Forward) -> Tokens | None:
        """The tokens of a call; None where the model was given none, or they do not fit its keys."""
        B, _, _, M = call.sizes
        ids = self._source(call, forward)
        if ids is None or ids.shape[0] not in (1, B) or ids.shape[1] > M:
            return None
        self._note_keys(call, forward)
        if ids.shape[1] < M:
            # A cache of a fixed size has more room than tokens; any other difference is not understood.
            last = int(geometry.spans[..., 1].max())
            if last > ids.shape[1]:
                return None
            ids = torch.nn.functional.pad(ids, (0, M - ids.shape[1]), value=NO_TOKEN)
        return tokens_of(call, geometry, ids, self.delimiters)

    def _source(self, call: AttentionCall, forward: Forward) -> Tensor | None:
        """The ids `[B, L]` of the tokens that the keys come from."""
        given = forward.arguments
        in_decoder = forward.encoder_decoder and "decoder" in call.place.name.split(".")
        if call.is_cross or (forward.encoder_decoder and not in_decoder):
            return _ids(given.get("input_ids"))
        if forward.ids is not None:
            return forward.ids
        if in_decoder:
            new = _ids(given.get("decoder_input_ids"))
        elif self._strings is not None:
            new = self._from_strings(forward)
        else:
            new = _ids(given.get("input_ids")) if "input_ids" in given else _only_ids(given)
        return self._grown(call, forward, new)

    def _grown(self, call: AttentionCall, forward: Forward, new: Tensor | None) -> Tensor | None:
        """The ids of a forward after those that its cache holds."""
        if new is None:
            return None
        names = forward.sequences
        if forward.past:
            before = self._kept.get(names)
            if before is None or before.ids.shape[1] != forward.past or len(before.ids) != len(new):
                return None
            order = before.order(call, forward.past)
            if order is None:
                return None
            new = torch.cat((before.ids.to(new.device)[order], new), -1)
        elif forward.past is None:
            return None
        forward.ids = new.clone()
        self._kept.pop(names, None)
        self._kept[names] = _Read(forward.ids)
        while len(self._kept) > REMEMBERED:
            self._kept.pop(next(iter(self._kept)))
        return forward.ids

    def _note_keys(self, call: AttentionCall, forward: Forward) -> None:
        """Remember the keys of a forward's first call, by which its rows are known again."""
        read = self._kept.get(forward.sequences)
        if read is not None and read.ids is forward.ids and read.layer < 0 and not call.is_cross:
            read.layer, read.keys = call.place.layer, _sums(call, read.ids.shape[1])

    def _from_strings(self, forward: Forward) -> Tensor | None:
        """Numbers for the strings of a forward's sequences, at the places of its real tokens."""
        assert self._strings is not None
        rows = [self._strings[n - 1] if 0 < n <= len(self._strings) else () for n in forward.sequences]
        if forward.past or not any(rows):
            return None
        mask = forward.arguments.get("attention_mask")
        length = max(len(row) for row in rows)
        places = torch.arange(length).expand(len(rows), length)
        if isinstance(mask, Tensor) and mask.dim() == 2 and len(mask) == len(rows):
            real = mask.cpu() != 0
            length = real.shape[1]
            if any(len(row) > int(some.sum()) for row, some in zip(rows, real, strict=True)):
                return None
            order = torch.argsort(~real, dim=-1, stable=True)  # the places of the real tokens, first to last
            places = order
        ids = torch.full((len(rows), length), NO_TOKEN)
        for row, texts in enumerate(rows):
            numbers = [self._number.setdefault(str(text), len(self._number)) for text in texts]
            ids[row, places[row, : len(numbers)]] = torch.tensor(numbers, dtype=torch.int64)
        return ids


def _ids(value: object) -> Tensor | None:
    return value.detach() if are_ids(value) else None


def _only_ids(arguments: dict[str, Any]) -> Tensor | None:
    """The one tensor of whole numbers `[B, L]` among the arguments of a model with names of its own."""
    found = [ids for value in arguments.values() if (ids := _ids(value)) is not None]
    return found[0] if len(found) == 1 else None
