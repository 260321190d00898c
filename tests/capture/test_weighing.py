"""watch(measures="all"): what needs the weights themselves, recorded, merged, saved, by group."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.capture.token_ids import TokenIds
from headwise.capture.weighing import output_weight_of
from headwise.measures.catalogue import BLOCK_MEASURES
from headwise.profile import Profile
from tests.models_of_tests import Decoder, SelfAttention

BLOCKWISE = tuple(measure.name for measure in BLOCK_MEASURES)


class Tokenizer:
    """Ids below 10 are punctuation, 0 is special."""

    all_special_ids = (0,)

    def __len__(self) -> int:
        return 50

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self.decode([one]) for one in ids]

    def decode(self, ids: Any, **options: Any) -> str:
        return "".join("<s>" if i == 0 else "." if i < 10 else f"w{i}" for i in ids)


def ids_of(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(seed))


def watched(model: nn.Module, *batches: dict[str, Tensor], **options: Any) -> Profile:
    with torch.no_grad(), hw.watch(model, **({"measures": "all"} | options)) as profile:
        for batch in batches:
            model(**batch)
    return profile


def weights_by_hand(model: Decoder, ids: Tensor, mask: Tensor | None = None) -> list[Tensor]:
    """The weights `[B, H, N, N]` of each layer, in float64, from the textbook formula."""
    x = model.embed(ids)
    n = ids.shape[1]
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    if mask is not None:
        seen = seen & mask[:, None, None, :].bool()
    found = []
    for layer in model.layers:
        attn = layer.attn
        q, k = (p(x).view(*x.shape[:2], -1, attn.head_dim).transpose(1, 2).double() for p in (attn.q, attn.k))
        scores = (q @ k.transpose(-1, -2) / math.sqrt(attn.head_dim)).masked_fill(~seen, -math.inf)
        found.append(scores.softmax(-1).nan_to_num())
        x = layer(x, None if mask is None else seen)
    return found


def test_token_measures_are_those_of_the_ids_that_the_model_read() -> None:
    torch.manual_seed(0)
    model = Decoder().eval()
    ids = ids_of(3, 24)
    table = watched(model, {"input_ids": ids}, tokenizer=Tokenizer()).table()
    with torch.no_grad():
        weights = weights_by_hand(model, ids)
    for layer, p in enumerate(weights):
        delimiter = (p * (ids < 10)[:, None, None, :]).sum(-1).mean((0, 2))
        rows = table[table["layer"] == layer]
        np.testing.assert_allclose(rows["delimiter"], delimiter, atol=1e-6)
        same = (ids[:, :, None] == ids[:, None, :]) & torch.ones(24, 24).tril(-1).bool()
        after = torch.zeros(3, 24, 24, dtype=torch.bool)
        after[:, :, 1:] = ids[:, :, None] == ids[:, None, :-1]
        after &= torch.ones(24, 24).tril().bool()
        for name, keys in (("duplicate", same), ("induction", after)):
            value = (p * keys[:, None]).sum(-1).transpose(0, 1)[:, keys.any(-1)].mean(-1)
            np.testing.assert_allclose(rows[name], value, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_measure(side: str) -> None:
    torch.manual_seed(1)
    model = Decoder().eval()
    ids = ids_of(1, 12, seed=3)
    pad = torch.zeros(1, 5, dtype=torch.int64)
    padded = torch.cat((pad, ids) if side == "left" else (ids, pad), 1)
    real = torch.cat((pad, ids + 1) if side == "left" else (ids + 1, pad), 1) > 0
    one = watched(model, {"input_ids": ids}, tokenizer=Tokenizer())
    two = watched(model, {"input_ids": padded, "attention_mask": real.long()}, tokenizer=Tokenizer())
    names = [*BLOCKWISE, "alpha_first", "entropy"]
    pd.testing.assert_frame_equal(one.table()[names], two.table()[names], rtol=1e-5, atol=1e-6)
    keys = [p.keys()[["label", "position", "alpha"]] for p in (one, two)]
    pd.testing.assert_frame_equal(*keys, rtol=1e-5, atol=1e-6)
    for measure in ("bc", "hellinger", "js", "output_similarity"):
        pd.testing.assert_frame_equal(one.pairs(measure), two.pairs(measure), rtol=1e-4, atol=1e-4)


def test_tokens_as_strings_do_as_well_as_ids() -> None:
    torch.manual_seed(2)
    model = Decoder().eval()
    ids = ids_of(2, 10, seed=5)
    strings = [[Tokenizer().decode([i]) for i in row] for row in ids.tolist()]
    # Strings cannot tell one dot from another: give both sides the same ids for all of them.
    ids = torch.where(ids < 10, torch.where(ids == 0, 0, 1), ids)
    by_id = watched(model, {"input_ids": ids}, tokenizer=Tokenizer()).table()
    by_string = watched(model, {"input_ids": ids}, tokens=strings).table()
    pd.testing.assert_frame_equal(by_id[["duplicate", "induction"]], by_string[["duplicate", "induction"]])


def test_decoding_goes_on_with_the_tokens_and_keys_of_the_cache() -> None:
    torch.manual_seed(3)
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation="sdpa", bos_token_id=0, eos_token_id=49,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    ids = ids_of(2, 9, seed=7)
    whole = torch.cat((ids, ids_of(2, 4, seed=8)), 1)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.no_grad(), hw.watch(model, measures="all") as profile:
        cache = transformers.DynamicCache(config=config)
        model(ids, **{name: cache}, use_cache=True)
        for step in range(9, 13):
            model(whole[:, step : step + 1], **{name: cache}, use_cache=True)
    with torch.no_grad(), hw.watch(model, measures="all") as once:
        model(whole, use_cache=False)
    table, full = profile.table(), once.table()
    rows = {phase: table[table["phase"] == phase].set_index("label") for phase in ("prefill", "decode")}
    for measure in ("output_norm", "value_own"):
        mean = (rows["prefill"][measure] * 9 + rows["decode"][measure] * 4) / 13
        np.testing.assert_allclose(mean, full[measure], rtol=1e-5, atol=1e-6, err_msg=measure)
    # The rows that have an earlier occurrence to look at, prompt and steps together, are those of one forward.
    for measure in ("duplicate", "induction"):
        k = profile.measures.index(measure)
        sums = [
            sum(totals.arrays["rows"][k] * totals.arrays["mean"][k] for g, totals in p.groups.items() if g.layer == 0)
            for p in (profile, once)
        ]
        np.testing.assert_allclose(*sums, rtol=1e-5, atol=1e-6, err_msg=measure)
        assert sums[0].all()
    # What the keys received from all rows, prompt and steps, is what they receive in one forward.
    keys = profile.keys()
    one = once.keys().set_index(["label", "position"])["alpha"]
    prompt, steps = (keys[keys["phase"] == p].set_index(["label", "position"])["alpha"] for p in ("prefill", "decode"))
    for (label, position), alpha in one.items():
        seen = [max(0, 9 - position), 4 if position < 9 else 13 - position]
        parts = [prompt.get((label, position), 0.0), steps.get((label, position), 0.0)]
        assert sum(a * n for a, n in zip(parts, seen, strict=True)) / sum(seen) == pytest.approx(alpha, abs=1e-6)
    assert profile.notes == ["delimiter: undefined for some calls: " + NO_DELIMITERS]


NO_DELIMITERS = "it needs to know which tokens are delimiters: give a tokenizer, or the tokens as strings"


def test_merging_equals_one_watch_and_a_file_keeps_it_all(tmp_path: Path) -> None:
    torch.manual_seed(4)
    model = Decoder().eval()
    a, b = {"input_ids": ids_of(2, 10)}, {"input_ids": ids_of(3, 17, seed=1)}
    labels = ["zh", "en", "en", "de", "en"]
    whole = watched(model, a, b, groups=labels)
    merged = watched(model, b, groups=labels[2:]).merge(watched(model, a, groups=labels[:2]))
    merged.save(tmp_path / "all.headwise")
    read = hw.load(tmp_path / "all.headwise")
    for other, slack in ((merged, 1e-12), (read, 1e-12)):
        pd.testing.assert_frame_equal(whole.table(), other.table(), rtol=slack)
        pd.testing.assert_frame_equal(whole.keys(), other.keys(), rtol=slack)
        for measure in ("bc", "js"):
            pd.testing.assert_frame_equal(whole.pairs(measure), other.pairs(measure), rtol=slack, atol=slack)
        for label in ("zh", "en", "de"):
            pd.testing.assert_frame_equal(whole.table(group=label), other.table(group=label), rtol=slack)
        assert sorted(other.labels) == ["de", "en", "zh"]
        assert other.notes == whole.notes != []
        assert other.sink_rate(0.1) == whole.sink_rate(0.1)


def test_groups_by_sequence_and_by_token() -> None:
    torch.manual_seed(5)
    model = Decoder().eval()
    ids = ids_of(3, 8)
    alone = watched(model, {"input_ids": ids[:1]}, measures="default").table()
    by_sequence = watched(model, {"input_ids": ids}, measures="default", groups=["a", "b", "b"])
    pd.testing.assert_frame_equal(by_sequence.table(group="a"), alone)
    assert by_sequence.table(group="b")["rows"].eq(16).all()
    labels = [["even", "odd"] * 4] * 2
    with pytest.warns(UserWarning, match="groups: 2 lists of labels for 3 sequences"):
        by_token = watched(model, {"input_ids": ids}, measures="default", groups=labels)
    even, odd, both = (by_token.table(group=g) for g in ("even", "odd", None))
    assert even["rows"].eq(8).all()
    assert odd["rows"].eq(8).all()
    assert both["rows"].eq(24).all()
    two = watched(model, {"input_ids": ids[:2]}, measures="default").table()
    np.testing.assert_allclose((even["entropy"] + odd["entropy"]) / 2, two["entropy"], rtol=1e-6)
    with pytest.raises(ValueError, match="expected a group among even, odd; got 'x'"):
        by_token.table(group="x")


@pytest.mark.parametrize("wrong", ["ab", [], [1, 2], ["a", ["b"]], [["a"], [1]]])
def test_groups_of_another_form_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"groups: expected a label for each sequence"):
        hw.watch(groups=wrong)


def test_watching_everything_changes_no_bit() -> None:
    torch.manual_seed(6)
    model = Decoder()
    ids = ids_of(2, 9)
    state = torch.get_rng_state()
    expected = model(ids)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    with hw.watch(model, measures="all", groups=["a", "b"], tokenizer=Tokenizer()):
        found = model(ids)
    assert torch.equal(found, expected)
    assert torch.equal(torch.get_rng_state(), after)
    found.sum().backward()
    assert all(p.grad is not None for p in model.layers.parameters())


def test_what_a_head_writes_is_measured_after_w_o_where_it_is_known() -> None:
    torch.manual_seed(7)
    attention = SelfAttention().eval()
    x = torch.randn(2, 6, 32)
    plain = watched(attention, {"x": x}).table()["output_norm"]
    attention.out_proj = attention.o
    known = watched(attention, {"x": x}).table()["output_norm"]
    with torch.no_grad():
        q, k, v = (p(x).view(2, 6, 4, 8).transpose(1, 2) for p in (attention.q, attention.k, attention.v))
        out = (q @ k.transpose(-1, -2) / math.sqrt(8)).softmax(-1) @ v
        written = torch.einsum("bhnd,mhd->bhnm", out, attention.o.weight.view(32, 4, 8)).norm(dim=-1)
    np.testing.assert_allclose(plain, out.norm(dim=-1).mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(known, written.mean((0, 2)), rtol=1e-5)


def test_only_a_linear_map_of_the_right_width_is_taken_for_w_o() -> None:
    module = nn.Module()
    module.o_proj = nn.Linear(12, 7)
    assert output_weight_of(module, 12) is not None
    assert output_weight_of(module, 8) is None
    assert output_weight_of(None, 12) is None
    module.o_proj = nn.Conv1d(12, 7, 1)
    assert output_weight_of(module, 12) is None
    module.o_proj = nn.Sequential(nn.Linear(12, 7), nn.Dropout())
    assert output_weight_of(module, 12) is not None


def test_a_users_measure_is_a_column_like_any_other(tmp_path: Path) -> None:
    hw.measure("even_keys", lambda block: block.weights[..., ::2].sum(-1), "max", unit="weight", title="Even keys")
    try:
        torch.manual_seed(8)
        model = Decoder().eval()
        ids = ids_of(2, 8)
        profile = watched(model, {"input_ids": ids}, measures=["even_keys", "first"])
        with torch.no_grad():
            p = weights_by_hand(model, ids)[0]
        expected = p[..., ::2].sum(-1).amax((0, 2))
        table = profile.table()
        np.testing.assert_allclose(table[table["layer"] == 0]["even_keys"], expected, atol=1e-6)
        profile.save(tmp_path / "mine.headwise")
    finally:
        hw.unregister("even_keys")
    # Read where nobody knows the measure.
    read = hw.load(tmp_path / "mine.headwise")
    assert read.entry("even_keys").title == "Even keys"
    pd.testing.assert_frame_equal(read.table(), table)
    read.to_html(tmp_path / "mine.html")
    assert "Even keys" in (tmp_path / "mine.html").read_text()


def test_heads_as_plain_pairs() -> None:
    torch.manual_seed(9)
    profile = watched(Decoder().eval(), {"input_ids": ids_of(2, 8)}, measures="default")
    table = profile.table()
    cut = table["first"].median()
    expected = [(r.layer, r.head) for r in table.itertuples() if r.first > cut and r.layer == 1]
    assert profile.heads(f"first > {cut} and layer == 1") == expected != []
    assert all(type(x) is int for pair in expected for x in pair)
    with pytest.raises(ValueError, match=r"heads: expected a condition on columns such as layer, .*; got 'frist > 1'"):
        profile.heads("frist > 1")


def test_roles_with_their_evidence() -> None:
    torch.manual_seed(10)
    model = Decoder(causal=True).eval()
    attention = model.layers[0].attn
    with torch.no_grad():  # head 0 of layer 0 looks at nothing but the average: it is broad
        attention.q.weight[:8] = 0
        attention.q.bias[:8] = 0
    profile = watched(model, {"input_ids": ids_of(4, 32)}, tokenizer=Tokenizer())
    roles = profile.roles()
    broad = roles[(roles["label"] == "L0H0") & (roles["role"] == "broad")]
    assert broad["value"].item() == pytest.approx(1.0)
    assert "mean entropy ratio 1" in broad["evidence"].item()
    none = profile.roles(hw.Thresholds(broad=1.1))
    assert "broad" not in set(none["role"])
    assert set(roles["label"]) == set(profile.table()["label"])


def test_unrecorded_things_say_how_to_record_them() -> None:
    profile = watched(Decoder().eval(), {"input_ids": ids_of(1, 4)}, measures="default")
    with pytest.raises(ValueError, match=r'keys: what keys receive was not recorded; watch with .*"alpha_first"'):
        profile.keys()
    with pytest.raises(ValueError, match=r'pairs: pairs of heads were not recorded; watch with .*"js"'):
        profile.pairs("js")
    with pytest.raises(ValueError, match=r"table: no groups were recorded"):
        profile.table(group="a")
    with pytest.raises(
        ValueError, match=r"roles: induction: expected the table of headwise.induction_scores; got float"
    ):
        profile.roles(induction=0.3)
    with pytest.raises(ValueError, match=r"heads: .*got 'first': it is no comparison"):
        profile.heads("first")
    with pytest.raises(ValueError, match=r'sink_rate: .* watch with measures=\["alpha_first"\] or "all"'):
        profile.sink_rate()
    with pytest.raises(ValueError, match="pairs: expected a measure among bc, hellinger, js, output_similarity"):
        profile.pairs("entropy")


def test_beam_search_and_unknown_caches_leave_the_tokens_unknown() -> None:
    from headwise.call import AttentionCall
    from headwise.capture.forwards import Forward
    from headwise.kernels import geometry_of

    call = AttentionCall(torch.zeros(2, 1, 1, 4), torch.zeros(2, 1, 6, 4), causal="lower_right")
    geometry = geometry_of(call)
    first = Forward({"input_ids": ids_of(2, 5)}, past=0, sequences=(1, 2))
    told = TokenIds(None, None)
    prompt = AttentionCall(torch.zeros(2, 1, 5, 4), torch.zeros(2, 1, 5, 4), causal="upper_left")
    assert told.of(prompt, geometry_of(prompt), first) is not None
    step = ids_of(2, 1, seed=1)
    known = told.of(call, geometry, Forward({"input_ids": step}, past=5, sequences=(1, 2)))
    assert known is not None
    assert known.keys.tolist() == torch.cat((first.arguments["input_ids"], step), 1).tolist()
    beams = Forward({"input_ids": step}, past=6, sequences=(1, 1))
    assert told.of(call, geometry, beams) is None
    assert told.of(call, geometry, Forward({"input_ids": step}, past=None, sequences=(1, 2))) is None


def _raises(block: Any) -> Tensor:
    raise ZeroDivisionError("nothing to divide by")


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_raises, "it failed: ZeroDivisionError: nothing to divide by"),
        (lambda block: block.weights, r"it failed: .*expected a value for each row"),
        (lambda block: block.tokens.keys, r"it failed: AttributeError: 'NoneType' .*give needs= \(.*tokens"),
    ],
)
def test_a_users_measure_that_fails_costs_itself_alone(function: Any, why: str, fuse: bool) -> None:
    torch.manual_seed(11)
    model = Decoder().eval()
    ids = ids_of(2, 8)
    expected = watched(model, {"input_ids": ids}, measures=["entropy", "output_norm"]).table()
    hw.measure("bad", function)
    try:
        with pytest.warns(UserWarning, match=f"measure 'bad' is NaN: {why}") as told:
            profile = watched(model, {"input_ids": ids}, measures=["entropy", "bad", "output_norm"], fuse=fuse)
    finally:
        hw.unregister("bad")
    assert len(told) == 1
    table = profile.table()
    assert table["bad"].isna().all()
    np.testing.assert_allclose(table[["entropy", "output_norm"]], expected[["entropy", "output_norm"]], rtol=1e-5)
    assert profile.unseen == []
    assert len(profile.notes) == 1


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        (["a"], "1 labels for 2 sequences"),
        (["a", "b", "c"], "3 labels for 2 sequences"),
        ([["a"] * 8, ["b"] * 7], "7 labels for a sequence of 8 tokens"),
    ],
)
def test_groups_that_do_not_fit_are_told(groups: Any, why: str) -> None:
    model = Decoder().eval()
    with pytest.warns(UserWarning, match=f"groups: {why}"):
        profile = watched(model, {"input_ids": ids_of(2, 8)}, measures="default", groups=groups)
    assert any(why in note for note in profile.notes)


def test_whether_calls_were_fused_can_be_seen() -> None:
    model = Decoder().eval()
    ids = ids_of(2, 8)
    fused = watched(model, {"input_ids": ids}, measures="default", fuse=True)
    assert [layer.fused for layer in fused.layers] in ([1, 1], [0, 0])
    assert bool(fused.notes) == (fused.layers[0].fused == 0)  # without a compiled kernel it is told
    with hw.watch(model, fuse=True) as profile:
        model(ids)
    assert [layer.fused for layer in profile.layers] == [0, 0]
    assert profile.notes == [
        "fuse: no call was fused: that takes torch.no_grad() and no dropout, on a CPU with the native kernel"
    ]
