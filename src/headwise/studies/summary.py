"""What the complete runs of a study came to: a row for each regime and number of heads. No verdict: plain means."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.studies.facts import Facts, Number, facts_of
from headwise.studies.folders import StudyFolder

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Row:
    """The runs of one regime and number of heads.

    Attributes:
        regime: Their regime.
        heads: Their number of heads.
        d_k: Width of a head's queries and keys.
        parameters: Of a whole model.
        losses: Held-out losses at the end, a run each, in nats.
        scores: Their scores at the end.
    """

    regime: str
    heads: int
    d_k: int
    parameters: int
    losses: tuple[float, ...]
    scores: tuple[float, ...]


def rows(folder: StudyFolder) -> list[Row]:
    """A row for each regime and number of heads of which a run is complete, in the order of the plan."""
    known: dict[tuple[str, int], list[Facts]] = {}
    for run in folder.complete():
        known.setdefault((run.key.regime, run.key.heads), []).append(facts_of(run))
    plan = folder.plan()
    return [
        _row(regime, heads, known[regime, heads])
        for regime in plan.regimes
        for heads in plan.heads
        if (regime, heads) in known
    ]


def _row(regime: str, heads: int, runs: list[Facts]) -> Row:
    losses, scores = (
        tuple(one.values.get(Number(name, "trained"), math.nan) for one in runs) for name in ("heldout_loss", "score")
    )
    return Row(regime, heads, runs[0].d_k, runs[0].parameters, losses, scores)


def table(folder: StudyFolder) -> Table:
    """The rows as a table: means, and the standard deviation over seeds where there are several."""
    from rich.table import Table

    shown = Table("regime", box=None, pad_edge=False)
    names = {facts_of(run).score_name for run in folder.complete()[:1]}
    for column in ("heads", "d_k", "parameters", "runs", "held-out loss", *names):
        shown.add_column(column, justify="right")
    for row in rows(folder):
        shown.add_row(
            row.regime, str(row.heads), str(row.d_k), f"{row.parameters:,}", str(len(row.losses)), _spread(row.losses),
            _spread(row.scores),
        )  # fmt: skip
    return shown


def _spread(values: tuple[float, ...]) -> str:
    if len(values) < 2:
        return "".join(f"{value:.4f}" for value in values)
    return f"{statistics.fmean(values):.4f} (sd {statistics.stdev(values):.4f})"
