"""Eq. 1: numbers by hand, torch's own attention in float64, and the laws that hold for every input."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention as sdpa

from headwise import equations
from headwise.equations import attention, merge_heads, scores, split_heads, visible_keys, weights

INF = math.inf


def random_qkv(
    B: int = 2, H: int = 4, N: int = 7, M: int = 7, d: int = 5, dv: int = 3, kv: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    kv = H if kv is None else kv
    q = torch.randn(B, H, N, d, dtype=torch.float64)
    return q, torch.randn(B, kv, M, d, dtype=torch.float64), torch.randn(B, kv, M, dv, dtype=torch.float64)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def article_rows() -> tuple[Tensor, Tensor]:
    """q and k whose softmax rows are 0.7 0.2 0.1 | 0.1 0.7 0.2 | 0.2 0.1 0.7 at scale 1: q = ln p, k = I."""
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]], dtype=torch.float64)
    return p.log()[None, None], torch.eye(3, dtype=torch.float64)[None, None]


# By hand


def test_the_articles_rows() -> None:
    q, k = article_rows()
    v = torch.tensor([[10.0, 0.0], [0.0, 10.0], [20.0, 20.0]], dtype=torch.float64)[None, None]
    out, p = attention(q, k, v, scale=1.0, return_weights=True)
    close(p[0, 0, 0], torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64))
    # 0.7 * (10, 0) + 0.2 * (0, 10) + 0.1 * (20, 20) = (9, 4)
    close(out[0, 0, 0], torch.tensor([9.0, 4.0], dtype=torch.float64))
    close(out[0, 0, 1], torch.tensor([1.0 + 4.0, 7.0 + 4.0], dtype=torch.float64))


def test_the_articles_rows_under_causality() -> None:
    q, k = article_rows()
    v = torch.tensor([[9.0], [18.0], [27.0]], dtype=torch.float64)[None, None]
    out, p = attention(q, k, v, causal=True, scale=1.0, return_weights=True)
    expected = [[1.0, 0.0, 0.0], [0.125, 0.875, 0.0], [0.2, 0.1, 0.7]]
    close(p[0, 0], torch.tensor(expected, dtype=torch.float64))
    close(out[0, 0, :, 0], torch.tensor([9.0, 16.875, 22.5], dtype=torch.float64))


def test_the_default_scale_is_one_over_root_dk() -> None:
    q = torch.tensor([[[[2.0, 0.0, 0.0, 0.0]]]], dtype=torch.float64)
    k = torch.tensor([[[[math.log(3.0), 0, 0, 0], [0.0, 0, 0, 0]]]], dtype=torch.float64)
    # scores ln 3 * 2 / sqrt(4) = ln 3 and 0: weights 3/4 and 1/4.
    _, p = attention(q, k, k, return_weights=True)
    close(p.flatten(), torch.tensor([0.75, 0.25], dtype=torch.float64))


def test_softcap_by_hand() -> None:
    q = torch.tensor([[[[6.0]]]], dtype=torch.float64)
    k = torch.tensor([[[[1.0], [0.0]]]], dtype=torch.float64)
    mask = torch.tensor([0.25, 0.5], dtype=torch.float64)
    s = scores(q, k, scale=1.0, softcap=2.0, bias=mask)
    # capped first, then the mask is added
    close(s.flatten(), torch.tensor([2 * math.tanh(3.0) + 0.25, 0.5], dtype=torch.float64))
    _, p = attention(q, k, k, mask=mask, scale=1.0, softcap=2.0, return_weights=True)
    close(p[..., 0].squeeze(), torch.tensor(1 / (1 + math.exp(0.25 - 2 * math.tanh(3.0))), dtype=torch.float64))


def test_a_sink_by_hand() -> None:
    zero = torch.zeros(1, 2, 1, 1, dtype=torch.float64)
    k = torch.zeros(1, 2, 2, 1, dtype=torch.float64)
    sinks = torch.tensor([math.log(2.0), -INF], dtype=torch.float64)
    _, p = attention(zero, k, k, sinks=sinks, return_weights=True)
    # head 0: 1 / (1 + 1 + 2) each; head 1 has no sink
    close(p[0, :, 0], torch.tensor([[0.25, 0.25], [0.5, 0.5]], dtype=torch.float64))


# Against torch


@pytest.mark.parametrize("dims", [(1, 1, 1, 1), (7, 7, 5, 3), (63, 17, 24, 24), (3, 111, 1, 9)])
@pytest.mark.parametrize("scale", [None, 0.37, 2.0])
def test_no_mask(dims: tuple[int, int, int, int], scale: float | None) -> None:
    N, M, d, dv = dims
    q, k, v = random_qkv(N=N, M=M, d=d, dv=dv)
    close(attention(q, k, v, scale=scale), sdpa(q, k, v, scale=scale))


@pytest.mark.parametrize(
    "shape", [(2, 4, 7, 9), (2, 1, 7, 9), (1, 4, 7, 9), (4, 7, 9), (7, 9), (2, 1, 1, 9), (9,), (1, 1, 7, 1)]
)
@pytest.mark.parametrize("kind", ["bool", "float", "-inf"])
def test_masks_of_every_shape(shape: tuple[int, ...], kind: str) -> None:
    q, k, v = random_qkv(N=7, M=9)
    seen = torch.rand(shape) > 0.4
    if shape[-1] > 1:
        seen[..., 0] = True
    else:
        seen[:] = True
    bias = torch.randn(shape, dtype=torch.float64)
    mask = {"bool": seen, "float": bias, "-inf": bias.masked_fill(~seen, -INF)}[kind]
    close(attention(q, k, v, mask=mask), sdpa(q, k, v, attn_mask=mask.expand(2, 4, 7, 9)))


@pytest.mark.parametrize(("N", "M"), [(7, 7), (5, 9), (9, 5)])
def test_causal_is_torchs_upper_left(N: int, M: int) -> None:
    q, k, v = random_qkv(N=N, M=M)
    expected = sdpa(q, k, v, is_causal=True)
    close(attention(q, k, v, causal=True), expected)
    close(attention(q, k, v, causal="upper_left"), expected)
    if N != M:
        assert not torch.allclose(attention(q, k, v, causal="lower_right"), expected)


@pytest.mark.parametrize("kv", [1, 2, 3, 6])
def test_grouped_queries(kv: int) -> None:
    q, k, v = random_qkv(H=6, kv=kv, N=5, M=8)
    close(attention(q, k, v), sdpa(q, k, v, enable_gqa=True))
    close(attention(q, k, v, causal=True, scale=0.5), sdpa(q, k, v, is_causal=True, scale=0.5, enable_gqa=True))


@pytest.mark.parametrize("leading", [(), (4,), (2, 3, 4)])
def test_other_leading_dimensions(leading: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(*leading, n, 4, dtype=torch.float64) for n in (5, 6, 6))
    close(attention(q, k, v), sdpa(q, k, v))


# What torch has not


def test_lower_right_lets_the_last_query_see_every_key() -> None:
    q, k, v = random_qkv(N=3, M=5)
    _, p = attention(q, k, v, causal="lower_right", return_weights=True)
    seen = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    assert torch.equal(p > 0, seen.expand_as(p))
    close(p, attention(q, k, v, mask=seen, return_weights=True)[1])


def test_lower_right_with_more_queries_than_keys() -> None:
    q, k, v = random_qkv(N=5, M=3)
    out, p = attention(q, k, v, causal="lower_right", return_weights=True)
    assert (p[..., :2, :] == 0).all()
    assert (out[..., :2, :] == 0).all()
    close(p[..., 2:, :].sum(-1), torch.ones(2, 4, 3, dtype=torch.float64))
    assert torch.equal(p[0, 0, 2] > 0, torch.tensor([True, False, False]))


@pytest.mark.parametrize(
    ("window", "row_three"),
    [
        (1, [3]),
        (2, [2, 3, 4]),
        (3, [1, 2, 3, 4, 5]),
        ((2, 0), [1, 2, 3]),
        ((0, 2), [3, 4, 5]),
        ((1, None), [2, 3, 4, 5, 6]),
        ((None, 1), [0, 1, 2, 3, 4]),
        ((None, None), [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_windows(window: int | tuple[int | None, int | None], row_three: list[int]) -> None:
    q, k, v = random_qkv(N=7, M=7)
    _, p = attention(q, k, v, window=window, return_weights=True)
    assert p[0, 0, 3].nonzero().flatten().tolist() == row_three
    _, p = attention(q, k, v, window=window, causal=True, return_weights=True)
    assert p[0, 0, 3].nonzero().flatten().tolist() == [j for j in row_three if j <= 3]


def test_a_window_counts_from_the_aligned_position() -> None:
    q, k, v = random_qkv(N=2, M=6)
    _, p = attention(q, k, v, window=2, causal="lower_right", return_weights=True)
    assert p[0, 0, 0].nonzero().flatten().tolist() == [3, 4]
    assert p[0, 0, 1].nonzero().flatten().tolist() == [4, 5]


@pytest.mark.parametrize("window", [0, -1, (-1, 2), (2, -3), (1, 2, 3)])
def test_impossible_windows_are_refused(window: object) -> None:
    q, k, v = random_qkv()
    with pytest.raises(ValueError, match=r"window: expected .*got " + re.escape(repr(window))):
        attention(q, k, v, window=window)  # type: ignore[call-overload]


def test_sinks_are_one_more_column_without_a_value() -> None:
    q, k, v = random_qkv(N=6, M=6)
    sinks = torch.randn(4, dtype=torch.float64) * 3
    out, p = attention(q, k, v, causal=True, sinks=sinks, return_weights=True)
    s = q @ k.mT / math.sqrt(5)
    s = s.masked_fill(~torch.ones(6, 6, dtype=torch.bool).tril(), -INF)
    wide = torch.cat((s, sinks[None, :, None, None].expand(2, 4, 6, 1)), -1).softmax(-1)
    close(p, wide[..., :-1])
    close(out, wide[..., :-1] @ v)


@pytest.mark.parametrize("sink", [300.0, -300.0, 2000.0, -2000.0])
def test_extreme_sinks(sink: float) -> None:
    q, k, v = random_qkv(H=1)
    _, p = attention(q, k, v, sinks=torch.tensor([sink], dtype=torch.float64), return_weights=True)
    close(p.sum(-1), torch.full((2, 1, 7), float(sink < 0), dtype=torch.float64))


# Masks that hide


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("low", ["finfo.min", "-inf"])
def test_a_lowest_mask_hides_as_a_bool_mask_does(dtype: torch.dtype, low: str) -> None:
    q, k, v = (x.to(dtype) for x in random_qkv(N=7, M=9))
    seen = torch.rand(2, 1, 7, 9) > 0.5
    seen[:, :, 2] = False
    hidden = torch.finfo(dtype).min if low == "finfo.min" else -INF
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, hidden)
    expected, p = attention(q, k, v, mask=seen, return_weights=True)
    out, p_low = attention(q, k, v, mask=mask, return_weights=True)
    assert torch.equal(p_low, p)
    assert torch.equal(out, expected)
    assert (p_low[:, :, 2] == 0).all()
    assert (out[:, :, 2] == 0).all()


def test_a_gentle_mask_does_not_hide() -> None:
    q, k, v = random_qkv(H=1, N=1, M=2, B=1)
    mask = torch.tensor([-1e4, -1e4], dtype=torch.float64)
    _, p = attention(q, k, v, mask=mask, return_weights=True)
    close(p.sum(), torch.tensor(1.0, dtype=torch.float64))
    close(p, attention(q, k, v, return_weights=True)[1], 1e-9)


def test_bool_and_causal_and_float_limits_add_up() -> None:
    q, k, v = random_qkv(N=6, M=6)
    seen = torch.rand(2, 1, 1, 6) > 0.3
    _, p = attention(q, k, v, mask=seen, causal=True, window=3, return_weights=True)
    for i in range(6):
        for j in range(6):
            allowed = seen[:, 0, 0, j] & (j <= i) & (i - j < 3)
            assert torch.equal(p[:, 0, i, j] > 0, allowed)


@pytest.mark.parametrize("kind", ["bool", "-inf", "finfo.min"])
@pytest.mark.parametrize("sink", [False, True])
def test_gradients_with_fully_masked_rows(kind: str, sink: bool) -> None:
    q, k, v = random_qkv(B=1, H=2, N=4, M=3, d=2, dv=2)
    seen = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=torch.bool)
    low = torch.finfo(torch.float64).min if kind == "finfo.min" else -INF
    mask = seen if kind == "bool" else torch.zeros(4, 3, dtype=torch.float64).masked_fill(~seen, low)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    if sink:
        leaves.append(torch.randn(2, dtype=torch.float64).requires_grad_())

    def run(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return attention(q, k, v, mask=mask, softcap=5.0, sinks=sinks, return_weights=True)

    assert gradcheck(run, leaves)
    out, p = run(*leaves)
    (out.sum() + p.square().sum()).backward()
    for leaf in leaves:
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()
    assert (q.grad[:, :, [1, 3]] == 0).all()  # type: ignore[index]


def test_gradcheck_of_the_ordinary_case() -> None:
    q, k, v = (x.requires_grad_() for x in random_qkv(B=1, H=4, kv=2, N=3, M=4, d=2, dv=3))
    assert gradcheck(lambda q, k, v: attention(q, k, v, causal="lower_right", window=3), (q, k, v))


def test_without_keys_the_output_is_zero() -> None:
    q, k, v = random_qkv(N=3, M=0)
    out, p = attention(q, k, v, return_weights=True)
    assert p.shape == (2, 4, 3, 0)
    assert torch.equal(out, torch.zeros(2, 4, 3, 3, dtype=torch.float64))


# Dropout, dtypes


def test_weights_are_before_dropout() -> None:
    q, k, v = random_qkv(N=16, M=16)
    _, expected = attention(q, k, v, return_weights=True)
    torch.manual_seed(1)
    out, p = attention(q, k, v, dropout_p=0.5, return_weights=True)
    assert torch.equal(p, expected)
    assert not torch.allclose(out, expected @ v)
    close(attention(q, k, v, dropout_p=1.0), torch.zeros(2, 4, 16, 3, dtype=torch.float64))


def test_dropout_leaves_the_expected_output() -> None:
    q, k, v = random_qkv(B=1, H=1, N=4, M=6)
    draws = 4000
    many = attention(
        q.expand(draws, -1, -1, -1), k.expand(draws, -1, -1, -1), v.expand(draws, -1, -1, -1), dropout_p=0.3
    )
    error = many.std(0) / math.sqrt(draws)
    assert (error > 0).all()
    assert ((many.mean(0) - attention(q, k, v)[0]).abs() < 5 * error).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in random_qkv(N=33, M=65, d=64))
    out, p = attention(q, k, v, causal=True, return_weights=True)
    assert (out.dtype, p.dtype) == (dtype, dtype)
    exact, p_exact = attention(q.double(), k.double(), v.double(), causal=True, return_weights=True)
    half_step = torch.finfo(dtype).eps / 2
    # One rounding at the end, nothing more.
    assert ((out.double() - exact).abs() <= 1.01 * half_step * exact.abs() + 1e-6).all()
    assert ((p.double() - p_exact).abs() <= 1.01 * half_step * p_exact + 1e-6).all()


def test_float16_scores_beyond_its_range() -> None:
    q = torch.full((1, 1, 1, 4), 200.0, dtype=torch.float16)
    k = torch.stack((q[0, 0, 0], -q[0, 0, 0]))[None, None]  # scores +-80000
    _, p = attention(q, k, k, return_weights=True)
    assert p.flatten().tolist() == [1.0, 0.0]


def test_a_float64_bias_on_float32_queries() -> None:
    q, k, v = (x.float() for x in random_qkv())
    bias = torch.randn(7, 7, dtype=torch.float64)
    out = attention(q, k, v, mask=bias)
    assert out.dtype == torch.float32
    close(out.double(), attention(q.double(), k.double(), v.double(), mask=bias), 1e-5)


# Errors


@pytest.mark.parametrize(
    ("q", "k", "v", "says"),
    [
        ((2, 4, 7, 5), (2, 4, 7, 6), (2, 4, 7, 5), "same width d_k"),
        ((2, 4, 7, 5), (2, 4, 7, 5), (2, 4, 8, 5), "same number of keys M"),
        ((2, 4, 7, 5), (2, 3, 7, 5), (2, 3, 7, 5), "heads of q must be a multiple"),
        ((2, 4, 7, 5), (2, 2, 7, 5), (2, 4, 7, 5), "heads of q must be a multiple"),
        ((2, 4, 7, 5), (4, 7, 5), (4, 7, 5), "same number of dimensions"),
        ((5,), (5,), (5,), "2 or more"),
        ((2, 4, 7, 5), (3, 4, 7, 5), (3, 4, 7, 5), "batch"),
    ],
)
def test_shapes_that_do_not_fit(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        attention(torch.zeros(q), torch.zeros(k), torch.zeros(v))
    for shape in (q, k, v):
        assert str(shape) in str(error.value)


@pytest.mark.parametrize("shape", [(7, 8), (3, 1, 1, 9), (2, 3, 7, 9), (1, 2, 4, 7, 9, 9)])
def test_a_mask_that_does_not_fit(shape: tuple[int, ...]) -> None:
    q, k, v = random_qkv(N=7, M=9)
    with pytest.raises(ValueError, match=re.escape(str(shape))):
        attention(q, k, v, mask=torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("shape", [(3,), (1, 4), (5,)])
def test_sinks_that_do_not_fit(shape: tuple[int, ...]) -> None:
    q, k, v = random_qkv(H=4)
    with pytest.raises(ValueError, match=re.escape(str(shape))):
        attention(q, k, v, sinks=torch.zeros(shape, dtype=torch.float64))


def test_integers_are_refused() -> None:
    x = torch.ones(1, 1, 2, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"floating point; got torch\.int64"):
        attention(x, x, x)


def test_an_integer_mask_is_refused_because_its_meaning_is_unclear() -> None:
    """A tokenizer's 0/1 mask is int64: added to the scores it would hide nothing, silently."""
    q, k, v = random_qkv()
    with pytest.raises(ValueError, match=r"mask.*int64"):
        attention(q, k, v, mask=torch.ones(2, 1, 1, 7, dtype=torch.int64))


