"""headwise.watch over models of these layers: the right layers, kinds, phases, groups and rows; nothing unseen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.kernels.protocol import STATISTICS
from tests.layer.textbook import shaken


class Translator(nn.Module):
    """An encoder of one layer, and a decoder of one, with their masks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.encoder = hw.MultiHeadAttention(16, 4)
        self.decoder = nn.ModuleDict(
            {
                "self": hw.MultiHeadAttention(16, 4, num_kv_heads=2, dropout=0.2),
                "cross": hw.MultiHeadAttention(16, 8, num_kv_heads=1, head_dim=4),
            }
        )
        self.rope = hw.RotaryEmbedding(4)
        shaken(self)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        encoder_outputs: Tensor | None = None,
        cache: list[hw.KVCache] | None = None,
    ) -> Tensor:
        own, cross = cache or (None, None)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(self.embed(input_ids), key_mask=attention_mask, position=self.rope)
        y = self.embed(decoder_input_ids)
        y = y + self.decoder["self"](y, causal=True, cache=own, position=self.rope)
        return y + self.decoder["cross"](y, encoder_outputs, key_mask=attention_mask, cache=cross)


IDS = torch.arange(14).view(2, 7)
KEYS = torch.tensor([[1] * 5 + [0] * 2, [1] * 7])


def rows(table: Any, name: str, **where: Any) -> Any:
    table = table[table["name"] == name]
    for column, value in where.items():
        table = table[table[column] == value]
    return table


def test_layers_kinds_groups_and_rows() -> None:
    model = Translator().eval()
    with hw.watch(model, measures="all", verify=True) as profile:
        model(IDS, KEYS, IDS[:, :6])
    assert profile.unseen == []
    assert profile.passed
    assert profile.verified < 1e-6
    found = [(la.name, la.num_heads, la.num_kv_heads, la.kinds, la.phases, la.causal) for la in profile.layers]
    assert found == [
        ("encoder", 4, 4, ("self",), ("prefill",), ("none",)),
        ("decoder.self", 4, 2, ("self",), ("prefill",), ("upper_left",)),
        ("decoder.cross", 8, 1, ("cross",), ("prefill",), ("none",)),
    ]
    table = profile.table()
    assert list(rows(table, "encoder")["rows"]) == [12] * 4  # 5 and 7 real tokens
    assert list(rows(table, "encoder")["padded_rows"]) == [2] * 4
    assert list(rows(table, "decoder.self")["rows"]) == [12] * 4
    assert list(rows(table, "decoder.self")["kv_head"]) == [0, 0, 1, 1]
    assert list(rows(table, "decoder.cross")["kv_head"]) == [0] * 8
    assert rows(table, "decoder.cross")["self_focus"].isna().all()


def test_decoding() -> None:
    model = Translator().double().eval()
    whole = model(IDS, KEYS, IDS[:, :6])
    with hw.watch(model) as profile, torch.no_grad():
        cache = [hw.KVCache(), hw.KVCache()]
        memory = model.encoder(model.embed(IDS), key_mask=KEYS, position=model.rope)
        out = [model(IDS, KEYS, IDS[:, i : i + 1], memory, cache) for i in range(6)]
    torch.testing.assert_close(torch.cat(out, 1), whole)
    assert profile.unseen == []
    table = profile.table()
    assert list(rows(table, "decoder.self", phase="decode")["rows"]) == [10] * 4
    assert list(rows(table, "decoder.self", phase="prefill")["rows"]) == [2] * 4
    assert set(rows(table, "decoder.cross")["kind"]) == {"cross"}
    assert set(rows(table, "decoder.self")["kind"]) == {"self"}
    # The same rows as of one pass, but for the first token.
    with hw.watch(model) as one:
        model(IDS, KEYS, IDS[:, :6])
    mean = rows(one.table(), "decoder.self")["entropy"].to_numpy() * 12
    parts = rows(table, "decoder.self").groupby("head")[["entropy", "rows"]].apply(lambda t: (t.entropy * t.rows).sum())
    np.testing.assert_allclose(parts.to_numpy(), mean, rtol=1e-5)


