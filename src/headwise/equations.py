"""Scaled dot-product attention, eq. 1 of Vaswani et al. 2017, in plain torch.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V                                   (1)

Notation, here and everywhere in headwise:

    B      sequences in the batch              N     queries (rows of the weights)
    H      query heads                         M     keys (columns of the weights)
    H_kv   key-value heads, H % H_kv == 0      d_k   width of a query and of a key
                                               d_v   width of a value

This file is the plain form: it holds all N x M weights at once, works in any floating dtype, and is what every
faster path of headwise is tested against in float64. `attention` reads like the equation; the three functions under
it are its parts.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, overload

import torch
from torch import Tensor

from headwise.errors import require, shown

Alignment: TypeAlias = Literal["upper_left", "lower_right"]
Window: TypeAlias = int | tuple[int | None, int | None]

HIDE_BELOW = -65504.0
"""A float mask hides a key at -inf or at or below this: the lowest half-precision number, which covers every
`finfo(dtype).min` mask."""

EVERYTHING = slice(None)


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = ..., causal: bool | Alignment | None = ...,
    scale: float | None = ..., dropout_p: float = ..., softcap: float | None = ..., sinks: Tensor | None = ...,
    window: Window | None = ..., *, return_weights: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = ..., causal: bool | Alignment | None = ...,
    scale: float | None = ..., dropout_p: float = ..., softcap: float | None = ..., sinks: Tensor | None = ...,
    window: Window | None = ..., *, return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool | Alignment | None = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    window: Window | None = None,
    *,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Scaled dot-product attention (Vaswani et al. 2017, eq. 1).

    Half-precision inputs are computed in float32 and given back in their own dtype.

    Args:
        q: Queries `[B, H, N, d_k]`; `[N, d_k]` and other leading dimensions work too.
        k: Keys `[B, H_kv, M, d_k]`. Query head `h` reads key-value head `h // (H / H_kv)`.
        v: Values `[B, H_kv, M, d_v]`.
        mask: Broadcastable to `[B, H, N, M]`. Bool: True = may attend. Float: added to the scores; -inf, or
            anything at or below -65504, hides the key.
        causal: "upper_left" (or True): query i sees keys 0..i. "lower_right": the last query sees every key, as
            when earlier keys come from a cache. False or None: no causal limit.
        scale: Factor of the scores; default `1 / sqrt(d_k)`.
        dropout_p: Probability of zeroing a weight (the rest is scaled by `1 / (1 - p)`); applied whenever it is > 0.
        softcap: Scores become `softcap * tanh(score / softcap)` before the mask is added (Gemma 2).
        sinks: One logit per query head `[H]` that takes part in the softmax and reads nothing (gpt-oss).
        window: Sliding window. An int w: only keys less than w positions away. A pair (left, right): how many
            keys before and after the own position; None in it is unlimited.
        return_weights: Also return the weights `[B, H, N, M]`, before dropout.

    Returns:
        The output `[B, H, N, d_v]`, or `(output, weights)`. A row sums to 1, or to `1 - p_sink` with sinks; a row
        that may see no key has weights and output 0.

    Raises:
        TypeError: What must be a tensor is none.
        ValueError: Shapes that do not fit, the message says which; a softcap that is not above 0.
    """
    _check(q, k, v, mask, sinks, scale=scale, softcap=softcap)
    if softcap is not None and not softcap > 0:
        raise ValueError(f"attention: softcap must be above 0, or None; got {shown(softcap)}")
    exact = torch.promote_types(q.dtype, torch.float32)
    queries, keys, values = (x.to(exact) for x in (q, k, v))
    if q.dim() > 2:
        keys, values = repeat_heads(keys, q.shape[-3]), repeat_heads(values, q.shape[-3])
    visible = visible_keys(q.shape[-2], k.shape[-2], mask=mask, causal=causal, window=window, device=q.device)

    s = scores(queries, keys, scale=scale, softcap=softcap, bias=bias_of(mask, exact))  # Q K^T / sqrt(d_k)
    p = weights(s, visible, sinks)  # softmax(...)
    out = torch.nn.functional.dropout(p, dropout_p) @ values  # ... V
    return (out.to(q.dtype), p.to(q.dtype)) if return_weights else out.to(q.dtype)