@pytest.mark.parametrize("causal", ["left", "UPPER_LEFT", 2])
def test_an_unknown_alignment_is_refused(causal: object) -> None:
    q, k, v = random_qkv()
    with pytest.raises(ValueError, match=f"causal: expected .*'lower_right'; got {causal!r}"):
        attention(q, k, v, causal=causal)  # type: ignore[call-overload]


# Heads


def test_split_heads_by_hand() -> None:
    x = torch.arange(12.0).view(1, 2, 6)
    heads = split_heads(x, 3)
    assert heads.shape == (1, 3, 2, 2)
    assert heads[0, 1].tolist() == [[2.0, 3.0], [8.0, 9.0]]
    assert torch.equal(merge_heads(heads), x)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 6), st.integers(1, 4))
def test_merge_undoes_split(B: int, N: int, h: int, d: int) -> None:
    x = torch.randn(B, N, h * d)
    assert torch.equal(merge_heads(split_heads(x, h)), x)


def test_a_width_that_does_not_divide() -> None:
    with pytest.raises(ValueError, match="width of 10 does not divide into 3 heads"):
        split_heads(torch.zeros(1, 2, 10), 3)


def test_each_key_value_head_serves_neighbouring_query_heads() -> None:
    x = torch.arange(2.0).view(1, 2, 1, 1)
    assert equations.repeat_heads(x, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]


