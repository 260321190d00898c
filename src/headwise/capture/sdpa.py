"""torch.nn.functional.scaled_dot_product_attention: from its arguments to an AttentionCall."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.call import Alignment, AttentionCall

PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")

MOST_FOLDED = 16

PLAIN = (Tensor, torch.nn.Parameter)


class UnmeasurableError(Exception):
    """This call cannot be measured exactly: why, and the way out."""

    def __init__(self, reason: str, way_out: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.way_out = way_out


@dataclass(frozen=True)
class Heads:
    """What the calling module says of its heads: H and H_kv, None where it says nothing."""

    num_heads: int | None = None
    num_kv_heads: int | None = None


def read_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor, heads: Heads
) -> tuple[AttentionCall, Tensor, float]:
    """The call in the form `[B, heads, tokens, width]`, its output in that form, and its dropout probability.

    Args:
        args: Positional arguments of the operation.
        kwargs: Its keyword arguments.
        out: What it returned.
        heads: What the calling module says of its heads.

    Raises:
        UnmeasurableError: Tensors whose numbers cannot be read, or a shape that says nothing of heads.
    """
    given = dict(zip(PARAMETERS, args, strict=False)) | kwargs
    q, k, v = given["query"], given["key"], given["value"]
    mask = given.get("attn_mask")
    causal: Alignment | None = "upper_left" if given.get("is_causal") else None
    if (variant := _causal_variant(mask)) is not None:
        causal, mask = variant, None
    for tensor in (q, k, v, mask):
        if tensor is not None:
            _must_be_plain(tensor)
    if 0 in q.shape or 0 in k.shape:
        raise UnmeasurableError("an empty query or key tensor", "nothing to do: there is no weight to measure")
    q, k, v, mask = _as_operation(q, k, v, mask, out.dtype)
    q, k, v, mask, out = _four_dimensional(q, k, v, mask, out, heads)
    q, k, v, mask, out = _unfold(q, k, v, mask, out, heads)
    scale = given.get("scale")
    call = AttentionCall(
        q, k, v, mask=mask, causal=causal, scale=1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    )  # fmt: skip
    return call, out, float(given.get("dropout_p") or 0.0)


def place_for_output(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Memory for the output of a call that another kernel may compute; None where only the operation itself may.

    That is with gradients or dropout, and on devices other than CPUs and CUDA's. The memory is laid out so that joining
    the heads costs nothing.
    """
    given = dict(zip(PARAMETERS, args, strict=False)) | kwargs
    q, k, v, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    if given.get("dropout_p") or any(type(t) not in PLAIN or t.device != q.device for t in (q, k, v)):
        return None
    if q.device.type not in ("cpu", "cuda"):
        return None
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (q, k, v, mask)):
        return None
    if q.dim() != 4 or k.dim() != 4 or v.shape[:2] != k.shape[:2] or q.shape[0] != k.shape[0]:
        return None
    dtype = _autocast(q)
    # What torch may refuse, torch must be asked: a model that fails must fail while it is watched too.
    if {_autocast(k), _autocast(v)} != {dtype}:
        return None
    if q.shape[1] != k.shape[1] and 1 not in (q.shape[1], k.shape[1]) and not given.get("enable_gqa"):
        return None
    if isinstance(mask, Tensor) and mask.dtype not in (torch.bool, torch.float32, q.dtype):
        return None
    # Some models fold the heads that share keys into a one-token query's axis: unfolded, they must stay a view.
    if q.shape[2] <= MOST_FOLDED:
        return torch.empty(*q.shape[:3], v.shape[-1], dtype=dtype, device=q.device)
    shape = (q.shape[0], q.shape[2], q.shape[1], v.shape[-1])
    return torch.empty(shape, dtype=dtype, device=q.device).transpose(1, 2)


