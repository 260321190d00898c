"""Is the article right? Studies in, the answer to each of its claims out, with all numbers that it rests on.

What is asked, and how words are joined, is `headwise.studies.claims`; how a word is earned, `headwise.studies.paired`;
what the numbers are, `headwise.studies.estimands` and `headwise.studies.resplit`. The unit is a seed: initial weights
and order of the data. Held-out data are the same for all, so nothing is said of other data.

Two controls stand beside the answers and change no word: the same difference in untrained models (`control`), and
studies with other initial weights (`init="per_head"`), which have families and answers of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from headwise.studies import paired
from headwise.studies.claims import (
    CLAIMS,
    CUT,
    CUT_AND_SCALE,
    LEAST_SCORE,
    QUESTIONS,
    REGIME,
    Question,
    agreed,
    to_a_degree,
)
from headwise.studies.estimands import FINAL, MEASURED, Span, State, clipped
from headwise.studies.findings import About, Answer, Finding, Level, Spread, Verdict
from headwise.studies.numbers import Numbers, Where
from headwise.studies.paired import Word

if TYPE_CHECKING:
    from headwise.studies.resplit import Cutting

Recuts: TypeAlias = "Mapping[tuple[int, str, Cutting], float]"
"""Numbers of re-split layers of single heads at fixed width, by seed, estimand and cut."""


class Read(NamedTuple):
    """What is known of a study: its numbers, those of its re-split layers, and what could not be done."""

    numbers: Numbers
    recuts: Recuts
    notes: tuple[str, ...] = ()


class _Asked(NamedTuple):
    """A question to one study, with the differences that answer it, by seed."""

    question: Question
    read: Read
    regime: str
    heads: int
    differences: dict[int, float]
    control: dict[int, float]
    sign: int
    least: float

    @property
    def family(self) -> tuple[str, str, str, bool]:
        return self.question.claim, self.question.estimand, self.regime, self.read.numbers.is_control


def verdict_of(studies: Sequence[Read]) -> Verdict:
    """The verdict on some studies.

    Args:
        studies: Each with a label of its own.
    """
    asked = [one for read in studies for one in (*_asked_of_runs(read), *_asked_of_cuts(read)) if one.differences]
    families: dict[tuple[str, str, str, bool], list[_Asked]] = {}
    for one in asked:
        families.setdefault(one.family, []).append(one)
    findings = [finding for family in families.values() for finding in _answered(family)]
    order = [read.numbers.label for read in studies]
    findings.sort(key=lambda f: (order.index(f.study), f.regime != REGIME, CLAIMS.index(f.claim), f.heads))
    return Verdict(
        tuple(_answers(findings)),
        tuple(findings),
        tuple(level for read in studies for level in _levels(read)),
        tuple(
            About(
                read.numbers.label, read.numbers.is_control, read.numbers.plan.heads, len(read.numbers.plan.seeds),
                len(read.numbers.plan.runs), read.numbers.missing, read.notes,
            )
            for read in studies
        ),
    )  # fmt: skip


def _asked_of_runs(read: Read) -> Iterable[_Asked]:
    numbers, plan = read.numbers, read.numbers.plan
    for question in QUESTIONS:
        sign = question.sign or (1 if numbers.higher_is_better else -1)
        least = LEAST_SCORE.get(numbers.score_name, 0.0) if question.least is None else question.least
        for regime in plan.regimes:
            for heads in plan.heads:
                if (heads == 1) == (question.against is not None):
                    trained, control = (_differences(numbers, question, regime, heads, state) for state in _STATES)
                    if question.beyond_untrained:
                        trained = {seed: trained[seed] - control[seed] for seed in trained if seed in control}
                    yield _Asked(question, read, regime, heads, trained, control, sign, least)


_STATES: tuple[State, State] = ("trained", "untrained")


def _differences(numbers: Numbers, question: Question, regime: str, heads: int, state: State) -> dict[int, float]:
    """By seed: the number minus what it is compared with, where both are known."""
    found = {}
    for seed in numbers.plan.seeds:
        value = numbers.values.get(Where(question.estimand, regime, heads, seed, state))
        other = question.against
        if other is None:
            other = numbers.values.get(Where(question.estimand, regime, 1, seed, state))
        if value is not None and other is not None:
            found[seed] = value - other
    return found


def _asked_of_cuts(read: Read) -> Iterable[_Asked]:
    numbers = read.numbers
    for question in (CUT, CUT_AND_SCALE):
        for heads in sorted({cutting.heads for _, _, cutting in read.recuts}):
            differences = {
                seed: effect[question.estimand] for seed, effect in _effects(read, "self_focus", heads).items()
            }
            # Before training, models of one seed have the same Q, K, V at all h: several heads are then a single
            # one, cut. (Nearly so beyond the first layer: what it reads comes from cut layers.)
            control: dict[int, float] = {}
            if question is CUT_AND_SCALE and not numbers.is_control:
                control = _differences(numbers, Question("3", "self_focus", -1, 0.01), REGIME, heads, "untrained")
            assert question.least is not None
            yield _Asked(question, read, REGIME, heads, differences, control, question.sign, question.least)


def _effects(read: Read, estimand: str, heads: int) -> dict[int, dict[str, float]]:
    """By seed: what the cut, the scale, and both did to a number of the trained single head."""
    found = {}
    cuttings = {
        (seed, c.scale): value for (seed, name, c), value in read.recuts.items() if (name, c.heads) == (estimand, heads)
    }
    for seed in read.numbers.plan.seeds:
        whole = read.numbers.values.get(Where(estimand, REGIME, 1, seed))
        kept, own = cuttings.get((seed, "trained")), cuttings.get((seed, "own"))
        if whole is not None and kept is not None and own is not None:
            found[seed] = {"cut": kept - whole, "scale": own - kept, "cut_and_scale": own - whole}
    return found


def _answered(family: Sequence[_Asked]) -> Iterable[Finding]:
    """The findings of a family, corrected within it."""
    import numpy as np

    of = [paired.moments(np.array(list(one.differences.values()))) for one in family]
    whole = paired.Moments(
        *(np.array([getattr(one, name) for one in of], np.float64) for name in paired.Moments._fields)
    )
    low, high = paired.interval(whole)
    effect = paired.effect_size(whole)
    signs = np.array([one.sign for one in family])
    turned = whole._replace(mean=signs * whole.mean)
    chances = paired.chances(turned, np.array([one.least for one in family]))
    p, p_short = paired.corrected(chances.p), paired.corrected(chances.p_short)
    words = paired.words(turned.mean, p, p_short)
    tests = int(np.sum(~np.isnan(chances.p)))
    for i, one in enumerate(family):
        yield Finding(
            one.question.claim, one.question.estimand, one.read.numbers.label, one.read.numbers.is_control, one.regime,
            one.heads, tuple(one.differences), tuple(one.differences.values()), float(whole.mean[i]), _known(low[i]),
            _known(high[i]), _known(effect[i]), one.sign, one.least, _known(chances.p[i]), _known(p[i]),
            _known(chances.p_short[i]), _known(p_short[i]), tests, cast(Word, str(words[i])),
            spread_of(one.control.values()),
        )  # fmt: skip


def _answers(findings: Sequence[Finding]) -> Iterable[Answer]:
    for is_control in (False, True):
        for claim in CLAIMS:
            regimes = dict.fromkeys(f.regime for f in findings if (f.claim, f.is_control) == (claim, is_control))
            for regime in sorted(regimes, key=lambda name: name != REGIME):
                own = [f for f in findings if (f.claim, f.is_control, f.regime) == (claim, is_control, regime)]
                words = tuple((study, _word_of([f for f in own if f.study == study])) for study in
                              dict.fromkeys(f.study for f in own))  # fmt: skip
                yield Answer(claim, regime, is_control, agreed(word for _, word in words), words)


def _word_of(findings: Sequence[Finding]) -> Word:
    """The word of a study: of its numbers of heads, each of which has that of all estimands of the claim."""
    by_heads: dict[int, dict[str, Word]] = {}
    for one in findings:
        by_heads.setdefault(one.heads, {})[one.estimand] = one.word
    asked = {question.estimand for question in (*QUESTIONS, CUT, CUT_AND_SCALE) if question.claim == findings[0].claim}
    return to_a_degree(
        agreed(words.get(estimand, paired.UNDECIDED) for estimand in asked) for words in by_heads.values()
    )


def _levels(read: Read) -> Iterable[Level]:
    numbers, plan = read.numbers, read.numbers.plan
    for regime in plan.regimes:
        for heads in plan.heads:
            for estimand in (*FINAL, *MEASURED):
                trained, untrained = (
                    spread_of(
                        numbers.values[place]
                        for seed in plan.seeds
                        if (place := Where(estimand, regime, heads, seed, state)) in numbers.values
                    )
                    for state in _STATES
                )
                if trained is not None:
                    yield Level(numbers.label, regime, heads, estimand, trained, untrained)
            yield from _lifts(numbers, regime, heads)
    for estimand in MEASURED:
        for heads in sorted({cutting.heads for _, _, cutting in read.recuts}):
            effects = _effects(read, estimand, heads)
            for name in ("cut", "scale", "cut_and_scale"):
                spread = spread_of(effect[name] for effect in effects.values())
                if spread is not None:
                    yield Level(numbers.label, REGIME, heads, f"{estimand}: {name}", spread)


def _lifts(numbers: Numbers, regime: str, heads: int) -> Iterable[Level]:
    spans: dict[Span, list[float]] = {}
    for seed in numbers.plan.seeds:
        for span, value in numbers.lifts.get((regime, heads, seed), {}).items():
            spans.setdefault(span, []).append(value)
    for span, values in sorted(spans.items()):
        start, end = clipped(span, numbers.plan.length)
        spread = spread_of(values)
        assert spread is not None
        yield Level(numbers.label, regime, heads, f"self_lift at {start}-{end}", spread)


def spread_of(values: Iterable[float]) -> Spread | None:
    """A mean over seeds with its interval; None of nothing."""
    import numpy as np

    several = np.array(list(values), np.float64)
    if not several.size:
        return None
    of = paired.moments(several)
    low, high = paired.interval(of)
    return Spread(float(of.mean), _known(of.sd), _known(low), _known(high), len(several))


def _known(value: Any) -> float | None:
    return None if value != value else float(value)
