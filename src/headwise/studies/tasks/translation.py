"""Translation: the original setting of multi-head attention, with all its three kinds (Vaswani et al. 2017).

The encoder reads the source (self-attention), the decoder what it has said (causal self-attention) and the encoder's
output (attention to another sequence). The data are two files, a sentence a line, gzip or plain; or four, the last two
of them held out. Of two files, every 29th pair is held out, at most 1000.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from headwise.errors import InputError
from headwise.models.transformer import EncoderDecoder
from headwise.studies.tasks import subwords
from headwise.studies.tasks.protocol import IGNORED, Architecture, Batch, Defaults, Settings, Task
from headwise.studies.tasks.subwords import END, PADDING, START, Subwords

Pair: TypeAlias = tuple[list[int], list[int]]

EVERY, MOST = 29, 1000
"""Which pairs are held out, and how many at the most."""
FEWEST = 50
AT_ONCE, MEASURED, SCORED = 50, 100, 200
"""Held-out pairs that the model reads at once; on which heads are measured; which are translated before the end."""
NEIGHBOURS = 8
"""A batch is drawn from so many times its size of pairs that are about as long, so that little is padding."""


class Translation(Task):
    """Pairs of sentences."""

    name, score_name = "translation", "bleu"
    defaults = Defaults(
        heads=(1, 2, 4, 8, 16), seeds=3, d_model=128, num_layers=2, d_ff=512, dropout=0.1, steps=4000, batch=48,
        length=48, learning_rate=2e-3, warmup=400, evaluate_every=400,
    )  # fmt: skip
    quick = Defaults(
        heads=(1, 4), seeds=1, d_model=32, num_layers=1, d_ff=64, steps=60, batch=16, length=32, learning_rate=5e-3,
        warmup=10, evaluate_every=30,
    )  # fmt: skip
    options = {"vocab": 4000}  # noqa: RUF012 - a constant of the class

    def __init__(self, settings: Settings) -> None:
        """See `Task`.

        Raises:
            MissingPackageError: tokenizers or sacrebleu is not installed.
            InputError: Files that cannot be used.
        """
        super().__init__(settings)
        subwords.require("tokenizers", "tokenizers")
        subwords.require("sacrebleu", "sacrebleu")
        training, held_out = split(settings.data)
        self.subwords = Subwords(settings.folder)
        self.training = sorted(self._encoded(training), key=lambda pair: (len(pair[0]), len(pair[1])))
        kept = [
            (pair, text) for pair, text in zip(self._pairs(held_out), held_out, strict=True) if self._has_room(pair)
        ]
        self.kept = [pair for pair, _ in kept]
        self.references = [target for _, (_, target) in kept]
        if len(self.training) < settings.batch or not self.kept:
            raise InputError(
                f"--length {settings.length}: only {len(self.training):,} of {len(training):,} pairs fit; "
                "give a larger --length, or more data"
            )

    @classmethod
    def files(cls, data: Sequence[Path]) -> list[Path]:
        """Two files, or four.

        Raises:
            InputError: Another number.
        """
        if len(data) not in (2, 4):
            raise InputError(
                "the task translation: --data: expected a source and a target file, a sentence a line (and a source "
                f"and a target that are held out); got {len(data)} files"
            )
        return list(data)

    @classmethod
    def prepare(cls, settings: Settings) -> None:
        """Learn the subwords from the training pairs."""
        subwords.require("tokenizers", "tokenizers")
        subwords.require("sacrebleu", "sacrebleu")
        vocab = int(settings.options.get("vocab", cls.options["vocab"]))
        if vocab < 300:
            raise InputError(f"the task translation: vocab: expected 300 subwords or more; got {vocab}")
        training, _ = split(settings.data)
        subwords.learn((sentence for pair in training for sentence in pair), vocab, settings.folder)

    def architecture(self) -> Architecture:
        """An encoder and a decoder with one vocabulary."""
        return Architecture("encoder-decoder", self.settings.length, vocab=self.subwords.size)

    def batch(self, seed: int, step: int) -> Batch:
        """Pairs that are about as long as each other."""
        rng = self.generator("translation", seed, step)
        window = min(len(self.training), NEIGHBOURS * self.settings.batch)
        start = int(torch.randint(len(self.training) - window + 1, (1,), generator=rng))
        which = torch.randperm(window, generator=rng)[: self.settings.batch]
        return batch_of([self.training[start + int(one)] for one in which])

    def held_out(self) -> Sequence[Batch]:
        """Held-out pairs, as many as fit into the length."""
        return self._held_out

    @cached_property
    def _held_out(self) -> list[Batch]:
        return [batch_of(self.kept[start : start + AT_ONCE]) for start in range(0, len(self.kept), AT_ONCE)]

    def measured(self) -> Sequence[Batch]:
        """The first of them."""
        return self.held_out()[: MEASURED // AT_ONCE]

    @torch.no_grad()
    def score(self, model: nn.Module, *, final: bool) -> dict[str, float]:
        """`bleu` (Papineni et al. 2002) and `chrf` (Popovic 2015) of greedy translations, by sacrebleu, 0..100."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        assert isinstance(model, EncoderDecoder)
        batches = self.held_out() if final else self.held_out()[: SCORED // AT_ONCE]
        said = [self.subwords.text(ids) for batch in batches for ids in greedy(model, batch, self.settings.length)]
        wanted = [self.references[: len(said)]]
        return {
            "bleu": float(BLEU().corpus_score(said, wanted).score),
            "chrf": float(CHRF().corpus_score(said, wanted).score),
        }

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some subwords."""
        return self.subwords.token(ids)

    def _encoded(self, pairs: Sequence[tuple[str, str]]) -> list[Pair]:
        return [pair for pair in self._pairs(pairs) if self._has_room(pair)]

    def _pairs(self, pairs: Sequence[tuple[str, str]]) -> list[Pair]:
        sources = self.subwords.ids([source for source, _ in pairs])
        targets = self.subwords.ids([target for _, target in pairs])
        return list(zip(sources, targets, strict=True))

    def _has_room(self, pair: Pair) -> bool:
        source, target = pair
        return 0 < len(source) < self.settings.length and 0 < len(target) < self.settings.length


def batch_of(pairs: Sequence[Pair]) -> Batch:
    """Padded pairs: the encoder reads the source and an end, the decoder a start and the target, and says an end."""
    source = padded([[*ids, END] for ids, _ in pairs], PADDING)
    target = padded([[START, *ids] for _, ids in pairs], PADDING)
    inputs = {
        "input_ids": source,
        "decoder_input_ids": target,
        "attention_mask": source != PADDING,
        "decoder_attention_mask": target != PADDING,
    }
    return Batch(inputs, padded([[*ids, END] for _, ids in pairs], IGNORED))


def padded(rows: Sequence[Sequence[int]], filling: int) -> Tensor:
    """Rows of several lengths as one tensor `[rows, longest]`."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filling] * (longest - len(row))] for row in rows])


def greedy(model: EncoderDecoder, batch: Batch, length: int) -> list[list[int]]:
    """The most likely next subword, again and again, until every sentence has ended or `length` is full."""
    mask = batch.inputs["attention_mask"]
    context = model.encode(batch.inputs["input_ids"], mask)
    caches = model.new_caches()
    new = torch.full((len(context), 1), START)
    said: list[Tensor] = []
    ended = torch.zeros(len(context), dtype=torch.bool)
    while len(said) < length and not bool(ended.all()):
        logits = model.decode(new, context, mask, caches=caches)
        new = logits[:, -1:].argmax(-1)
        said.append(new)
        ended |= new[:, 0] == END
    rows = cast(list[list[int]], torch.cat(said, 1).tolist())
    return [row[: row.index(END)] if END in row else row for row in rows]


def split(files: Sequence[Path]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Training and held-out pairs.

    Raises:
        InputError: Files that cannot be read, are no text, have no pairs, or other numbers of lines.
    """
    pairs = _read_pairs(files[0], files[1])
    if len(files) == 4:
        return pairs, _read_pairs(files[2], files[3])[:MOST]
    if len(pairs) < FEWEST:
        raise InputError(f"--data {files[0]}: {len(pairs)} pairs are too few to train and to hold out; give {FEWEST}")
    held_out = pairs[::EVERY][:MOST]
    return [pair for number, pair in enumerate(pairs) if number % EVERY or number // EVERY >= MOST], held_out


def _read_pairs(source: Path, target: Path) -> list[tuple[str, str]]:
    sources, targets = _lines(source), _lines(target)
    if len(sources) != len(targets):
        raise InputError(
            f"--data: {source} has {len(sources):,} lines and {target} has {len(targets):,}: each line of the source "
            "needs its translation in the same line of the target"
        )
    pairs = [(s.strip(), t.strip()) for s, t in zip(sources, targets, strict=True)]
    pairs = [pair for pair in pairs if all(pair)]
    if not pairs:
        raise InputError(f"--data {source}: has no sentences; give a sentence a line")
    return pairs


def _lines(path: Path) -> list[str]:
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        # Only line feeds end a line: other separators stand within sentences, and would shift all pairs after them.
        return content.decode("utf-8").removesuffix("\n").split("\n")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"--data {path}: is damaged: {error}") from None
    except OSError as error:
        raise InputError(f"--data {path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"--data {path}: is no UTF-8 text; give a sentence a line, gzip or plain") from None
