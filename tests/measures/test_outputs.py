"""What heads write, where it is not what they read: by hand, and after W_O."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.call import AttentionCall
from headwise.kernels import row_statistics
from headwise.measures.blockwise import block_values
from headwise.measures.outputs import output_factors, value_norms_of, written_norms
from tests.measures.cases import F64, H, case

SHARES = ("value_own", "value_previous", "value_first")


def test_a_sink_without_a_value_reads_nothing() -> None:
    """Nine tenths of the weight lie on the first key, whose value is 0."""
    p = torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.9, 0.06, 0.04]], dtype=F64)
    v = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 5.0]], dtype=F64)[None, None]
    scores = p.clamp(min=1e-300).log()[None, None]
    call = AttentionCall(scores, torch.eye(3, dtype=F64)[None, None], v, scale=1.0, causal="upper_left")
    own, previous, first = block_values(call, row_statistics(call), SHARES)[:, 0, 0].tolist()
    assert first[1:] == pytest.approx([0.0, 0.0])
    assert own[1:] == pytest.approx([1.0, 0.4])
    assert previous[2] == pytest.approx(0.6)
    assert math.isnan(own[0])  # nothing is read


@pytest.mark.parametrize("d_model", [2, 6, 40])
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
def test_factors_keep_lengths(dtype: torch.dtype, d_model: int) -> None:
    c = case("causal", dtype)
    W = torch.randn(d_model, H * 6, dtype=F64)
    factors = output_factors(c.call, W, 6)
    assert factors is not None
    assert factors.shape == (H, 6, min(6, d_model))
    x = torch.randn(2, H, 5, 6, dtype=F64).to(factors.dtype)
    found = written_norms(x, factors)
    slack = 1e-12 if dtype == F64 else 1e-5
    for h in range(H):
        expected = (x[:, h].double() @ W[:, h * 6 : (h + 1) * 6].T).norm(dim=-1)
        torch.testing.assert_close(found[:, h].double(), expected, rtol=slack, atol=slack)
        v = c.call.v[:, h // 2].double() @ W[:, h * 6 : (h + 1) * 6].T
        torch.testing.assert_close(
            value_norms_of(c.call, factors)[:, h].double(), v.norm(dim=-1), rtol=slack, atol=slack
        )


def test_what_w_o_removes_is_not_written() -> None:
    """A small length is exact: nothing is squared and subtracted."""
    W = torch.zeros(4, 4)
    W[0, 0], W[1, 1] = 1.0, 1e-6
    call = AttentionCall(*(torch.ones(1, 2, 1, 2) for _ in range(3)))
    factors = output_factors(call, W, 2)
    x = torch.tensor([0.0, 1.0]).expand(1, 2, 1, 2)
    assert written_norms(x, factors)[0, :, 0].tolist() == pytest.approx([1e-6, 0.0])


@pytest.mark.parametrize("shape", [(8, 23), (24,), (2, 8, 24)])
def test_w_o_of_another_shape(shape: tuple[int, ...]) -> None:
    c = case("causal")
    with pytest.raises(ValueError, match=r"output_weight: expected W_O \[d_model, H \* d_v\] = \[d_model, 24\]; got"):
        block_values(c.call, c.statistics, ["output_norm"], output_weight=torch.zeros(shape))


@given(st.floats(0.01, 100), st.sampled_from(["causal", "padded", "sinks", "chunk"]))
def test_lengths_scale_and_shares_do_not(factor: float, name: str) -> None:
    c = case(name)
    names = (*SHARES, "output_norm")
    a = block_values(c.call, c.statistics, names)
    b = block_values(c.call.with_(v=c.call.v * factor), c.statistics, names)
    torch.testing.assert_close(b[:3], a[:3], rtol=1e-11, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(b[3], a[3] * factor, rtol=1e-11, atol=1e-12)


def test_equal_lengths_give_the_weights_themselves() -> None:
    c = case("causal")
    v = torch.nn.functional.normalize(c.call.v, dim=-1)
    found = block_values(c.call.with_(v=v), c.statistics, SHARES)
    own = np.take_along_axis(c.p, np.arange(12)[None, None, :, None], -1)[..., 0]
    np.testing.assert_allclose(found[0].numpy(), own, atol=1e-12)
    np.testing.assert_allclose(found[2].numpy()[:, :, 1:], c.p[:, :, 1:, 0], atol=1e-12)
