"""What limits the keys that a query may see: mask, key mask and causality, for one fused call and for what reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from headwise.equations import Alignment, causal_alignment, visible_keys


class FusedLimits(TypedDict):
    """Arguments of `torch.nn.functional.scaled_dot_product_attention`."""

    attn_mask: Tensor | None
    is_causal: bool


@dataclass(frozen=True)
class Limits:
    """Which keys each query may see.

    Attributes:
        mask: The mask with the key mask in it, 4 dimensions that broadcast to `[B, H, N, M]`: bool (True = may
            attend) or float (added to the scores, -inf at hidden keys); None if there is neither.
        causal: The alignment of the causal limit, or None.
    """

    mask: Tensor | None
    causal: Alignment | None

    def taken(self, dtype: torch.dtype) -> Limits:
        """The same with a float mask in the dtype in which the operation takes it: that of the queries."""
        if self.mask is None or self.mask.dtype in (torch.bool, dtype):
            return self
        return Limits(self.mask.to(dtype), self.causal)

    def fused(self, num_queries: int, num_keys: int, device: torch.device) -> FusedLimits:
        """The same as arguments of torch's fused attention, the cheapest that say it.

        Rows that may see no key keep their mask: the operation gives 0 for them, and whoever looks on can count them.
        """
        mask, causal = self.mask, self.causal
        if causal == "lower_right" and num_queries == 1:
            causal = None  # the last query sees every key
        if mask is None and (causal == "upper_left" or (causal and num_queries == num_keys)):
            return {"attn_mask": None, "is_causal": True}
        if causal is not None:
            visible = visible_keys(num_queries, num_keys, mask=mask, causal=causal, device=device)
            assert visible is not None
            mask = _hide(mask, ~visible)
        return {"attn_mask": mask, "is_causal": False}


def limits_of(
    mask: Tensor | None,
    key_mask: Tensor | None,
    causal: bool | Alignment | None,
    sizes: tuple[int, int, int, int],
    cached: int | None = None,
) -> Limits:
    """Mask, key mask and causality of one call, checked.

    Args:
        mask: Broadcastable to `[B, H, N, M]`: bool (True = may attend), or float (added to the scores; -inf, or
            anything at or below -65504, hides the key).
        key_mask: `[B, M]`, bool or 0/1 integers: True or 1 = a real key.
        causal: As in `headwise.attention`; True is "lower_right" with a cache.
        sizes: B, H, N, M.
        cached: Keys that came from a cache; None without one.

    Raises:
        ValueError: A shape or dtype that does not fit.
    """
    alignment: Alignment | None = "lower_right" if causal is True and cached is not None else causal_alignment(causal)
    if mask is not None:
        _check_mask(mask, sizes)
        mask = mask[(None,) * (4 - mask.dim())]
        if mask.dtype != torch.bool:
            # A row of lowest numbers would come out uniform, not 0.
            visible = visible_keys(sizes[2], sizes[3], mask=mask)
            assert visible is not None
            mask = _hide(mask, ~visible)
    if key_mask is not None:
        _check_key_mask(key_mask, sizes, cached)
        hidden = (key_mask == 0)[:, None, None, :]
        mask = _hide(mask, hidden)
    return Limits(mask, alignment)


def _hide(mask: Tensor | None, hidden: Tensor) -> Tensor:
    """A mask that hides some more; `hidden` is True where no query may look."""
    if mask is None:
        return ~hidden
    return mask & ~hidden if mask.dtype == torch.bool else mask.masked_fill(hidden, -math.inf)


def _check_mask(mask: Tensor, sizes: tuple[int, int, int, int]) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"MultiHeadAttention: mask: expected bool (True = may attend) or float (added to the scores); got "
            f"{mask.dtype}: a 0/1 mask over keys [B, M] goes into key_mask, any other as mask.bool()"
        )
    fits = 1 <= mask.dim() <= 4 and all(
        size in (1, whole) for size, whole in zip(reversed(mask.shape), reversed(sizes), strict=False)
    )
    if fits:
        return
    B, H, _, M = sizes
    shape = tuple(mask.shape)
    advice = ""
    if mask.dim() == 3 and shape[0] == B * H != B:
        advice = f": a mask of nn.MultiheadAttention, (B * H, N, M), is mask.unflatten(0, (-1, {H})) here"
    elif mask.dim() == 3 and shape[0] == B:
        advice = ": for one mask per sequence [B, N, M] use mask[:, None]"
    elif mask.dim() == 2 and shape == (B, M):
        advice = ": a mask over the keys of each sequence [B, M] goes into key_mask"
    raise ValueError(
        f"MultiHeadAttention: mask: expected a shape that broadcasts to [B, H, N, M] = {tuple(sizes)}; "
        f"got {shape}{advice}"
    )


def _check_key_mask(key_mask: Tensor, sizes: tuple[int, int, int, int], cached: int | None) -> None:
    if key_mask.is_floating_point() or key_mask.is_complex():
        raise ValueError(
            f"MultiHeadAttention: key_mask: expected bool or 0/1 integers (True or 1 = a real key); got "
            f"{key_mask.dtype}: a mask to be added to the scores goes into mask"
        )
    # Elsewhere looking at the numbers would wait for a device, or break a graph.
    readable = key_mask.device.type == "cpu" and type(key_mask) is Tensor and not torch.compiler.is_compiling()
    readable = readable and not torch._C._functorch.is_functorch_wrapped_tensor(key_mask)
    if readable and key_mask.dtype != torch.bool and bool(((key_mask != 0) & (key_mask != 1)).any()):
        raise ValueError(
            "MultiHeadAttention: key_mask: expected bool or 0/1 integers (True or 1 = a real key); got other numbers: "
            "for packed sequences pass mask = (ids[:, None, :, None] == ids[:, None, None, :])"
        )
    expected = (sizes[0], sizes[3])
    if tuple(key_mask.shape) != expected:
        keys = f", {cached} cached keys and {sizes[3] - cached} new ones" if cached else ""
        raise ValueError(
            f"MultiHeadAttention: key_mask: expected [B, M] = {expected}{keys}; got {tuple(key_mask.shape)}"
        )
