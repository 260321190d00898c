"""Translation: reading pairs, subwords, batches, decoding, scores, all three kinds of attention."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.errors import InputError
from headwise.models.transformer import EncoderDecoder, Sizes
from headwise.studies import measuring
from headwise.studies.tasks.protocol import IGNORED, Settings
from headwise.studies.transformer import build

pytest.importorskip("tokenizers", reason="translation needs tokenizers")
pytest.importorskip("sacrebleu", reason="translation needs sacrebleu")

from headwise.studies.tasks.subwords import END, PADDING, START
from headwise.studies.tasks.translation import Translation, batch_of, greedy, split

NOUNS = {"dog": "Hund", "cat": "Katze", "tree": "Baum", "house": "Haus", "sea": "Meer", "child": "Kind"}
VERBS = {"sees": "sieht", "likes": "mag", "finds": "findet", "paints": "malt", "hears": "h\u00f6rt"}


def pairs() -> list[tuple[str, str]]:
    return [
        (f"the {a} {verb} the {b}.", f"{NOUNS[a]} {VERBS[verb]} {NOUNS[b]}!")
        for a in NOUNS for verb in VERBS for b in NOUNS
    ]  # fmt: skip


def written(folder: Path, lines: list[tuple[str, str]]) -> tuple[Path, Path]:
    """The source plain, the target as gzip."""
    source, target = folder / "source.txt", folder / "target.gz"
    source.write_text("".join(one + "\n" for one, _ in lines), "utf-8")
    target.write_bytes(gzip.compress("".join(one + "\n" for _, one in lines).encode()))
    return source, target


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Translation:
    folder = tmp_path_factory.mktemp("translation")
    settings = Settings(8, 24, {"vocab": 300}, written(folder, pairs()), folder)
    Translation.prepare(settings)
    return Translation(settings)


def test_every_29th_pair_is_held_out(task: Translation) -> None:
    training, held_out = split(task.settings.data)
    assert held_out == pairs()[::29]
    assert sorted([*training, *held_out]) == sorted(pairs())
    assert task.references == [target for _, target in pairs()[::29]]


def test_of_four_files_the_last_two_are_held_out(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    training, held_out = split([*written(tmp_path, pairs()[:60]), *written(tmp_path / "more", pairs()[60:63])])
    assert (training, held_out) == (pairs()[:60], pairs()[60:63])


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    lines = [(f"one\u2028two {number}", f"eins\x85zwei {number}\r") for number in range(50)]
    training, held_out = split(written(tmp_path, lines))
    assert len(training) + len(held_out) == 50
    assert held_out[1] == ("one\u2028two 29", "eins\x85zwei 29")


def test_subwords_come_back_as_text(task: Translation) -> None:
    sentences = [text for pair in pairs()[:20] for text in pair]
    for ids, sentence in zip(task.subwords.ids(sentences), sentences, strict=True):
        assert task.subwords.text([*ids, END]) == sentence
        assert "".join(task.decode([one]) for one in ids) == " " + sentence
    assert task.decode([START, END]) == "<s></s>"


def test_a_batch_worked_out_by_hand() -> None:
    batch = batch_of([([7, 8], [9]), ([5], [6, 4])])
    assert batch.inputs["input_ids"].tolist() == [[7, 8, END], [5, END, PADDING]]
    assert batch.inputs["decoder_input_ids"].tolist() == [[START, 9, PADDING], [START, 6, 4]]
    assert batch.targets.tolist() == [[9, END, IGNORED], [6, 4, END]]
    assert batch.inputs["attention_mask"].tolist() == [[True, True, True], [True, True, False]]
    assert batch.inputs["decoder_attention_mask"].tolist() == [[True, True, False], [True, True, True]]
    assert batch.counted == 5


def test_batches_depend_on_seed_and_step_alone(task: Translation) -> None:
    a, b, c = task.batch(0, 3), task.batch(0, 3), task.batch(0, 4)
    assert torch.equal(a.targets, b.targets)
    assert a.targets.shape != c.targets.shape or not torch.equal(a.targets, c.targets)
    assert len(a.targets) == 8


class Knows(EncoderDecoder):
    """Says the held-out translations, token by token; of the pairs in `wrong` it says nothing."""

    def __init__(self, task: Translation, wrong: int) -> None:
        super().__init__(task.architecture(), Sizes(4, 1, 0, 1, 4))
        self.said = {tuple(source): target for source, target in task.kept}
        self.wrong = {tuple(source) for source, _ in task.kept[:wrong]}
        self.size = task.subwords.size

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        self.now = [tuple(one for one in row if one not in (PADDING, END)) for row in input_ids.tolist()]
        self.place = 0
        return torch.zeros(len(input_ids), 1, 4)

    def decode(self, decoder_input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
        answers = [[] if source in self.wrong else self.said[source] for source in self.now]
        ids = [[*answer, END, *[START] * 30][self.place] for answer in answers]
        self.place += 1
        return torch.nn.functional.one_hot(torch.tensor(ids), self.size)[:, None].float()


def test_scores_of_what_is_known(task: Translation) -> None:
    """Perfect translations score 100; of nothing there is no score."""
    assert task.score(Knows(task, 0), final=True) == {"bleu": pytest.approx(100), "chrf": pytest.approx(100)}
    nothing = task.score(Knows(task, len(task.kept)), final=True)
    assert nothing == {"bleu": 0, "chrf": 0}
    half = task.score(Knows(task, 3), final=True)
    assert 5 < half["bleu"] < 95


def test_greedy_stops_at_the_end_and_at_the_length(task: Translation) -> None:
    batch = task.held_out()[0]
    model = build(task.architecture(), Sizes(8, 1, 8, 2, 4), 0).eval()
    assert isinstance(model, EncoderDecoder)
    said = greedy(model, batch, 5)
    assert all(len(ids) <= 5 and END not in ids for ids in said)
    with torch.no_grad():
        logits = model(**{**batch.inputs, "decoder_input_ids": torch.full((len(said), 1), START)} | {
            "decoder_attention_mask": None
        })  # fmt: skip
    first = logits[:, 0].argmax(-1).tolist()
    assert [ids[0] if ids else END for ids in said] == first


def test_all_three_kinds_of_attention_are_measured(task: Translation) -> None:
    model = build(task.architecture(), Sizes(8, 2, 8, 2, 4), 0).eval()
    heads = measuring.heads_of(measuring.profile_of(model, task))
    kinds = {(head["name"], head["kind"]) for head in heads}
    assert kinds == {
        *((f"encoder.{n}.attention", "self") for n in range(2)),
        *((f"decoder.{n}.attention", "self") for n in range(2)),
        *((f"decoder.{n}.context_attention", "cross") for n in range(2)),
    }
    assert len(heads) == 12


def test_what_translation_refuses(tmp_path: Path) -> None:
    source, target = written(tmp_path, pairs()[:60])
    longer = tmp_path / "longer.txt"
    longer.write_text("a\n" * 61)
    with pytest.raises(InputError, match=r"source\.txt has 60 lines and .*longer\.txt has 61: each line"):
        split([source, longer])
    with pytest.raises(InputError, match="expected a source and a target file"):
        Translation.files([source])
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(target.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"damaged\.gz: is damaged"):
        split([source, damaged])
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(InputError, match="is no UTF-8 text"):
        split([tmp_path / "bytes", target])
    with pytest.raises(InputError, match="49 pairs are too few"):
        split(written(tmp_path, pairs()[:49]))
    with pytest.raises(InputError, match="expected 300 subwords or more; got 20"):
        Translation.prepare(Settings(4, 16, {"vocab": 20}, (source, target), tmp_path))
