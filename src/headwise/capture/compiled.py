"""Compiled parts of a model (torch.compile): they run as if unwatched, and are listed as unseen.

The compiler traces whatever function mode is active, and would compile it into the graph or fail on it. So the mode
stands aside while a compiled part runs: no recompilation, no changed bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily

from headwise.capture.modules import plain_name

REASON = "it runs compiled (torch.compile), where calls cannot be seen"
WAY_OUT = "watch the model before compiling it"


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether `module.compile()` was called: then its hooks are compiled too."""
    return module._compiled_call_impl is not None


class CompiledParts:
    """The compiled modules of a model; while watching, a mode stands aside for them.

    Without a model, it stands aside for every module that torch.compile wrapped.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._entries: list[tuple[Any, str, Callable[..., Any]]] = []
        self.names: list[str] = []
        wrapper = _wrapper_class()
        if model is None and wrapper is not None:
            self._entries.append((wrapper, "__call__", wrapper.__call__))
        for path, module in [] if model is None else model.named_modules():
            attribute = "forward" if wrapper is not None and isinstance(module, wrapper) else "_compiled_call_impl"
            if attribute == "forward" or is_compiled_in_place(module):
                self._entries.append((module, attribute, getattr(module, attribute)))
                self.names.append(plain_name(path))

    def step_aside(self, mode: TorchFunctionMode) -> None:
        """Let compiled modules run without the mode."""
        for owner, attribute, compiled in self._entries:
            setattr(owner, attribute, _without(mode, compiled))

    def restore(self) -> None:
        """Put everything back."""
        for owner, attribute, compiled in self._entries:
            setattr(owner, attribute, compiled)


def _wrapper_class() -> type[nn.Module] | None:
    """The class of modules that torch.compile wrapped; None if it cannot have made any, being not even loaded."""
    loaded = sys.modules.get("torch._dynamo.eval_frame")
    return getattr(loaded, "OptimizedModule", None)


def _without(mode: TorchFunctionMode, compiled: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if _get_current_function_mode() is not mode:
            return compiled(*args, **kwargs)
        with _pop_mode_temporarily():
            return compiled(*args, **kwargs)

    return run
