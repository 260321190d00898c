"""Which marks each chart is made of. Every mean and interval is that of the verdict: `verdict.spread_of` over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from headwise.studies.claims import REGIME
from headwise.studies.estimands import State, clipped
from headwise.studies.findings import Level, Spread
from headwise.studies.page.drawing import Chart, Dots, Ink, Intervals, Line, Mark
from headwise.studies.page.gathered import Gathered
from headwise.studies.plans import REGIMES
from headwise.studies.verdict import spread_of

REGIME_INKS: dict[str, Ink] = dict(zip(REGIMES, ("s1", "s2"), strict=True))
ORDERED: tuple[Ink, ...] = ("s1", "s2", "s3", "s4", "s5")
EFFECTS: dict[str, Ink] = {"cut": "s1", "scale": "s3", "cut_and_scale": "s2"}

TABLE_3 = {1: (5.29, 24.9), 4: (5.00, 25.5), 8: (4.92, 25.8), 16: (4.91, 25.8), 32: (5.01, 25.4)}
"""Perplexity and BLEU by h: rows (A) and base of Table 3 in Vaswani et al. 2017, newstest2013, h d_k = 512."""


def by_heads(study: Gathered, estimand: str, levels: Sequence[float] = ()) -> Chart | None:
    """A number of both regimes against h: mean and interval, a faint dot a seed; of untrained models their mean."""
    plan = study.numbers.plan
    marks: list[Mark] = []
    for regime in plan.regimes:
        shift = 0.0 if len(plan.regimes) == 1 else (-0.1, 0.1)[REGIMES.index(regime)]
        trained = {h: study.over_seeds(estimand, regime, h) for h in plan.heads}
        before = {h: values for h in plan.heads if (values := study.over_seeds(estimand, regime, h, "untrained"))}
        if before and estimand not in ("heldout_loss", "score"):
            marks.append(
                Dots(
                    [_place(study, h) + shift for h in before], [fmean(values) for values in before.values()],
                    REGIME_INKS[regime], is_open=True, size=6,
                )
            )  # fmt: skip
        marks += _spreads(study, trained, REGIME_INKS[regime], shift)
    return _chart(marks, study, levels)


def bound_of_ranks(study: Gathered) -> Chart | None:
    """`rank_99` against h, and what d_k and the length leave of it."""
    chart = by_heads(study, "rank_99")
    if chart is None:
        return None
    bounds: list[Mark] = []
    for regime in study.numbers.plan.regimes:
        known = [h for h in study.numbers.plan.heads if study.over_seeds("bound", regime, h)]
        heights = [fmean(study.over_seeds("bound", regime, h)) for h in known]
        bounds.append(
            Line([_place(study, h) for h in known], heights, REGIME_INKS[regime], width=1, dash=(3, 3), opacity=0.7)
        )
    return Chart([*bounds, *chart.marks], chart.x_label, chart.ticks)


def each_head(study: Gathered, measure: str, regime: str, levels: Sequence[float] = ()) -> Chart | None:
    """Every head of every seed a dot against h, untrained ones rings; the mean of each layer a line."""
    marks: list[Mark] = []
    lines: dict[int, dict[int, list[float]]] = {}
    states: tuple[tuple[State, float], ...] = (("untrained", 0.16), ("trained", -0.16))
    for state, shift in states:
        x: list[float] = []
        y: list[float] = []
        for heads in study.numbers.plan.heads:
            for key in study.keys(regime, heads):
                for layer, of_heads in study.heads.get((measure, key, state), {}).items():
                    x += [_place(study, heads) + shift] * len(of_heads)
                    y += of_heads.values()
                    if state == "trained" and of_heads:
                        lines.setdefault(layer, {}).setdefault(heads, []).append(fmean(of_heads.values()))
        is_open = state == "untrained"
        if x:
            marks.append(Dots(x, y, "soft" if is_open else "s1", 4.5, 1.0 if is_open else 0.55, is_open))
    dashes: tuple[tuple[float, ...], ...] = ((), (5, 2), (2, 2), (6, 2, 1, 2))
    for number, layer in enumerate(sorted(lines)):
        places = [_place(study, heads) for heads in lines[layer]]
        means = [fmean(values) for values in lines[layer].values()]
        marks.append(Line(places, means, "ink", dash=dashes[number % len(dashes)]))
    return _chart(marks, study, levels)


def over_training(study: Gathered, measure: str, x_label: str, levels: Sequence[float] = ()) -> Chart | None:
    """The mean of all heads by step, a line for each h; each head of the first complete run a faint one."""
    marks: list[Mark] = []
    faint: list[Mark] = []
    for heads, ink in inks_of(study.numbers.plan.heads):
        runs = [study.course[key] for key in study.keys(REGIME, heads)]
        if not runs:
            continue
        for along in zip(*(one.heads[measure] for one in runs[0]), strict=False) if heads > 1 else ():
            faint.append(Line([one.step for one in runs[0]], along, ink, width=0.7, opacity=0.35))
        means: dict[int, list[float]] = {}
        for run in runs:
            for one in run:
                if one.heads[measure]:
                    means.setdefault(one.step, []).append(fmean(one.heads[measure]))
        marks.append(Line(list(means), [fmean(values) for values in means.values()], ink, width=2))
    return Chart([*faint, *marks], x_label, levels=levels) if marks else None


def inks_of(heads: Sequence[int]) -> list[tuple[int, Ink]]:
    """A colour for each number of heads; those beyond the fifth begin anew."""
    return [(h, ORDERED[number % len(ORDERED)]) for number, h in enumerate(heads)]


def lift_by_position(study: Gathered, x_label: str) -> Chart | None:
    """The self-lift of a single head by position, both regimes."""
    marks: list[Mark] = []
    spans = sorted({span for regime in study.numbers.plan.regimes for span in study.lifts(regime, 1)})
    for regime in study.numbers.plan.regimes:
        values = study.lifts(regime, 1)
        if values:
            places = [float(spans.index(span)) for span in values]
            marks += _drawn(places, values.values(), REGIME_INKS[regime])
    shown = [clipped(span, study.numbers.plan.length) for span in spans]
    names = [str(start) if start == end else f"{start}\u2013{end}" for start, end in shown]
    return Chart(marks, x_label, list(enumerate(names)), (1.0,)) if marks else None


def cuts(levels: Iterable[Level], label: str) -> Chart | None:
    """What the cut, the scale and both do to the self-focus of single heads, by h'."""
    own = [level for level in levels if level.study == label and level.estimand.startswith("self_focus: ")]
    if not own:
        return None
    heads = sorted({level.heads for level in own})
    marks: list[Mark] = []
    for number, (effect, ink) in enumerate(EFFECTS.items()):
        spreads = {level.heads: level.trained for level in own if level.estimand == f"self_focus: {effect}"}
        places = [heads.index(h) + (number - 1) * 0.12 for h in spreads]
        marks += _lined(places, list(spreads.values()), ink)
    return Chart(marks, "h\u2032", [(i, str(h)) for i, h in enumerate(heads)], (0.0,))


