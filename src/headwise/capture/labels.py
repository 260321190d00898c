"""Labels: which rows belong to which of the caller's groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.capture.forwards import Forward
from headwise.errors import shown

Groups: TypeAlias = Sequence[str] | Sequence[Sequence[str]]


class Labels:
    """A label per sequence, or per token of a sequence.

    Args:
        groups: As in `headwise.watch`; None: no groups.

    Raises:
        ValueError: Neither a list of labels nor a list of lists of labels.
    """

    def __init__(self, groups: Groups | None) -> None:
        self._groups = None if groups is None else list(groups)
        some = self._groups or []
        by_sequence = all(isinstance(one, str) for one in some)
        by_token = all(
            not isinstance(one, str) and isinstance(one, Sequence) and all(isinstance(x, str) for x in one)
            for one in some
        )
        if isinstance(groups, str) or not (by_sequence or by_token) or self._groups == []:
            raise ValueError(
                "groups: expected a label for each sequence, as in ['en', 'zh'], or a list of labels for each, one a "
                f"token; got {shown(groups)}"
            )
        self._read: dict[int, int] = {}

    def complaint(self, num_sequences: int) -> str:
        """What is wrong with the labels for a watch that read so many sequences; "" if nothing is."""
        if self._groups is None or not num_sequences:
            return ""
        if len(self._groups) != num_sequences:
            kind = "labels" if isinstance(self._groups[0], str) else "lists of labels"
            return (
                f"groups: {len(self._groups):,} {kind} for {num_sequences:,} sequences: those of all forwards, in the "
                "order in which they were read"
            )
        for number, labels in enumerate(self._groups, 1):
            read = self._read.get(number, 0)
            if not isinstance(labels, str) and len(labels) != read:
                return (
                    f"groups: {len(labels):,} labels for a sequence of {read:,} tokens (padding too, where a batch is "
                    "padded)"
                )
        return ""

    def rows(self, call: AttentionCall, forward: Forward, of_tokens: bool = True) -> dict[str, Tensor]:
        """The rows of each label, bool `[B, N]`, of those that occur in a call.

        A sequence without labels belongs to none. Where labels are by token, decoding goes on with them as far as
        they go; the rows of a decoder that reads what an encoder has read, of windows, and of towers for images or
        sound (`of_tokens=False`) have none.
        """
        B, _, N, _ = call.sizes
        if self._groups is None or len(forward.sequences) != B:
            return {}
        in_decoder = forward.encoder_decoder and "decoder" in call.place.name.split(".")
        of_tokens = of_tokens and not call.is_cross and not in_decoder
        key = (B, N, of_tokens, call.q.device)
        if key not in forward.labelled:
            found = self._rows(B, N, of_tokens, forward)
            forward.labelled[key] = {label: rows.to(call.q.device) for label, rows in found.items()}
        return forward.labelled[key]

    def _rows(self, batch: int, num_rows: int, of_tokens: bool, forward: Forward) -> dict[str, Tensor]:
        assert self._groups is not None
        given = [self._groups[n - 1] if 0 < n <= len(self._groups) else None for n in forward.sequences]
        found: dict[str, Tensor] = {}
        for row, labels in enumerate(given):
            if isinstance(labels, str):
                _rows_of(found, labels, batch, num_rows)[row] = True
            elif labels is not None and of_tokens:
                start = forward.past or 0
                number = forward.sequences[row]
                self._read[number] = max(self._read.get(number, 0), start + num_rows)
                for position, label in enumerate(labels[start : start + num_rows]):
                    _rows_of(found, label, batch, num_rows)[row, position] = True
        return found


def _rows_of(found: dict[str, Tensor], label: str, batch: int, num_rows: int) -> Tensor:
    if label not in found:
        found[label] = torch.zeros(batch, num_rows, dtype=torch.bool)
    return found[label]
