"""Where an attention call stands: whose it is, whether it reads another sequence, whether it continues a cache."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headwise.call import HIDE_BELOW, AttentionCall, Place
from headwise.capture.modules import Running, has_sliding_window, head_counts, reads_other_sequence
from headwise.capture.sdpa import Heads

# What a tower for images or sound inside a model is called with.
OTHER_INPUTS = ("pixel_values", "pixel_values_videos", "pixel_values_images", "input_features", "input_values")


def place_of(
    call: AttentionCall, caller: Running | None, heads: Heads, past: int | None, number: int, name: str, index: int
) -> Place:
    """The place of a call: its module, the kind of attention, its phase, and the groups of its heads.

    Args:
        call: The call.
        caller: The module whose attention it is.
        heads: What it says of its heads.
        past: Tokens in the cache before this forward; None where that cannot be told.
        number: Number of the layer.
        name: Path of the module.
        index: The nth call of this module in this forward.
    """
    _, H, N, M = call.sizes
    kind: Literal["self", "cross", "window"] = "self"
    if _is_cross(caller, N, M, call.causal is not None, call.mask):
        kind = "cross"
    elif caller is not None and has_sliding_window(caller.module):
        kind = "window"
    decode = N == 1 and (M > 1 if past is None else past > 0)
    kv_heads = heads.num_kv_heads if heads.num_heads == H and heads.num_kv_heads else call.k.shape[1]
    return Place(number, name, index, "decode" if decode else "prefill", kind, H // kv_heads)


def reads_tokens(stack: list[Running]) -> bool:
    """Whether the model's mask over tokens can be that of this attention: not in a tower for images or sound."""
    for running in stack[:-1]:
        arguments = running.arguments()
        if any(arguments.get(name) is not None for name in OTHER_INPUTS):
            return False
    return True


def heads_of(caller: Running | None) -> Heads:
    """What the module whose attention it is says of its heads."""
    return Heads() if caller is None else Heads(*head_counts(caller.module))


def attending(stack: list[Running]) -> Running | None:
    """The module whose attention it is: the caller, or the one around it if the caller is a mere function of it.

    Some models put the bare operation into a small module of its own, without parameters.
    """
    if not stack:
        return None
    bare = next(stack[0].module.parameters(), None) is None
    return stack[1] if bare and len(stack) > 1 else stack[0]


def _is_cross(caller: Running | None, num_queries: int, num_keys: int, causal: bool, mask: Tensor | None) -> bool:
    """Whether the keys are another sequence's: as the module was called, else by the shape.

    Without a causal limit, several queries over another number of keys are cross-attention, unless a mask of several
    rows shows that it is a cache (row by row one key more: told by the geometry).
    """
    if caller is not None:
        if reads_other_sequence(caller) or getattr(caller.module, "is_cross_attention", False) is True:
            return True
    if num_queries in (1, num_keys) or causal:
        return False
    if mask is None or mask.dim() < 2 or mask.shape[-2] == 1:
        return True
    visible = mask if mask.dtype == torch.bool else ~(mask <= HIDE_BELOW)
    # Under causality the last row sees a key that the first does not.
    last = visible[..., -1, :] & ~visible[..., 0, :]
    return not bool(last.any())
