"""Geometry: own key, first key, real rows, packed sequences and counts, by hand and by brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.call import AttentionCall, Place
from headwise.kernels import Geometry, geometry, geometry_of
from tests.oracle import definitions as oracle


def make(N: int, M: int | None = None, B: int = 1, H: int = 1, **more: Any) -> AttentionCall:
    M = N if M is None else M
    return AttentionCall(torch.zeros(B, H, N, 2), torch.zeros(B, H, M, 2), **more)


def rows(x: Tensor, B: int = 1) -> list[Any]:
    """`[b, N]` as lists, written out for B sequences (the list itself when B is 1)."""
    listed = x.expand(B, x.shape[-1]).tolist()
    return listed[0] if B == 1 else listed


def heads(x: Tensor, B: int = 1, H: int = 1) -> list[Any]:
    """`[b, h, N]` as lists."""
    listed = x.expand(B, H, x.shape[-1]).tolist()
    return listed[0][0] if B == H == 1 else listed


def causal_mask(N: int, M: int, offset: int = 0) -> Tensor:
    return torch.arange(M) <= torch.arange(N)[:, None] + offset


def padding(M: int, *hidden: int) -> Tensor:
    mask = torch.ones(1, 1, 1, M, dtype=torch.bool)
    mask[..., list(hidden)] = False
    return mask


T, F = True, False


# N == M


def test_nothing_limits() -> None:
    g = geometry_of(make(4))
    assert rows(g.own) == [0, 1, 2, 3]
    assert rows(g.first) == [0, 0, 0, 0]
    assert rows(g.real) == [T, T, T, T]
    assert heads(g.visible) == [4, 4, 4, 4]
    assert heads(g.own_visible) == [T, T, T, T]
    assert heads(g.previous_visible) == [F, T, T, T]
    assert heads(g.next_visible) == [T, T, T, F]
    assert heads(g.first_visible) == [T, T, T, T]
    assert g.segment is None
    assert g.num_keys == 4
    assert g.row_spans == ([0, 0, 0, 0], [4, 4, 4, 4])


@pytest.mark.parametrize("how", ["flag", "mask", "float mask"])
def test_causal(how: str) -> None:
    mask = causal_mask(4, 4)
    limits: dict[str, Any] = {
        "flag": {"causal": "upper_left"},
        "mask": {"mask": mask},
        "float mask": {"mask": torch.zeros(4, 4).masked_fill(~mask, -torch.inf)},
    }[how]
    g = geometry_of(make(4, **limits))
    assert rows(g.own) == [0, 1, 2, 3]
    assert heads(g.visible) == [1, 2, 3, 4]
    assert heads(g.next_visible) == [F, F, F, F]
    assert heads(g.previous_visible) == [F, T, T, T]
    assert rows(g.first) == [0, 0, 0, 0]
    assert rows(g.real) == [T, T, T, T]
    assert g.segment is None
    assert g.row_spans == ([0, 0, 0, 0], [1, 2, 3, 4])


@pytest.mark.parametrize("causal", [None, "upper_left"])
def test_left_padding_told_from_the_mask(causal: Any) -> None:
    g = geometry_of(make(5, mask=padding(5, 0, 1), causal=causal))
    assert rows(g.own) == [0, 1, 2, 3, 4]
    assert rows(g.first) == [2, 2, 2, 2, 2]
    assert rows(g.real) == [F, F, T, T, T]
    assert heads(g.own_visible) == [F, F, T, T, T]
    assert heads(g.previous_visible) == [F, F, F, T, T]
    assert heads(g.next_visible)[2:] == ([T, T, F] if causal is None else [F, F, F])
    assert heads(g.first_visible)[2:] == [T, T, T]
    assert heads(g.visible) == ([3] * 5 if causal is None else [0, 0, 1, 2, 3])
    assert g.segment is None


@pytest.mark.parametrize("causal", [None, "upper_left"])
def test_right_padding_told_from_the_mask(causal: Any) -> None:
    g = geometry_of(make(5, mask=padding(5, 3, 4), causal=causal))
    assert rows(g.first) == [0] * 5
    assert rows(g.real) == [T, T, T, F, F]
    assert heads(g.own_visible) == [T, T, T, F, F]
    assert heads(g.next_visible)[:3] == ([T, T, F] if causal is None else [F, F, F])
    assert heads(g.visible) == ([3] * 5 if causal is None else [1, 2, 3, 3, 3])
    assert g.segment is None


def test_sequences_padded_differently() -> None:
    mask = torch.cat((padding(4, 0, 1), padding(4), padding(4, 3)))
    g = geometry_of(make(4, B=3, mask=mask))
    assert rows(g.real, 3) == [[F, F, T, T], [T, T, T, T], [T, T, T, F]]
    assert rows(g.first, 3) == [[2] * 4, [0] * 4, [0] * 4]
    assert heads(g.visible, 3) == [[[2] * 4], [[4] * 4], [[3] * 4]]


def test_a_left_padded_causal_4d_mask_as_transformers_makes_it() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        seen = causal_mask(5, 5) & padding(5, 0, 1)
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
        g = geometry_of(make(5, mask=mask))
        assert heads(g.visible) == [0, 0, 1, 2, 3], dtype
        assert rows(g.real) == [F, F, T, T, T]
        assert rows(g.first)[2:] == [2, 2, 2]
        assert heads(g.own_visible) == [F, F, T, T, T]
        assert g.segment is None


def test_the_caller_says_which_rows_are_real() -> None:
    real = torch.tensor([[T, F, T, T, F]])
    g = geometry_of(make(5, mask=padding(5, 0, 1), real=real))
    assert rows(g.real) == [T, F, T, T, F]
    assert rows(g.first) == [2] * 5  # what keys are seen does not change
    g = geometry_of(make(5, real=real.to(torch.int64)))
    assert rows(g.real) == [T, F, T, T, F]
    assert g.real.dtype == torch.bool


def test_without_a_mask_every_row_is_real() -> None:
    # Under causality the first rows of a short cache see nothing: masked, not padded.
    g = geometry_of(make(5, 3, causal="lower_right"))
    assert rows(g.real) == [T] * 5
    assert heads(g.visible) == [0, 0, 1, 2, 3]
    assert rows(g.own) == [-1, -1, 0, 1, 2]


def test_gentle_masks_hide_only_when_asked() -> None:
    mask = torch.zeros(1, 1, 1, 4)
    mask[..., 0] = -1e4
    g = geometry_of(make(4, mask=mask))
    assert heads(g.visible) == [4] * 4
    assert rows(g.real) == [T] * 4
    g = geometry_of(make(4, mask=mask, hide_below=-1e4))
    assert heads(g.visible) == [3] * 4
    assert rows(g.real) == [F, T, T, T]
    assert rows(g.first) == [1] * 4


def test_a_row_that_sees_nothing_among_real_ones() -> None:
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    g = geometry_of(make(4, mask=mask))
    assert heads(g.visible) == [4, 4, 0, 4]
    assert rows(g.real) == [T, T, T, T]  # its key is seen by others: masked, not padding
    assert heads(g.own_visible) == [T, T, F, T]
    assert heads(g.first_visible) == [T, T, F, T]
    assert g.spans[0, 0, 2].tolist() == [4, 0]


def test_nothing_is_seen_at_all() -> None:
    g = geometry_of(make(3, mask=torch.zeros(3, 3, dtype=torch.bool)))
    assert rows(g.first) == [-1, -1, -1]
    assert rows(g.real) == [F, F, F]
    assert not g.first_visible.any()


def test_masks_of_each_head() -> None:
    mask = torch.ones(1, 2, 3, 3, dtype=torch.bool)
    mask[0, 1] = torch.eye(3, dtype=torch.bool)
    g = geometry_of(make(3, H=2, mask=mask))
    assert heads(g.visible, 1, 2) == [[[3, 3, 3], [1, 1, 1]]]
    assert heads(g.next_visible, 1, 2) == [[[T, T, F], [F, F, F]]]
    assert heads(g.first_visible, 1, 2) == [[[T, T, T], [T, F, F]]]
    assert g.row_spans == ([0, 0, 0], [3, 3, 3])


# Windows


@pytest.mark.parametrize(
    ("window", "causal", "low", "high"),
    [
        (2, None, [0, 0, 1, 2, 3], [2, 3, 4, 5, 5]),
        (2, "upper_left", [0, 0, 1, 2, 3], [1, 2, 3, 4, 5]),
        ((1, 2), None, [0, 0, 1, 2, 3], [3, 4, 5, 5, 5]),
        ((None, 0), None, [0, 0, 0, 0, 0], [1, 2, 3, 4, 5]),
        ((0, None), None, [0, 1, 2, 3, 4], [5, 5, 5, 5, 5]),
    ],
)
@pytest.mark.parametrize("as_mask", [False, True])
def test_windows(window: Any, causal: Any, low: list[int], high: list[int], as_mask: bool) -> None:
    key = torch.arange(5)
    band = (key >= torch.tensor(low)[:, None]) & (key < torch.tensor(high)[:, None])
    g = geometry_of(make(5, mask=band) if as_mask else make(5, window=window, causal=causal))
    assert g.row_spans == (low, high)
    assert heads(g.visible) == [b - a for a, b in zip(low, high, strict=True)]
    assert rows(g.own) == [0, 1, 2, 3, 4]
    assert rows(g.first) == [0] * 5
    assert heads(g.first_visible) == [a == 0 for a in low]
    assert heads(g.next_visible) == [i + 1 < b for i, b in enumerate(high)]
    assert g.segment is None


# N != M


def test_cross_attention_has_no_own_key() -> None:
    for N, M in ((3, 6), (4, 4), (1, 6)):
        g = geometry_of(make(N, M, mask=padding(M, M - 1), place=Place(kind="cross")))
        assert rows(g.own) == [-1] * N
        assert rows(g.real) == [T] * N  # the padding is among the keys
        assert rows(g.first) == [0] * N
        assert heads(g.visible) == [M - 1] * N
        assert not g.own_visible.any()
        assert not g.previous_visible.any()
        assert not g.next_visible.any()
        assert g.segment is None


def test_cross_attention_over_left_padded_keys() -> None:
    g = geometry_of(make(3, 6, mask=padding(6, 0, 1), place=Place(kind="cross")))
    assert rows(g.first) == [2, 2, 2]
    assert heads(g.first_visible) == [T, T, T]


@pytest.mark.parametrize("limits", [{}, {"mask": padding(7, 6)}, {"mask": padding(7, 0)}])
def test_more_keys_without_causality_have_no_own_key(limits: dict[str, Any]) -> None:
    g = geometry_of(make(3, 7, **limits))
    assert rows(g.own) == [-1, -1, -1]
    assert rows(g.real) == [T, T, T]


def test_a_single_query_stands_at_the_last_key_it_sees() -> None:
    assert rows(geometry_of(make(1, 8)).own) == [7]
    # a static cache: 8 places, 7 filled
    g = geometry_of(make(1, 8, mask=padding(8, 7)))
    assert rows(g.own) == [6]
    assert heads(g.visible) == [7]
    assert heads(g.previous_visible) == [T]
    assert heads(g.next_visible) == [F]
    assert rows(g.real) == [T]
    # left padding, and two sequences of different length
    mask = torch.cat((padding(8, 0, 1, 7), padding(8, 5, 6, 7)))
    g = geometry_of(make(1, 8, B=2, mask=mask))
    assert rows(g.own, 2) == [[6], [4]]
    assert rows(g.first, 2) == [[2], [0]]
    assert rows(g.real, 2) == [[T], [T]]


@pytest.mark.parametrize("how", ["flag", "bool", "float"])
def test_chunked_prefill(how: str) -> None:
    """Three queries continue a cache of four: seven keys."""
    mask = causal_mask(3, 7, offset=4)
    limits: dict[str, Any] = {
        "flag": {"causal": "lower_right"},
        "bool": {"mask": mask[None, None]},
        "float": {"mask": torch.zeros(3, 7).masked_fill(~mask, torch.finfo(torch.float32).min)},
    }[how]
    g = geometry_of(make(3, 7, **limits))
    assert rows(g.own) == [4, 5, 6]
    assert heads(g.visible) == [5, 6, 7]
    assert heads(g.own_visible) == [T, T, T]
    assert heads(g.previous_visible) == [T, T, T]
    assert heads(g.next_visible) == [F, F, F]
    assert rows(g.first) == [0, 0, 0]
    assert rows(g.real) == [T, T, T]


def test_chunked_prefill_of_two_left_padded_sequences() -> None:
    seen = causal_mask(3, 7, offset=4) & torch.cat((padding(7), padding(7, 0, 1)))
    g = geometry_of(make(3, 7, B=2, mask=seen))
    assert rows(g.own, 2) == [[4, 5, 6]] * 2
    assert rows(g.first, 2) == [[0] * 3, [2] * 3]
    assert heads(g.visible, 2) == [[[5, 6, 7]], [[3, 4, 5]]]


def test_upper_left_with_more_keys() -> None:
    g = geometry_of(make(3, 7, causal="upper_left"))
    assert rows(g.own) == [0, 1, 2]
    assert heads(g.visible) == [1, 2, 3]
    assert rows(g.real) == [T, T, T]


@pytest.mark.parametrize("offset", [0, 2, 5])
def test_a_static_cache_with_a_causal_mask(offset: int) -> None:
    """Three queries at positions offset.. of a cache with eight places."""
    g = geometry_of(make(3, 8, mask=causal_mask(3, 8, offset)[None, None]))
    assert rows(g.own) == [offset, offset + 1, offset + 2]
    assert heads(g.visible) == [offset + 1, offset + 2, offset + 3]
    assert rows(g.real) == [T, T, T]
    assert rows(g.first) == [0, 0, 0]


def test_a_padded_prefill_into_a_static_cache() -> None:
    left = causal_mask(4, 8) & padding(8, 0, 1)
    right = causal_mask(4, 8) & padding(8, 2, 3)
    g = geometry_of(make(4, 8, B=2, mask=torch.cat((left, right))))
    assert rows(g.real, 2) == [[F, F, T, T], [T, T, F, F]]
    assert g.own[0, 2:].tolist() == [2, 3]
    assert g.own[1, :2].tolist() == [0, 1]
    assert rows(g.first, 2) == [[2] * 4, [0] * 4]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_prompt_of_one_token_in_a_padded_batch_is_causal_as_its_neighbours_are(side: str) -> None:
    """Its last visible key never moves on by one, but the mask of the batch is causal all the same."""
    hidden = (0, 1, 2) if side == "left" else (1, 2, 3)
    mask = causal_mask(4, 8) & torch.cat((padding(8), padding(8, *hidden)))
    g = geometry_of(make(4, 8, B=2, mask=mask))
    assert rows(g.own, 2)[0] == [0, 1, 2, 3]
    place = 3 if side == "left" else 0
    assert rows(g.real, 2)[1] == [i == place for i in range(4)]
    assert rows(g.own, 2)[1][place] == place


def test_a_windowed_chunk() -> None:
    band = causal_mask(3, 9, offset=4) & (torch.arange(9) > torch.arange(3)[:, None] + 4 - 3)
    g = geometry_of(make(3, 9, mask=band))
    assert rows(g.own) == [4, 5, 6]
    assert heads(g.visible) == [3, 3, 3]
    assert rows(g.first) == [2, 2, 2]
    assert heads(g.first_visible) == [T, F, F]


# Packing


def block_diagonal(lengths: list[int], size: int | None = None, causal: bool = False) -> Tensor:
    size = sum(lengths) if size is None else size
    mask = torch.zeros(size, size, dtype=torch.bool)
    start = 0
    for length in lengths:
        mask[start : start + length, start : start + length] = True
        start += length
    return mask.tril() if causal else mask


@pytest.mark.parametrize("how", ["full", "causal mask", "causal flag", "float"])
def test_packed_sequences(how: str) -> None:
    mask = block_diagonal([3, 4], causal=how == "causal mask")
    if how == "float":
        mask = torch.zeros(7, 7).masked_fill(~mask, -torch.inf)
    g = geometry_of(make(7, mask=mask, causal="upper_left" if how == "causal flag" else None))
    causal = how.startswith("causal")
    assert g.segment is not None
    assert rows(g.segment) == [0, 0, 0, 1, 1, 1, 1]
    assert rows(g.first) == [0, 0, 0, 3, 3, 3, 3]
    assert rows(g.own) == list(range(7))
    assert heads(g.first_visible) == [T] * 7
    assert heads(g.previous_visible) == [F, T, T, F, T, T, T]
    assert heads(g.next_visible) == [F] * 7 if causal else [T, T, F, T, T, T, F]
    assert heads(g.visible) == ([1, 2, 3, 1, 2, 3, 4] if causal else [3, 3, 3, 4, 4, 4, 4])
    assert rows(g.real) == [T] * 7


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_with_padding(causal: bool) -> None:
    g = geometry_of(make(8, mask=block_diagonal([2, 3], size=8, causal=causal)))
    assert g.segment is not None
    assert rows(g.segment)[:5] == [0, 0, 1, 1, 1]
    assert rows(g.first)[:5] == [0, 0, 2, 2, 2]
    assert rows(g.real) == [T] * 5 + [F] * 3


@pytest.mark.parametrize("causal", [False, True])
def test_a_text_of_one_token_among_packed_ones(causal: bool) -> None:
    g = geometry_of(make(10, mask=block_diagonal([4, 1, 5], causal=causal)))
    assert g.segment is not None
    assert rows(g.segment) == [0, 0, 0, 0, 1, 2, 2, 2, 2, 2]
    assert rows(g.first) == [0, 0, 0, 0, 4, 5, 5, 5, 5, 5]


def test_only_some_sequences_of_a_batch_are_packed() -> None:
    mask = torch.stack((block_diagonal([6]), block_diagonal([2, 4]), block_diagonal([2, 2, 2])))[:, None]
    g = geometry_of(make(6, B=3, mask=mask))
    assert g.segment is not None
    assert rows(g.segment, 3) == [[0] * 6, [0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 2, 2]]
    assert rows(g.first, 3) == [[0] * 6, [0, 0, 2, 2, 2, 2], [0, 0, 2, 2, 4, 4]]


def test_a_sequence_that_is_not_packed_stays_whole_beside_a_packed_one() -> None:
    mask = torch.stack((block_diagonal([2, 4]), torch.eye(6, dtype=torch.bool)))[:, None]
    g = geometry_of(make(6, B=2, mask=mask))
    assert g.segment is not None
    assert rows(g.segment, 2) == [[0, 0, 1, 1, 1, 1], [0] * 6]
    assert rows(g.first, 2) == [[0, 0, 2, 2, 2, 2], [0] * 6]


def test_windows_inside_packed_sequences() -> None:
    g = geometry_of(make(9, mask=block_diagonal([4, 5]), window=2, causal="upper_left"))
    assert g.segment is not None
    assert rows(g.segment) == [0] * 4 + [1] * 5
    assert heads(g.visible) == [1, 2, 2, 2, 1, 2, 2, 2, 2]


def test_heads_that_look_across_join_sequences() -> None:
    mask = torch.stack((block_diagonal([3, 3]), block_diagonal([6])))[None]
    assert geometry_of(make(6, H=2, mask=mask)).segment is None


@pytest.mark.parametrize("density", [0.15, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("causal", [None, "upper_left"])
def test_random_masks_are_no_packing(density: float, causal: Any) -> None:
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        mask = torch.rand(24, 24, generator=draw) < density
        if causal:
            mask.fill_diagonal_(True)
        assert geometry_of(make(24, mask=mask, causal=causal)).segment is None, seed


@pytest.mark.parametrize(
    "mask",
    [
        torch.eye(5, dtype=torch.bool),
        padding(5, 0, 1),
        padding(5, 2),
        causal_mask(5, 5),
        torch.ones(5, 5) > 0,
    ],
)
def test_what_is_no_packing(mask: Tensor) -> None:
    assert geometry_of(make(5, mask=mask)).segment is None


def test_cross_attention_is_never_packed() -> None:
    assert geometry_of(make(4, mask=block_diagonal([2, 2]), place=Place(kind="cross"))).segment is None


@given(st.lists(st.integers(2, 5), min_size=2, max_size=4), st.booleans(), st.integers(0, 3))
def test_any_packing(lengths: list[int], causal: bool, pad: int) -> None:
    size = sum(lengths) + pad
    g = geometry_of(make(size, mask=block_diagonal(lengths, size, causal)))
    segment = [number for number, length in enumerate(lengths) for _ in range(length)]
    starts = np.cumsum([0, *lengths])
    assert g.segment is not None
    assert rows(g.segment)[: len(segment)] == segment
    assert rows(g.first)[: len(segment)] == [starts[s] for s in segment]
    assert rows(g.real) == [True] * len(segment) + [False] * pad


# By brute force


@given(
    seed=st.integers(0, 2**32 - 1),
    N=st.integers(1, 6),
    M=st.integers(1, 6),
    shape=st.sampled_from(["none", "BHNM", "B1NM", "1HNM", "HNM", "NM", "B11M", "M", "BHN1"]),
    causal=st.sampled_from([None, "upper_left", "lower_right"]),
    window=st.sampled_from([None, 1, 3, (0, 1), (2, None), (None, 0)]),
    floating=st.booleans(),
    block=st.sampled_from([1, 7, 1 << 22]),
)
def test_counts_spans_and_looks(
    seed: int, N: int, M: int, shape: str, causal: Any, window: Any, floating: bool, block: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    B, H = 2, 3
    mask = None
    if shape != "none":
        size = [{"B": B, "H": H, "N": N, "M": M, "1": 1}[letter] for letter in shape]
        mask = torch.rand(size, generator=draw) > 0.4
        if floating:
            mask = torch.randn(size, generator=draw).masked_fill(~mask, -70000.0)
    call = make(N, M, B=B, H=H, mask=mask, causal=causal, window=window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "BLOCK_ELEMENTS", block)
        g = geometry_of(call)
    seen = oracle.seen_keys((B, H, N, M), None if mask is None else mask.numpy(), causal, window)
    full = (B, H, N)
    assert np.array_equal(g.visible.expand(full).numpy(), seen.sum(-1))
    key = np.arange(M)
    low = np.where(seen, key, M).min(-1)
    high = np.where(seen, key + 1, 0).max(-1)
    assert np.array_equal(g.spans.expand(*full, 2).numpy(), np.stack((low, high), -1))
    assert g.row_spans == (low.min((0, 1)).tolist(), high.max((0, 1)).tolist())
    if N == M or N == 1 or causal is not None:
        own = oracle.own_keys(seen, causal=causal is not None)
        assert np.array_equal(g.own.expand(B, N).numpy(), own)
    if g.segment is None:
        assert np.array_equal(g.first.expand(B, N).numpy(), oracle.first_keys(seen))
    _check_look(g.own_visible, seen, g.own, 0)
    _check_look(g.previous_visible, seen, g.own, -1)
    _check_look(g.next_visible, seen, g.own, 1)
    _check_look(g.first_visible, seen, g.first, 0)


def _check_look(found: Tensor, seen: np.ndarray, at: Tensor, step: int) -> None:
    B, H, N, M = seen.shape
    look, keys = found.expand(B, H, N).numpy(), at.expand(B, N).numpy()
    for b, h, i in np.ndindex(B, H, N):
        key = keys[b, i] + step
        expected = keys[b, i] >= 0 and 0 <= key < M and seen[b, h, i, key]
        assert look[b, h, i] == expected, (b, h, i, step)


def test_geometry_is_frozen() -> None:
    g: Geometry = geometry_of(make(2))
    with pytest.raises(AttributeError):
        g.num_keys = 3  # type: ignore[misc]


class LargestTensor(TorchDispatchMode):
    """Notes the elements of the largest tensor that an operation makes."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, Tensor):
                self.largest = max(self.largest, one.untyped_storage().nbytes() // one.element_size())
        return result


@pytest.mark.parametrize("causal", [None, "upper_left", "lower_right"])
@pytest.mark.parametrize("window", [None, 7, (3, 5)])
@pytest.mark.parametrize("padded", [False, True])
def test_memory_is_linear_where_the_mask_is_the_same_for_every_row(causal: Any, window: Any, padded: bool) -> None:
    N, M = 2_000, 3_000
    mask = (torch.arange(M) < M - 40)[None, None, None, :] if padded else None
    call = make(N, M, causal=causal, window=window, mask=mask)
    with LargestTensor() as made:
        geometry_of(call)
    assert made.largest <= 4 * (M + 1)


@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    causal=st.sampled_from([None, "upper_left", "lower_right"]),
    window=st.sampled_from([None, 1, 3, (0, 2), (2, None), (None, 1)]),
    seed=st.integers(0, 1 << 16),
    heads_of_mask=st.sampled_from([1, 2]),
)
def test_a_mask_by_key_says_the_same_as_written_out_for_every_row(
    sizes: tuple[int, int], causal: Any, window: Any, seed: int, heads_of_mask: int
) -> None:
    N, M = sizes
    by_key = torch.rand(2, heads_of_mask, 1, M, generator=torch.Generator().manual_seed(seed)) > 0.4
    written_out = by_key.expand(2, heads_of_mask, N, M).contiguous()
    short, long = (make(N, M, B=2, H=2, causal=causal, window=window, mask=mask) for mask in (by_key, written_out))
    a, b = geometry_of(short), geometry_of(long)
    for name in ("visible", "own", "own_visible", "first", "first_visible", "real", "spans", "previous_visible"):
        one, two = getattr(a, name), getattr(b, name)
        shape = torch.broadcast_shapes(one.shape, two.shape)
        assert torch.equal(one.expand(shape), two.expand(shape)), name
    assert (a.segment is None) == (b.segment is None)
