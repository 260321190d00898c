"""The verdict's numbers as rows of text: what `headwise study --verdict` prints, under the page's own headings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwise.studies.estimands import MEASURED
from headwise.studies.findings import Verdict
from headwise.studies.page.gathered import Gathered
from headwise.studies.page.words import named, of_spread, ranged, signed
from headwise.studies.telling import LEVELS

WIDE = "+.4f"


@dataclass(frozen=True)
class Table:
    """A table: the first `left` columns are words, the others numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    left: int = 1


def findings(verdict: Verdict, study: str, words: dict[str, Any]) -> list[Table]:
    """A table for each regime."""
    tables = []
    own = [one for one in verdict.findings if one.study == study]
    for regime in dict.fromkeys(one.regime for one in own):
        rows = [
            [
                one.claim, named(words, "numbers", one.estimand), str(one.heads),
                ranged(one.mean, one.low, one.high, WIDE, words), f"{one.least:g}", _p(one.p_corrected),
                _p(one.p_short_corrected), "–" if one.d_z is None else signed(one.d_z, ".1f"), str(len(one.seeds)),
                "–" if one.control is None else signed(one.control.mean, "+.3g"), words["words"][one.word],
            ]
            for one in own if one.regime == regime
        ]  # fmt: skip
        title = f"{words['tables']['findings']}{words['colon']}{words['regimes'][regime]}"
        tables.append(Table(title, words["tables"]["finding_columns"], rows, 2))
    return tables


def levels(verdict: Verdict, study: str, words: dict[str, Any]) -> Table:
    """What the numbers are for themselves."""
    found = {(one.regime, one.heads, one.estimand): one for one in verdict.levels if one.study == study}
    rows = []
    for regime, heads in dict.fromkeys((regime, heads) for regime, heads, name in found if name in LEVELS):
        own = [found.get((regime, heads, name)) for name in LEVELS]
        before = found.get((regime, heads, "self_focus"))
        untrained = "–" if before is None or before.untrained is None else signed(before.untrained.mean, ".3f")
        means = ["–" if one is None else signed(one.trained.mean, ".3f") for one in own]
        rows.append([words["regimes"][regime], str(heads), *means, untrained])
    return Table(words["tables"]["levels"], words["tables"]["level_columns"], rows)


def cuts(verdict: Verdict, study: str, words: dict[str, Any]) -> Table:
    """What cutting trained single heads anew does to each number."""
    found = {(one.estimand, one.heads): one.trained for one in verdict.levels if one.study == study}
    heads = sorted({h for name, h in found if ": " in name})
    rows = [
        [
            named(words, "numbers", estimand), str(h),
            *(of_spread(found.get((f"{estimand}: {effect}", h)), WIDE, words)
              for effect in ("cut", "scale", "cut_and_scale")),
        ]
        for estimand in MEASURED for h in heads if (f"{estimand}: cut", h) in found
    ]  # fmt: skip
    return Table(words["tables"]["cuts"], words["tables"]["cut_columns"], rows)


def costs(study: Gathered, words: dict[str, Any]) -> Table:
    """What a training step took."""
    rows = [
        [
            words["regimes"][regime], str(heads), str(one.d_k), f"{one.parameters:,}", str(one.runs),
            "–" if one.seconds is None else f"{1000 * one.seconds:.1f}",
            "–" if one.bytes is None else f"{one.bytes / 1e6:.1f}",
        ]
        for (regime, heads), one in sorted(
            study.costs.items(),
            key=lambda item: (study.numbers.plan.regimes.index(item[0][0]), item[0][1]),
        )
    ]  # fmt: skip
    return Table(words["tables"]["costs"], words["tables"]["cost_columns"], rows)


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
