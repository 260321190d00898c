"""Compiled parts of a model (torch.compile): they run as if unwatched, and are listed as unseen.

The compiler traces whatever function mode and hooks are active, and would compile them into the graph or fail on them.
So they stand aside while a compiled part runs: no recompilation, no changed bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily

REASON = "it runs compiled (torch.compile), where calls cannot be seen"
WAY_OUT = "watch the model before compiling it"


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether `module.compile()` was called: then its hooks are compiled too."""
    return module._compiled_call_impl is not None


class CompiledParts:
    """Lets compiled modules run without a mode and without hooks while watching.

    These are all that torch.compile wrapped, and those of the watched model that were compiled in place.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._places: list[tuple[Any, str]] = []
        self._ended = True
        wrapper = _wrapper_class()
        if wrapper is not None:
            self._places.append((wrapper, "__call__"))
        for module in [] if model is None else model.modules():
            if module._compiled_call_impl is not None:
                self._places.append((module, "_compiled_call_impl"))

    def step_aside(
        self,
        mode: TorchFunctionMode,
        without_hooks: Callable[[], AbstractContextManager[None]],
        runs: Callable[[nn.Module], None],
    ) -> None:
        """Let compiled modules run without the mode and the hooks; `runs` is told of each that does."""

        def outside(compiled: Callable[..., Any], module: nn.Module | None) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                if self._ended or _get_current_function_mode() is not mode:
                    return compiled(*args, **kwargs)
                # A class's __call__ gets the wrapper itself first; the module inside is the one that has a name.
                runs(args[0]._orig_mod if module is None else module)
                with _pop_mode_temporarily(), without_hooks():
                    return compiled(*args, **kwargs)

            run.aside = self, compiled  # type: ignore[attr-defined]
            return run

        self._ended = False
        for owner, attribute in self._places:
            module = owner if isinstance(owner, nn.Module) else None
            setattr(owner, attribute, outside(getattr(owner, attribute), module))

    def restore(self) -> None:
        """Put everything back; what another watch has put over it is left to that one, whenever it ends."""
        self._ended = True
        for owner, attribute in self._places:
            found = getattr(owner, attribute)
            while (aside := getattr(found, "aside", None)) is not None and aside[0]._ended:
                found = aside[1]
                setattr(owner, attribute, found)


def _wrapper_class() -> type[nn.Module] | None:
    """The class of modules that torch.compile wrapped; None if it cannot have made any, being not even loaded."""
    loaded = sys.modules.get("torch._dynamo.eval_frame")
    return getattr(loaded, "OptimizedModule", None)
