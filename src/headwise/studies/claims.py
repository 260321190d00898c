"""What the founding article says, as questions with a sign and a size: fixed before the runs (docs/results/plan.md).

    1a  one head attends too much to its own position: its mean self-lift is above 1, and its largest weight is on its
        own key in more than half of the rows
    1b  more heads relieve it: the mean self-focus of a layer falls, and that of its least self-focused head falls by
        more than in untrained models, where it falls because the least of several is picked
    2   more heads make a stronger model: the held-out loss falls, and the task's score improves
    3   cutting alone relieves it: the self-focus of a trained single head falls when its Q, K and V are cut anew

A question belongs to a task, a regime and (but for 1a) a number of heads h > 1; its family, within which p-values are
corrected, is all questions of the same claim, estimand and regime, over h and tasks. Words are joined thus:

- the estimands of a claim, at one h: the word on which all agree, else "undecided";
- the numbers of heads of a task: "supported" where one h or more is (the article says "to a degree", so that it need
  not be all of them; the correction is for all), "not supported" where every h is, else "undecided";
- tasks: the word on which all agree, else "undecided", and the tasks are named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwise.studies.paired import NOT_SUPPORTED, SUPPORTED, UNDECIDED, Word

FIRST = ("1a", "1b", "2")
"""What the article says; the rest stands below it."""
REGIME = "fixed_width"
"""The article speaks of a fixed d_model, so it is answered in this regime; the other stands beside it."""

LEAST_SCORE = {"accuracy": 0.01, "bits_per_byte": 0.01, "bleu": 0.5}
"""The smallest differences of scores that would matter; of other scores, any (0)."""


@dataclass(frozen=True)
class Question:
    """What is asked of one number.

    Attributes:
        claim: "1a", "1b", "2" or "3".
        estimand: Which number (`headwise.studies.estimands`).
        sign: 1 where the article says that it is larger, -1 where it says smaller; 0: larger if more of the score is
            better.
        least: The smallest difference that would matter; None: the score's.
        against: What the number itself is compared with; None: with the same seed's number at h = 1.
        beyond_untrained: Whether the same difference before training is taken off.
    """

    claim: str
    estimand: str
    sign: int
    least: float | None
    against: float | None = None
    beyond_untrained: bool = False


QUESTIONS = (
    Question("1a", "self_lift", 1, 0.1, against=1.0),
    Question("1a", "own_largest", 1, 0.05, against=0.5),
    Question("1b", "self_focus", -1, 0.01),
    Question("1b", "least_self_focus", -1, 0.01, beyond_untrained=True),
    Question("2", "heldout_loss", -1, 0.01),
    Question("2", "score", 0, None),
)
"""The questions to runs."""

CUT = Question("3", "cut", -1, 0.01)
CUT_AND_SCALE = Question("3", "cut_and_scale", -1, 0.01)
"""The questions to re-split layers: of `self_focus`, by the cut alone, and by cut and scale together."""

CLAIMS = ("1a", "1b", "2", "3")


def agreed(words: Iterable[Word]) -> Word:
    """The word on which all agree."""
    different = set(words)
    return different.pop() if len(different) == 1 else UNDECIDED


def to_a_degree(words: Iterable[Word]) -> Word:
    """The word of a task, from those of its numbers of heads."""
    several = list(words)
    if SUPPORTED in several:
        return SUPPORTED
    return NOT_SUPPORTED if several and all(word == NOT_SUPPORTED for word in several) else UNDECIDED
