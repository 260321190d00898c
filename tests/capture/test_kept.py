"""What a watch keeps: the exact weights of any head afterwards, whatever the model does with its tensors meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import headwise as hw
from headwise.call import AttentionCall, Place
from headwise.capture.forwards import Forward
from headwise.capture.kept import Keeper, compressed
from headwise.kernels import row_statistics
from headwise.profile import Layer, Profile
from headwise.profile.kept import Kept, size_text
from tests.models_of_tests import Decoder
from tests.oracle.eager import eager_calls
from tests.real_models import load_minilm

IDS = torch.arange(14).view(2, 7)
LEFT = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
RIGHT = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1] * 7])


class Tokenizer:
    def decode(self, ids: list[int]) -> str:
        return "-".join(f"t{i}" for i in ids)


def plain_weights(call: AttentionCall) -> Tensor:
    """Softmax by the definition, float64, whole: `[B, H, N, M]`."""
    B, H, N, M = call.sizes
    k = call.k.double().repeat_interleave(H // call.k.shape[1], 1)
    s = call.q.double() @ k.mT * (call.scale if call.scale is not None else call.q.shape[-1] ** -0.5)
    if call.softcap is not None:
        s = call.softcap * torch.tanh(s / call.softcap)
    seen = torch.ones(B, H, N, M, dtype=torch.bool)
    if call.mask is not None:
        if call.mask.dtype == torch.bool:
            seen &= call.mask
        else:
            s, seen = s + call.mask.double(), seen & ~(call.mask <= call.hide_below)
    row, key = torch.arange(N)[:, None], torch.arange(M)
    here = row + (M - N if call.causal == "lower_right" or (call.causal is None and call.window is not None) else 0)
    if call.causal is not None:
        seen &= key <= here
    if call.window is not None:
        left, right = call.window if isinstance(call.window, tuple) else (call.window - 1, 0)
        seen &= (key >= here - left) & (key <= here + right)
    e = torch.where(seen, s.exp(), 0.0)
    total = e.sum(-1, keepdim=True)
    if call.sinks is not None:
        total = total + call.sinks.double().exp()[:, None, None]
    return torch.where(total > 0, e / total.clamp(min=1e-300), 0.0)


def kept_of(*calls: AttentionCall, limit: int = 10**9, values: bool = True, one_forward: bool = False) -> Profile:
    """A profile that keeps these calls; each has sequences of its own, unless they are of one forward."""
    profile = Profile()
    profile.kept = Kept(limit)
    keeper = Keeper(profile, profile.kept, values)
    number, forward = 1, Forward()
    for call in calls:
        B, H, _, _ = call.sizes
        if not one_forward or not forward.sequences:
            forward = Forward(sequences=tuple(range(number, number + B)))
            number += B
            profile.record_sequences([], B)
        profile._layers.setdefault(call.place.layer, Layer(call.place.layer, "", H, call.k.shape[1], call.q.shape[-1]))
        keeper.keep(call, row_statistics(call), forward)
    keeper.release()
    return profile


def make(B: int = 2, H: int = 4, kv: int = 2, N: int = 6, M: int = 6, dtype: Any = torch.float64, **more: Any) -> Any:
    q, k, v = torch.randn(B, H, N, 5) * 2, torch.randn(B, kv, M, 5), torch.randn(B, kv, M, 3)
    return AttentionCall(q.to(dtype), k.to(dtype), v.to(dtype), **more)


def padding(side: str, N: int, M: int, causal: bool) -> Tensor:
    key = torch.arange(M)
    real = torch.stack([key >= 2 if side == "left" else key < M - 2, key >= 0])[:, None, None]
    return real & torch.ones(N, M).tril(M - N).bool() if causal else real


CASES: dict[str, Any] = {
    "plain": {},
    "one key-value head": {"kv": 1},
    "scale": {"scale": 0.7},
    "upper_left": {"causal": "upper_left", "N": 4, "M": 7},
    "lower_right": {"causal": "lower_right", "N": 4, "M": 7},
    "more rows than keys": {"causal": "lower_right", "N": 7, "M": 4},
    "padding left": {"mask": padding("left", 6, 6, False)},
    "padding right": {"mask": padding("right", 6, 6, False)},
    "causal mask, padding left": {"mask": padding("left", 6, 6, True)},
    "causal mask, padding right": {"mask": padding("right", 6, 6, True)},
    "causal mask of a cache": {"mask": padding("left", 4, 7, True), "N": 4, "M": 7},
    "padding beside causality": {"mask": padding("left", 6, 6, False), "causal": "upper_left"},
    "float that hides": {"mask": torch.zeros(2, 1, 6, 6).masked_fill(~padding("left", 6, 6, True), -torch.inf)},
    "window": {"causal": "upper_left", "window": 3},
    "window, two sides": {"window": (2, 1), "mask": padding("left", 6, 6, False)},
    "softcap": {"softcap": 3.0, "causal": "upper_left"},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)},
    "cross": {"N": 3, "M": 8, "place": Place(kind="cross"), "mask": padding("right", 3, 8, False)},
    "no keys": {"mask": torch.zeros(2, 1, 6, 6, dtype=torch.bool)},
    "one decoding step": {"N": 1, "M": 6, "place": Place(phase="decode")},
    "mask over keys of one column": {"mask": torch.tensor([[True], [False]])[:, None, None]},
}  # fmt: skip


@pytest.mark.parametrize("name", [*CASES, "random mask", "float bias", "shared bias", "rows of holes"])
def test_weights_are_the_softmax(name: str) -> None:
    torch.manual_seed(3)
    random = torch.rand(2, 4, 6, 6) > 0.4
    masks = {
        "random mask": random,
        "float bias": torch.randn(2, 4, 6, 6, dtype=torch.float64).masked_fill(~random, -torch.inf),
        "shared bias": torch.randn(1, 4, 6, 6, dtype=torch.float64),
        "rows of holes": random[:, :1],
    }
    call = make(**(CASES[name] if name in CASES else {"mask": masks[name]}))
    profile, expected = kept_of(call), plain_weights(call)
    for head in range(4):
        for sequence in (0, 1):
            found = profile.weights((0, head), sequence=sequence)
            assert found.dtype == torch.float64
            torch.testing.assert_close(found, expected[sequence, head], rtol=1e-12, atol=1e-14)
            values = call.v[sequence, head // (4 // call.v.shape[1])]
            torch.testing.assert_close(profile.output((0, head), sequence=sequence), found @ values)
            for rows in (slice(1, 4), [3, 0, 3], -1):
                if call.sizes[2] > 3:
                    picked = found[rows if isinstance(rows, slice) else [rows] if isinstance(rows, int) else rows]
                    again = profile.weights(f"L0H{head}", rows, sequence=sequence)
                    torch.testing.assert_close(again, picked, rtol=1e-13, atol=1e-15)


@given(
    st.integers(1, 3), st.sampled_from([(4, 1), (4, 2), (6, 3), (2, 2)]), st.integers(1, 9), st.integers(1, 9),
    st.sampled_from([None, "upper_left", "lower_right"]), st.sampled_from(["none", "keys", "rows", "bias"]),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)  # fmt: skip
def test_any_call(B: int, heads: Any, N: int, M: int, causal: Any, kind: str, dtype: torch.dtype) -> None:
    shape = {"keys": (B, 1, 1, M), "rows": (B, 1, N, M), "bias": (heads[0], N, M)}.get(kind)
    mask = None
    if shape is not None:
        mask = torch.randn(shape).to(dtype) if kind == "bias" else torch.rand(shape) > 0.3
    call = make(B, *heads, N, M, dtype, causal=causal, mask=mask)
    profile, expected = kept_of(call), plain_weights(call)
    tolerance = 1e-12 if dtype == torch.float64 else 5e-6
    for head in range(heads[0]):
        found = profile.weights((0, head), sequence=B - 1)
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(found.double(), expected[-1, head], rtol=0, atol=tolerance)


def test_rows_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts come in parts, of which the same rows must come."""
    from headwise import blocks
    from headwise.capture import kept_heads

    call = make(N=9, M=9, mask=torch.rand(2, 1, 9, 9) > 0.3)
    causal = make(N=9, M=9, causal="upper_left")
    for one in (call, causal):
        profile = kept_of(one)
        whole, small = profile.weights("L0H1"), profile.map("L0H1", (4, 3))
        monkeypatch.setattr(kept_heads, "BLOCK_ELEMENTS", 20)
        monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 20)
        torch.testing.assert_close(profile.weights("L0H1"), whole, rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(profile.weights("L0H1", [8, 2, 5]), whole[[8, 2, 5]], rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(profile.map("L0H1", (4, 3)), small, rtol=1e-12, atol=1e-14)
        monkeypatch.undo()


@pytest.mark.parametrize("how", ["mean", "max"])
def test_maps_pool_the_weights(how: str) -> None:
    call = make(N=7, M=10, causal="lower_right")
    profile = kept_of(call)
    p = plain_weights(call)[1, 2]
    pool = F.adaptive_avg_pool2d if how == "mean" else F.adaptive_max_pool2d
    found = profile.map("L0H2", (3, 4), how, sequence=1)
    torch.testing.assert_close(found, pool(p[None], (3, 4))[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(profile.map("L0H2", 64, how, sequence=1), p, rtol=1e-9, atol=1e-12)


def test_a_map_of_sharp_rows_is_that_of_their_weights() -> None:
    """Scores of hundreds in float32, whose rounding the lse does not share: no weight is above 1."""
    call = make(N=70, M=70)
    call = call.with_(q=call.q.float() * 30, k=call.k.float(), v=None)
    profile = kept_of(call)
    found = profile.map("L0H1", 70, "max")
    assert float(found.max()) <= 1
    torch.testing.assert_close(found, profile.weights("L0H1"), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [1.5, (4,), (4, 0.5), "4"])
def test_a_size_that_is_none(size: Any) -> None:
    with pytest.raises(ValueError, match="map: size: expected a whole number of rows and columns, or two; got"):
        kept_of(make(N=7, M=7)).map("L0H0", size)


# Of a model


def watched(model: nn.Module, **more: Any) -> Profile:
    inputs = {name: more.pop(name) for name in ("input_ids", "attention_mask") if name in more}
    with torch.no_grad(), hw.watch(model, **{"keep": "qkv"} | more) as profile:
        model(**inputs)
    return profile


@pytest.mark.parametrize("keep", ["qk", "qkv"])
@pytest.mark.parametrize("fuse", [False, True])
def test_keeping_changes_nothing(keep: str, fuse: bool) -> None:
    model = Decoder(num_kv_heads=2).eval()
    alone = model(IDS, LEFT)
    state = torch.get_rng_state()
    with hw.watch(model, keep=keep) as profile:
        out = model(IDS, LEFT)
    assert torch.equal(out, alone)
    assert torch.equal(torch.get_rng_state(), state)
    with hw.watch(model, fuse=fuse) as without:
        model(IDS, LEFT)
    with hw.watch(model, fuse=fuse, keep=keep) as beside:
        model(IDS, LEFT)
    assert beside.table().equals(without.table())
    assert without.kept is None and profile.kept is not None
    assert profile.unseen == [] and profile.notes == []


def test_outputs_of_heads_are_those_of_the_model() -> None:
    model = Decoder(num_kv_heads=2).eval()
    outs: list[Tensor] = []
    watch = hw.watch(model, keep="qkv").tap(lambda call, statistics, out: outs.append(out.clone()))
    with watch as profile:
        model(IDS, RIGHT)
    for head in range(4):
        torch.testing.assert_close(profile.output((1, head), sequence=1), outs[1][1, head].detach(), atol=1e-6, rtol=0)


def test_weights_inside_and_after_inference_mode() -> None:
    model = Decoder().eval()
    with torch.inference_mode(), hw.watch(model, keep="qk") as profile:
        model(IDS, LEFT)
        inside = profile.weights("L1H3", sequence=0)
    found = profile.weights("L1H3", sequence=0)
    assert torch.equal(found, inside)
    found += 1  # no inference tensor
    assert not found.requires_grad
    assert len(profile.kept.masks) == 1


def test_what_is_written_later_does_not_change_what_was_kept() -> None:
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    mask = torch.rand(1, 1, 5, 5) > 0.4
    before = AttentionCall(q.clone(), k.clone(), v.clone(), mask=mask.clone())
    with hw.watch(keep="qkv") as profile:
        F.scaled_dot_product_attention(q, k, v, mask)
        for tensor in (q, k, v):
            tensor.zero_()
        mask.fill_(True)
    torch.testing.assert_close(profile.weights("L0H1").double(), plain_weights(before)[0, 1], atol=1e-6, rtol=0)
    expected = plain_weights(before)[0, 1] @ before.v[0, 1].double()
    torch.testing.assert_close(profile.output("L0H1").double(), expected, atol=1e-6, rtol=0)


def test_layers_of_one_forward_share_their_mask() -> None:
    bias = torch.randn(2, 4, 6, 6)
    calls = [make(dtype=torch.float32, mask=bias, place=Place(layer)) for layer in range(3)]
    profile = kept_of(*calls, one_forward=True)
    kept = profile.kept
    assert kept is not None
    of_calls = sum(c.q.nbytes + c.k.nbytes + c.v.nbytes + 2 * 4 * 6 * 4 for c in calls)
    assert kept.used == of_calls + bias.nbytes
    assert [call.mask for call in kept.calls] == [0, 0, 0]
    # The next forward may have changed it in the same memory.
    assert len(kept_of(*calls).kept.masks) == 3


def test_a_mask_that_changes_between_layers_is_kept_twice() -> None:
    mask = torch.rand(2, 1, 6, 6) > 0.4

    class Changing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            F.scaled_dot_product_attention(x, x, x, mask)
            mask.logical_not_()
            return F.scaled_dot_product_attention(x, x, x, mask)

    x = torch.randn(2, 1, 6, 4)
    first = plain_weights(AttentionCall(x, x, mask=mask.clone()))
    second = plain_weights(AttentionCall(x, x, mask=~mask))
    with hw.watch(keep="qk") as profile:
        Changing()(x)
    for call, expected in enumerate((first, second)):
        found = profile.weights("L0H0", sequence=1, call=call)
        torch.testing.assert_close(found.double(), expected[1, 0], atol=1e-6, rtol=0)


def test_masks_are_kept_small() -> None:
    n = 64
    causal = torch.ones(n, n).tril().bool()
    keys = torch.rand(2, 1, 1, n) > 0.3
    keys[..., 0] = True
    call = make(N=n, M=n)
    hiding = torch.zeros(2, 1, n, n).masked_fill(~(causal & keys), torch.finfo(torch.float32).min)
    for mask, shape, alignment in (
        (torch.ones(2, 1, n, n, dtype=torch.bool), None, None),
        (torch.zeros(n, n), None, None),
        (causal[None, None], None, "upper_left"),
        (keys.expand(2, 4, n, n), (2, 1, 1, n), None),
        (keys.expand(2, 4, n, n).clone(), (2, 4, 1, n), None),
        (causal & keys, (2, 1, 1, n), "upper_left"),
        (hiding, (2, 1, 1, n), "upper_left"),
        (torch.rand(2, 1, n, n) > 0.5, (2, 1, n, n), None),
    ):
        small, found = compressed(mask, call)
        assert (None if small is None else tuple(small.shape), found) == (shape, alignment)
        assert small is None or small.dtype == torch.bool
    bits = kept_of(call.with_(mask=torch.rand(2, 1, n, n) > 0.5)).kept
    assert bits.masks[0].array.nbytes == 2 * n * n // 8


def test_key_value_heads_are_not_repeated() -> None:
    one = make(H=6, kv=2, place=Place(kv_groups=3))
    repeated = one.with_(k=one.k.repeat_interleave(3, 1), v=one.v.repeat_interleave(3, 1))
    sizes = [kept_of(call).kept for call in (one, repeated)]
    assert sizes[0].used == sizes[1].used
    assert sizes[1].keys[0].k[0].array.shape == (2, 2, 6, 5)
    for head in range(6):
        assert torch.equal(kept_of(one).weights((0, head)), kept_of(repeated).weights((0, head)))
        assert torch.equal(kept_of(one).output((0, head)), kept_of(repeated).output((0, head)))
    # Heads that only claim to be repeated are kept as they are.
    other = repeated.with_(k=torch.randn(2, 6, 6, 5, dtype=torch.float64))
    torch.testing.assert_close(kept_of(other).weights((0, 5)), plain_weights(other)[0, 5], rtol=1e-12, atol=1e-14)


def test_the_limit_is_kept_and_what_is_dropped_is_named() -> None:
    model = Decoder(layers=4).eval()
    whole = watched(model, input_ids=IDS, keep="qk")
    assert whole.kept is not None and whole.kept.used == 4 * (2 * 2 * 4 * 7 * 8 * 4 + 2 * 4 * 7 * 4)
    limit = whole.kept.used // 2 + 10
    with torch.no_grad(), hw.watch(model, keep="qk", keep_limit=limit) as profile:
        model(IDS)
        model(IDS)
    assert profile.kept is not None and profile.kept.used <= limit
    assert sum(p.array.nbytes for c in profile.kept.calls for p in (c.q, c.lse)) < limit
    assert [call.group.layer for call in profile.kept.calls] == [0, 1]
    assert profile.notes == [f"keep: 6 calls of L0-L3 were not kept: keep_limit of {limit / 1000:.4g} kB was reached"]
    assert profile.num_sequences == 4 and set(profile.table()["rows"]) == {28}
    torch.testing.assert_close(profile.weights("L1H0"), whole.weights("L1H0"), atol=0, rtol=0)
    for head, sequence in (("L2H0", 0), ("L0H0", 3)):
        with pytest.raises(
            ValueError, match=f"{head} in sequence {sequence} was dropped: keep_limit of .* kB was reach"
        ):
            profile.weights(head, sequence=sequence)
    assert hw.load(saved(profile)).notes == profile.notes


def saved(profile: Profile) -> str:
    import tempfile
    from pathlib import Path

    path = Path(tempfile.mkdtemp()) / "p.headwise"
    profile.save(path)
    return str(path)


def test_after_the_limit_nothing_is_kept() -> None:
    """A gap in the middle would look like a whole record: what comes later and would fit is dropped too."""
    small, large = make(), make(N=40, M=40)
    limit = kept_of(small).kept.used * 3
    profile = kept_of(small, large, small, limit=limit)
    assert profile.kept is not None and len(profile.kept.calls) == 1
    assert profile.notes == [f"keep: 2 calls of L0 were not kept: keep_limit of {size_text(limit)} was reached"]
    merged = kept_of(limit=limit).merge(kept_of(small, large, small))
    assert len(merged.kept.calls) == 1 and merged.notes == profile.notes


def test_nothing_is_kept_beyond_a_limit_of_nothing() -> None:
    profile = watched(Decoder().eval(), input_ids=IDS, keep_limit=0)
    assert profile.kept is not None and (profile.kept.used, profile.kept.calls) == (0, [])
    assert profile.notes == ["keep: 2 calls of L0-L1 were not kept: keep_limit of 0 bytes was reached"]


# Tokens


@pytest.mark.parametrize("side", [LEFT, RIGHT], ids=["left", "right"])
def test_tokens_of_keys_and_rows(side: Tensor) -> None:
    profile = watched(Decoder().eval(), input_ids=IDS, attention_mask=side, tokenizer=Tokenizer())
    for sequence in (0, 1):
        found = profile.weights("L0H0", slice(1, 5), sequence=sequence)
        expected = [f"t{i}" if one else "" for i, one in zip(IDS[sequence].tolist(), side[sequence], strict=True)]
        assert found.tokens == expected
        assert found.query_tokens == expected[1:5]
        assert not found[:, side[sequence] == 0].any()


def test_positions_where_there_is_no_text() -> None:
    found = watched(Decoder().eval(), input_ids=IDS).weights("L0H0", [2])
    assert (found.tokens, found.query_tokens) == (list("0123456"), ["2"])


def test_a_text_with_another_number_of_tokens_is_not_the_keys() -> None:
    """Padding that attention does look at: which keys the real tokens are cannot be told."""
    found = watched(Decoder().eval(), input_ids=IDS, real=LEFT, tokenizer=Tokenizer()).weights("L0H0")
    assert found.tokens == list("0123456")


def test_texts_of_a_decoder_are_not_taken_for_the_encoders() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = hw.MultiHeadAttention(16, 2)
            self.decoder = nn.ModuleDict({"self": hw.MultiHeadAttention(16, 2), "cross": hw.MultiHeadAttention(16, 2)})
            self.embed = nn.Embedding(20, 16)

        def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
            x = self.encoder(self.embed(input_ids))
            y = self.decoder["self"](self.embed(decoder_input_ids), causal=True)
            return self.decoder["cross"](y, x)

    with torch.no_grad(), hw.watch(model := Both(), tokenizer=Tokenizer(), keep="qk") as profile:
        model(torch.tensor([[1, 2, 3]]), torch.tensor([[7, 8, 9]]))
    texts = [(w.tokens, w.query_tokens) for w in (profile.weights((layer, 0)) for layer in range(3))]
    words, positions = ["t1", "t2", "t3"], ["0", "1", "2"]
    assert texts == [(words, words), (positions, positions), (words, positions)]


# Decoding


def test_decoding_with_a_cache_of_the_layer() -> None:
    """Its buffer is written on in place; keys are kept once however many steps read them."""
    mha = hw.MultiHeadAttention(16, 4, num_kv_heads=2).double().eval()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    _, whole = mha(x, causal=True, return_weights=True)
    cache = hw.KVCache()
    with torch.no_grad(), hw.watch(mha, keep="qkv") as profile:
        for start, stop in ((0, 5), (5, 6), (6, 7), (7, 8), (8, 9)):
            mha(x[:, start:stop], causal=True, cache=cache)
    assert profile.unseen == []
    phases = {call.group.phase for call in profile.kept.calls}
    assert len(profile.kept.calls) == 5 and "decode" in phases
    assert len(profile.kept.keys) == 1 and profile.kept.keys[0].length == 9
    numbers = 2 * (4 * 9 * 4 + 2 * 2 * 9 * 4 + 4 * 9)  # q, k and v, lse
    assert profile.kept.used == numbers * 8 + sum(mask.array.nbytes for mask in profile.kept.masks)
    for head in range(4):
        for b in (0, 1):
            torch.testing.assert_close(profile.weights((0, head), sequence=b), whole[b, head, :5, :5])
            steps = profile.weights((0, head), sequence=b, phase="decode")
            torch.testing.assert_close(steps, whole[b, head, 5:].detach())
            torch.testing.assert_close(profile.weights((0, head), 2, sequence=b, phase="decode"), steps[2:3])
    found = profile.map("L0H1", (4, 9), phase="decode", sequence=1)
    torch.testing.assert_close(found, whole[1, 1, 5:].detach())


def test_sequences_that_a_cache_reorders_are_kept_anew() -> None:
    mha = hw.MultiHeadAttention(16, 2).double().eval()
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    cache = hw.KVCache()
    with torch.no_grad(), hw.watch(mha, keep="qk") as profile:
        mha(x[:, :4], causal=True, cache=cache)
        cache.reorder(torch.tensor([1, 0]))
        mha(x[:, 4:5], causal=True, cache=cache)
    _, swapped = mha(torch.cat((x[[1, 0], :4], x[:, 4:5]), 1), causal=True, return_weights=True)
    assert len(profile.kept.keys) == 2
    found = profile.weights("L0H1", phase="decode", sequence=1)
    torch.testing.assert_close(found, swapped[1, 1, 4:].detach())


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_equals_eager(cache: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).double().eval()
    ids = torch.randint(2, 99, (3, 7))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7, [0, 0, 0, 0, 0, 1, 1]])
    ids = ids.masked_fill(mask == 0, 0)
    with hw.watch(model, tokenizer=Tokenizer(), keep="qk") as profile:
        out = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, cache_implementation=cache)
    eager = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager").double().eval()
    eager.load_state_dict(model.state_dict())
    real = torch.cat((mask, torch.ones(3, 5, dtype=torch.long)), 1)
    position = (real.cumsum(-1) - 1).clamp(min=0)[:, :-1]
    with torch.no_grad(), eager_calls(eager) as whole:
        eager(out[:, :-1], attention_mask=real[:, :-1], position_ids=position)
    for layer, head, b in ((0, 0, 0), (1, 5, 0), (1, 2, 1), (0, 3, 2)):
        expected = torch.from_numpy(whole[layer].weights[b, head])
        prompt, steps = (profile.weights((layer, head), sequence=b, phase=phase) for phase in ("prefill", "decode"))
        torch.testing.assert_close(prompt[:, :7], expected[:7, :7], rtol=0, atol=1e-8)
        torch.testing.assert_close(steps, expected[7:], rtol=0, atol=1e-8)
        assert steps.tokens[7:] == steps.query_tokens == ["7", "8", "9", "10"]
    if cache == "dynamic":
        assert profile.weights("L0H0", phase="decode").tokens[:7] == ["", "", *(f"t{i}" for i in ids[0, 2:].tolist())]
        # Keys of a cache that grows: once, not once a step.
        assert len(profile.kept.keys) == 2 and all(keys.length == 11 for keys in profile.kept.keys)


# Real models, odd batches


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_minilm_equals_its_eager_attention(side: str) -> None:
    model, tokenizer = load_minilm()
    eager, _ = load_minilm("eager", torch.float64)
    texts = ["Attention decides, for every token, where to look.", "A short one."]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side=side)
    with hw.watch(model, tokenizer=tokenizer, keep="qk") as profile:
        model(**batch)
    expected = eager(**batch, output_attentions=True).attentions
    assert len(profile.kept.masks) == 1
    for layer in range(6):
        for head in range(12):
            for b in (0, 1):
                found = profile.weights((layer, head), sequence=b)
                torch.testing.assert_close(found.double(), expected[layer][b, head].double(), rtol=0, atol=2e-5)
    words = tokenizer.convert_ids_to_tokens(batch["input_ids"][1])
    assert found.tokens == ["" if word == "[PAD]" else tokenizer.decode([i]) for word, i in
                            zip(words, batch["input_ids"][1].tolist(), strict=True)]  # fmt: skip


