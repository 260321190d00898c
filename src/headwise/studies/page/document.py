"""The page of a verdict: one HTML file that holds its styles, charts and maps, and asks no network for more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from headwise.errors import HeadwiseError
from headwise.report.html import base_style, policy
from headwise.studies.claims import REGIME
from headwise.studies.findings import Verdict
from headwise.studies.page import answering, charts, commands, drawing, maps, tables
from headwise.studies.page.drawing import Chart
from headwise.studies.page.gathered import Gathered, gather
from headwise.studies.page.words import named, noted, texts
from headwise.studies.sharing import twin_of
from headwise.studies.telling import Language
from headwise.studies.verdict import Read, verdict_of


@dataclass(frozen=True)
class Figure:
    """A chart with its title."""

    title: str
    svg: Markup


def page(
    paths: Sequence[Path], reads: Sequence[Read], language: Language, told: Callable[[str], None] = lambda _: None
) -> str:
    """The whole page, ready to be written as UTF-8.

    Args:
        paths: The folders of the studies.
        reads: What `headwise.studies.evidence.read` read in them.
        language: "en" or "zh".
        told: Is told what is being drawn.

    Raises:
        MissingPackageError: matplotlib is not installed.
        FileFormatError: A file of a run is damaged.
    """
    drawing.require()
    words = texts(language)
    reads = renamed(paths, reads)
    verdict = verdict_of(reads)
    studies = []
    for path, read in zip(paths, reads, strict=True):
        told(f"Drawing {path} ...")
        studies.append(_study(gather(path, read), verdict, words))
    by_label = {read.numbers.label: read for read in reads}
    first = answering.first(verdict, by_label, words)
    style = base_style() + (files("headwise.studies.page") / "static" / "verdict.css").read_text("utf-8")
    environment = Environment(
        loader=PackageLoader("headwise.studies.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("verdict.html.j2").render(
        t=words,
        scope=_scope(reads, words),
        first=first,
        rest=answering.rest(verdict, by_label, words),
        missing=_missing(verdict, words),
        studies=studies,
        published=[
            _figure(words["strength"][name], charts.published(which), words)
            for which, name in enumerate(("perplexity", "bleu"))
        ],
        table_3=charts.TABLE_3,
        has_control=any(read.numbers.is_control for read in reads),
        # Past autoescape go only our own style, and SVG whose words the XML writer has escaped.
        style=Markup(style),
        policy=policy(style, ""),
    )


def renamed(paths: Sequence[Path], reads: Sequence[Read]) -> list[Read]:
    """The same with no folder named in labels and notes but by its own name."""
    labels = []
    for path, read in zip(paths, reads, strict=True):
        labels.append(read.numbers.label.replace(f" ({path})", f" ({path.resolve().name})"))
    again = Counter(labels)
    found = []
    for number, (path, read) in enumerate(zip(paths, reads, strict=True)):
        label = labels[number] if again[labels[number]] == 1 else f"{labels[number]} · {number + 1}"
        places = {str(path): path.resolve().name, str(path.resolve()): path.resolve().name}
        places |= {one.path: PurePath(one.path).name for one in read.numbers.plan.data}
        notes = tuple(_without(note, places) for note in read.notes)
        found.append(read._replace(numbers=replace(read.numbers, label=label), notes=notes))
    return found


def _without(text: str, places: Mapping[str, str]) -> str:
    for place in sorted(places, key=len, reverse=True):
        text = text.replace(place, places[place])
    return text


def _scope(reads: Sequence[Read], words: dict[str, Any]) -> str:
    # A run under two names is one model.
    runs = sum(
        twin_of(read.numbers.plan, key) not in read.numbers.facts for read in reads for key in read.numbers.facts
    )
    count = words["studies_one"] if len(reads) == 1 else words["studies_many"].format(count=len(reads))
    most = max((len({key.seed for key in read.numbers.facts}) for read in reads), default=0)
    seeds = words["seeds_one"] if most == 1 else words["seeds_many"].format(count=most)
    return str(words["scope"].format(runs=f"{runs:,}", studies=count, seeds=seeds))


def _missing(verdict: Verdict, words: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """What is not there: a line for each study that lacks runs, and their names; then what could not be answered."""
    told: list[tuple[str, list[str]]] = []
    for about in verdict.studies:
        if about.missing:
            line = words["missing"].format(missing=len(about.missing), runs=about.runs, study=about.study)
            told.append((line, [noted(words, one) for one in about.missing]))
        told += [(f"{about.study}{words['colon']}{noted(words, note)}", []) for note in about.notes]
    return told


def _study(study: Gathered, verdict: Verdict, words: dict[str, Any]) -> dict[str, Any]:
    numbers, label = study.numbers, study.numbers.label
    s, p = words["self"], words["spread"]
    uniform = (1.0,)
    score = words["strength"]["score"].format(name=named(words, "scores", numbers.score_name))
    other = [regime for regime in numbers.plan.regimes if regime != REGIME]

    def figures(*titled: tuple[str, Chart | None]) -> list[Figure]:
        return [_figure(title, chart, words, label) for title, chart in titled if chart is not None]

    def of_heads(regime: str) -> list[Figure]:
        return figures(
            (s["focus"], charts.each_head(study, "self_focus", regime)),
            (s["lift"], charts.each_head(study, "self_lift", regime, uniform)),
        )

    return {
        "label": label,
        "is_control": numbers.is_control,
        "about": words["tasks"].get(numbers.plan.task, ""),
        "regimes": numbers.plan.regimes,
        "has_runs": bool(study.course),
        "strength": figures(
            (words["strength"]["loss"], charts.by_heads(study, "heldout_loss")),
            (score, charts.by_heads(study, "score")),
        ),
        "heads": of_heads(REGIME),
        "other_heads": [figure for regime in other for figure in of_heads(regime)],
        "course": figures(
            (s["course_focus"], charts.over_training(study, "self_focus", s["steps"])),
            (s["course_lift"], charts.over_training(study, "self_lift", s["steps"], uniform)),
        ),
        "course_inks": charts.inks_of(numbers.plan.heads),
        "position": figures((s["position"], charts.lift_by_position(study, s["positions"]))),
        "spread": figures(
            (p["entropy"], charts.by_heads(study, "entropy_ratio")),
            (p["max_score"], charts.by_heads(study, "max_score")),
            (p["bc"], charts.by_heads(study, "bc")),
            (p["angle"], charts.by_heads(study, "angle")),
            (p["rank"], charts.bound_of_ranks(study)),
        ),
        "maps": _maps(study, words),
        "recut": figures((words["recut"]["figure"], charts.cuts(verdict.levels, label))),
        "tables": [
            table
            for table in (
                *tables.findings(verdict, label, words), tables.levels(verdict, label, words),
                tables.cuts(verdict, label, words), tables.costs(study, words),
            )
            if table.rows
        ],
        "command": commands.command(numbers.plan, study.name),
        "seeds": words["tables"]["seeds"].format(
            seeds=_seeds(numbers.plan.seeds), versions=words["list"].join(study.versions) or "–"
        ),
    }  # fmt: skip


def _maps(study: Gathered, words: dict[str, Any]) -> dict[str, Any]:
    """The maps, or why there are none."""
    try:
        layers = maps.kept_maps(study)
    except HeadwiseError as error:
        places = {one.path: PurePath(one.path).name for one in study.numbers.plan.data}
        places[str(study.folder.path)] = study.name
        return {"layers": [], "why": words["maps"]["none"].format(reason=_without(str(error), places))}
    why = "" if layers else words["maps"]["none"].format(reason=words["maps"]["absent"])
    return {"layers": layers, "why": why}


def _figure(title: str, chart: Chart, words: dict[str, Any], study: str = "") -> Figure:
    described = f"{study}{words['colon']}{title}" if study else title
    return Figure(title, Markup(drawing.svg(chart, described)))


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))
