"""What keys receive, against plain loops; by position from the first real key, and over sequences."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import row_statistics
from headwise.measures.blockwise import one_pass
from headwise.measures.keys import KeySums, key_sums
from headwise.measures.sums import ClusterSums
from headwise.measures.visibility import visible_rows
from tests.measures.cases import CASES, F64, Largest, case
from tests.oracle import patterns

NAN = math.nan


def same(a: ClusterSums, b: ClusterSums, slack: float = 1e-12) -> None:
    for f in fields(ClusterSums):
        torch.testing.assert_close(getattr(a, f.name), getattr(b, f.name), rtol=slack, atol=slack, msg=f.name)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_sums_of_every_case(name: str, dtype: torch.dtype) -> None:
    c = case(name, dtype, broken=name == "causal")
    sums = key_sums(c.call, c.statistics)
    slack = 1e-12 if dtype == F64 else 1e-5
    assert sums.received.dtype == sums.rows.dtype == F64
    np.testing.assert_allclose(sums.received.numpy(), patterns.received(c.p, c.counted), rtol=slack, atol=slack)
    np.testing.assert_array_equal(sums.rows.numpy(), patterns.rows_that_see(c.seen, c.counted))
    expected = patterns.alphas(c.p, c.seen, c.counted, c.sequence)
    found = sums.alpha_sums()
    for h in range(4):
        for t in range(c.call.sizes[3]):
            values = [one[t] for one in expected[h] if t in one]
            assert found.sequences[h, t] == len(values), (h, t)
            mean = math.fsum(values) / len(values) if values else NAN
            assert float(found.mean[h, t]) == pytest.approx(mean, abs=slack, nan_ok=True)
            error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else NAN
            assert float(found.error[h, t]) == pytest.approx(error, abs=1e-6, nan_ok=True)
    first = [np.mean([one[0] for one in head if 0 in one] or [NAN]) for head in expected]
    np.testing.assert_allclose(found.mean[:, 0].numpy(), first, rtol=slack, atol=slack)


def test_what_was_received_may_be_given() -> None:
    c = case("packed causal")
    received = one_pass(c.call, c.statistics, received=True).received
    same(key_sums(c.call, c.statistics, received).alpha_sums(), key_sums(c.call, c.statistics).alpha_sums(), 0)


def test_the_worked_check() -> None:
    """Weights 0.7 0.2 0.1 / 0.1 0.7 0.2 / 0.2 0.1 0.7: columns sum to 1, three rows may see each key."""
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]], dtype=F64)
    eye = torch.eye(3, dtype=F64)[None, None]
    call = AttentionCall(p.log()[None, None], eye, scale=1.0)
    alpha = key_sums(call, row_statistics(call)).alpha
    assert alpha[0, 0].tolist() == pytest.approx([1 / 3] * 3, abs=1e-12)
    # Causal: 1 / 0.125 0.875 / 0.2 0.1 0.7; three rows see key 0, two key 1, one key 2.
    call = call.with_(causal="upper_left")
    alpha = key_sums(call, row_statistics(call)).alpha
    assert alpha[0, 0].tolist() == pytest.approx([1.325 / 3, 0.975 / 2, 0.7], abs=1e-12)
    mask = torch.tensor([False, True, True])
    call = call.with_(causal=None, mask=mask)
    sums = key_sums(call, row_statistics(call))
    assert sums.position.tolist() == [[-1, 0, 1]]
    assert sums.alpha[0, 0].tolist() == pytest.approx([NAN, (7 / 9 + 1 / 8) / 2, (2 / 9 + 7 / 8) / 2], nan_ok=True)
    assert float(sums.alpha_sums().mean[0, 0]) == pytest.approx((7 / 9 + 1 / 8) / 2, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_rows_that_may_see_a_key(name: str) -> None:
    c = case(name)
    B, H, N, M = c.call.sizes
    for shape in ((1, 1, N), (B, 1, N), (B, H, N)):
        rows = torch.rand(shape) > 0.4
        found = visible_rows(c.call, c.statistics.geometry, rows).expand(B, H, M)
        expected = patterns.rows_that_see(c.seen, rows.expand(B, H, N).numpy())
        np.testing.assert_array_equal(found.numpy(), expected)


@given(st.permutations(range(3)), st.sampled_from(["causal", "padded", "packed causal", "sinks"]))
def test_merging_parts_in_any_order_is_one_pass(order: list[int], name: str) -> None:
    c = case(name)
    whole = key_sums(c.call, c.statistics).alpha_sums()
    parts = []
    for b in order:
        one = c.call.with_(
            q=c.call.q[b : b + 1],
            k=c.call.k[b : b + 1],
            v=None,
            mask=None if c.call.mask is None else c.call.mask[b : b + 1],
        )
        parts.append(key_sums(one, row_statistics(one)).alpha_sums())
    same(parts[0] + parts[1] + parts[2], whole)


def test_sequences_of_other_lengths_merge() -> None:
    short, long = case("decode"), case("causal")
    a = key_sums(short.call.with_(k=short.call.k[:, :, :4], v=None), row_statistics(
        short.call.with_(k=short.call.k[:, :, :4], v=None))).alpha_sums()  # fmt: skip
    b = key_sums(long.call, long.statistics).alpha_sums()
    for merged in (a + b, b + a):
        assert merged.s.shape == (4, 12)
        assert merged.sequences[0].tolist() == [6] * 4 + [3] * 8
        torch.testing.assert_close(merged.s[:, :4], a.s + b.s[:, :4])


@pytest.mark.parametrize("padded", [False, True])
def test_decoding_goes_on_where_the_prompt_ended(padded: bool) -> None:
    """Ten queries at once, or seven and then one by one over a cache: the same sums."""
    q, k = torch.randn(2, 2, 10, 4, dtype=F64), torch.randn(2, 2, 10, 4, dtype=F64)
    keys = torch.ones(2, 1, 1, 10, dtype=torch.bool)
    keys[1, ..., :3] = not padded
    mask = keys & torch.ones(10, 10, dtype=torch.bool).tril()

    def sums(rows: slice, length: int) -> KeySums:
        call = AttentionCall(q[:, :, rows], k[:, :, :length], mask=mask[:, :, rows, :length])
        return key_sums(call, row_statistics(call))

    found = sums(slice(0, 7), 7)
    for i in range(7, 10):
        found = found.extended(sums(slice(i, i + 1), i + 1))
    whole = sums(slice(0, 10), 10)
    torch.testing.assert_close(found.received, whole.received, rtol=1e-12, atol=1e-12)
    assert torch.equal(found.rows, whole.rows)
    assert torch.equal(found.position, whole.position)
    same(found.alpha_sums(), whole.alpha_sums())


def test_a_window_forgets_where_the_sequence_began_but_the_sums_do_not() -> None:
    q, k = torch.randn(1, 1, 8, 4, dtype=F64), torch.randn(1, 1, 8, 4, dtype=F64)

    def sums(rows: slice, length: int) -> KeySums:
        call = AttentionCall(q[:, :, rows], k[:, :, :length], causal="lower_right", window=3)
        return key_sums(call, row_statistics(call))

    step = sums(slice(7, 8), 8)
    assert step.position.tolist() == [[-1] * 5 + [0, 1, 2]]
    assert sums(slice(0, 7), 7).extended(step).position.tolist() == [list(range(8))]
    with pytest.raises(ValueError, match=r"expected 1 sequences, 1 heads and at least 8 keys; got \(1, 1, 7\)"):
        step.extended(sums(slice(0, 7), 7))


@pytest.mark.parametrize("mask", [None, torch.rand(1, 1, 1, 1200) > 0.2])
def test_counting_takes_linear_memory(mask: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 1200
    monkeypatch.setattr("headwise.measures.visibility.BLOCK_ELEMENTS", 1 << 15)
    call = AttentionCall(*(torch.randn(1, 1, n, 4) for _ in range(2)), mask=mask, causal="upper_left")
    s = row_statistics(call)
    with Largest() as seen:
        found = visible_rows(call, s.geometry, torch.ones(1, 1, n, dtype=torch.bool))
    keys = torch.ones(n) if mask is None else mask[0, 0, 0].float()
    assert found[0, 0].tolist() == (torch.arange(n, 0, -1) * keys).tolist()
    assert seen.elements <= 1 << 16
