"""Profiles: tables against the oracle, and the laws of padding, packing, decoding, splitting and permuting."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise
from headwise.call import AttentionCall, Place
from headwise.kernels.geometry import geometry_of
from headwise.profile import Group, Layer, Profile, Sequence
from tests.oracle import definitions as oracle
from tests.profile.recording import ALL, FEWER, add, assert_same_table, profile_of, random_call, sums_of

F64 = torch.float64
ANY = st.integers(0, 2**32 - 1)


def table_of(call: AttentionCall, sequence: np.ndarray | None = None) -> dict[str, dict[str, np.ndarray]]:
    """What the table must say, by the oracle alone."""
    mask = None if call.mask is None else call.mask.numpy()
    sinks = None if call.sinks is None else call.sinks.numpy()
    seen = oracle.seen_keys(call.sizes, mask, call.causal, call.window)
    s = oracle.scores_of(call.q.numpy(), call.k.numpy(), call.scale, call.softcap, mask)
    p, p_sink = oracle.weights_of(s, seen, sinks)
    own = oracle.own_keys(seen, causal=call.causal is not None, cross=call.is_cross)
    values = oracle.row_values(p, s, seen, own, oracle.first_keys(seen, sequence), p_sink, sinks)
    B, _, N, M = call.sizes
    real = np.ones((B, N), dtype=bool)
    if call.real is not None:
        real = call.real.numpy()
    elif N == M and not call.is_cross and mask is not None:
        real = seen.any((1, 2))
    counted = oracle.finite_rows(s, seen) & seen.any(-1) & real[:, None]
    clusters = None if sequence is None else np.arange(B)[:, None] * 1000 + sequence
    return oracle.head_values(values, counted, clusters)


def assert_table_is(profile: Profile, expected: dict[str, dict[str, np.ndarray]]) -> None:
    table = profile.table()
    for name in ALL:
        for column, of in (("", "mean"), ("_std", "std"), ("_min", "min"), ("_max", "max"), ("_se", "se")):
            wanted = expected[name][of]
            if name == "max_score" and column in ("", "_se"):
                wanted = expected[name]["max"] if column == "" else np.full_like(wanted, np.nan)
            np.testing.assert_allclose(
                table[name + column].to_numpy(), wanted, rtol=1e-9, atol=1e-9, err_msg=name + column
            )


def left_padding(lengths: list[int], size: int) -> Tensor:
    return (torch.arange(size) >= size - torch.tensor(lengths)[:, None])[:, None, None]


def right_padding(lengths: list[int], size: int) -> Tensor:
    return (torch.arange(size) < torch.tensor(lengths)[:, None])[:, None, None]


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": "upper_left"},
    "window": {"causal": "upper_left", "window": 3},
    "left padding": {"mask": left_padding([9, 4, 7], 9)},
    "right padding, causal": {"mask": right_padding([9, 2, 6], 9), "causal": "upper_left"},
    "sinks and softcap": {"sinks": torch.tensor([0.0, 2.0, -1.0, 5.0], dtype=F64), "softcap": 3.0},
    "cross": {"M": 5, "place": Place(kind="cross")},
    "chunk": {"N": 4, "M": 9, "causal": "lower_right"},
    "bias": {"mask": torch.randn(1, 4, 9, 9, dtype=F64, generator=torch.Generator().manual_seed(1))},
    "real": {"real": torch.rand(3, 9, generator=torch.Generator().manual_seed(3)) > 0.4},
}


@pytest.mark.parametrize("name", CALLS)
def test_the_table_is_the_oracles(name: str) -> None:
    call = random_call(**{"B": 3, "H": 4, "N": 9, **CALLS[name]})
    assert_table_is(profile_of(call), table_of(call))


def test_the_table_of_packed_sequences_is_the_oracles() -> None:
    number = torch.tensor([[0] * 9, [0] * 4 + [1] * 5, [0] * 2 + [1] * 3 + [2] * 4])
    mask = (number[:, :, None] == number[:, None, :])[:, None]
    for causal in (None, "upper_left"):
        call = random_call(B=3, H=2, N=9, mask=mask, causal=causal)
        assert_table_is(profile_of(call), table_of(call, number.numpy()))


def test_columns_of_the_table() -> None:
    place = Place(layer=3, name="encoder.attn", call=1, phase="decode", kind="window", kv_groups=2)
    table = profile_of(random_call(H=4, place=place)).table()
    head = ["layer", "head", "label", "name", "call", "phase", "kind", "kv_head"]
    counts = ["rows", "masked_rows", "padded_rows", "nonfinite_rows"]
    measures = [m + part for m in ALL for part in ("", "_std", "_min", "_max", "_se")]
    assert list(table.columns) == head + counts + measures
    assert table["label"].tolist() == ["L3H0", "L3H1", "L3H2", "L3H3"]
    assert table["kv_head"].tolist() == [0, 0, 1, 1]
    assert table.loc[0, head[3:7]].tolist() == ["encoder.attn", 1, "decode", "window"]
    assert table["rows"].tolist() == [12] * 4
    assert table["rows"].dtype == np.int64


def test_an_empty_profile_has_the_same_columns() -> None:
    empty = Profile()
    assert list(empty.table().columns) == list(profile_of(random_call()).table().columns)
    assert len(empty.table()) == len(empty.offsets()) == len(empty.by_position("entropy")) == 0
    assert empty.layers == empty.unseen == empty.sequences == []
    assert empty.verified is None


def test_rows_are_ordered_by_layer_call_and_phase() -> None:
    places = [
        Place(1, "b"), Place(0, "a", 1), Place(0, "a", 0, "decode"), Place(0, "a", 0, "prefill"),
    ]  # fmt: skip
    table = profile_of(*(random_call(H=1, place=place) for place in places)).table()
    found = table[["layer", "call", "phase"]].to_numpy().tolist()
    assert found == [[0, 0, "prefill"], [0, 0, "decode"], [0, 1, "prefill"], [1, 0, "prefill"]]


# Splitting, permuting


@FEWER
@given(ANY, st.integers(1, 6), st.data())
def test_any_split_of_a_batch_in_any_order_is_one_pass(seed: int, B: int, data: st.DataObject) -> None:
    torch.manual_seed(seed)
    lengths = data.draw(st.lists(st.integers(1, 7), min_size=B, max_size=B))
    causal = data.draw(st.sampled_from([None, "upper_left"]))
    call = random_call(B=B, N=7, mask=left_padding(lengths, 7), causal=causal)
    assert call.mask is not None
    places = data.draw(st.lists(st.integers(0, 2), min_size=B, max_size=B))
    parts = [
        call.with_(q=call.q[at], k=call.k[at], mask=call.mask[at])
        for at in ([i for i, place in enumerate(places) if place == g] for g in range(3))
        if at
    ]
    order = data.draw(st.permutations(parts))
    whole = profile_of(call)
    assert_same_table(profile_of(*order), whole)
    merged = profile_of(order[0])
    for one in order[1:]:
        assert merged.merge(profile_of(one)) is merged
    assert_same_table(merged, whole)
    pieces = merged.by_position("entropy"), whole.by_position("entropy")
    np.testing.assert_allclose(pieces[0]["mean"], pieces[1]["mean"], rtol=1e-12, atol=1e-12)
    assert pieces[0]["rows"].tolist() == pieces[1]["rows"].tolist()
    assert merged.offsets().equals(whole.offsets())


@FEWER
@given(ANY, st.sampled_from([None, "upper_left"]))
def test_permuting_heads_permutes_the_table(seed: int, causal: Any) -> None:
    torch.manual_seed(seed)
    call = random_call(H=5, causal=causal, mask=left_padding([6, 4], 6))
    order = torch.randperm(5)
    permuted = profile_of(call.with_(q=call.q[:, order], k=call.k[:, order])).table()
    expected = profile_of(call).table().iloc[order.tolist()]
    for measure in ALL:
        for part in ("", "_std", "_min", "_max", "_se"):
            column = measure + part
            np.testing.assert_allclose(
                permuted[column].to_numpy(), expected[column].to_numpy(), rtol=1e-10, atol=1e-10, err_msg=column
            )


# Decoding


@FEWER
@given(ANY, st.integers(1, 5), st.integers(1, 3))
def test_a_continuation_is_one_longer_call(seed: int, cut: int, chunk: int) -> None:
    """Prefill of `cut` tokens, then chunks against the cache, is the causal call over all tokens."""
    torch.manual_seed(seed)
    whole = random_call(B=2, H=2, N=8, causal="upper_left")
    names, parts = (5, 6), [whole.with_(q=whole.q[:, :, :cut], k=whole.k[:, :, :cut])]
    for start in range(cut, 8, chunk):
        end = min(8, start + chunk)
        parts.append(whole.with_(q=whole.q[:, :, start:end], k=whole.k[:, :, :end], causal="lower_right"))
    found = profile_of(*((part, names) for part in parts))
    assert_same_table(found, profile_of((whole, names)))
    # the same through a static cache: all eight places, and a mask
    static = [parts[0]]
    for start in range(cut, 8, chunk):
        end = min(8, start + chunk)
        seen = torch.arange(8) <= torch.arange(start, end)[:, None]
        static.append(whole.with_(q=whole.q[:, :, start:end], mask=seen[None, None], causal=None))
    assert_same_table(profile_of(*((part, names) for part in static)), profile_of((whole, names)))


def test_new_names_would_count_as_new_texts() -> None:
    call = random_call(B=2, causal="upper_left")
    again = profile_of((call, (0, 1)), (call, (0, 1))).table()
    other = profile_of((call, (0, 1)), (call, (2, 3))).table()
    assert not np.allclose(again["entropy_se"], other["entropy_se"])
    np.testing.assert_allclose(again["entropy"], other["entropy"], rtol=1e-12)


# Padding and packing


def padded(call: AttentionCall, left: int, right: int, garbage: float, real: bool) -> AttentionCall:
    """The call with padded rows and keys around it, hidden by a key mask; garbage in their q and k."""
    _, _, N, _ = call.sizes
    B, H, d = call.q.shape[0], call.q.shape[1], call.q.shape[3]

    def widen(x: Tensor) -> Tensor:
        wide = torch.full((B, H, left + N + right, d), garbage, dtype=x.dtype)
        wide[:, :, left : left + N] = x
        return wide

    inside = torch.zeros(B, left + N + right, dtype=torch.bool)
    inside[:, left : left + N] = True
    if call.mask is not None:
        inside[:, left : left + N] = call.mask.expand(B, 1, 1, N)[:, 0, 0]
    return call.with_(q=widen(call.q), k=widen(call.k), mask=inside[:, None, None], real=inside if real else None)


@FEWER
@given(
    seed=ANY,
    left=st.integers(0, 6),
    right=st.integers(0, 6),
    garbage=st.sampled_from([0.0, 1e4, -3.0, math.nan, math.inf, -math.inf]),
    causal=st.sampled_from([None, "upper_left"]),
    window=st.sampled_from([None, 3, (2, 1)]),
    real=st.booleans(),
    as_float=st.booleans(),
    sinks=st.booleans(),
)
def test_padding_changes_no_measure(
    seed: int, left: int, right: int, garbage: float, causal: Any, window: Any, real: bool, as_float: bool, sinks: bool
) -> None:
    torch.manual_seed(seed)
    call = random_call(B=2, H=2, N=5, causal=causal, window=window, sinks=torch.randn(2, dtype=F64) if sinks else None)
    wide = padded(call, left, right, garbage, real)
    if as_float:
        assert wide.mask is not None
        low = torch.finfo(F64).min
        wide = wide.with_(mask=torch.zeros(wide.mask.shape, dtype=F64).masked_fill(~wide.mask, low))
    expected, found = profile_of(call), profile_of(wide)
    assert_same_table(found, expected, skip=("padded_rows",))
    assert found.table()["padded_rows"].tolist() == [2 * (left + right)] * 2
    assert found.offsets().equals(expected.offsets())
    a, b = found.by_position("entropy"), expected.by_position("entropy")
    assert a[["head", "start", "end", "rows"]].equals(b[["head", "start", "end", "rows"]])
    np.testing.assert_allclose(a["mean"], b["mean"], rtol=1e-10, atol=1e-10)


@FEWER
@given(ANY, st.lists(st.integers(1, 6), min_size=1, max_size=4), st.booleans(), st.sampled_from([None, "upper_left"]))
def test_a_padded_batch_is_its_sequences_one_by_one(seed: int, lengths: list[int], left: bool, causal: Any) -> None:
    torch.manual_seed(seed)
    size = 7
    mask = (left_padding if left else right_padding)(lengths, size)
    batch = random_call(B=len(lengths), N=size, mask=mask, causal=causal)
    alone = []
    for b, length in enumerate(lengths):
        span = slice(size - length, None) if left else slice(0, length)
        alone.append(batch.with_(q=batch.q[b : b + 1, :, span], k=batch.k[b : b + 1, :, span], mask=None))
    assert_same_table(profile_of(batch), profile_of(*alone), skip=("padded_rows",))


@FEWER
@given(
    ANY, st.lists(st.integers(2, 5), min_size=1, max_size=4), st.integers(0, 3), st.sampled_from([None, "upper_left"])
)
def test_packed_sequences_are_the_sequences_one_by_one(seed: int, lengths: list[int], pad: int, causal: Any) -> None:
    torch.manual_seed(seed)
    size = sum(lengths) + pad
    number = torch.full((size,), -1)
    spans, start = [], 0
    for n, length in enumerate(lengths):
        spans.append(slice(start, start + length))
        number[spans[-1]] = n
        start += length
    mask = (number[:, None] == number) & (number >= 0)
    call = random_call(B=1, N=size, mask=mask, causal=causal)
    alone = [call.with_(q=call.q[:, :, span], k=call.k[:, :, span], mask=None) for span in spans]
    found = profile_of(call)
    assert_same_table(found, profile_of(*alone), skip=("padded_rows",))
    assert found.table()["padded_rows"].tolist() == [pad] * 3
    assert found.offsets().equals(profile_of(*alone).offsets())


def test_packed_sequences_cluster_apart() -> None:
    mask = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)) > 0
    call = random_call(B=1, N=6, mask=mask)
    assert not math.isnan(profile_of(call).table()["entropy_se"][0])
    assert math.isnan(profile_of(call.with_(mask=None)).table()["entropy_se"][0])


def test_counts_in_the_table() -> None:
    mask = left_padding([6, 4], 6).expand(2, 1, 6, 6).clone()
    mask[0, 0, 2] = False
    call = random_call(H=2, mask=mask)
    q = call.q.clone()
    q[0, 1, 5] = math.nan
    table = profile_of(call.with_(q=q)).table()
    assert table[["rows", "masked_rows", "padded_rows", "nonfinite_rows"]].to_numpy().tolist() == [
        [9, 1, 2, 0],
        [8, 1, 2, 1],
    ]
    assert not table["entropy"].isna().any()


# Histograms and positions


def test_offsets_of_a_previous_token_head() -> None:
    q = torch.zeros(1, 1, 6, 6, dtype=F64)
    for i in range(1, 6):
        q[0, 0, i, i - 1] = 20.0
    q[0, 0, 0, 0] = 20.0
    call = AttentionCall(q, torch.eye(6, dtype=F64)[None, None], causal="upper_left")
    offsets = profile_of(call).offsets()
    assert list(offsets.columns[6:]) == [*map(str, range(-8, 9)), "other"]
    assert offsets.loc[0, "1"] == 5
    assert offsets.loc[0, "0"] == 1
    assert offsets.iloc[0, 6:].sum() == 6
    assert offsets.loc[0, ["layer", "head", "label", "call", "phase", "kind"]].tolist() == [
        0, 0, "L0H0", 0, "prefill", "self",
    ]  # fmt: skip


def test_by_position_of_uniform_causal_attention() -> None:
    call = AttentionCall(torch.zeros(2, 1, 8, 3), torch.zeros(2, 1, 8, 3), causal="upper_left")
    found = profile_of(call).by_position("self_focus")
    assert found["start"].tolist() == [0, 1, 3, 7]
    assert found["end"].tolist() == [0, 2, 6, 14]
    assert found["rows"].tolist() == [2, 4, 8, 2]
    expected = [1.0, (1 / 2 + 1 / 3) / 2, (1 / 4 + 1 / 5 + 1 / 6 + 1 / 7) / 4, 1 / 8]
    assert found["mean"].tolist() == pytest.approx(expected, rel=1e-6)
    assert profile_of(call).by_position("next").empty
    with pytest.raises(ValueError, match=r"expected a measure among self_focus.*got 'focus'"):
        profile_of(call).by_position("focus")


# Merging profiles, records


def test_merging_different_models_is_refused_and_changes_nothing() -> None:
    mine = profile_of(random_call(place=Place(0, "a")))
    before = mine.table()
    others = {
        "'b'": profile_of(random_call(place=Place(0, "b"))),
        "5": profile_of(random_call(H=5, place=Place(0, "a"))),
    }
    for says, other in others.items():
        with pytest.raises(ValueError, match=rf"merge: layer 0 .*{says}.*of other models"):
            mine.merge(other)
    some = Profile(("entropy", "first"))
    with pytest.raises(ValueError, match=r"same measures; got .*and entropy, first"):
        mine.merge(some)
    assert mine.table().equals(before)


def test_merging_takes_over_what_is_new() -> None:
    a, b = profile_of(random_call(place=Place(0, "a"))), Profile()
    add(b, random_call(place=Place(1, "b")))
    add(b, random_call(place=Place(0, "a", kind="cross"), causal="lower_right"))
    b.layers[0].verified = 2e-6
    b.record_unseen("x", "nested tensors", "pad")
    a.record_unseen("x", "nested tensors", "pad")
    b.record_sequences([Sequence(3, [1, 2, 3])], 7)
    a.record_sequences([], 2)
    a.info, b.info = {"model": "m"}, {"model": "n", "dtype": "float32"}
    before = b.table()
    a.merge(b)
    assert [layer.name for layer in a.layers] == ["a", "b"]
    assert a.layers[0].kinds == ("self", "cross")
    assert a.layers[0].causal == ("none", "lower_right")
    assert a.layers[0].calls == 2
    assert a.verified == 2e-6
    assert [(unseen.name, unseen.count) for unseen in a.unseen] == [("x", 2)]
    assert a.num_sequences == 9
    assert a.sequences == [Sequence(3, [1, 2, 3])]
    assert a.info == {"model": "m", "dtype": "float32"}
    assert len(a.table()) == 9
    a.layers[1].calls = 99  # nothing is shared with the other
    add(a, random_call(place=Place(1, "b")))
    assert b.table().equals(before)
    assert b.layers[1].calls == 1


def test_another_number_of_heads_in_a_layer_is_refused() -> None:
    profile = profile_of(random_call(H=3, place=Place(2, "attn")))
    with pytest.raises(ValueError, match=r"layer 2 \(attn\): expected 3 heads as before, got 4"):
        add(profile, random_call(H=4, place=Place(2, "attn")))


def test_a_refused_merge_of_the_second_layer_changes_nothing() -> None:
    mine = profile_of(random_call(place=Place(0, "a")), random_call(place=Place(1, "b")))
    other = profile_of(random_call(place=Place(0, "a")), random_call(place=Place(1, "c")))
    before, calls = mine.table(), [layer.calls for layer in mine.layers]
    with pytest.raises(ValueError, match="layer 1"):
        mine.merge(other)
    assert mine.table().equals(before)
    assert [layer.calls for layer in mine.layers] == calls


def test_unseen_attention_is_counted_once_each() -> None:
    profile = Profile()
    assert profile.record_unseen("a", "why", "do")
    assert not profile.record_unseen("a", "why", "do")
    assert profile.record_unseen("a", "other", "do")
    assert [(u.reason, u.count) for u in profile.unseen] == [("why", 2), ("other", 1)]


def test_the_worst_verification_stands_and_nan_is_worst() -> None:
    profile = Profile()
    assert profile.verified is None
    for number, error in enumerate([1e-7, 3e-6, 2e-6]):
        call = random_call(H=1, place=Place(number, str(number)))
        group = Group(number, 0, "prefill", "self")
        profile.record(Layer(number, str(number), 1, 1, 4, verified=error), group, sums_of(call))
    assert profile.verified == 3e-6
    for error in (math.nan, 1e-9):
        profile.record(
            Layer(1, "1", 1, 1, 4, verified=error), Group(1, 0, "prefill", "self"), sums_of(random_call(H=1))
        )
    assert profile.verified is not None
    assert math.isnan(profile.verified)


def test_what_is_pending_is_settled_before_reading() -> None:
    for read in ("table", "offsets"):
        profile, late = Profile(), random_call()

        def settle(profile: Profile = profile, late: AttentionCall = late) -> None:
            profile.pending = None
            add(profile, late)

        profile.pending = settle
        assert len(getattr(profile, read)()) == 3
    profile = Profile()
    profile.pending = lambda: profile.record_sequences([], 4) or setattr(profile, "pending", None)  # type: ignore[func-returns-value]
    assert profile.num_sequences == 4


def test_pending_sums_are_settled_before_merging() -> None:
    def waiting(call: AttentionCall) -> Profile:
        profile = Profile()

        def settle() -> None:
            profile.pending = None
            add(profile, call)

        profile.pending = settle
        return profile

    a, b = random_call(place=Place(0, "a")), random_call(place=Place(0, "a"))
    assert_same_table(waiting(a).merge(waiting(b)), profile_of(a).merge(profile_of(b)))


def waits_with(profile: Profile, ids: list[int], read: list[list[int]]) -> Profile:
    """A profile whose text nobody has asked for yet; `read` notes when it is decoded."""

    def decode() -> None:
        read.append(ids)
        profile.record_sequences([Sequence(len(ids), ids, [str(one) for one in ids])], 0)

    profile.record_sequences([], 1)
    profile.read.unread = decode
    return profile


def test_texts_are_read_when_somebody_asks_for_them(tmp_path: Path) -> None:
    read: list[list[int]] = []
    profile = waits_with(profile_of(random_call()), [1, 2], read)
    assert profile.num_sequences == 1
    profile.table()
    assert read == []
    assert [one.tokens for one in profile.sequences] == [one.tokens for one in profile.sequences] == [["1", "2"]]
    assert read == [[1, 2]]
    profile = waits_with(profile_of(random_call()), [3], read)
    profile.save(tmp_path / "a.headwise")
    assert headwise.load(tmp_path / "a.headwise").sequences == [Sequence(1, [3], ["3"])]


def test_texts_stand_in_the_order_in_which_they_were_read() -> None:
    read: list[list[int]] = []
    a, b = (waits_with(Profile(), [number], read) for number in (1, 2))
    a.merge(b)
    assert [one.ids for one in a.sequences] == [[1], [2]]
    a = waits_with(Profile(), [1], read)
    a.record_sequences([Sequence(1, [2])], 1)
    assert [one.ids for one in a.sequences] == [[1], [2]]


def test_a_tokenizer_that_fails_is_asked_again() -> None:
    profile, asked = Profile(), []

    def decode() -> None:
        asked.append(1)
        if len(asked) == 1:
            raise OSError("the vocabulary is not there")
        profile.record_sequences([Sequence(1, [5], ["a"])], 1)

    profile.read.unread = decode
    with pytest.raises(OSError, match="vocabulary"):
        _ = profile.sequences
    assert profile.sequences == [Sequence(1, [5], ["a"])]


def test_a_profile_goes_to_another_process_with_its_texts() -> None:
    profile = waits_with(profile_of(random_call()), [1, 2], [])
    profile.pending = lambda: profile.record_sequences([], 4) or setattr(profile, "pending", None)  # type: ignore[func-returns-value]
    copy = pickle.loads(pickle.dumps(profile))
    assert (copy.num_sequences, copy.pending) == (5, None)
    assert copy.sequences == profile.sequences == [Sequence(2, [1, 2], ["1", "2"])]
    assert_same_table(copy, profile)


def test_the_text_of_a_profile_names_its_heads_and_what_was_missed() -> None:
    profile = profile_of(random_call(place=Place(0, "encoder.attn")))
    profile.record_unseen("decoder.attn", "nested tensors", "pad")
    text = repr(profile)
    assert "L0H2" in text
    assert "encoder.attn" in text
    assert "decoder.attn: nested tensors" in text


def test_geometry_of_a_packed_call_is_what_the_oracle_was_given() -> None:
    """Guards the test above: the call of the packed table is seen as packed."""
    number = torch.tensor([0] * 4 + [1] * 5)
    segment = geometry_of(random_call(B=1, N=9, mask=(number[:, None] == number)[None, None])).segment
    assert segment is not None
    assert segment[0].tolist() == number.tolist()
