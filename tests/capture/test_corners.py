"""Corners of what a watch meets: caches of a fixed size, shared parts, towers, watches that end in any order."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headwise as hw
from headwise.capture.forwards import are_ids, cache_of, rows_of
from headwise.errors import FileFormatError
from headwise.profile import files
from tests.models_of_tests import Decoder, SelfAttention

MASK = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 0, 0, 0]])
"""Of five tokens, the second sequence padded on the left, and the room of a cache of eight behind them."""


# Which rows are real


@pytest.mark.parametrize(("past", "queries", "real"), [
    (0, 5, [[1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]), (4, 1, [[1], [1]]), (5, 1, [[0], [0]]), (None, 2, [[0, 0], [0, 0]]),
    (7, 2, None),
])  # fmt: skip
def test_a_mask_that_has_room_behind_its_tokens(past: int | None, queries: int, real: list[list[int]] | None) -> None:
    found = rows_of(MASK, 2, queries, 8, cross=False, past=past)
    assert (None if found is None else found.int().tolist()) == real


def test_a_mask_of_the_prompt_says_nothing_of_what_comes_after() -> None:
    told = MASK[:, :5]
    found = rows_of(told, 2, 5, 5, cross=False, past=0)
    assert found is not None and found.sum() == 9
    assert rows_of(told, 2, 1, 6, cross=False, past=5) is None


# Another number of heads


@pytest.mark.parametrize("measures", [["alpha_first"], ["bc"], ["entropy"]])
def test_a_call_with_other_heads_leaves_what_was_measured(measures: list[str], tmp_path: Any) -> None:
    told = pytest.warns(UserWarning, match="expected 2 heads as before, got 4")
    with told, hw.watch(measures=measures, groups=["a", "b"], keep="qk") as profile:
        F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 5, 8))
        F.scaled_dot_product_attention(*torch.randn(3, 1, 4, 5, 8))
    assert (len(profile.table()), len(profile.unseen)) == (2, 1)
    profile.save(tmp_path / "run.headwise")
    assert len(hw.load(tmp_path / "run.headwise").table()) == 2


# Without a model


def test_the_first_forward_without_a_model_has_no_cache_before_it() -> None:
    model, ids = Decoder().eval(), torch.arange(7)[None] % 3
    measures = ["duplicate", "induction"]
    with hw.watch(measures=measures) as without:
        model(ids)
    with hw.watch(model, measures=measures) as given:
        model(ids)
    assert without.table()["duplicate"].notna().all()
    assert without.table()["duplicate"].tolist() == given.table()["duplicate"].tolist()
    assert not without.notes


# Sequences


class Cached(nn.Module):
    """A model with a cache of its own kind: how many tokens it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(9, 32), SelfAttention()

    def forward(self, input_ids: Tensor, past_key_values: Any = None) -> Tensor:
        return self.attention(self.embed(input_ids))  # type: ignore[no-any-return]


class Cache:
    """So many tokens; of one layer, if it is asked for it, another number."""

    def __init__(self, length: int, later: int | None = None) -> None:
        self.length, self.later = length, length if later is None else later

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.later if layer_idx else self.length


def test_copies_of_a_cache_begin_texts_of_their_own() -> None:
    model, ids = Cached().eval(), torch.ones(1, 3, dtype=torch.int64)
    with hw.watch(model) as copies:
        for _ in range(3):
            model(ids, past_key_values=Cache(4))
    assert copies.num_sequences == 3
    with hw.watch(model) as one:
        model(ids, past_key_values=Cache(0))
        for length in (3, 6):  # a new object each time, which goes on where the last forward ended
            model(ids, past_key_values=Cache(length))
    assert one.num_sequences == 1


def test_a_single_layer_asks_a_cache_for_its_own_tokens() -> None:
    """The layers before it have filled theirs already."""
    model, ids = Cached().eval(), torch.ones(2, 3, dtype=torch.int64)
    model.attention.layer_idx = 1  # type: ignore[assignment]
    with hw.watch(model) as profile:
        for _ in range(4):
            model(ids, past_key_values=Cache(3, later=0))
    assert profile.num_sequences == 8


def test_rows_of_one_text_are_one_sequence() -> None:
    """As in beam search: three rows of a text that a cache goes on with, and of another."""
    model = Cached().eval()
    first, second = Cache(0), Cache(0)
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    with hw.watch(model) as profile:
        model(ids[:1], past_key_values=first)
        first.length = 3
        model(ids[:1, :1].repeat(3, 1), past_key_values=first)
    decoded = profile.table().query("phase == 'decode'")
    assert set(decoded["rows"]) == {3}
    assert decoded["self_focus_se"].isna().all(), "one text"
    with hw.watch(model) as both:
        model(ids, past_key_values=second)
        second.length = 3
        model(ids[:, :1].repeat_interleave(3, 0), past_key_values=second)
    (group,) = [group for group in both.groups if group.phase == "decode"]
    clusters = both.groups[group].by_sequence()
    assert clusters is not None
    assert clusters.count == 2


