"""What a verdict is made of, and how it is kept: plain values, there and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypeVar, cast

from headwise.errors import FileFormatError
from headwise.studies.claims import FIRST, REGIME
from headwise.studies.formats import require_format
from headwise.studies.paired import Word

FORMAT, SCHEMA = "headwise-verdict", 1


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, with the standard deviation and the 95 % t-interval (None with one seed)."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    seeds: int


@dataclass(frozen=True)
class Finding:
    """The answer to one question.

    Attributes:
        claim: Which claim it belongs to.
        estimand: Which number.
        study: Which study.
        is_control: Whether that is a study with other initial weights.
        regime: Which regime.
        heads: The number of heads h (of the re-split: h').
        seeds: The seeds that have both numbers.
        differences: A difference for each: the number minus the reference (1a), or at h minus at h = 1; of
            `least_self_focus` less the same difference before training.
        mean: Their mean.
        low: Lower end of its 95 % t-interval, not corrected; None with one seed.
        high: Upper end.
        d_z: Their mean in standard deviations (`paired.effect_size`).
        sign: 1 or -1: the sign that the article says.
        least: The smallest difference that would matter.
        p: Two-sided, that the mean is 0; None with fewer than three seeds, like those that follow.
        p_corrected: After Holm's correction in its family.
        p_short: One-sided, that the effect in the article's direction is `least` or more.
        p_short_corrected: After Holm's correction in its family.
        family: How many tests that family has.
        word: "supported", "not supported" or "undecided".
        control: The same difference in untrained models; None where there is none.
    """

    claim: str
    estimand: str
    study: str
    is_control: bool
    regime: str
    heads: int
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    d_z: float | None
    sign: int
    least: float
    p: float | None
    p_corrected: float | None
    p_short: float | None
    p_short_corrected: float | None
    family: int
    word: Word
    control: Spread | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to one claim in one regime, over all tasks.

    Attributes:
        claim: Which.
        regime: In which regime; the article is about "fixed_width".
        is_control: Whether of the studies with other initial weights.
        word: The answer.
        studies: The word of each study.
    """

    claim: str
    regime: str
    is_control: bool
    word: Word
    studies: tuple[tuple[str, Word], ...]

    @property
    def is_main(self) -> bool:
        """Whether it is of the article's own setting."""
        return self.regime == REGIME and not self.is_control


@dataclass(frozen=True)
class Level:
    """What a number comes to, for itself: of a study, a regime and a number of heads.

    Attributes:
        study: Which study.
        regime: Which regime.
        heads: Number of heads h.
        estimand: Which number; `self_lift at <first>-<last>` of some positions alone; `<estimand>: <effect>` of layers
            that were cut anew, with the effect of the cut, of the scale, or of both on it.
        trained: Over the seeds.
        untrained: The same before training; None where that is not known.
    """

    study: str
    regime: str
    heads: int
    estimand: str
    trained: Spread
    untrained: Spread | None = None


@dataclass(frozen=True)
class About:
    """A study that was read.

    Attributes:
        study: Its label.
        is_control: Whether it has other initial weights.
        heads: Its numbers of heads.
        seeds: How many seeds were planned.
        runs: How many runs.
        missing: Those that are not complete.
        notes: What could not be answered, and why.
    """

    study: str
    is_control: bool
    heads: tuple[int, ...]
    seeds: int
    runs: int
    missing: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Everything that is said.

    Attributes:
        answers: The claims.
        findings: What they rest on.
        levels: The numbers for themselves.
        studies: What was read.
    """

    answers: tuple[Answer, ...]
    findings: tuple[Finding, ...]
    levels: tuple[Level, ...]
    studies: tuple[About, ...]

    def leading(self) -> dict[str, Answer]:
        """The answers to the article's claims in its own setting, by claim."""
        return {answer.claim: answer for answer in self.answers if answer.is_main and answer.claim in FIRST}

    def others(self) -> list[Answer]:
        """All further answers: the re-split first, then the other regime, the controls."""
        rest = [answer for answer in self.answers if not (answer.is_main and answer.claim in FIRST)]
        return sorted(rest, key=lambda answer: not answer.is_main)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"format": FORMAT, "schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, document: Any, source: str = "verdict") -> Self:
        """The verdict that `to_json` gave.

        Raises:
            FileFormatError: It is none, or was written by a newer headwise.
        """
        require_format(document, FORMAT, SCHEMA, source, "verdict")
        try:
            return cls(
                tuple(_made(Answer, one, studies=lambda v: tuple((a, b) for a, b in v)) for one in document["answers"]),
                tuple(_made(Finding, one, control=_spread_or_none) for one in document["findings"]),
                tuple(
                    _made(Level, one, trained=_spread_or_none, untrained=_spread_or_none) for one in document["levels"]
                ),
                tuple(_made(About, one) for one in document["studies"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{source}: is damaged: {error}") from None


T = TypeVar("T")


def _made(kind: type[T], document: Mapping[str, Any], **read: Any) -> T:
    """A dataclass from plain values: lists become tuples, and `read` makes what is more."""
    values = {
        name: read[name](value) if name in read else tuple(value) if isinstance(value, list) else value
        for name, value in document.items()
    }
    if unknown := values.keys() - {one.name for one in fields(cast(Any, kind))}:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    return kind(**values)


def _spread_or_none(value: Any) -> Spread | None:
    return None if value is None else _made(Spread, value)
