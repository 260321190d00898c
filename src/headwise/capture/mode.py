"""The function mode of a watch: it sees every torch function, and leaves attention to the watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from headwise.capture.unseen import other_attention

# torch.nn.functional's own, also where a library has put something else in its place.
SDPA = torch._C._nn.scaled_dot_product_attention


class Mode(TorchFunctionMode):
    """Sees every torch function; passes all on unchanged, but leaves attention to the watch."""

    def __init__(self, attend: Callable[[tuple[Any, ...], dict[str, Any]], Tensor], other: Callable[..., None]) -> None:
        super().__init__()
        self._attend = attend
        self._other = other
        self.ended = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        # A compiled graph must stay as it is: what runs inside one is listed as unseen.
        if torch.compiler.is_compiling() or self.ended:
            return func(*args, **kwargs)
        if func is SDPA:
            return self._attend(args, kwargs)
        out = func(*args, **kwargs)
        other = other_attention(func)
        if other is not None:
            # A function mode of the caller must not see what we do.
            with torch._C.DisableTorchFunction():
                self._other(*other)
        return out


def leave(mode: Mode) -> None:
    """Take a mode off the stack, also from under modes that were entered later and still run.

    Raises:
        RuntimeError: It was entered in another thread, where it stays, doing nothing.
    """
    if mode not in _get_current_function_mode_stack():
        raise RuntimeError("watch: stop() must be called in the thread that called start(); this watch records no more")
    above = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
