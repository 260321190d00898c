"""The study that docs/results holds: its finished runs, and the verdict on them.

    python -m scripts.results keep results/lookup results/digits ...
    python -m scripts.results verdict

`keep` gives each study a folder in docs/results: its plan (data by their names alone), the facts of every complete run,
and the weights that the page shows. `verdict` judges all of them and writes verdict.json, the page in both languages,
and the lines of README.md.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headwise.studies import durable, evidence, telling
from headwise.studies.findings import Verdict
from headwise.studies.folders import StudyFolder
from headwise.studies.page import answering
from headwise.studies.page.document import page, renamed
from headwise.studies.page.gathered import gather
from headwise.studies.page.maps import maps_of, to_json
from headwise.studies.page.words import texts
from headwise.studies.plans import DataFile
from headwise.studies.running import PREPARED
from headwise.studies.verdict import Read, verdict_of

RESULTS = Path(__file__).parent.parent / "docs" / "results"
ORDER = ("lookup", "lookup-4", "digits", "shakespeare", "python", "translation", "lookup-per-head", "digits-per-head")
"""In which studies are told of: that of the plan."""
STUDY: dict[telling.Language, str] = {"en": "{} ({})", "zh": "{}（{}）"}
NOT_BEGUN: dict[telling.Language, str] = {"en": "Not begun", "zh": "尚未开始"}
LANGUAGES: dict[telling.Language, str] = {"en": "verdict.html", "zh": "verdict.zh.html"}


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
    for name in PREPARED:
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


def kept(folder: Path = RESULTS) -> list[Path]:
    """The studies in a folder, in the order in which they are told of."""
    found = {path.parent.name: path.parent for path in folder.glob("*/plan.json")}
    return sorted(found.values(), key=lambda path: (ORDER.index(path.name) if path.name in ORDER else len(ORDER), path))


def judged(paths: Sequence[Path]) -> tuple[list[Read], Verdict]:
    """What was read of the studies, and the verdict."""
    reads = evidence.read(paths)
    return reads, verdict_of(reads)


def write(folder: Path = RESULTS) -> None:
    """Write the verdict on the studies of a folder, its pages, and the lines of its README.md."""
    paths = kept(folder)
    reads, verdict = judged(paths)
    durable.replace_json(folder / "verdict.json", verdict.to_json())
    readme = folder / "README.md"
    told = readme.read_text("utf-8")
    for language, name in LANGUAGES.items():
        (folder / name).write_text(page(paths, reads, language), "utf-8")
        told = with_answers(told, language, paths, reads)
    readme.write_text(told, "utf-8")


def with_answers(text: str, language: telling.Language, paths: Sequence[Path], reads: Sequence[Read]) -> str:
    """A text with the answers in their place: for each claim a line, and one for each study; then what is missing."""
    begin, end = f"<!-- answers: {language} -->\n", "<!-- end of answers -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    words = texts(language)
    own = renamed(paths, reads)
    verdict = verdict_of(own)
    names = {read.numbers.label: path.resolve().name for path, read in zip(paths, own, strict=True)}
    lines = []
    for one in answering.first(verdict, {read.numbers.label: read for read in own}, words):
        lines.append(f"- **{one.claim} {words['sums'][one.word].format(claim=words['short'][one.claim])}**")
        lines += [
            f"  - {STUDY[language].format(names[said.study], words['words'][said.word])}{words['colon']}{said.sentence}"
            for said in one.said
        ]
    for about in verdict.studies:
        if about.missing:
            name, missing = names[about.study], len(about.missing)
            lines.append(f"- {words['missing'].format(missing=missing, runs=about.runs, study=name)}")
    absent = [name for name in ORDER if name not in names.values()]
    if absent:
        lines.append(f"- {NOT_BEGUN[language]}{words['colon']}{words['list'].join(absent)}")
    return f"{before}{begin}" + "".join(f"{line}\n" for line in lines) + end + after


def main(arguments: Sequence[str] | None = None) -> None:
    """Keep studies, or write the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keep", "verdict"))
    parser.add_argument("studies", nargs="*", type=Path, help="folders of studies, to keep")
    asked = parser.parse_args(arguments)
    if asked.what == "verdict":
        write()
    for path in asked.studies if asked.what == "keep" else ():
        print(f"{path.name}: {keep(StudyFolder(path), StudyFolder(RESULTS / path.resolve().name))} runs")


if __name__ == "__main__":
    main()
