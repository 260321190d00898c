"""The arithmetic in which statistics are computed, whatever the caller has set; it is put back on any exit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


def without_autocast(kind: str) -> AbstractContextManager[object]:
    """No autocast on a kind of device ("cpu", "cuda", ...)."""
    if kind == "meta" or not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


@contextmanager
def full_precision() -> Iterator[None]:
    """float32 products in float32."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set for single backends, which this function of torch's then refuses to sum up
        with _each_backend():
            yield
        return
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _each_backend() -> Iterator[None]:
    all_of_them: Any = torch.backends
    backends = (all_of_them.cuda.matmul, all_of_them.mkldnn.matmul)
    before = [_taken_over(one) for one in backends]
    for one in backends:
        one.fp32_precision = "ieee"
    try:
        yield
    finally:
        for one, setting in zip(backends, before, strict=True):
            one.fp32_precision = setting


def _taken_over(backend: Any) -> str:
    """The setting of a backend; "none" where it is but that of all backends, which it would read out as its own."""
    setting = str(backend.fp32_precision)
    backend.fp32_precision = "none"
    of_all = str(backend.fp32_precision)
    backend.fp32_precision = setting
    return "none" if of_all == setting else setting
