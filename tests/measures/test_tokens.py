"""Token measures: by hand, against plain loops, and where padding, packing and caches stand in the way."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headwise.call import AttentionCall, Place
from headwise.kernels import row_statistics
from headwise.measures.blockwise import block_values
from headwise.measures.tokens import Tokens, tokens_of, tokens_of_strings
from tests.measures.cases import F64, case
from tests.oracle import patterns

NAN = math.nan
NAMES = ("duplicate", "induction")


def uniform(n: int, m: int | None = None, **more: Any) -> AttentionCall:
    """A call that spreads its weight evenly over what each row may see."""
    return AttentionCall(torch.zeros(1, 1, n, 2, dtype=F64), torch.zeros(1, 1, m or n, 2, dtype=F64), **more)


def values(call: AttentionCall, ids: list[int] | Tensor) -> dict[str, list[float]]:
    s = row_statistics(call)
    tokens = tokens_of(call, s.geometry, torch.as_tensor(ids).expand(call.sizes[0], -1))
    return {name: v[0, 0].tolist() for name, v in zip(NAMES, block_values(call, s, NAMES, tokens), strict=True)}


def test_by_hand() -> None:
    """a b c a b: row 3 (a) reads one of 4 keys each evenly; a stood at 0, after it came b at 1."""
    found = values(uniform(5, causal="upper_left"), [1, 2, 3, 1, 2])
    assert found["duplicate"] == pytest.approx([NAN, NAN, NAN, 1 / 4, 1 / 5], nan_ok=True)
    assert found["induction"] == pytest.approx([NAN, NAN, NAN, 1 / 4, 1 / 5], nan_ok=True)
    found = values(uniform(4, causal="upper_left"), [1, 1, 1, 2])
    assert found["duplicate"] == pytest.approx([NAN, 1 / 2, 2 / 3, NAN], nan_ok=True)
    # After an earlier 1 came the row's own key too.
    assert found["induction"] == pytest.approx([NAN, 1 / 2, 2 / 3, NAN], nan_ok=True)


def test_without_a_causal_limit_only_what_came_before_is_an_earlier_occurrence() -> None:
    found = values(uniform(5), [1, 2, 1, 2, 1])
    assert found["duplicate"] == pytest.approx([NAN, NAN, 1 / 5, 1 / 5, 2 / 5], nan_ok=True)
    assert found["induction"] == pytest.approx([NAN, NAN, 1 / 5, 1 / 5, 2 / 5], nan_ok=True)


def test_repeated_random_tokens_and_a_perfect_induction_head() -> None:
    n = 20
    ids = torch.randperm(50)[:n].repeat(2)
    target = (torch.arange(2 * n) - n + 1).clamp(min=0)
    q = torch.nn.functional.one_hot(target, 2 * n).to(F64)[None, None] * 60
    call = AttentionCall(q, torch.eye(2 * n, dtype=F64)[None, None], scale=1.0, causal="upper_left")
    found = values(call, ids)
    assert all(math.isnan(x) for x in found["induction"][:n])
    assert found["induction"][n:] == pytest.approx([1.0] * n)
    assert found["duplicate"][n:] == pytest.approx([0.0] * n)


def test_padding_is_no_occurrence() -> None:
    """Left padding with the token that the first real one is: its row follows nothing."""
    mask = torch.tensor([False, False, True, True, True])
    found = values(uniform(5, mask=mask, causal="upper_left"), [7, 7, 7, 5, 7])
    assert found["duplicate"][2:] == pytest.approx([NAN, NAN, 1 / 3], nan_ok=True)
    assert found["induction"][2:] == pytest.approx([NAN, NAN, 1 / 3], nan_ok=True)  # on 5, after the real 7
    # Rows of padding that see everything (as some models make them) do not make it real, where the caller says so.
    open_rows = (mask & torch.ones(5, 5, dtype=torch.bool).tril()) | (torch.arange(5) < 2)[:, None]
    call = uniform(5, mask=open_rows)
    assert not math.isnan(values(call, [7, 7, 7, 5, 7])["induction"][2])
    again = values(call.with_(real=mask[None]), [7, 7, 7, 5, 7])
    assert again["induction"][2:] == pytest.approx([NAN, NAN, 1 / 3], nan_ok=True)


def test_rows_that_the_caller_calls_padding_are_no_occurrence() -> None:
    real = torch.tensor([[False, True, True, True]])
    found = values(uniform(4, causal="upper_left", real=real), [7, 5, 7, 7])
    assert found["duplicate"][1:] == pytest.approx([NAN, NAN, 1 / 4], nan_ok=True)
    assert found["induction"][1:] == pytest.approx([NAN, NAN, 1 / 4], nan_ok=True)


def test_a_key_that_only_padded_rows_see_is_padding() -> None:
    mask = torch.tensor([[False, True, True, False], [False, False, True, True]])
    call = uniform(2, 4, mask=mask)
    assert values(call, [9, 5, 6, 5])["induction"][1] == 1 / 2
    assert math.isnan(values(call.with_(real=torch.tensor([[False, True]])), [9, 5, 6, 5])["induction"][1])


def test_what_a_window_has_left_behind_is_an_earlier_occurrence_all_the_same() -> None:
    found = values(uniform(1, 4, window=(1, None), causal="lower_right"), [9, 5, 6, 5])
    assert found["induction"] == [1 / 2]
    assert math.isnan(found["duplicate"][0])
    whole = values(uniform(4, window=(1, None), causal="upper_left"), [9, 5, 6, 5])
    assert whole["induction"][3] == 1 / 2


def test_packed_sequences_know_nothing_of_each_other() -> None:
    mask = torch.zeros(6, 6, dtype=torch.bool)
    for start, end in pairwise((0, 3, 6)):
        mask[start:end, start:end] = True
    found = values(uniform(6, mask=mask, causal="upper_left"), [1, 2, 1, 1, 2, 1])
    assert found["duplicate"] == pytest.approx([NAN, NAN, 1 / 3, NAN, NAN, 1 / 3], nan_ok=True)
    # Key 3 follows key 2 in the batch row, but begins a sequence of its own.
    assert found["induction"] == pytest.approx([NAN, NAN, 1 / 3, NAN, NAN, 1 / 3], nan_ok=True)


def test_what_a_row_may_not_see_does_not_define_it() -> None:
    found = values(uniform(5, causal="upper_left", window=2), [1, 2, 3, 1, 1])
    assert found["duplicate"] == pytest.approx([NAN, NAN, NAN, NAN, 1 / 2], nan_ok=True)
    assert found["induction"] == pytest.approx([NAN, NAN, NAN, NAN, 1 / 2], nan_ok=True)


def test_weight_that_underflows_is_zero_not_undefined() -> None:
    q = torch.tensor([[0.0, 0.0], [0.0, 0.0], [5000.0, 0.0]], dtype=F64)[None, None]
    k = torch.tensor([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]], dtype=F64)[None, None]
    found = values(AttentionCall(q, k, causal="upper_left"), [1, 2, 1])
    assert found["duplicate"][2] == 0.0


def test_decoding_knows_the_tokens_of_the_cache() -> None:
    ids = [1, 2, 3, 1]
    found = values(uniform(1, 4), ids)
    assert found["duplicate"] == found["induction"] == pytest.approx([1 / 4])
    # A static cache: the last two keys are not there yet.
    mask = torch.arange(6) < 4
    found = values(uniform(1, 6, mask=mask), [1, 2, 3, 1, 0, 1])
    assert found["duplicate"] == found["induction"] == pytest.approx([1 / 4])
    found = values(uniform(2, 5, causal="lower_right"), [1, 2, 3, 1, 2])
    assert found["duplicate"] == pytest.approx([1 / 4, 1 / 5])


def test_cross_attention_has_delimiters_only() -> None:
    call = uniform(2, 3, place=Place(kind="cross"))
    s = row_statistics(call)
    tokens = tokens_of(call, s.geometry, torch.tensor([[1, 1, 2]]), torch.tensor([False, True, False]))
    found = block_values(call, s, (*NAMES, "delimiter"), tokens)[:, 0, 0]
    assert found[:2].isnan().all()
    assert found[2].tolist() == pytest.approx([2 / 3, 2 / 3])


def test_ids_without_a_token_and_ids_beyond_the_table() -> None:
    call = uniform(5)
    s = row_statistics(call)
    tokens = tokens_of(call, s.geometry, torch.tensor([[-1, 9, 1, -1, 9]]), torch.tensor([True, True]))
    found = block_values(call, s, (*NAMES, "delimiter"), tokens)[:, 0, 0]
    assert found[2].tolist() == pytest.approx([1 / 5] * 5)  # neither -1 nor 9
    assert found[0].tolist() == pytest.approx([NAN, NAN, NAN, NAN, 1 / 5], nan_ok=True)


def test_strings() -> None:
    call = uniform(6)
    s = row_statistics(call)
    tokens = tokens_of_strings(call, s.geometry, [["[CLS]", "a", ",", "b", "a"]], special=["[CLS]"])
    found = block_values(call, s, ("delimiter", "duplicate"), tokens)[:, 0, 0]
    assert found[0].tolist() == pytest.approx([2 / 6] * 6)
    assert found[1].tolist() == pytest.approx([NAN, NAN, NAN, NAN, 1 / 6, NAN], nan_ok=True)
    assert tokens_of_strings(call, s.geometry, [[]]).rows.tolist() == [[-2] * 6]
    for strings in ([["a"] * 7], [["a"], ["b"]]):
        with pytest.raises(ValueError, match="expected 1 lists of up to 6 strings, one string for each key; got"):
            tokens_of_strings(call, s.geometry, strings)


@pytest.mark.parametrize(
    "ids", [torch.zeros(6).long(), torch.zeros(2, 6).long(), torch.zeros(1, 5).long(), torch.zeros(1, 6)]
)
def test_ids_of_another_shape(ids: Tensor) -> None:
    call = uniform(6)
    with pytest.raises(ValueError, match=r"expected an integer id for each key, \[B, M\] = \(1, 6\); got"):
        tokens_of(call, row_statistics(call).geometry, ids)


def test_ids_of_other_widths_and_shared_by_the_batch() -> None:
    c = case("causal")
    geometry = c.statistics.geometry
    a, b = (
        tokens_of(c.call, geometry, torch.arange(12, dtype=dtype)[None].expand(rows, 12) % 4)
        for dtype, rows in ((torch.int32, 1), (torch.int64, 3))
    )
    for names in (a, b):
        assert isinstance(names, Tokens)
    x, y = (block_values(c.call, c.statistics, NAMES, t, block_elements=100) for t in (a, b))
    assert torch.equal(torch.nan_to_num(x, -1), torch.nan_to_num(y, -1))


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.sampled_from(["causal", "padded causal", "packed", "window"]))
def test_random_tokens_against_loops(seed: int, words: int, name: str) -> None:
    c = case(name)
    ids = torch.randint(0, words, (3, 12), generator=torch.Generator().manual_seed(seed))
    found = block_values(c.call, c.statistics, NAMES, tokens_of(c.call, c.statistics.geometry, ids), block_elements=300)
    expected = patterns.token_values(c.p, c.seen, c.own, ids.numpy(), c.seen.any((1, 2)), c.sequence)
    for value, name_ in zip(found, NAMES, strict=True):
        np.testing.assert_allclose(value.numpy()[c.counted], expected[name_][c.counted], atol=1e-12)