def test_a_layer_alone_with_a_cache() -> None:
    mha, x = shaken(hw.MultiHeadAttention(16, 4, num_kv_heads=2)), torch.randn(2, 6, 16)
    with hw.watch(mha) as profile, torch.no_grad():
        cache = hw.KVCache()
        for i in range(0, 6, 2):
            mha(x[:, i : i + 2], causal=True, cache=cache)
        mha(x[:, :1], causal=True, cache=cache)
    table = profile.table()
    assert [(p, r) for p, r in zip(table["phase"], table["rows"], strict=True)][::4] == [("prefill", 12), ("decode", 2)]
    assert profile.num_sequences == 2  # the cache continues them


@pytest.mark.parametrize(
    ("options", "masked"),
    [
        ({"mask": torch.zeros(6, 6).masked_fill(torch.eye(6).roll(1) > 0, 1) > 2}, 12),
        ({"mask": torch.ones(6, 6).tril(-1) > 0}, 2),
        ({"mask": torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu() > 0, torch.finfo(torch.float32).min)}, 2),
        ({"causal": True, "key_mask": torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])}, 0),
        ({"causal": "upper_left", "context": torch.ones(2, 4, 16)}, 0),
        ({"causal": "lower_right", "context": torch.ones(2, 4, 16)}, 4),
    ],
)
def test_rows_that_see_nothing_are_counted(options: dict[str, Any], masked: int) -> None:
    mha, x = shaken(hw.MultiHeadAttention(16, 4)), torch.randn(2, 6, 16)
    real = torch.ones(2, 6, dtype=torch.bool)
    if "key_mask" in options:
        real = options["key_mask"].bool()
    with hw.watch(mha, real=real) as profile:
        _, s = mha(x, **options, measure=True)
    table = profile.table()
    assert list(table["masked_rows"]) == [masked] * 4
    assert list(table["rows"]) == [int(real.sum()) - masked] * 4
    assert profile.unseen == []
    seen = s.geometry.visible.expand(2, 4, 6) > 0
    assert int((~seen & real[:, None]).sum()) == 4 * masked


@pytest.mark.parametrize(
    "options",
    [
        {}, {"causal": True}, {"key_mask": torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])},
        {"causal": True, "key_mask": torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])},
        {"mask": torch.linspace(-2, 3, 36).view(6, 6)}, {"context": torch.linspace(-1, 1, 160).view(2, 5, 16)},
    ],
)  # fmt: skip
def test_measure_gives_what_a_watch_reads(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics asked of the layer equal those taken from its fused call from outside."""
    from headwise.capture import recorder

    taken: list[hw.RowStatistics] = []

    def keep(*args: Any, **kwargs: Any) -> hw.RowStatistics:
        taken.append(hw.row_statistics(*args, **kwargs))
        return taken[-1]

    monkeypatch.setattr(recorder, "row_statistics", keep)
    mha, x = shaken(hw.MultiHeadAttention(16, 4, num_kv_heads=2)), torch.randn(2, 6, 16)
    with hw.watch(mha):
        _, s = mha(x, **options, measure=True)
    assert len(taken) == 1
    for name in STATISTICS:
        torch.testing.assert_close(getattr(s, name), getattr(taken[0], name), atol=1e-6, rtol=1e-5, equal_nan=True)
    assert torch.equal(*torch.broadcast_tensors(s.geometry.real, taken[0].geometry.real))


def test_watching_changes_no_bit() -> None:
    model = Translator()
    torch.manual_seed(1)
    plain = model(IDS, KEYS, IDS[:, :6])
    torch.manual_seed(1)
    with hw.watch(model):
        watched = model(IDS, KEYS, IDS[:, :6])
    assert torch.equal(plain, watched)


class Renamed(Translator):
    """Its caches come in pairs for each layer, under a name that says nothing."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, states: Any) -> Tensor:
        return super().forward(input_ids, attention_mask, decoder_input_ids, None, states[0])


def test_sequences_go_on_where_every_layer_has_its_cache() -> None:
    model, states = Renamed().eval(), [(hw.KVCache(), hw.KVCache())]
    with torch.no_grad(), hw.watch(model) as profile:
        for i in range(4):
            model(IDS, KEYS, IDS[:, i : i + 1], states)
    assert profile.num_sequences == 2
    decoded = rows(profile.table(), "decoder.self", phase="decode")
    assert set(decoded["rows"]) == {2 * 3}
    assert set(rows(profile.table(), "decoder.self", phase="prefill")["rows"]) == {2}
