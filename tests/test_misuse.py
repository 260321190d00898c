"""What a caller gets wrong at the public face: one line that says what was expected and what came."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import MOST_SHOWN, shown

Q = torch.randn(2, 4, 64, 32)
X = torch.randn(2, 64, 128)
OF_Q, OF_X = r"Tensor of shape \(2, 4, 64, 32\)$", r"Tensor of shape \(2, 64, 128\)$"


class Model(nn.Module):
    """A layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = hw.MultiHeadAttention(128, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attend(x)
        return y


MODEL = Model()


def layer(**arguments: object) -> Callable[[], object]:
    return lambda: MODEL.attend(**arguments)


def watch(**arguments: object) -> Callable[[], object]:
    return lambda: hw.watch(**({"model": MODEL} | arguments))  # type: ignore[arg-type]


def profile() -> hw.Profile:
    with hw.watch(MODEL, keep="qk") as found:
        MODEL(X)
    return found


MISUSES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "tensors for a call": (lambda: hw.row_statistics(Q, Q), TypeError, rf"AttentionCall\(q, k.*got {OF_Q}"),
    "an array for a tensor": (lambda: hw.attention(Q.numpy(), Q, Q), TypeError, "q: .*got ndarray of shape"),
    "no values": (lambda: hw.attention(Q, Q, None), TypeError, "attention: expected q, k and v; got None"),
    "a flag for a mask": (lambda: hw.attention(Q, Q, Q, True), TypeError, "mask: expected a torch.Tensor; got True"),
    "a list for a mask": (lambda: hw.attention(Q, Q, Q, [[1]]), TypeError, r"attention: mask: .*got \[\[1\]\]"),
    "a mask for causal": (lambda: hw.attention(Q, Q, Q, causal=Q), ValueError, f"causal: expected .*{OF_Q}"),
    "torch's order": (lambda: hw.attention(Q, Q, Q, None, 0.1, True), ValueError, "causal: expected .*got 0.1"),
    "a window of numbers": (lambda: hw.attention(Q, Q, Q, window=Q), ValueError, f"window: expected .*{OF_Q}"),
    "half a window": (lambda: hw.attention(Q, Q, Q, window=(1, 0.5)), ValueError, r"window: expected .*got \(1, 0.5\)"),
    "scales": (lambda: hw.attention(Q, Q, Q, scale=Q), ValueError, f"attention: scale: expected a number.*{OF_Q}"),
    "softcaps": (lambda: hw.attention(Q, Q, Q, softcap=Q), ValueError, f"softcap: expected a number.*{OF_Q}"),
    "no softcap": (lambda: hw.attention(Q, Q, Q, softcap=0.0), ValueError, "softcap must be above 0, or None; got 0.0"),
    "an array for a call": (lambda: hw.AttentionCall(Q.numpy(), Q), TypeError, "Call: q: .*got ndarray of shape"),
    "half a call": (lambda: hw.AttentionCall(Q, None), TypeError, "AttentionCall: expected q and k; got None"),
    "a word for a mask": (lambda: hw.AttentionCall(Q, Q, mask="causal"), TypeError, "mask: .*got 'causal'"),
    "a flag for an alignment": (lambda: hw.AttentionCall(Q, Q, causal=True), ValueError, "'upper_left' .*got True"),
    "an array for tokens": (layer(x=X.numpy()), TypeError, "MultiHeadAttention: x: .*got ndarray of shape"),
    "no tokens": (layer(x=None), TypeError, r"x: expected tokens \[B, N, d_model\]; got None"),
    "ids for tokens": (layer(x=torch.zeros(2, 64, dtype=torch.int64)), ValueError, "token ids need an embedding"),
    "a list for a key mask": (layer(x=X, key_mask=[1, 0]), TypeError, r"key_mask: .*got \[1, 0\]"),
    "tokens for a width": (lambda: hw.MultiHeadAttention(X, 4), ValueError, f"d_model: expected .*{OF_X}"),
    "tokens for a rotary width": (lambda: hw.RotaryEmbedding(X), ValueError, f"dim: expected .*{OF_X}"),
    "tokens for a model": (watch(model=X), TypeError, f"watch: model must be .*{OF_X}"),
    "tokens for a tokenizer": (watch(tokenizer=X), TypeError, rf"something with decode\(ids\); got {OF_X}"),
    "tokens for layers": (watch(layers=X), ValueError, "layers: expected .*Tensor of shape"),
    "a number for measures": (watch(measures=3), ValueError, "measures: expected .*got 3$"),
    "lists for measures": (watch(measures=[["entropy"]]), ValueError, r"measures: expected .*got \['entropy'\]$"),
    "tokens for keep": (watch(keep=X), ValueError, f"keep: expected .*{OF_X}"),
    "tokens for a limit": (watch(keep_limit=X, keep="qk"), ValueError, f"keep_limit: expected .*{OF_X}"),
    "tokens for groups": (watch(groups=X), ValueError, f"groups: expected .*{OF_X}"),
    "tokens for a head": (lambda: profile().weights(X), ValueError, f"weights: expected a head .*{OF_X}"),
    "tokens for rows": (lambda: profile().weights("L0H0", rows=X), ValueError, f"rows: expected .*{OF_X}"),
    "tokens for a condition": (lambda: profile().heads(X), ValueError, f"heads: expected a condition .*{OF_X[:-1]}"),
    "tokens for a profile": (lambda: profile().merge(X), TypeError, f"other: expected a headwise.Profile; got {OF_X}"),
    "a model of another kind": (lambda: hw.induction_scores(X), TypeError, f"torch.nn.Module; got {OF_X}"),
}  # fmt: skip


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_misuse_is_told_in_one_line(misuse: str) -> None:
    call, kind, message = MISUSES[misuse]
    with pytest.raises(kind, match=message) as error:
        call()
    assert type(error.value) is kind
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 600


def test_what_came_is_cut_where_it_is_long() -> None:
    assert shown("short") == "'short'"
    assert shown(list(range(1000))) == f"{str(list(range(1000)))[: MOST_SHOWN - 3]}..."
    assert "\n" not in shown(MODEL)


def test_one_layer_needs_no_list() -> None:
    for one in (0, "attend"):
        with hw.watch(MODEL, layers=one) as found:
            MODEL(X)
        assert [caught.name for caught in found.layers] == ["attend"]
    with pytest.raises(ValueError, match="no module 'attending'"):
        hw.watch(MODEL, layers="attending")
