"""The page of the small study, in both languages."""

from __future__ import annotations

import pytest

from headwise.studies import evidence
from headwise.studies.findings import Verdict
from headwise.studies.folders import StudyFolder
from headwise.studies.page.document import page
from headwise.studies.page.gathered import Gathered, gather
from headwise.studies.verdict import Read, verdict_of

pytest.importorskip("matplotlib", reason="needs matplotlib (pip install headwise[study])")


@pytest.fixture(scope="session")
def read(study: StudyFolder) -> Read:
    return evidence.read([study.path])[0]


@pytest.fixture(scope="session")
def verdict(read: Read) -> Verdict:
    return verdict_of([read])


@pytest.fixture(scope="session")
def gathered(study: StudyFolder, read: Read) -> Gathered:
    return gather(study.path, read)


@pytest.fixture(scope="session")
def english(study: StudyFolder, read: Read) -> str:
    return page([study.path], [read], "en")


@pytest.fixture(scope="session")
def chinese(study: StudyFolder, read: Read) -> str:
    return page([study.path], [read], "zh")
