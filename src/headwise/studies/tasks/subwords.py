"""Subwords of both languages of a translation: one vocabulary, learned once per study (Sennrich et al. 2016)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headwise.errors import InputError, MissingPackageError
from headwise.studies import durable

PADDING, START, END, UNKNOWN = 0, 1, 2, 3
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
FILE = "subwords.json"
INSTALL = 'install it with: pip install "headwise[study]"'


def learn(sentences: Iterable[str], vocab: int, folder: Path) -> None:
    """Learn byte-pair merges from sentences, and keep them in `folder`; every run of the study reads them there."""
    from tokenizers import models, trainers

    tokenizer = _blank(models.BPE(unk_token=SPECIAL[UNKNOWN]))
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    durable.replace(folder / FILE, tokenizer.to_str().encode())


def _blank(model: Any) -> Any:
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


class Subwords:
    """The vocabulary of a study.

    Attributes:
        size: Tokens in it.
    """

    def __init__(self, folder: Path) -> None:
        """Read what `learn` kept.

        Raises:
            InputError: It is not there, or is damaged.
        """
        from tokenizers import Tokenizer

        path = folder / FILE
        try:
            self._tokenizer = Tokenizer.from_str(path.read_text("utf-8"))
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise InputError(f"{path}: the subwords of this study cannot be read: {error}") from None
        self.size: int = self._tokenizer.get_vocab_size()

    def ids(self, sentences: Sequence[str]) -> list[list[int]]:
        """The ids of sentences, without start and end."""
        return [one.ids for one in self._tokenizer.encode_batch(list(sentences), add_special_tokens=False)]

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids; start, end and padding are nothing."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def token(self, ids: Sequence[int]) -> str:
        """Ids as a page shows them: a word begins with a space, start and end have their names."""
        return "".join(str(self._tokenizer.id_to_token(int(one))).replace("\u2581", " ") for one in ids)


def require(package: str, install: str) -> None:
    """Say which optional package is missing.

    Raises:
        MissingPackageError: It is.
    """
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingPackageError(f"the task translation needs {install}; {INSTALL}")
