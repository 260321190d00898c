"""The state in which statistics run, so that watching is invisible: the caller's state is put back on any exit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

from headwise.kernels.precision import full_precision, without_autocast


@contextmanager
def quiet(device: torch.device) -> Iterator[None]:
    """No autograd, no autocast, no function or dispatch modes, full matmul precision, for work on `device`."""
    with ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.no_grad())
        for kind in {"cpu", device.type}:
            stack.enter_context(without_autocast(kind))
        stack.enter_context(full_precision())
        yield