def published(which: int) -> Chart:
    """Table 3 of Vaswani et al.: perplexity (0) or BLEU (1) against h."""
    places, values = list(range(len(TABLE_3))), [row[which] for row in TABLE_3.values()]
    marks: list[Mark] = [Line(places, values, "ink"), Dots(places, values, "ink", 6)]
    return Chart(marks, "h", [(i, str(h)) for i, h in enumerate(TABLE_3)])


def _place(study: Gathered, heads: int) -> float:
    return float(study.numbers.plan.heads.index(heads))


def _chart(marks: Sequence[Mark], study: Gathered, levels: Sequence[float]) -> Chart | None:
    return Chart(marks, "h", [(_place(study, h), str(h)) for h in study.numbers.plan.heads], levels) if marks else None


def _spreads(study: Gathered, values: dict[int, list[float]], ink: Ink, shift: float) -> list[Mark]:
    known = {h: several for h, several in values.items() if several}
    return _drawn([_place(study, h) + shift for h in known], known.values(), ink) if known else []


def _drawn(places: Sequence[float], values: Iterable[Sequence[float]], ink: Ink) -> list[Mark]:
    """Faint dots for seeds, then mean and interval."""
    several = list(values)
    x = [place for place, of_seeds in zip(places, several, strict=True) for _ in of_seeds]
    y = [value for of_seeds in several for value in of_seeds]
    spreads = [spread for of_seeds in several if (spread := spread_of(of_seeds)) is not None]
    return [Dots(x, y, ink, 4, 0.35), *_lined(places, spreads, ink)]


def _lined(places: Sequence[float], spreads: Sequence[Spread], ink: Ink) -> list[Mark]:
    means = [spread.mean for spread in spreads]
    known = [
        (x, one.low, one.high) for x, one in zip(places, spreads, strict=True) if one.low is not None is not one.high
    ]
    intervals = Intervals([x for x, _, _ in known], [_real(one) for _, one, _ in known], [_real(h) for *_, h in known],
                          ink)  # fmt: skip
    return [Line(places, means, ink), *([intervals] if known else []), Dots(places, means, ink, 6)]


def _real(value: float | None) -> float:
    assert value is not None
    return value
