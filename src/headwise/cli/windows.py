"""A text becomes the sequences that a model reads: windows of one length, no token lost or repeated."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.errors import InputError
from headwise.models.places import user_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headwise.models.opening import OpenedModel

# From LONG on, a model is not read in windows of its full length: a CPU waits long for little more to see.
LONG, DEFAULT = 8192, 2048
# Tokens of one forward pass unless --batch-size says otherwise: few enough for memory, enough for every core.
BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Windows:
    """A text as a model reads it.

    Attributes:
        ids: Token ids of each window, special tokens included; only the last may be shorter.
        length: Tokens of a full window.
        tokens: Tokens of the text itself.
        why: Why the windows have this length, where the model did not decide it; else "".
    """

    ids: list[list[int]]
    length: int
    tokens: int
    why: str = ""

    def batches(self, size: int | None = None) -> Iterator[list[list[int]]]:
        """The windows in groups of one length, so that no padding is needed.

        Args:
            size: Windows a group at most; None lets a group have about 4096 tokens.
        """
        size = size or max(1, BATCH_TOKENS // max(1, self.length))
        group: list[list[int]] = []
        for window in self.ids:
            if group and (len(group) == size or len(window) != len(group[0])):
                yield group
                group = []
            group.append(window)
        if group:
            yield group


def read_text(name: str) -> str:
    """The text of a file; "-" is standard input.

    Raises:
        InputError: It cannot be read, is not UTF-8 text, or is empty.
    """
    where = "standard input" if name == "-" else name
    if name == "-" and sys.stdin is None:
        raise InputError("--file -: standard input is closed; give the name of a file")
    try:
        data = sys.stdin.buffer.read() if name == "-" else user_path(name).read_bytes()
    except OSError as error:
        raise InputError(f"--file {name} cannot be read: {error.strerror or error}") from error
    if b"\0" in data:
        raise InputError(f"{where} is not plain text: it has a zero byte at {data.index(0)}; give a text file in UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} is not UTF-8 text: byte {data[error.start]:#04x} at {error.start}; save it as UTF-8"
        ) from error
    return checked(text, where)


def checked(text: str, where: str) -> str:
    """The text, which must have something to read.

    Raises:
        InputError: It is empty, or holds what no text can.
    """
    if not text.strip():
        raise InputError(f"{where} is empty: there is nothing to read; give some text")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"{where} is not UTF-8 text; check the terminal's encoding, or use --file")
    return text


def whole(opened: OpenedModel, text: str) -> Windows:
    """The text as one window.

    Raises:
        InputError: It is longer than the model allows.
    """
    before, ids, after = _tokenize(opened, text)
    window = [*before, *ids, *after]
    if opened.max_length is not None and len(window) > opened.max_length:
        raise InputError(
            f"--text has {len(window):,} tokens and {opened.name} reads at most {opened.max_length:,}; "
            "put it in a file and use --file, which cuts it into windows"
        )
    return Windows([window], len(window), len(ids))


def cut(opened: OpenedModel, text: str, length: int | None = None) -> Windows:
    """The text cut into windows, each with the special tokens that the tokenizer adds to a text.

    Args:
        opened: The model.
        text: The text.
        length: Tokens of a window, special tokens included; None: what the model reads at once.

    Raises:
        InputError: The length does not fit the model.
    """
    before, ids, after = _tokenize(opened, text)
    limit, why = opened.max_length, ""
    extra = len(before) + len(after)
    if length is None:
        if limit is None or limit >= LONG:
            reads = "sets no limit" if limit is None else f"reads up to {limit:,}"
            length, why = DEFAULT, f"{DEFAULT:,} tokens by default (the model {reads}, --window N changes it)"
        else:
            length = limit
    elif limit is not None and length > limit:
        raise InputError(f"--window {length:,} is more than {opened.name} reads at once: {limit:,}; give less")
    step = length - extra
    if step < 1:
        raise InputError(
            f"--window {length} leaves no room for text: each window holds {extra} special tokens; give more"
        )
    windows = [[*before, *ids[start : start + step], *after] for start in range(0, len(ids), step)]
    return Windows(windows, length, len(ids), why if len(windows) > 1 else "")


def _tokenize(opened: OpenedModel, text: str) -> tuple[Sequence[int], list[int], Sequence[int]]:
    """The text's tokens, and the special tokens that the tokenizer puts before and after a text."""
    if opened.tokenizer is None:
        raise InputError(
            f"{opened.name} has no tokenizer, so it cannot read text ({opened.no_tokenizer}); "
            "run it yourself under headwise.watch(model)"
        )

    def tokens(of: str, special: bool) -> list[int]:
        # verbose=False: no advice about texts longer than the model, they are cut here.
        encoded = opened.tokenizer(of, add_special_tokens=special, verbose=False)  # type: ignore[misc]
        return list(encoded["input_ids"])

    ids = tokens(text, False)
    if not ids:
        raise InputError("the tokenizer finds no token in this text; give some text")
    bare, full = tokens("a", False), tokens("a", True)
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], ids, full[start + len(bare) :]
    return [], ids, []