def scores(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The scores `s_ij = scale * q_i . k_j + bias_ij` (with softcap: before the bias), `[..., N, M]`, in nats."""
    s = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    return s if bias is None else s + bias


def weights(s: Tensor, visible: Tensor | None = None, sinks: Tensor | None = None) -> Tensor:
    """The softmax of scores `[..., H, N, M]` over the visible keys; rows that see no key are 0.

    With sinks `b [H]`, `exp(b_h)` is added to the denominator of head h.
    """
    if s.shape[-1] == 0:
        return s
    if visible is not None:
        s = s.masked_fill(~visible, -math.inf)
    top = s.detach().amax(-1, keepdim=True)
    if sinks is not None:
        sinks = sinks.to(s.dtype)[:, None, None]
        top = torch.maximum(top, sinks.detach())
    # A row that sees nothing has no maximum; any finite number serves.
    top = top.masked_fill(top == -math.inf, 0.0)
    e = torch.exp(s - top)
    total = e.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks - top)
    return e / total.masked_fill(total == 0, 1.0)


def visible_keys(
    num_queries: int,
    num_keys: int,
    *,
    mask: Tensor | None = None,
    causal: bool | Alignment | None = None,
    window: Window | None = None,
    rows: slice = EVERYTHING,
    keys: slice = EVERYTHING,
    hide_below: float = HIDE_BELOW,
    device: torch.device | None = None,
) -> Tensor | None:
    """Which keys each query may see, or None when it may see all.

    Args:
        num_queries: N of the whole call.
        num_keys: M of the whole call.
        mask: As in `attention`.
        causal: As in `attention`.
        window: As in `attention`.
        rows: Only these queries.
        keys: Only these keys.
        hide_below: A float mask hides a key at or below this value.
        device: Where to make the result, when there is no mask to say.

    Returns:
        Bool, broadcastable to `[B, H, rows, keys]`; True = visible.
    """
    visible: Tensor | None = None
    if mask is not None:
        mask = cut(mask, rows, keys)
        # NaN hides nothing: a broken mask must show.
        visible = mask if mask.dtype == torch.bool else ~(mask <= hide_below)
    left, right, offset = key_limits(num_queries, num_keys, causal, window)
    if left is None and right is None:
        return visible
    device = device if mask is None else mask.device
    position = torch.arange(num_queries, device=device)[rows, None] + offset
    key = torch.arange(num_keys, device=device)[keys]
    if right is not None:
        near = key <= position + right
        visible = near if visible is None else visible & near
    if left is not None:
        near = key >= position - left
        visible = near if visible is None else visible & near
    return visible


def causal_alignment(causal: bool | str | None) -> Alignment | None:
    """The alignment, or None, from what a user may write (True is upper_left, as in torch's SDPA)."""
    if causal is None or causal is False:
        return None
    if causal is True or causal == "upper_left":
        return "upper_left"
    if causal == "lower_right":
        return "lower_right"
    raise ValueError(f"causal: expected False, True, 'upper_left' or 'lower_right'; got {shown(causal)}")


def window_sides(window: Window | None) -> tuple[int | None, int | None]:
    """How many keys before and after the own position a window leaves; None = unlimited."""
    if window is None:
        return None, None
    sides: object = (window - 1, window - 1) if isinstance(window, int) else window
    if not (
        isinstance(sides, (tuple, list))
        and len(sides) == 2
        and all(side is None or (isinstance(side, int) and side >= 0) for side in sides)
    ):
        raise ValueError(f"window: expected an int >= 1 or a pair (left, right) of ints >= 0; got {shown(window)}")
    return sides[0], sides[1]


def key_limits(
    num_queries: int, num_keys: int, causal: bool | Alignment | None, window: Window | None
) -> tuple[int | None, int | None, int]:
    """What causality and a window leave: row i sees keys `i + offset - left .. i + offset + right`.

    Returns:
        left, right (None = unlimited), offset.
    """
    alignment = causal_alignment(causal)
    # A side beyond all keys is as good as none, and adds up to no number that wraps.
    left, right = (None if side is None else min(side, num_queries + num_keys) for side in window_sides(window))
    offset = num_keys - num_queries if alignment == "lower_right" else 0
    return left, right if alignment is None else 0, offset


def bias_of(mask: Tensor | None, dtype: torch.dtype | None = None) -> Tensor | None:
    """The part of a mask that is added to the scores: a float mask itself (as `dtype`), nothing of a bool mask."""
    return None if mask is None or mask.dtype == torch.bool else mask.to(dtype)


def cut(mask: Tensor, rows: slice, keys: slice) -> Tensor:
    """`mask[..., rows, keys]`, leaving broadcast dimensions of size 1 as they are."""
    if mask.dim() >= 2 and mask.shape[-2] > 1:
        mask = mask[..., rows, :]
    return mask[..., keys] if mask.shape[-1] > 1 else mask


def repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    """`[..., H_kv, M, d]` to `[..., H, M, d]`: each key-value head serves H / H_kv query heads in turn (GQA)."""
    kv_heads = x.shape[-3]
    return x if kv_heads == num_heads else x.repeat_interleave(num_heads // kv_heads, dim=-3)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """`[B, N, h * d]` to `[B, h, N, d]`: a wide projection cut into heads (eq. 2)."""
    if x.shape[-1] % num_heads:
        raise ValueError(f"split_heads: a width of {x.shape[-1]} does not divide into {num_heads} heads")
    heads: Tensor = x.unflatten(-1, (num_heads, -1))
    return heads.transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """`[B, h, N, d]` to `[B, N, h * d]`: Concat(head_1, ..., head_h) of eq. 2."""
    return x.transpose(-3, -2).flatten(-2)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None, **numbers: float | None) -> None:
    if q is None or k is None or v is None:
        raise TypeError("attention: expected q, k and v; got None")
    require("attention", Tensor, q=q, k=k, v=v, mask=mask, sinks=sinks)
    for name, number in numbers.items():
        if isinstance(number, Tensor) and number.numel() != 1:
            raise ValueError(f"attention: {name}: expected a number; got {shown(number)}")
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.dim() < 2 or q.dim() != k.dim() or k.dim() != v.dim():
        raise ValueError(f"attention: q, k and v must have the same number of dimensions, 2 or more; got {shapes}")
    if not q.is_floating_point():
        raise ValueError(f"attention: q, k and v must be floating point; got {q.dtype}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"attention: q and k must have the same width d_k; got {shapes}")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"attention: k and v must have the same number of keys M; got {shapes}")
    if q.dim() > 2 and (k.shape[-3] != v.shape[-3] or k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]):
        raise ValueError(f"attention: the heads of q must be a multiple of those of k and v; got {shapes}")
    if q.shape[:-3] != k.shape[:-3] or k.shape[:-3] != v.shape[:-3]:
        raise ValueError(f"attention: q, k and v must have the same batch; got {shapes}")
    full = (*q.shape[:-1], k.shape[-2])
    if mask is not None:
        if not (mask.dtype == torch.bool or mask.is_floating_point()):
            raise ValueError(
                f"attention: mask must be bool (True = may attend) or float (added to the scores); got {mask.dtype}: "
                "for a 0/1 mask, pass mask.bool()"
            )
        fits = 1 <= mask.dim() <= len(full) and all(
            size in (1, whole) for size, whole in zip(reversed(mask.shape), reversed(full), strict=False)
        )
        if not fits:
            raise ValueError(f"attention: mask must broadcast to {full}; got {tuple(mask.shape)}")
    if sinks is not None and (q.dim() < 3 or tuple(sinks.shape) != (q.shape[-3],)):
        raise ValueError(f"attention: sinks must hold one logit per head of q {shapes}; got {tuple(sinks.shape)}")