def test_texts_stand_in_the_order_in_which_they_were_measured() -> None:
    class Fails(Cached):
        def forward(self, input_ids: Tensor, past_key_values: Any = None) -> Tensor:
            if int(input_ids[0, 0]) == 8:
                raise RuntimeError("before any attention")
            return super().forward(input_ids)

    model = Fails().eval()
    with hw.watch(model) as profile:
        with pytest.raises(RuntimeError):
            model(torch.tensor([[8, 8, 8]]))
        model(torch.tensor([[1, 2, 3]]))
    assert profile.num_sequences == 1
    assert [one.ids for one in profile.sequences] == [[1, 2, 3]]


# Shared parts


class Core(nn.Module):
    """Attention without parameters."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Holder(nn.Module):
    """A layer around a core."""

    def __init__(self, core: Core, heads: int) -> None:
        super().__init__()
        self.core, self.heads, self.project = core, heads, nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out: Tensor = self.core(q, k, v).transpose(1, 2).flatten(-2)
        return out


def test_layers_that_share_a_bare_core_are_layers() -> None:
    core = Core()
    model = nn.Sequential(Holder(core, 2), Holder(core, 4), Holder(Core(), 4))
    with hw.watch(model) as profile:
        model(torch.randn(1, 5, 16))
    assert [(one.name, one.num_heads) for one in profile.layers] == [("0.core", 2), ("1", 4), ("2.core", 4)]
    assert not profile.unseen
    with hw.watch(model, layers="1") as one:
        model(torch.randn(1, 5, 16))
    assert [layer.name for layer in one.layers] == ["1"]


def test_a_path_may_be_named_with_its_wrappers() -> None:
    model = nn.DataParallel(nn.Sequential(SelfAttention()), device_ids=[])
    with hw.watch(model, layers="module.0") as profile:
        model(torch.randn(1, 5, 32))
    assert [layer.name for layer in profile.layers] == ["0"]


# Labels


class Tower(nn.Module):
    """A model that looks at an image of as many patches as the text has tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.text = Patches(), SelfAttention()

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        return self.text(self.tower(pixel_values=pixel_values) + input_ids[..., None])  # type: ignore[no-any-return]


class Patches(nn.Module):
    """Its tower."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.attention(pixel_values)  # type: ignore[no-any-return]


def test_labels_of_tokens_are_not_those_of_patches() -> None:
    model = Tower().eval()
    with hw.watch(model, groups=[["a", "b", "a"]]) as profile:
        model(torch.ones(1, 3, dtype=torch.int64), torch.randn(1, 3, 32))
    assert set(profile.table(group="a")["name"]) == {"text"}
    assert set(profile.table(group="a")["rows"]) == {2}
    assert not profile.notes


# Compiled parts


def test_watches_that_end_in_any_order_leave_nothing_behind() -> None:
    torch.compile(nn.Linear(2, 2))
    wrapper = sys.modules["torch._dynamo.eval_frame"].OptimizedModule
    before = wrapper.__call__
    a, b, late = hw.watch(), hw.watch(), hw.watch()
    a.start()
    b.start()
    a.stop()
    assert wrapper.__call__ is not before, "b still runs"
    b.stop()
    assert wrapper.__call__ is before
    with late:
        assert wrapper.__call__ is not before
    assert wrapper.__call__ is before


# What must not end a run


def test_a_cache_that_cannot_be_asked() -> None:
    def broken() -> int:
        raise ValueError("only linear layers")

    cache = SimpleNamespace(get_seq_length=broken)
    assert cache_of({"past_key_values": cache}) == (None, cache)


def test_ids_without_numbers_are_none() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(2, 3, dtype=torch.int64)
    assert not are_ids(fake)
    assert are_ids(torch.zeros(2, 3, dtype=torch.int64))


# Files


def test_files_of_other_kinds_are_told(tmp_path: Any) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    with pytest.raises(FileFormatError, match="is no headwise profile"):
        hw.load(tmp_path / "model.safetensors")


def test_numbers_that_no_profile_has(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with hw.watch(keep="qk") as profile:
        F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 5, 8))
    profile.save(tmp_path / "run.headwise")

    def infinite(*_: Any) -> None:
        int(float("inf"))

    monkeypatch.setattr(files, "_from_document", infinite)
    with pytest.raises(FileFormatError, match="is damaged: OverflowError"):
        hw.load(tmp_path / "run.headwise")


def test_a_condition_that_pandas_cannot_take() -> None:
    with hw.watch() as profile:
        F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 5, 8))
    for condition in ("lambda x: x", "first if True else next"):
        with pytest.raises(ValueError, match="heads: expected a condition"):
            profile.heads(condition)


def test_one_layer_is_compared_without_a_list() -> None:
    model = nn.Sequential(SelfAttention(), SelfAttention())
    with hw.watch(model) as profile:
        model(torch.randn(2, 5, 32))
    for one in (1, "1"):
        assert set(hw.compare(profile, profile, layers=one).table()["label"].str[:2]) == {"L1"}
