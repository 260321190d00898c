"""Which modules are running, what they are called, and how many heads they have.

The modules that are running are read from the Python stack at the attention call. That costs nothing where no
attention is called, needs no hook in the model's layers, and works for any module, also without being given the model.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import torch
from torch import nn

WRAPPERS = ("module.", "_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
"""What wrappers put into module paths: taken out of names."""

HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead")
KV_HEAD_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head")

# Arguments of an attention module that carry another sequence's states.
OTHER_SEQUENCE = frozenset(
    {"key_value_states", "encoder_hidden_states", "cross_attention_states", "memory", "context"}
)  # fmt: skip

_CALL = nn.Module._call_impl.__code__


@dataclass(frozen=True)
class Running:
    """A module that is running its forward, with what it was called with (None where that cannot be told)."""

    module: nn.Module
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = None

    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        return bind(self.module, self.args or (), self.kwargs or {})


def running_modules(frame: FrameType | None = None) -> list[Running]:
    """The modules that are running, innermost first."""
    stack: list[Running] = []
    frame = sys._getframe(1) if frame is None else frame
    while frame is not None:
        code = frame.f_code
        if code is _CALL:
            known = frame.f_locals
            called = Running(known["self"], known["args"], known["kwargs"])
            # The frame of its forward stands just inside.
            if stack and stack[-1].module is called.module and stack[-1].args is None:
                stack[-1] = called
            else:
                stack.append(called)
        elif code.co_name == "forward" and code.co_varnames[:1] == ("self",):
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module):
                stack.append(Running(module))
        frame = frame.f_back
    return stack


def bind(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Positional and keyword arguments of a module's forward, by name. A wrapper's are bound as its inner module's."""
    while isinstance(inner := getattr(module, "module", None), nn.Module) and not _positional(type(module).forward):
        module = inner
    return dict(zip(_positional(type(module).forward), args, strict=False)) | kwargs


@lru_cache(maxsize=1024)
def _positional(forward: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return ()
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in named)


def reads_other_sequence(running: Running) -> bool:
    """Whether an attention module was called with another sequence to read (cross-attention)."""
    arguments = running.arguments()
    if any(isinstance(arguments.get(name), torch.Tensor) for name in OTHER_SEQUENCE):
        return True
    query, key = arguments.get("query"), arguments.get("key")
    if not isinstance(query, torch.Tensor) or not isinstance(key, torch.Tensor) or query is key:
        return False
    # States, not yet projected: three dimensions, and the module has the projections itself. Projected queries and
    # keys always differ.
    matrices = sum(1 for p in running.module.parameters() if p.dim() == 2)
    return query.dim() == 3 and matrices >= 3


def head_counts(module: nn.Module) -> tuple[int | None, int | None]:
    """Query heads and key-value heads, as the module (or else its config) says; None where it does not."""
    for source in (module, getattr(module, "config", None)):
        heads = _first_int(source, HEAD_COUNTS)
        if heads is None:
            continue
        groups = _first_int(module, ("num_key_value_groups",))
        if groups:
            return heads, heads // groups
        return heads, _first_int(module, KV_HEAD_COUNTS) or _first_int(source, KV_HEAD_COUNTS)
    return None, None


def has_sliding_window(module: nn.Module) -> bool:
    """Whether the module says that it attends to a sliding window."""
    if _first_int(module, ("sliding_window",)):
        return True
    if getattr(module, "layer_type", None) == "sliding_attention" or getattr(module, "is_sliding", None) is True:
        return True
    config, index = getattr(module, "config", None), getattr(module, "layer_idx", None)
    types = getattr(config, "layer_types", None)
    if types and isinstance(index, int) and index < len(types):
        return bool(types[index] == "sliding_attention")
    return bool(_first_int(config, ("sliding_window",))) and getattr(config, "use_sliding_window", True) is not False


def plain_name(path: str) -> str:
    """A module path without what wrappers put into it."""
    path += "."
    for wrapper in WRAPPERS:
        path = path.replace("." + wrapper, ".").removeprefix(wrapper)
    return path.removesuffix(".")


def _first_int(source: object, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = getattr(source, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
