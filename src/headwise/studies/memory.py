"""What training takes of memory: the process as a whole, and the tensors of one step."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_resident() -> int | None:
    """The highest resident memory of this process in bytes; None where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class _Living(TorchDispatchMode):
    """Counts the bytes of all tensors that are made while it is on, as long as they live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        # What an operation was given is no new memory, even if it gives it back.
        given = {_place(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        for one in tree_leaves(out):
            if isinstance(one, Tensor) and _place(one) not in given and _place(one) not in self._known:
                self._count(one.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        size, place = storage.nbytes(), storage._cdata
        self._known.add(place)
        self.now += size
        self.most = max(self.most, self.now)

        def gone() -> None:
            self._known.discard(place)
            self.now -= size

        weakref.finalize(storage, gone)


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def step_bytes(step: Callable[[], object]) -> int:
    """The most bytes that the tensors which a step makes hold at once: activations, gradients, scratch.

    Scratch memory inside one operation is not seen. The same whenever it is measured.
    """
    with _Living() as living:
        step()
    most: int = living.most
    return most
