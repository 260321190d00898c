"""Shared by all tests: torch.empty is poisoned with NaN, so that output a kernel forgets to write cannot pass."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

settings.register_profile("quick", max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("full", max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
# Small tensors: a second thread costs more than it gives, and much more when it has to wait for a core.
torch.set_num_threads(1)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill what torch.empty gives with NaN (integers with a large number)."""
    empty = torch.empty

    def poisoned(*size: object, **kwargs: object) -> torch.Tensor:
        tensor = empty(*size, **kwargs)  # type: ignore[arg-type]
        if tensor.device.type != "meta":
            with torch._C.DisableTorchFunction():
                tensor.fill_(float("nan") if tensor.is_floating_point() else (1 if tensor.dtype == torch.bool else 99))
        return tensor

    monkeypatch.setattr(torch, "empty", poisoned)
    yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random state."""
    torch.manual_seed(0)
