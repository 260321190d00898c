"""What once went wrong in silence: each case with what it must do instead."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.measures.rows import counted, nonfinite
from tests.compiled import HERE


@pytest.mark.parametrize("options", [{}, {"return_weights": True}, {"measure": True}])
@pytest.mark.parametrize("grad", [False, True])
def test_nan_in_a_mask_hides_nothing(options: dict[str, Any], grad: bool) -> None:
    mha, x = hw.MultiHeadAttention(16, 4), torch.randn(2, 7, 16)
    mask = torch.zeros(7, 7)
    mask[2, 4] = math.nan
    with torch.set_grad_enabled(grad):
        out = mha(x, mask=mask, **options)
    y = out if isinstance(out, torch.Tensor) else out[0]
    assert y[:, 2].isnan().all()
    assert y[:, [0, 1, 3, 4, 5, 6]].isfinite().all()
    if "measure" in options:
        assert nonfinite(out[-1])[:, :, 2].all()
        assert counted(out[-1]).sum() == 2 * 4 * 6


@pytest.mark.parametrize("kernel", ["portable", *(["native"] if HERE else [])])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("shape", [(1, 1, 20, 20), (2, 4, 20, 20), (1, 1, 1, 20), (2, 1, 1, 20), (2, 4, 1, 20)])
def test_rows_with_a_broken_bias_are_counted_as_such(kernel: str, value: float, shape: tuple[int, ...]) -> None:
    mask = torch.zeros(shape)
    mask[0, 0, 0, 3] = value
    q = torch.randn(2, 4, 20, 8)
    found = hw.row_statistics(hw.AttentionCall(q, torch.randn(2, 4, 20, 8), mask=mask), kernel)
    broken = torch.zeros(2, 4, 20, dtype=torch.bool)
    broken[: 2 if shape[0] == 1 else 1, : 4 if shape[1] == 1 else 1, : 20 if shape[2] == 1 else 1] = True
    assert torch.equal(nonfinite(found).expand(broken.shape), broken)


def test_a_cached_context_is_projected_anew_when_the_layer_has_changed() -> None:
    mha, x, context, cache = hw.MultiHeadAttention(16, 4), torch.randn(2, 3, 16), torch.randn(2, 5, 16), hw.KVCache()
    with torch.no_grad():
        mha(x, context, cache=cache)
        for parameter in mha.parameters():
            parameter.mul_(2)
        torch.testing.assert_close(mha(x, context, cache=cache), mha(x, context))
        mha.load_state_dict(hw.MultiHeadAttention(16, 4).state_dict())
        torch.testing.assert_close(mha(x, context, cache=cache), mha(x, context))


def test_a_reordered_cache_reads_the_context_it_is_given() -> None:
    mha, x, context, cache = hw.MultiHeadAttention(16, 4), torch.randn(2, 3, 16), torch.randn(2, 5, 16), hw.KVCache()
    with torch.no_grad():
        mha(x, context, cache=cache)
        cache.reorder(torch.tensor([1, 0]))
        torch.testing.assert_close(mha(x, context, cache=cache), mha(x, context))
        cache.reorder(torch.tensor([1, 1, 0]))
        more = context[[1, 1, 0]]
        torch.testing.assert_close(mha(x[[0, 0, 1]], more, cache=cache), mha(x[[0, 0, 1]], more))


def test_no_later_layer_is_taken_for_the_one_that_filled_a_cache() -> None:
    x, cache = torch.randn(1, 3, 16), hw.KVCache()
    mha = hw.MultiHeadAttention(16, 4)
    mha(x, cache=cache)
    del mha
    gc.collect()
    for _ in range(100):
        with pytest.raises(ValueError, match="another layer has filled this cache"):
            hw.MultiHeadAttention(16, 4)(x, cache=cache)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_nothing_to_measure_is_told_by_the_layer(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"MultiHeadAttention: measure=True: .* nothing to measure"):
        hw.MultiHeadAttention(16, 4)(torch.randn(*shape, 16), measure=True)


@pytest.mark.parametrize("numbers", [[1, 1, 2], [2, 2, 2], [-1, 0, 1]])
def test_a_key_mask_of_other_numbers_is_refused(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match=r"key_mask: expected bool or 0/1 integers .*; got other numbers: for packed"):
        hw.MultiHeadAttention(16, 4)(torch.randn(1, 3, 16), key_mask=torch.tensor([numbers]))


def test_what_is_no_cache_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cache: expected a headwise\.KVCache; got bool"):
        hw.MultiHeadAttention(16, 4)(torch.randn(1, 3, 16), cache=True)


def test_positions_that_do_not_fit_are_told() -> None:
    rope = hw.RotaryEmbedding(4)
    for positions in (torch.zeros(3, 5, dtype=torch.int64), torch.zeros(5)):
        with pytest.raises(ValueError, match=r"positions: expected integers \[N\], or \[B, N\] with B = 2"):
            rope(torch.randn(2, 1, 5, 4), positions)
    with pytest.raises(ValueError, match="base: expected a positive, finite number"):
        hw.RotaryEmbedding(4, base=math.inf)


def test_hooks_that_are_not_taken_over_are_told() -> None:
    theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    theirs.register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="hooks are not taken over"):
        hw.MultiHeadAttention.from_torch(theirs)
