"""A study of some steps, trained once for all tests that read one."""

from __future__ import annotations

import pytest

from headwise.studies.folders import StudyFolder
from tests.studies.small import finished, small_plan


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """Lookup with one head and two, two layers, three seeds; nobody writes into it."""
    plan = small_plan(heads=(1, 2), seeds=3, num_layers=2, steps=4, regimes=("fixed_width",))
    return finished(plan, tmp_path_factory.mktemp("study") / "lookup")
