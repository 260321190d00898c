"""The script of the fakes, new for each test, with its clock in the runner's place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headwise.benchmarks import runner
from tests.benchmarks import fakes


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> fakes.Script:
    script = fakes.Script()
    monkeypatch.setattr(fakes, "SCRIPT", script)
    monkeypatch.setattr(runner, "time", SimpleNamespace(perf_counter=script.perf_counter))
    # With torch loaded a collection takes a tenth of a second.
    monkeypatch.setattr(runner, "gc", SimpleNamespace(collect=lambda: 0))
    return script