# Laws of the softmax


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8), st.floats(-1e4, 1e4))
def test_a_shift_of_the_scores_changes_nothing(row: list[float], shift: float) -> None:
    s = torch.tensor(row, dtype=torch.float64)[None]
    p = weights(s)
    torch.testing.assert_close(weights(s + shift), p, rtol=1e-10, atol=1e-10)
    close(p.sum(-1), torch.ones(1, dtype=torch.float64))


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=6), st.floats(-30, 30), st.data())
def test_visible_keys_and_the_sink_share_one(row: list[float], sink: float, data: st.DataObject) -> None:
    s = torch.tensor(row, dtype=torch.float64)[None, None, None]
    hidden = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(row), max_size=len(row))))
    b = torch.tensor([sink], dtype=torch.float64)
    p = weights(s, ~hidden, b)[0, 0, 0]
    assert (p[hidden] == 0).all()
    total = math.fsum(
        [math.exp(sink), *(math.exp(x) for x, away in zip(row, hidden.tolist(), strict=True) if not away)]
    )
    for a in (~hidden).nonzero().flatten().tolist():
        assert math.isclose(float(p[a]), math.exp(row[a]) / total, rel_tol=1e-12)


@given(st.integers(0, 2**32 - 1))
def test_permuting_keys_permutes_weights(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 2, 5, 3, dtype=torch.float64, generator=draw) for _ in range(3))
    order = torch.randperm(5, generator=draw)
    out, p = attention(q, k, v, return_weights=True)
    out_other, p_other = attention(q, k[:, :, order], v[:, :, order], return_weights=True)
    close(p_other, p[..., order])
    close(out_other, out)


def test_visible_keys_of_some_rows_and_keys() -> None:
    mask = torch.rand(2, 1, 6, 8) > 0.3
    whole = visible_keys(6, 8, mask=mask, causal="lower_right", window=4)
    part = visible_keys(
        6, 8, mask=mask, causal="lower_right", window=4, rows=slice(2, 5), keys=slice(1, 7)
    )  # fmt: skip
    assert whole is not None
    assert part is not None
    assert torch.equal(part, whole[..., 2:5, 1:7])
    assert visible_keys(6, 8) is None
