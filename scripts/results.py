"""Finished runs for docs/results: what a verdict and its page need of each study, small enough to be kept.

    python scripts/results.py results/lookup results/digits ...

Each study's folder in docs/results gets its plan (data by their names alone), the facts of every complete run, and the
weights that the page shows. `headwise study --verdict docs/results/*/` judges them, and `headwise study --out
docs/results/NAME --resume --data ...` trains what is missing.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from headwise.studies import durable, evidence
from headwise.studies.folders import StudyFolder
from headwise.studies.page.gathered import gather
from headwise.studies.page.maps import maps_of, to_json
from headwise.studies.plans import DataFile

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def keep(source: StudyFolder, target: StudyFolder) -> int:
    """Keep a study; how many runs are complete.

    Raises:
        ValueError: The target holds another study.
    """
    plan = source.plan()
    if target.plan_file.exists() and target.plan().digest != plan.digest:
        raise ValueError(f"{target.path}: holds another study")
    target.path.mkdir(parents=True, exist_ok=True)
    data = tuple(DataFile(Path(one.path).name, one.sha256, one.size) for one in plan.data)
    durable.replace_json(target.plan_file, replace(plan, data=data).to_json())
    for name in ("subwords.json",):
        if (source.path / name).exists():
            shutil.copyfile(source.path / name, target.path / name)
    (read,) = evidence.read([source.path])
    for key, facts in read.numbers.facts.items():
        run = target.run(key)
        run.path.mkdir(parents=True, exist_ok=True)
        durable.replace_json(run.facts_file, facts.to_json(), indent=None)
    if any(run.model_file.exists() for run in source.complete()):
        durable.replace_json(target.maps_file, to_json(maps_of(gather(source.path, read))), indent=None)
    return len(read.numbers.facts)


def main(paths: list[str]) -> None:
    """Keep the studies in these folders."""
    for path in map(Path, paths):
        print(f"{path.name}: {keep(StudyFolder(path), StudyFolder(RESULTS / path.resolve().name))} runs")


if __name__ == "__main__":
    main(sys.argv[1:])
