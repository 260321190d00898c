"""What a watch knows that it cannot see: said in the profile, with the reason and the way out."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from headwise.capture.modules import plain_name
from headwise.capture.names import Names
from headwise.profile import Profile

OTHER_ATTENTION: dict[str, tuple[str, str]] = {
    "multi_head_attention_forward": (
        "torch.nn.MultiheadAttention computes attention inside one function, which this version does not open",
        "watch a model that calls scaled_dot_product_attention itself",
    ),
}
"""Attention functions of torch that the mode sees but does not measure: the reason and the way out."""

OUTSIDE = "no attention call that can be seen (F.scaled_dot_product_attention) was made while watching"

REASONS = {
    "eager": "attn_implementation='eager' computes attention from its own softmax, which this version does not see",
    "flex": "flex_attention: its score_mod and mask_mod are code, which this version does not evaluate",
    "flash": "a flash-attention package computes attention outside torch's functions",
    "paged": "paged attention computes attention outside torch's functions",
}

_LIKE_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)


def other_attention(func: Callable[..., Any]) -> tuple[str, str] | None:
    """Why an attention function of torch is not measured, and the way out; None for any other function."""
    known = OTHER_ATTENTION.get(getattr(func, "__name__", ""))
    return known if known and str(func.__module__).startswith("torch.nn") else None


def note_what_stayed_silent(profile: Profile, model: nn.Module | None, names: Names, forwards: int) -> None:
    """List modules that look like attention and made no call that was seen, and calls that none could be made of.

    Args:
        profile: The profile to note it in.
        model: The watched model, if one was given.
        names: What was caught.
        forwards: How many forwards ran.
    """
    known = {unseen.name for unseen in profile.unseen}
    caught = names.caught_paths
    silent = [] if model is None or not forwards else _silent_modules(model, [*caught, *known])
    told = [(path, *_why(model, module)) for path, module in silent]
    for path, reason, way_out in told:
        profile.record_unseen(path, reason, way_out)
    if told:
        (path, reason, way_out), more = told[0], len(told) - 1
        others = f" and {more} more" if more else ""
        warnings.warn(f"headwise: attention in {path}{others} is not measured: {reason}; {way_out}", stacklevel=4)
    if not caught and not silent and not known:
        profile.record_unseen("", OUTSIDE, "run the model inside the watch; load it with attn_implementation='sdpa'")


def _silent_modules(model: nn.Module, heard: list[str]) -> list[tuple[str, nn.Module]]:
    """Innermost modules that are attention by their class's name, with nothing heard in, at or around them."""
    candidates = [
        (plain_name(path), module)
        for path, module in model.named_modules()
        if _LIKE_ATTENTION.search(type(module).__name__) and any(True for _ in module.parameters())
    ]
    paths = [path for path, _ in candidates]
    return [
        (path, module)
        for path, module in candidates
        if not any(_within(other, path) for other in paths if other != path)
        and not any(_within(one, path) or _within(path, one) for one in heard)
    ]


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(outer + ".") or outer == ""


def _why(model: nn.Module | None, module: nn.Module) -> tuple[str, str]:
    for one in (module, model):
        config = getattr(one, "config", None)
        used = str(getattr(config, "_attn_implementation", None) or "")
        for kind, reason in REASONS.items():
            if used.startswith(kind):
                return reason, "load the model with attn_implementation='sdpa'"
    return (
        "it made no call of F.scaled_dot_product_attention (it did not run, or computes attention another way)",
        "use F.scaled_dot_product_attention in it, or watch an input that reaches it",
    )