def test_windows_of_one_image_follow_each_other() -> None:
    class Windows(nn.Module):
        def forward(self, pixel_values: Tensor) -> Tensor:
            windows = pixel_values.reshape(-1, 1, 4, 8)  # three of each image
            return F.scaled_dot_product_attention(windows, windows, windows)

    x = torch.randn(2, 12, 8, dtype=torch.float64)
    with hw.watch(model := Windows(), keep="qk") as profile:
        model(x)
    w = x.reshape(6, 1, 4, 8)
    expected = plain_weights(AttentionCall(w, w))
    found = profile.weights("L0H0", sequence=1)
    torch.testing.assert_close(found, expected[3:, 0].reshape(12, 4))
    assert (found.tokens, profile.num_sequences) == (list("0123"), 2)


# What is asked for wrongly


def test_keep_and_limit_are_checked() -> None:
    with pytest.raises(ValueError, match=r"keep: expected None, 'qk' or 'qkv'; got 'all'"):
        hw.watch(keep="all")
    for limit in ("1 XB", "", -1, 1.5, True, "GB"):
        with pytest.raises(ValueError, match=r"keep_limit: expected bytes, or a size as in '1GB'"):
            hw.watch(keep="qk", keep_limit=limit)  # type: ignore[arg-type]


def test_errors_say_what_to_do() -> None:
    model = Decoder().eval()
    without = watched(model, input_ids=IDS, keep=None)
    for ask in (without.weights, without.map, without.output):
        with pytest.raises(ValueError, match=r'nothing was kept to compute weights from; watch with keep="qk"'):
            ask("L0H0")
    profile = watched(model, input_ids=IDS, keep="qk", layers=[0, 1])
    with pytest.raises(ValueError, match=r'output: values were not kept; watch with keep="qkv"'):
        profile.output("L0H0")
    for head in ("L2H0", "L0H4", (0, -1), "first", 3, (0, 1, 2), ("0", "1")):
        with pytest.raises(ValueError, match=r"expected a head as 'L3H5' or \(3, 5\), of L0H0 to L1H3; got"):
            profile.weights(head)  # type: ignore[arg-type]
    for rows, wrong in ((7, "7"), ([0, -8], "-8"), ([6, 9, 11], "9")):
        with pytest.raises(ValueError, match=rf"rows: expected numbers from 0 to 6 \(prefill\); got {wrong}"):
            profile.weights("L0H0", rows)
    for rows in ("abc", 1.5, [0.5]):
        with pytest.raises(ValueError, match="rows: expected a slice, an int, or a list of ints; got"):
            profile.weights("L0H0", rows)  # type: ignore[arg-type]
    for sequence in (2, -1):
        with pytest.raises(ValueError, match=rf"expected a sequence of L0H0 that was kept, 0 to 1; got {sequence}"):
            profile.weights("L0H0", sequence=sequence)
    with pytest.raises(ValueError, match="L0H0 has no call 1; kept is call 0 in prefill"):
        profile.weights("L0H0", call=1)
    with pytest.raises(ValueError, match="L0H0 has no call 0 in decode; kept is call 0 in prefill"):
        profile.weights("L0H0", phase="decode")
    with pytest.raises(ValueError, match="expected phase 'prefill' or 'decode', or None; got 'later'"):
        profile.weights("L0H0", phase="later")
    with pytest.raises(ValueError, match="expected a size of at least 1 and how 'mean' or 'max'"):
        profile.map("L0H0", (0, 4))


def test_rows_of_any_kind_of_number() -> None:
    call = make()
    profile, expected = kept_of(call), plain_weights(call)[0, 3]
    for rows, picked in ((np.int64(2), [2]), (np.array([4, 1]), [4, 1]), (torch.tensor([5, 0]), [5, 0]), ([], [])):
        found = profile.weights((np.int64(0), 3), rows)  # type: ignore[arg-type]
        torch.testing.assert_close(found, expected[picked], rtol=1e-12, atol=1e-14)
        assert found.query_tokens == [str(row) for row in picked]


def test_all_rows_of_a_long_text_are_refused() -> None:
    n = 8100
    q = torch.randn(1, 1, n, 2)
    call = AttentionCall(q, torch.randn(1, 1, n, 2), causal="upper_left")
    profile = kept_of(call, values=False)
    with pytest.raises(ValueError, match=r"all 8,100 rows over 8,100 keys would take 262.4 MB, .*; give rows="):
        profile.weights("L0H0")
    found = profile.weights("L0H0", slice(n - 2, n))
    last = call.with_(q=q[:, :, -2:], causal="lower_right")
    torch.testing.assert_close(found.double(), plain_weights(last)[0, 0], rtol=0, atol=1e-6)