def _causal_variant(mask: object) -> Alignment | None:
    """The alignment of torch's CausalBias; None for any other mask.

    Its module is looked up, not imported: importing it loads the whole compiler.
    """
    bias = sys.modules.get("torch.nn.attention.bias")
    if bias is None or not isinstance(mask, bias.CausalBias):
        return None
    return "lower_right" if mask.variant == bias.CausalVariant.LOWER_RIGHT else "upper_left"


def _must_be_plain(tensor: Tensor) -> None:
    kind = type(tensor).__name__
    if tensor.is_nested:
        raise UnmeasurableError("nested (jagged) tensors", "pad the batch and pass an attention_mask while watching")
    if tensor.device.type == "meta":
        raise UnmeasurableError("meta tensors hold no numbers", "run the model on a real device")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise UnmeasurableError("inside a torch.func transform (vmap, grad)", "watch a plain call of the model")
    if type(tensor) not in PLAIN:
        raise UnmeasurableError(f"tensors of type {kind}", "watch the model with plain torch tensors")


def _as_operation(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The tensors as the operation cast them. The dtype of its output tells: under autocast it is another than q's."""

    def taken(tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        return tensor.to(dtype) if cast and tensor.is_floating_point() else tensor

    cast = q.dtype != dtype
    return taken(q), taken(k), taken(v), None if mask is None else taken(mask)


def _autocast(tensor: Tensor) -> torch.dtype:
    """The dtype in which the operation takes a query, key or value: under autocast that of autocast."""
    kind = tensor.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) and tensor.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return tensor.dtype


def _four_dimensional(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, heads: Heads
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    if q.dim() == 3 and heads.num_heads and heads.num_heads > 1 and q.shape[0] % heads.num_heads == 0:
        # Heads folded into the batch: (B * H, N, d).
        if k.shape[0] == q.shape[0]:
            q, k, v, out = (t.unflatten(0, (-1, heads.num_heads)) for t in (q, k, v, out))
            if mask is not None and mask.dim() == 3 and mask.shape[0] > 1:
                mask = mask.unflatten(0, (-1, heads.num_heads))
    if q.dim() in (2, 3):
        if mask is not None and mask.dim() == 3:
            mask = mask[:, None]
        q, k, v, out = (t[None, None] if t.dim() == 2 else t[:, None] for t in (q, k, v, out))
    if q.dim() > 4:
        lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3])
        if mask is not None and mask.dim() > 4:
            mask = mask.expand(*lead, *mask.shape[-3:]).flatten(0, -4)
        q, k, v, out = (t.expand(*lead, *t.shape[-3:]).flatten(0, -4) for t in (q, k, v, out))
    if q.dim() != 4 or k.dim() != 4:
        raise UnmeasurableError(f"q of shape {tuple(q.shape)} and k of shape {tuple(k.shape)}", "report this shape")
    batch = max(q.shape[0], k.shape[0], out.shape[0])
    q, k, v = (t.expand(batch, *t.shape[1:]) for t in (q, k, v))
    if v.shape[1] != k.shape[1]:
        shared = max(k.shape[1], v.shape[1])
        k, v = (t.expand(-1, shared, -1, -1) for t in (k, v))
    if q.shape[1] == 1 and k.shape[1] > 1:
        q = q.expand(-1, k.shape[1], -1, -1)
    if k.dtype != q.dtype:
        k = k.to(q.dtype)
    return q, k, v, mask, out


def _unfold(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, heads: Heads
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """Undo the folding of heads into the query axis: a one-token query that comes as `(B, H_kv, H / H_kv, d)`.

    Only the module's own head counts tell this from a short prompt.
    """
    H, kv = heads.num_heads, heads.num_kv_heads
    if not H or not kv or kv == H or q.shape[1] != kv or k.shape[1] != kv or q.shape[2] * kv != H:
        return q, k, v, mask, out
    if mask is not None and mask.dim() == 4 and mask.shape[1] * mask.shape[2] == H:
        mask = mask.reshape(mask.shape[0], H, 1, mask.shape[3])
    return q.reshape(q.shape[0], H, 1, -1), k, v, mask, out.reshape(out.shape[0], H, 1, -1)
