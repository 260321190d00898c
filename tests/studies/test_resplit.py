"""Layers cut anew: what must stay, what must change, and what cannot be cut."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headwise.errors import FileFormatError
from headwise.layer import MultiHeadAttention
from headwise.studies import resplit, tasks
from headwise.studies.folders import StudyFolder
from headwise.studies.plans import RunKey
from headwise.studies.resplit import Cutting, cut, inputs_of, model_of
from headwise.studies.tasks.protocol import Architecture, Batch, Task
from headwise.studies.transformer import build
from tests.studies.small import small_plan, task_of


def trained(study: StudyFolder, heads: int) -> tuple[nn.Module, Task]:
    plan = study.plan()
    task = task_of(plan, study.path)
    return model_of(plan, study.run(RunKey("fixed_width", heads, 0)), task), task


@pytest.mark.parametrize("heads", [1, 2])
def test_a_layer_cut_into_as_many_heads_is_the_trained_layer(study: StudyFolder, heads: int) -> None:
    """All measures of all heads, bit by bit, at both scales."""
    model, task = trained(study, heads)
    whole = study.run(RunKey("fixed_width", heads, 0)).profile().table()
    columns = [name + part for name in resplit.ROWS for part in ("", "_std", "_min", "_max", "_se")]
    found = resplit.profiles(model, task, [heads])
    assert list(found) == ["blocks.0.attention", "blocks.1.attention"]
    for name, profile in found.items():
        own = whole[whole["name"] == name]
        table = profile.table()
        for scale in resplit.SCALES:
            cuts = table[table["name"] == f"cuts.{scale}-{heads}"]
            assert cuts["rows"].tolist() == own["rows"].tolist()
            assert (cuts[columns].to_numpy() == own[columns].to_numpy()).all()


def test_the_cut_keeps_what_all_heads_score_together(study: StudyFolder) -> None:
    """`sum_h q_h . k_h` at the trained scale; and V is cut in the order of eq. 2's Concat."""
    model, task = trained(study, 2)
    for one in next(inputs_of(model, task)):
        q, k = one.q.double(), one.k.double()
        together = (one.scale * q @ k.mT).sum(1)
        for heads in (1, 2, 4, 8):
            parts = one.scale * cut(q, heads) @ cut(k, heads).mT
            assert parts.shape[1] == heads
            torch.testing.assert_close(parts.sum(1), together, rtol=1e-12, atol=1e-12)
            assert torch.equal(cut(cut(one.v, heads), 2), one.v)
        assert not torch.allclose(parts[:, 0], together)


def test_a_cut_layer_is_what_a_model_of_so_many_heads_does(study: StudyFolder) -> None:
    """The first layer of a model that bears the same weights, at its own scale; at the trained one it is another."""
    model, task = trained(study, 1)
    plan = study.plan()
    twin = build(task.architecture(), plan.sizes(RunKey("fixed_width", 4, 0)), 0)
    twin.load_state_dict(model.state_dict())
    from headwise.studies.measuring import profile_of

    table = profile_of(twin.eval(), task).table()
    wanted = table[table["layer"] == 0][resplit.ROWS].to_numpy()
    cuts = resplit.profiles(model, task, [4])["blocks.0.attention"].table()
    own = cuts[cuts["name"] == "cuts.own-4"][resplit.ROWS].to_numpy()
    kept = cuts[cuts["name"] == "cuts.trained-4"]
    torch.testing.assert_close(torch.tensor(own), torch.tensor(wanted), rtol=1e-6, atol=1e-7)
    # Scores half as large: nearer to uniform, with the same largest key.
    assert (kept["entropy_ratio"].to_numpy() > own[:, 2]).all()


def test_the_scale_alone_changes_no_largest_key(study: StudyFolder) -> None:
    model, task = trained(study, 1)
    found = resplit.numbers(model, task, [2, 4])
    for heads in (2, 4):
        kept, own = Cutting(heads, "trained"), Cutting(heads, "own")
        assert found["own_largest", kept] == found["own_largest", own]
        assert found["entropy_ratio", kept] > found["entropy_ratio", own]
        assert found["max_weight", kept] < found["max_weight", own]


