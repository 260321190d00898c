"""What a watch sees, and that nobody can tell that it watched."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import headwise as hw
from headwise.capture import recorder
from tests.models_of_tests import Decoder, SelfAttention

IDS = torch.arange(14).view(2, 7)


def left_padded(*lengths: int) -> torch.Tensor:
    longest = max(lengths)
    return torch.tensor([[0] * (longest - n) + [1] * n for n in lengths])


# What is seen


def test_positional_and_keyword_calls_are_one_layer_outside_a_module() -> None:
    q, k, v = torch.randn(3, 2, 4, 7, 8)
    with hw.watch(verify=True) as profile:
        F.scaled_dot_product_attention(q, k, v)
        F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=None, dropout_p=0.0)
        torch._C._nn.scaled_dot_product_attention(q, k, v, None, 0.0, False)
    table = profile.table()
    assert list(table["rows"]) == [3 * 2 * 7] * 4
    assert list(table["label"]) == ["L0H0", "L0H1", "L0H2", "L0H3"]
    assert list(table["name"]) == [""] * 4
    assert profile.verified < 1e-6


def test_measures_are_those_of_the_exact_weights() -> None:
    q, k, v = torch.randn(3, 2, 4, 7, 8)
    with hw.watch() as profile:
        F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7)
    _, p = hw.attention(q.double(), k.double(), v.double(), causal=True, scale=0.7, return_weights=True)
    entropy = -torch.special.xlogy(p, p).sum(-1)
    own = p.diagonal(dim1=-2, dim2=-1)
    table = profile.table()
    np.testing.assert_allclose(table["entropy"], entropy.mean((0, 2)), atol=1e-6)
    np.testing.assert_allclose(table["self_focus"], own.mean((0, 2)), atol=1e-6)
    np.testing.assert_allclose(table["self_focus_std"], own.std((0, 2), correction=0), atol=1e-6)
    assert table["next"].isna().all()
    assert profile.layers[0].causal == ("upper_left",)


def test_names_numbers_and_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b = SelfAttention()
            self.a = SelfAttention()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(self.b(self.b(x)))

    model = Twice()
    with hw.watch(model) as profile:
        for _ in range(3):
            model(torch.randn(2, 5, 32))
    table = profile.table().drop_duplicates(["layer", "call"])
    assert list(zip(table["layer"], table["name"], table["call"], table["rows"], strict=True)) == [
        (0, "b", 0, 30),
        (0, "b", 1, 30),
        (1, "a", 0, 30),
    ]


def test_without_a_model_names_come_from_the_root() -> None:
    model = Decoder()
    with hw.watch() as profile:
        model(IDS)
        model(IDS)
    assert [layer.name for layer in profile.layers] == ["layers.0.attn", "layers.1.attn"]
    assert [layer.calls for layer in profile.layers] == [2, 2]
    assert set(profile.table()["call"]) == {0}
    assert profile.num_sequences == 4


def test_wrapper_prefixes_are_not_in_names() -> None:
    model = nn.DataParallel(Decoder(), device_ids=None) if torch.cuda.is_available() else _Wrapper(Decoder())
    with hw.watch(model) as profile:
        model(IDS, attention_mask=torch.ones_like(IDS))
    assert [layer.name for layer in profile.layers] == ["layers.0.attn", "layers.1.attn"]
    assert [s.length for s in profile.sequences] == [7, 7]


class _Wrapper(nn.Module):
    """As DistributedDataParallel wraps: everything passed on, under `module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: object, **kwargs: object) -> object:
        return self.module(*inputs, **kwargs)


def test_only_the_watched_model() -> None:
    model, other = Decoder(), Decoder()
    with hw.watch(model) as profile:
        other(IDS)
        F.scaled_dot_product_attention(*torch.randn(3, 1, 1, 4, 8))
        model(IDS)
    assert profile.table()["rows"].unique().tolist() == [14]


def test_a_trainer_around_the_model_does_not_matter() -> None:
    model = Decoder()
    trainer = nn.Sequential(model, nn.Linear(32, 1))
    with hw.watch(model) as profile:
        trainer(IDS)
    assert [layer.name for layer in profile.layers] == ["layers.0.attn", "layers.1.attn"]
    assert profile.num_sequences == 2


@pytest.mark.parametrize(
    ("layers", "expected"),
    [([1], [1]), (["layers.0"], [0]), (["layers.0.attn", 2], [0, 2]), (["layers"], [0, 1, 2])],
)
def test_layers(layers: list[int | str], expected: list[int]) -> None:
    model = Decoder(layers=3)
    with hw.watch(model, layers=layers) as profile:
        model(IDS)
    assert [layer.layer for layer in profile.layers] == expected
    assert profile.unseen == []


def test_chosen_measures_only() -> None:
    model = Decoder()
    with hw.watch(model, measures=["entropy", "self_focus"]) as profile:
        model(IDS)
    assert profile.measures == ("self_focus", "entropy")
    columns = profile.table().columns
    assert "entropy_se" in columns and "ipr" not in columns


def test_gqa_and_kv_heads() -> None:
    model = Decoder(num_kv_heads=2)
    with hw.watch(model, verify=True) as profile:
        model(IDS)
    table = profile.table()
    assert list(table["kv_head"][:4]) == [0, 0, 1, 1]
    assert profile.layers[0].num_kv_heads == 2
    assert profile.verified < 1e-6


def test_cross_attention() -> None:
    attention = SelfAttention()
    with hw.watch(attention) as profile:
        attention(torch.randn(2, 5, 32), context=torch.randn(2, 5, 32))
    table = profile.table()
    assert set(table["kind"]) == {"cross"}
    assert table[["self_focus", "previous", "next", "distance"]].isna().all(axis=None)
    assert table["first"].notna().all() and list(table["rows"]) == [10] * 4


def test_cross_attention_by_shape() -> None:
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 9, 8)
    with hw.watch() as profile:
        F.scaled_dot_product_attention(q, k, k)
    assert set(profile.table()["kind"]) == {"cross"}


@pytest.mark.parametrize("bias", [causal_upper_left(5, 9), causal_lower_right(5, 9)])
def test_causal_bias_objects(bias: torch.Tensor) -> None:
    q, k, v = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    with hw.watch(verify=True) as profile:
        F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    assert profile.verified < 1e-6
    assert profile.layers[0].causal == (bias.variant.name.lower(),)


def test_shapes_of_other_dimensions() -> None:
    with hw.watch(verify=True) as profile:
        F.scaled_dot_product_attention(*torch.randn(3, 5, 8))  # [N, d]
    with hw.watch(verify=True) as three:
        F.scaled_dot_product_attention(*torch.randn(3, 2, 5, 8))  # [B, N, d]
    with hw.watch(verify=True) as five:
        mask = torch.rand(2, 1, 1, 5, 5) > 0.3
        mask |= torch.eye(5, dtype=torch.bool)
        F.scaled_dot_product_attention(*torch.randn(3, 2, 3, 4, 5, 8), attn_mask=mask)
    assert [list(p.table()["rows"]) for p in (profile, three, five)] == [[5], [10], [30] * 4]
    assert max(p.verified for p in (profile, three, five)) < 1e-6


def test_heads_folded_into_the_batch_are_unfolded() -> None:
    class Folded(nn.Module):
        num_heads = 4

        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, q, q)

    with hw.watch(verify=True) as profile:
        Folded()(torch.randn(8, 5, 16))
    assert list(profile.table()["rows"]) == [10] * 4
    assert profile.verified < 1e-6


def test_heads_folded_into_the_query_axis_are_unfolded() -> None:
    class Decode(nn.Module):
        num_heads, num_key_value_groups = 6, 3

        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, k)

    q, k = torch.randn(2, 6, 1, 8), torch.randn(2, 2, 9, 8)
    module = Decode()
    with hw.watch(module, verify=True) as folded:
        module(q.reshape(2, 2, 3, 8), k)
    with hw.watch() as plain:
        F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    assert folded.verified < 1e-6
    measures = list(folded.measures)
    np.testing.assert_allclose(folded.table()[measures], plain.table()[measures], rtol=1e-6)
    assert list(folded.table()["rows"]) == [2] * 6 and list(folded.table()["kv_head"]) == [0, 0, 0, 1, 1, 1]
    # A prompt of three tokens on the same module has the heads where they belong.
    with hw.watch(module) as prompt:
        module(torch.randn(2, 2, 3, 8), torch.randn(2, 2, 3, 8))
    assert len(prompt.table()) == 6  # the module says 6 heads: (2, 2, 3, 8) can only be the folded form


# Padding


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_changes_no_measure(side: str, causal: bool) -> None:
    model = Decoder(causal=causal).double().eval()
    alone, ids, mask = [], torch.full((2, 7), 3), left_padded(5, 7)
    ids[0, 2:], ids[1] = torch.arange(5), torch.arange(10, 17)
    if side == "right":
        ids[0] = ids[0].roll(5)
        mask = mask.flip(-1)
    for row in (torch.arange(5), torch.arange(10, 17)):
        with hw.watch(model) as profile:
            model(row[None])
        alone.append(profile)
    with hw.watch(model) as padded:
        model(ids, attention_mask=mask)
    expected = alone[0].merge(alone[1]).table()
    table = padded.table()
    assert set(table["padded_rows"]) == {2} and set(table["masked_rows"]) == {0}
    pd.testing.assert_frame_equal(
        table.drop(columns="padded_rows"), expected.drop(columns="padded_rows"), rtol=1e-9, atol=1e-12
    )
    assert [s.length for s in padded.sequences] == [5, 7]
    assert padded.sequences[0].ids == list(range(5))


def test_real_says_what_is_padding_where_the_model_is_not_told() -> None:
    attention = SelfAttention()
    x = torch.randn(2, 7, 32)
    with hw.watch(attention, real=left_padded(5, 7)) as profile:
        attention(x)
    assert set(profile.table()["rows"]) == {12} and set(profile.table()["padded_rows"]) == {2}


def test_a_row_that_may_see_nothing_is_counted() -> None:
    q = torch.randn(1, 2, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    with hw.watch(verify=True) as profile:
        F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    table = profile.table()
    assert list(table["masked_rows"]) == [1, 1] and list(table["rows"]) == [4, 4]
    assert table["entropy"].notna().all()
    assert profile.verified < 1e-6


def test_nonfinite_rows_are_counted() -> None:
    q = torch.randn(1, 2, 5, 8)
    broken = q.clone()
    broken[0, 1, 3] = float("nan")
    with hw.watch() as profile:
        F.scaled_dot_product_attention(broken, q, q)
    assert list(profile.table()["nonfinite_rows"]) == [0, 1]
    assert list(profile.table()["rows"]) == [5, 4]
    assert np.isfinite(profile.table()["entropy"]).all()


# Verification


def test_verification_tells_a_wrong_output(monkeypatch: pytest.MonkeyPatch) -> None:
    from headwise.capture import watching

    model = Decoder()
    with hw.watch(model, verify=True) as good:
        model(IDS)
    assert good.verified < 1e-6
    read_call = watching.read_call

    def tampered(args: object, kwargs: object, out: torch.Tensor, heads: object) -> object:
        return read_call(args, kwargs, out + 0.01, heads)

    monkeypatch.setattr(watching, "read_call", tampered)
    with hw.watch(model, verify=True) as bad:
        model(IDS)
    assert bad.verified > 1e-3
    assert good.passed is True and bad.passed is False


def test_dropout_is_not_verifiable_and_does_not_touch_statistics() -> None:
    model = Decoder().train()
    for block in model.layers:
        block.attn.dropout = 0.5
    with hw.watch(model.layers[0].attn, verify=True) as profile:
        model(IDS)
    quiet = copy.deepcopy(model).eval()
    with hw.watch(quiet.layers[0].attn) as expected:
        quiet(IDS)
    assert profile.verified is None and profile.layers[0].not_verifiable == 1
    pd.testing.assert_frame_equal(profile.table(), expected.table())


def test_half_precision_and_autocast() -> None:
    model = Decoder()
    with hw.watch(model, verify=True) as profile, torch.autocast("cpu", dtype=torch.bfloat16):
        model(IDS)
    assert profile.verified < 2 * torch.finfo(torch.bfloat16).eps
    with hw.watch(model.bfloat16(), verify=True) as half:
        model(IDS)
    assert half.verified < half.bound == 2 * torch.finfo(torch.bfloat16).eps
    assert half.passed is profile.passed is True


@pytest.mark.parametrize("fuse", [False, True])
def test_autocast_casts_what_the_model_left_in_float32(fuse: bool) -> None:
    """As a rotary step does: scores are those of the cast queries and keys, which the operation saw."""
    q, k, v = 6 * torch.randn(3, 2, 4, 33, 16)
    bias = torch.randn(33, 33)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), hw.watch(verify=True, fuse=fuse) as cast:
        out = F.scaled_dot_product_attention(q, k, v, bias)
    assert out.dtype == torch.bfloat16
    assert cast.layers[0].fused == fuse
    assert cast.passed
    with torch.no_grad(), hw.watch(verify=True, fuse=fuse) as half:
        F.scaled_dot_product_attention(*(t.bfloat16() for t in (q, k, v, bias)))
    pd.testing.assert_frame_equal(cast.table(), half.table())


@pytest.mark.parametrize("fuse", [False, True])
def test_what_torch_refuses_is_refused_while_watching(fuse: bool) -> None:
    few, many = torch.randn(1, 2, 5, 16), torch.randn(1, 4, 5, 16)
    for q, k in ((many, few), (many, many.double()), (many.half(), many)):
        with torch.no_grad(), hw.watch(fuse=fuse), pytest.raises(RuntimeError):
            F.scaled_dot_product_attention(q, k, k)
    with torch.no_grad(), hw.watch(fuse=fuse) as profile:
        F.scaled_dot_product_attention(many, few, few, enable_gqa=True)
    assert profile.layers[0].fused == fuse


# Invisible


@given(
    seed=st.integers(0, 2**31),
    causal=st.booleans(),
    padded=st.booleans(),
    kv=st.sampled_from([1, 2, 4]),
    train=st.booleans(),
    verify=st.booleans(),
)
def test_outputs_gradients_and_random_state_are_bitwise_unwatched(
    seed: int, causal: bool, padded: bool, kv: int, train: bool, verify: bool
) -> None:
    torch.manual_seed(seed)
    model = Decoder(causal=causal, num_kv_heads=kv).train(train)
    for block in model.layers:
        block.attn.dropout = 0.1
    mask = left_padded(4, 7) if padded else None

    def run() -> list[torch.Tensor]:
        torch.manual_seed(seed)
        model.zero_grad(set_to_none=True)
        out = model(IDS, attention_mask=mask)
        out.square().sum().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return [out.detach(), torch.get_rng_state(), torch.rand(3), *gradients]

    before, again = run(), run()
    with hw.watch(model, verify=verify) as profile:
        watched = run()
    assert len(profile.table()) == 8
    for a, b, c in zip(before, again, watched, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@given(order=st.permutations(range(4)), causal=st.booleans(), seed=st.integers(0, 2**31))
def test_permuting_heads_permutes_the_table(order: list[int], causal: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 2, 4, 9, 8, generator=generator)
    with hw.watch(verify=True) as profile:
        F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    with hw.watch(verify=True) as permuted:
        F.scaled_dot_product_attention(q[:, order], k[:, order], v[:, order], is_causal=causal)
    expected = profile.table().iloc[order].reset_index(drop=True)
    same = [c for c in expected.columns if c not in ("head", "label", "kv_head")]
    pd.testing.assert_frame_equal(permuted.table()[same], expected[same], rtol=1e-5, atol=1e-6)


@given(
    cuts=st.lists(st.integers(0, 6), max_size=3),
    order=st.randoms(use_true_random=False),
    seed=st.integers(0, 2**31),
)
def test_merging_any_split_of_recorded_forwards_equals_one_pass(cuts: list[int], order: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = Decoder().eval()
    lengths = torch.randint(2, 9, (6,), generator=generator).tolist()
    batches = [torch.randint(0, 50, (2, n), generator=generator) for n in lengths]
    with torch.no_grad(), hw.watch(model) as whole:
        for batch in batches:
            model(batch)
    bounds = [0, *sorted(cuts), len(batches)]
    parts = []
    for a, b in itertools.pairwise(bounds):
        with torch.no_grad(), hw.watch(model) as part:
            for batch in batches[a:b]:
                model(batch)
        parts.append(part)
    order.shuffle(parts)
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    pd.testing.assert_frame_equal(merged.table(), whole.table(), rtol=1e-12, atol=1e-12)
    assert merged.num_sequences == whole.num_sequences == 12


@given(shift=st.floats(-50, 50), seed=st.integers(0, 2**31))
def test_shifting_all_scores_of_a_row_changes_nothing_but_the_largest_score(shift: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 1, 2, 7, 8, generator=generator, dtype=torch.float64)
    rows = shift * torch.rand(7, 1, generator=generator, dtype=torch.float64)
    with hw.watch() as profile:
        F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(7, 7, dtype=torch.float64))
    with hw.watch() as shifted:
        F.scaled_dot_product_attention(q, k, v, attn_mask=rows.expand(7, 7))
    same = [m for m in profile.measures if m not in ("max_score", "sink_bias")]
    np.testing.assert_allclose(shifted.table()[same], profile.table()[same], rtol=1e-10)


def test_everything_is_gone_afterwards_also_after_an_exception() -> None:
    model = Decoder()

    def hooks() -> list[int]:
        return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]

    modes, precision = _get_current_function_mode_stack(), torch.get_float32_matmul_precision()
    with hw.watch(model):
        model(IDS)
    assert sum(hooks()) == 0 and _get_current_function_mode_stack() == modes
    with pytest.raises(RuntimeError, match="mine"), hw.watch(model) as profile:
        model(IDS)
        raise RuntimeError("mine")
    assert sum(hooks()) == 0 and _get_current_function_mode_stack() == modes
    assert len(profile.table()) == 8
    with pytest.raises(IndexError), hw.watch() as profile:
        model(IDS)
        model(torch.tensor([[1000]]))
    assert sum(hooks()) == 0 and _get_current_function_mode_stack() == modes
    assert torch.get_float32_matmul_precision() == precision
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_the_callers_modes_see_nothing_of_the_statistics() -> None:
    class Counter(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    model = Decoder()
    with Counter() as alone:
        model(IDS)
    with Counter() as outer, hw.watch(model, verify=True):
        model(IDS)
    with hw.watch(model, verify=True), Counter() as inner:
        model(IDS)
    assert outer.seen == alone.seen
    assert inner.seen == alone.seen


def test_nested_watches_see_the_same() -> None:
    model = Decoder()
    with hw.watch(model) as outer, hw.watch(model, verify=True) as inner:
        model(IDS)
    pd.testing.assert_frame_equal(outer.table(), inner.table())
    assert [layer.calls for layer in outer.layers] == [1, 1]


def test_start_and_stop() -> None:
    model = Decoder()
    watching = hw.watch(model)
    profile = watching.start()
    model(IDS)
    assert len(profile.table()) == 8  # readable while it runs
    with pytest.raises(RuntimeError, match="running already"):
        watching.start()
    watching.stop()
    model(IDS)
    assert [layer.calls for layer in profile.layers] == [1, 1]
    with pytest.raises(RuntimeError, match="not running"):
        watching.stop()


def test_matmul_precision_is_high_inside_and_restored() -> None:
    q, k = torch.randn(2, 1, 1, 64, 64)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with hw.watch() as profile:
            F.scaled_dot_product_attention(q, k, k)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    exact = (q.double() @ k.double().mT / 8).max()
    assert profile.table()["max_score"][0] == pytest.approx(exact.item(), abs=1e-5)


@pytest.mark.parametrize("backend", ["all", "cuda", "mkldnn"])
def test_scores_are_full_float32_whatever_a_backend_is_set_to(backend: str) -> None:
    """By the settings of single backends, which torch's older function refuses to sum up."""
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):
        pytest.skip("this torch has one setting for all")
    owner = {"all": backends, "cuda": backends.cuda.matmul, "mkldnn": backends.mkldnn.matmul}[backend]
    owner.fp32_precision = "bf16" if backend == "mkldnn" else "tf32"
    try:
        before = [one.fp32_precision for one in (backends, backends.cuda.matmul, backends.mkldnn.matmul)]
        with hw.watch(measures=["entropy", "delimiter"]) as profile:
            F.scaled_dot_product_attention(*torch.randn(3, 2, 4, 7, 16))
        assert (len(profile.layers), profile.unseen) == (1, [])
        assert [one.fp32_precision for one in (backends, backends.cuda.matmul, backends.mkldnn.matmul)] == before
    finally:
        owner.fp32_precision = "none"
    assert torch.get_float32_matmul_precision() == "highest", "each backend follows all again"


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_counts_once(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    model = Decoder()
    x = torch.randn(2, 7, 32, requires_grad=True)
    with hw.watch(model.layers[0]) as profile:
        checkpoint(model.layers[0], x, use_reentrant=reentrant).sum().backward()
    assert [layer.calls for layer in profile.layers] == [1]


def test_inference_mode_and_ordinary_forwards_in_one_watch() -> None:
    model = Decoder().eval()
    with hw.watch(model, verify=True) as profile:
        with torch.inference_mode():
            model(IDS, attention_mask=left_padded(7, 7))
        model(IDS)
        with torch.inference_mode():
            model(IDS)
        assert set(profile.table()["rows"]) == {42}
    assert profile.verified < 1e-6


@pytest.mark.parametrize("inference", [True, False])
def test_layers_of_a_forward_share_what_follows_from_its_mask(inference: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(SelfAttention() for _ in range(3))

        def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    geometry_of, told = recorder.geometry_of, []
    monkeypatch.setattr(recorder, "geometry_of", lambda call: (told.append(call.place.layer), geometry_of(call))[1])
    model, x = Layers().eval(), torch.randn(2, 7, 32)
    with torch.inference_mode(inference), hw.watch(model) as profile:
        model(x, attention_mask=left_padded(7, 4))
        model(x, attention_mask=left_padded(7, 7))
    assert told == [0, 0]
    assert set(profile.table()["padded_rows"]) == {3}


def test_tokens_given_as_text() -> None:
    attention = SelfAttention()
    with hw.watch(attention, tokens=[["我", "是", "谁"], ["who", "am", "I"]]) as profile:
        attention(torch.randn(2, 3, 32))
    assert [s.tokens for s in profile.sequences] == [["我", "是", "谁"], ["who", "am", "I"]]
    assert profile.num_sequences == 2


def test_packed_sequences_have_their_own_first_key_and_count_apart() -> None:
    attention = SelfAttention().eval()
    x = torch.randn(1, 7, 32)
    block = torch.block_diag(torch.ones(4, 4), torch.ones(3, 3)).bool().tril()
    with hw.watch(attention) as packed:
        attention(x, mask=block)
    with hw.watch(attention) as apart:
        attention(x[:, :4], mask=torch.ones(4, 4).bool().tril())
        attention(x[:, 4:], mask=torch.ones(3, 3).bool().tril())
    measures = [name + part for name in packed.measures for part in ("", "_std", "_se")]
    np.testing.assert_allclose(packed.table()[measures], apart.table()[measures], rtol=1e-5, atol=1e-6)
    assert packed.table()["self_focus_se"].notna().all()


def test_a_flat_list_of_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="a list of tokens for each sequence"):
        hw.watch(tokens=["ab", "c"])  # type: ignore[list-item]


# Unseen


def test_torch_multihead_attention_is_named_as_unseen() -> None:
    model = nn.MultiheadAttention(32, 4, batch_first=True)
    x = torch.randn(2, 5, 32)
    with pytest.warns(UserWarning, match="MultiheadAttention") as warned, hw.watch(model) as profile:
        model(x, x, x)
        model(x, x, x)
    assert len(warned) == 1
    (unseen,) = profile.unseen
    assert unseen.count == 2 and "MultiheadAttention" in unseen.reason and unseen.way_out


def test_attention_by_hand_is_named_as_unseen() -> None:
    class HandAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.q(x) @ x.mT, -1) @ x

    model = nn.Sequential(SelfAttention(), HandAttention())
    with pytest.warns(UserWarning, match="attention in 1 is not measured"), hw.watch(model) as profile:
        model(torch.randn(2, 5, 32))
    assert [layer.name for layer in profile.layers] == ["0"]
    assert [unseen.name for unseen in profile.unseen] == ["1"]


def test_nothing_at_all_is_said() -> None:
    with hw.watch() as profile:
        torch.ones(3).sum()
    assert "no attention call" in profile.unseen[0].reason
    assert "no attention call" in repr(profile)


@torch.no_grad()
@pytest.mark.parametrize("whole", [True, False])
def test_compiled_models_run_as_compiled_and_are_unseen(whole: bool) -> None:
    torch._dynamo.reset()
    model = Decoder().eval()
    if whole:
        watched = torch.compile(model, backend="eager", fullgraph=True)
    else:
        watched = model
        model.layers[1].compile(backend="eager", fullgraph=True)
    expected = watched(IDS)
    frames = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with pytest.warns(UserWarning, match="compiled"), hw.watch(watched) as profile:
        out = watched(IDS)
    assert torch.equal(out, expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == frames  # nothing was compiled anew
    assert [u.name for u in profile.unseen] == ["" if whole else "layers.1"]
    assert [layer.name for layer in profile.layers] == ([] if whole else ["layers.0.attn"])
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_cannot_be_read_are_unseen() -> None:
    q = torch.randn(2, 2, 4, 8)
    meta = torch.empty(1, 2, 4, 8, device="meta")
    nested = torch.nested.nested_tensor([q[0], q[1]], layout=torch.jagged).transpose(1, 2)
    with pytest.warns(UserWarning, match="not measured"), hw.watch() as profile:
        torch.func.vmap(lambda x: F.scaled_dot_product_attention(x, x, x))(q[:, None])
        F.scaled_dot_product_attention(meta, meta, meta)
        F.scaled_dot_product_attention(nested, nested, nested)
    reasons = " | ".join(u.reason for u in profile.unseen)
    assert "torch.func" in reasons and "meta" in reasons and "nested" in reasons
    assert profile.table().empty


@torch.no_grad()
def test_a_compiled_wrapper_around_the_watched_model() -> None:
    torch._dynamo.reset()
    model = Decoder().eval()
    wrapper = torch.compile(model, backend="eager", fullgraph=True)
    expected = wrapper(IDS)
    frames = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with pytest.warns(UserWarning, match="compiled"), hw.watch(model) as profile:
        assert torch.equal(wrapper(IDS), expected)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == frames
        model(IDS)
    assert [u.reason for u in profile.unseen] == ["it runs compiled (torch.compile), where calls cannot be seen"]
    assert [layer.calls for layer in profile.layers] == [1, 1]
    assert set(profile.table()["call"]) == {0}
    torch._dynamo.reset()


@torch.no_grad()
def test_without_a_model_compiled_modules_run_as_compiled() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(Decoder().eval(), backend="eager", fullgraph=True)
    expected = compiled(IDS)
    call = type(compiled).__call__
    with pytest.warns(UserWarning, match="compiled"), hw.watch() as profile:
        out = compiled(IDS)
    assert torch.equal(out, expected)
    assert profile.table().empty and profile.unseen
    assert type(compiled).__call__ is call
    torch._dynamo.reset()


def test_layers_that_chose_nothing_are_told() -> None:
    model = Decoder()
    chose_none = pytest.warns(UserWarning, match=r"no layers \[99\]: the attention layers that ran are 0 to 1")
    with chose_none, hw.watch(model, layers=[99]) as profile:
        model(IDS)
    assert profile.layers == []
    assert repr(profile).startswith("0 attention layers, 0 heads")


# Bad input


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module or None; got 'gpt2'"):
        hw.watch("gpt2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="entropi"):
        hw.watch(measures=["entropi"])
    with pytest.raises(ValueError, match="no module 'encoder'"):
        hw.watch(Decoder(), layers=["encoder"])
    with pytest.raises(ValueError, match="layer numbers"):
        hw.watch(Decoder(), layers=[-1])


@torch.no_grad()
def test_a_compiled_function_around_the_watched_model() -> None:
    torch._dynamo.reset()
    model = Decoder().eval()
    function = torch.compile(lambda ids: model(ids) + 1, backend="eager", fullgraph=True)
    expected = function(IDS)
    with hw.watch(model):
        assert torch.equal(function(IDS), expected)
    torch._dynamo.reset()


def test_watches_may_end_in_any_order() -> None:
    model = Decoder()
    one, two = hw.watch(model), hw.watch(model)
    first, second = one.start(), two.start()
    model(IDS)
    one.stop()
    model(IDS)
    two.stop()
    assert [layer.calls for layer in first.layers] == [1, 1]
    assert [layer.calls for layer in second.layers] == [2, 2]
    assert _get_current_function_mode_stack() == []


def test_stopping_in_another_thread_is_refused_and_records_no_more() -> None:
    import threading

    model, errors = Decoder(), []
    watching = hw.watch(model)
    profile = watching.start()

    def stop() -> None:
        try:
            watching.stop()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()
    model(IDS)
    assert "in the thread that called start()" in errors[0]
    assert profile.layers == []
    torch.overrides._pop_mode()


def test_a_watch_follows_the_thread_that_starts_it() -> None:
    import threading

    model, profiles = Decoder().eval(), []
    watching = hw.watch(model)

    def run() -> None:
        profiles.append(watching.start())
        model(IDS)
        model(IDS)
        watching.stop()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    table = profiles[0].table()
    assert set(table["call"]) == {0} and set(table["rows"]) == {28}
    assert profiles[0].num_sequences == 4


def test_other_threads_are_not_mixed_in() -> None:
    import threading

    model = Decoder().eval()
    started = []

    def other() -> None:
        model(IDS[:, :3])

    def on_layer(*_: object) -> None:
        if not started:
            started.append(threading.Thread(target=other))
            started[0].start()
            started[0].join()

    handle = model.layers[1].register_forward_pre_hook(on_layer)
    with hw.watch(model) as profile:
        model(IDS)
    handle.remove()
    assert set(profile.table()["rows"]) == {14} and set(profile.table()["call"]) == {0}
    assert profile.num_sequences == 2


def test_a_fault_of_ours_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from headwise.capture import recorder

    def broken(*args: object, **kwargs: object) -> object:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(recorder, "row_statistics", broken)
    model = Decoder().eval()
    expected = model(IDS)
    with pytest.warns(UserWarning, match="headwise failed on it .ZeroDivisionError: ours."), hw.watch(model) as profile:
        assert torch.equal(model(IDS), expected)
    assert [u.name for u in profile.unseen] == ["layers.0.attn", "layers.1.attn"]


def test_a_module_that_gets_projected_queries_and_keys_is_self_attention() -> None:
    class Core(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(8))

        def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(query * self.gain, key, value)

    with hw.watch() as profile:
        Core()(*torch.randn(3, 2, 4, 5, 8))
    assert set(profile.table()["kind"]) == {"self"}


def test_the_text_mask_is_not_that_of_an_image_tower() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text, self.image = Decoder(causal=False), Tower()

        def forward(self, input_ids: Any, attention_mask: Any, pixel_values: Any) -> None:
            self.text(input_ids, attention_mask)
            self.image(pixel_values=pixel_values)

    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = SelfAttention()

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            return self.attn(pixel_values)

    model = Both()
    with hw.watch(model) as profile:
        model(IDS, attention_mask=left_padded(5, 7), pixel_values=torch.randn(2, 7, 32))
    padded = profile.table().drop_duplicates("layer").set_index("name")["padded_rows"].to_dict()
    assert padded == {"text.layers.0.attn": 2, "text.layers.1.attn": 2, "image.attn": 0}


# Afterwards


def test_a_profile_keeps_neither_model_nor_inputs_alive() -> None:
    import gc
    import weakref

    model, ids = Decoder(), IDS.clone()
    with hw.watch(model) as profile:
        model(ids)
    gone = [weakref.ref(model), weakref.ref(ids)]
    del model, ids
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert len(profile.table()) == 8


def test_inputs_are_not_kept_from_one_forward_to_the_next() -> None:
    import gc
    import weakref

    model = Decoder()
    with hw.watch(model):
        ids = IDS.clone()
        model(ids)
        gone = weakref.ref(ids)
        del ids
        gc.collect()
        assert gone() is None


def test_another_number_of_heads_is_told() -> None:
    model = Decoder()
    with pytest.warns(UserWarning, match="expected 4 heads as before, got 2"), hw.watch(model) as profile:
        model(IDS)
        for block in model.layers:
            block.attn.head_dim = 16
            block.attn.num_heads = block.attn.num_kv_heads = 2
        model(IDS)
    assert set(profile.table()["rows"]) == {14}
    assert [u.name for u in profile.unseen] == ["layers.0.attn", "layers.1.attn"]


def test_tokens_become_text_when_somebody_asks() -> None:
    """Neither the forward nor the table waits for the tokenizer."""
    asked: list[list[int]] = []

    class Tokenizer:
        @staticmethod
        def decode(ids: list[int]) -> str:
            asked.append(list(ids))
            return f"<{ids[0]}>"

    ids = torch.tensor([[3, 1, 3]])
    with hw.watch(model := Decoder().eval(), tokenizer=Tokenizer()) as profile:
        model(input_ids=ids)
    profile.table()
    assert asked == []
    ids.zero_()  # the model may reuse its tensors
    assert [one.tokens for one in profile.sequences] == [["<3>", "<1>", "<3>"]]
    assert asked == [[3], [1]]
