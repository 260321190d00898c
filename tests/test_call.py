"""AttentionCall: what it accepts, and the one clear line for what it does not."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch

from headwise.call import AttentionCall, Place
from headwise.kernels import row_statistics

Q, K, V = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 7, 8), torch.zeros(2, 2, 7, 3)


def test_sizes_and_defaults() -> None:
    call = AttentionCall(Q, K, V)
    assert call.sizes == (2, 4, 5, 7)
    assert call.place == Place(0, "", 0, "prefill", "self", 1)
    assert not call.is_cross
    assert AttentionCall(Q, K, place=Place(kind="cross")).is_cross
    assert not AttentionCall(Q, K, place=Place(kind="window")).is_cross


def test_it_is_frozen_and_copies_with_changes() -> None:
    call = AttentionCall(Q, K, scale=0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        call.scale = 1.0  # type: ignore[misc]
    other = call.with_(causal="lower_right", v=V)
    assert (other.causal, other.scale) == ("lower_right", 0.5)
    assert other.v is V
    assert call.causal is None
    with pytest.raises(ValueError, match="causal"):
        call.with_(causal="right")


@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (2, 1, 5, 7), (1, 1, 1, 7), (4, 5, 7), (5, 7), (7,), (1,), (5, 1)])
def test_masks_that_broadcast(shape: tuple[int, ...]) -> None:
    assert AttentionCall(Q, K, mask=torch.zeros(shape)).mask is not None


@pytest.mark.parametrize("shape", [(2, 4, 5, 8), (3, 1, 5, 7), (2, 2, 5, 7), (7, 5), (5,), (1, 2, 4, 5, 7), ()])
def test_masks_that_do_not_broadcast(shape: tuple[int, ...]) -> None:
    says = re.escape(f"mask {shape} does not broadcast to (2, 4, 5, 7)")
    with pytest.raises(ValueError, match=says):
        AttentionCall(Q, K, mask=torch.zeros(shape))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"q": Q[0]}, r"expected 4 dimensions .*q \(4, 5, 8\), k \(2, 2, 7, 8\)"),
        ({"k": K[0]}, r"expected 4 dimensions .*k \(2, 7, 8\)"),
        ({"v": V[0]}, r"expected 4 dimensions .*v \(2, 7, 3\)"),
        ({"q": Q.long(), "k": K.long()}, r"floating dtype; got torch\.int64"),
        ({"q": Q.half()}, r"floating dtype; got torch\.float16 and torch\.float32"),
        ({"q": Q[:1]}, r"same batch and width; got q \(1, 4, 5, 8\)"),
        ({"q": Q[..., :4]}, r"same batch and width; got q \(2, 4, 5, 4\)"),
        ({"q": Q[:, :3]}, r"multiple of those of k; got q \(2, 3, 5, 8\)"),
        ({"k": K[:, :0]}, r"multiple of those of k; got .*k \(2, 0, 7, 8\)"),
        ({"q": Q[:, :, :0]}, r"at least one sequence, query and key; got q \(2, 4, 0, 8\)"),
        ({"q": Q[:0], "k": K[:0], "v": V[:0]}, r"at least one sequence, query and key; got q \(0, 4, 5, 8\)"),
        ({"k": K[:, :, :0], "v": None}, r"at least one sequence, query and key; got .*k \(2, 2, 0, 8\)"),
        ({"v": V[:, :, :6]}, r"same batch, heads and keys; got .*v \(2, 2, 6, 3\)"),
        ({"v": V[:, :1]}, r"same batch, heads and keys; got .*v \(2, 1, 7, 3\)"),
        ({"real": torch.ones(2, 7)}, r"real must be \(2, 5\); got \(2, 7\)"),
        ({"real": torch.ones(5)}, r"real must be \(2, 5\); got \(5,\)"),
        ({"sinks": torch.ones(2)}, r"sinks must be \(4,\); got \(2,\)"),
        ({"causal": True}, r"causal: expected None, 'upper_left' or 'lower_right'; got True"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=r"^AttentionCall: .*" + says):
        AttentionCall(**{"q": Q, "k": K, "v": V, **fields})


def test_an_integer_mask_is_refused_because_its_meaning_is_unclear() -> None:
    """0/1 integers would hide nothing and be added to the scores, silently."""
    with pytest.raises(ValueError, match=r"mask.*int64"):
        AttentionCall(Q, K, mask=torch.ones(2, 1, 1, 7, dtype=torch.int64))


@pytest.mark.parametrize("window", [0, -2, (-1, 0), (1,)])
def test_an_impossible_window_is_refused_at_the_latest_when_it_is_used(window: Any) -> None:
    with pytest.raises(ValueError, match=r"window: expected an int >= 1 or a pair"):
        row_statistics(AttentionCall(Q, K, window=window))


@pytest.mark.parametrize("softcap", [0.0, -1.0, float("nan")])
def test_a_softcap_is_above_zero(softcap: float) -> None:
    x = torch.zeros(1, 1, 2, 2)
    with pytest.raises(ValueError, match="softcap must be above 0, or None; got"):
        AttentionCall(x, x, softcap=softcap)