class Padded(Task):
    """Pairs of sequences of several lengths, for an encoder-decoder."""

    def architecture(self) -> Architecture:
        return Architecture("encoder-decoder", 9, vocab=11)

    def batch(self, seed: int, step: int) -> Batch:
        raise NotImplementedError

    def held_out(self) -> list[Batch]:
        rng = self.generator("padded")
        source, target = torch.randint(1, 11, (4, 9), generator=rng), torch.randint(1, 11, (4, 6), generator=rng)
        lengths = torch.tensor([9, 4, 7, 2])
        real, said = torch.arange(9) < lengths[:, None], torch.arange(6) < lengths[:, None]
        inputs = {"input_ids": source, "decoder_input_ids": target, "attention_mask": real,
                  "decoder_attention_mask": said}  # fmt: skip
        return [Batch(inputs, target)]

    def score(self, model: nn.Module, *, final: bool) -> dict[str, float]:
        raise NotImplementedError


def test_padding_and_other_sequences(tmp_path: Path) -> None:
    """Rows of padding are left out as in the model; attention to another sequence is not cut."""
    plan = small_plan(num_layers=1)
    task = Padded(plan.settings(tmp_path))
    model = build(task.architecture(), plan.sizes(RunKey("fixed_width", 2, 0)), 0).eval()
    from headwise.studies.measuring import profile_of

    whole = profile_of(model, task).table()
    found = resplit.profiles(model, task, [2])
    assert set(found) == {"encoder.0.attention", "decoder.0.attention"}
    for name, profile in found.items():
        own = whole[whole["name"] == name]
        table = profile.table()
        cuts = table[table["name"] == "cuts.trained-2"]
        for column in ("rows", "padded_rows", *resplit.ROWS):
            assert cuts[column].tolist() == own[column].tolist(), column
    assert own["padded_rows"].sum() > 0


class Unmasked(nn.Module):
    """Attends to padding too: only its argument tells which rows are real."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(8, 2)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        out: Tensor = self.attention(x)
        return out


class Unequal(Padded):
    def held_out(self) -> list[Batch]:
        x = torch.randn(2, 5, 8, generator=self.generator("unequal"))
        real = torch.arange(5) < torch.tensor([5, 3])[:, None]
        return [Batch({"x": x, "attention_mask": real}, torch.zeros(2))] * 2


def test_rows_that_only_the_model_knows_to_be_padding(tmp_path: Path) -> None:
    task = Unequal(small_plan().settings(tmp_path))
    table = resplit.profiles(Unmasked(), task, [2])["attention"].table()
    assert table["rows"].tolist() == [16] * 4, "of two batches"
    assert table["padded_rows"].tolist() == [4] * 4


class Sharing(nn.Module):
    """Two heads that share keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(8, 2, num_kv_heads=1)
        self.mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, mask=self.mask)
        return out


class OneBatch(Padded):
    def held_out(self) -> list[Batch]:
        return [Batch({"x": torch.ones(1, 3, 8)}, torch.zeros(1, 3))]


def test_what_cannot_be_cut(study: StudyFolder, tmp_path: Path) -> None:
    task = OneBatch(small_plan().settings(tmp_path))
    with pytest.raises(ValueError, match="attention: its 2 heads share 1 keys: they cannot be cut"):
        resplit.numbers(Sharing(), task, [2])
    masked = Sharing()
    masked.attention = MultiHeadAttention(8, 2)
    masked.mask = torch.ones(1, 2, 3, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="attention: its heads see different masks"):
        resplit.numbers(masked, task, [2])
    model, lookup = trained(study, 1)
    with pytest.raises(ValueError, match="cut: expected a number of heads that divides the width 8; got 3"):
        resplit.numbers(model, lookup, [3])


def test_a_model_file_that_cannot_be_read(study: StudyFolder, tmp_path: Path) -> None:
    plan = study.plan()
    task = tasks.make(plan.task, plan.settings(study.path))
    run = StudyFolder(tmp_path).run(RunKey("fixed_width", 1, 0))
    with pytest.raises(FileFormatError, match=r"model\.safetensors: cannot be read: FileNotFoundError"):
        model_of(plan, run, task)
    run.path.mkdir(parents=True)
    run.model_file.write_bytes(study.run(run.key).model_file.read_bytes()[:-8])
    with pytest.raises(FileFormatError, match="cannot be read: SafetensorError"):
        model_of(plan, run, task)


def test_the_scale_is_that_of_a_head() -> None:
    """1 / sqrt(d_k') from any trained factor."""
    x = torch.randn(1, 1, 5, 8)
    one = resplit.Inputs("", x, x, x, None, False, 1 / math.sqrt(8), None)
    wanted = nn.functional.scaled_dot_product_attention(*(cut(x, 4) for _ in range(3)))
    torch.testing.assert_close(resplit._Cut(4, "own")(one), wanted)
    kept = nn.functional.scaled_dot_product_attention(*(cut(x, 4) for _ in range(3)), scale=1 / math.sqrt(8))
    torch.testing.assert_close(resplit._Cut(4, "trained")(one), kept)
