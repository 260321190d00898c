"""The arithmetic in which statistics are computed, whatever the caller has set; it is put back on any exit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


def without_autocast(kind: str) -> AbstractContextManager[object]:
    """No autocast on a kind of device ("cpu", "cuda", ...)."""
    if kind == "meta" or not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


@contextmanager
def full_precision() -> Iterator[None]:
    """float32 products in float32."""
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
