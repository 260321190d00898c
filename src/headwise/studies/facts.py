"""What a verdict and its page know of one complete run: small, and enough without the run's model and profiles.

A run's `facts.json` holds them; where there is none they are made from its profiles, its log and `final.json`. So a
study whose runs have nothing but `facts.json` can be judged, shown and gone on with: that is how studies are passed on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from headwise.errors import FileFormatError
from headwise.studies.estimands import (
    FINAL,
    MEASURED,
    ByHead,
    Span,
    State,
    by_layer,
    lift_by_position,
    mean_of,
    self_lift,
)
from headwise.studies.folders import RunFolder, read_json
from headwise.studies.formats import require_format
from headwise.studies.resplit import Cutting

if TYPE_CHECKING:
    from headwise.profile import Profile

FORMAT, SCHEMA = "headwise-run", 1

EACH_HEAD = {"self_focus": lambda profile: mean_of(profile, "self_focus"), "self_lift": self_lift}
"""What is kept of every head: the same rows, averaged in the same way, as in the verdict."""

BESIDE = ("max_score", "bc", "angle", "rank_99", "bound")
"""Numbers that no claim is about:

    max_score   the largest score of any row and head
    bc          how alike the weights of two heads of a layer are: mean over pairs, then layers
    angle       principal angles between what two heads of a layer write, degrees: mean over angles, pairs, layers
    rank_99     singular values of a head's scores that hold 99 % of their energy: mean over heads
    bound       what d_k and the length leave of the rank: mean over heads
"""


class Number(NamedTuple):
    """Which number of a run: of the trained or the untrained model; of a layer, or (None) of all."""

    estimand: str
    state: State
    layer: int | None = None


class Evaluation(NamedTuple):
    """What the log says at one step: the heads of self-attention, all their rows, in the order of the log."""

    step: int
    heads: dict[str, list[float]]


@dataclass(frozen=True)
class Facts:
    """What is known of a run.

    Attributes:
        score_name: Which score the task has.
        higher_is_better: Whether more of it is better.
        values: Estimands, and the numbers of `BESIDE`; one that is undefined is absent.
        lifts: `self_lift` of the trained model by positions.
        heads: Numbers of single heads, by name and state.
        course: The evaluations, in order.
        recut: Numbers of its single heads cut anew.
        recut_failed: Why there are none; "" if there is no such reason.
        roles: Role and label of each head that has one.
        d_k: Width of a head.
        parameters: Of the model.
        seconds: Processor time of a training step, on average.
        bytes: What the tensors of a training step hold at once.
        versions: Of what trained it, by name.
    """

    score_name: str
    higher_is_better: bool
    values: Mapping[Number, float] = field(default_factory=dict)
    lifts: Mapping[Span, float] = field(default_factory=dict)
    heads: Mapping[tuple[str, State], ByHead] = field(default_factory=dict)
    course: tuple[Evaluation, ...] = ()
    recut: Mapping[tuple[str, Cutting], float] = field(default_factory=dict)
    recut_failed: str = ""
    roles: tuple[tuple[str, str], ...] = ()
    d_k: int = 0
    parameters: int = 0
    seconds: float | None = None
    bytes: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "format": FORMAT,
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in _PLAIN},
            "values": [[*number, value] for number, value in self.values.items()],
            "lifts": [[*span, value] for span, value in self.lifts.items()],
            "heads": [
                [name, state, layer, list(of_heads), list(of_heads.values())]
                for (name, state), layers in self.heads.items()
                for layer, of_heads in layers.items()
            ],
            "course": [[one.step, one.heads] for one in self.course],
            "recut": [[name, cut.heads, cut.scale, value] for (name, cut), value in self.recut.items()],
        }

    @classmethod
    def from_json(cls, document: Any, source: str = "facts.json") -> Facts:
        """What `to_json` gave.

        Raises:
            FileFormatError: It is none, is damaged, or was written by a newer headwise.
        """
        require_format(document, FORMAT, SCHEMA, source, "run")
        try:
            heads: dict[tuple[str, State], ByHead] = {}
            for name, state, layer, numbers, values in document["heads"]:
                heads.setdefault((name, state), {})[layer] = dict(zip(numbers, map(float, values), strict=True))
            plain = {name: document[name] for name in _PLAIN}
            plain["roles"] = tuple((label, role) for label, role in plain["roles"])
            return cls(
                values={Number(*number): float(value) for *number, value in document["values"] if value is not None},
                lifts={(int(start), int(end)): float(value) for start, end, value in document["lifts"]},
                heads=heads,
                course=tuple(
                    Evaluation(int(step), {name: list(map(float, values)) for name, values in of_heads.items()})
                    for step, of_heads in document["course"]
                ),
                recut={(name, Cutting(heads, scale)): value for name, heads, scale, value in document["recut"]},
                **plain,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(f"{source}: is damaged: {error}") from None


_PLAIN = (
    "score_name", "higher_is_better", "recut_failed", "roles", "d_k", "parameters", "seconds", "bytes", "versions",
)  # fmt: skip


def facts_of(run: RunFolder) -> Facts:
    """The facts of a complete run.

    Raises:
        InputError: A file cannot be read.
        FileFormatError: A file is damaged.
    """
    if run.facts_file.is_file():
        return Facts.from_json(read_json(run.facts_file), str(run.facts_file))
    return made(run.final(), run.log(), run.profile(), run.start_profile(), str(run.final_file))


def made(
    final: Mapping[str, Any], log: list[dict[str, Any]], profile: Profile, start: Profile, source: str = "final.json"
) -> Facts:
    """The facts of a run, from what it has at its end.

    Args:
        final: Its `final.json`.
        log: Its evaluations.
        profile: The profile of the trained model.
        start: That of the untrained one.
        source: What `final` is called in errors.

    Raises:
        FileFormatError: Something is missing.
    """
    states: tuple[tuple[State, Profile], ...] = (("trained", profile), ("untrained", start))
    values: dict[Number, float] = {}
    try:
        for state, value in _results(final):
            values |= {Number(name, state): x for name, x in value.items() if x is not None and math.isfinite(x)}
        for state, one in states:
            values |= _estimands(one, state)
            values |= {Number(name, state): value for name, value in _of_profile(one).items()}
        values |= {Number(name, "trained"): value for name, value in _of_final(final, _self_layers(profile))}
        return Facts(
            str(final["score_name"]), bool(final["higher_is_better"]), values, lift_by_position(profile),
            {(name, state): of_heads(one) for state, one in states for name, of_heads in EACH_HEAD.items()},
            tuple(_course(log)),
            {
                (one["estimand"], Cutting(one["heads"], one["scale"])): one["value"]
                for one in final.get("recut") or () if one["value"] is not None
            },
            final.get("recut_failed", ""), tuple((one["label"], one["role"]) for one in final.get("roles") or ()),
            final["d_k"], final["parameters"], final.get("seconds_per_step"), final.get("step_bytes"),
            {name: final[name] for name in ("headwise", "torch", "python") if name in final},
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{source}: is damaged: {error} is missing") from None


def _results(final: Mapping[str, Any]) -> Iterator[tuple[State, dict[str, Any]]]:
    name = final["score_name"]
    yield "trained", dict(zip(FINAL, (final["heldout_loss"], final["score"][name]), strict=True))
    start = final["start"]
    yield "untrained", dict(zip(FINAL, (start["heldout_loss"], start["score"].get(name)), strict=True))


def _estimands(profile: Profile, state: State) -> dict[Number, float]:
    found: dict[Number, float] = {}
    for estimand in MEASURED:
        layers = by_layer(profile, estimand)
        found |= {Number(estimand, state, layer): value for layer, value in layers.items()}
        if layers:
            found[Number(estimand, state)] = statistics.fmean(layers.values())
    return found


def _self_layers(profile: Profile) -> set[str]:
    table = profile.table()
    return set(table.loc[table["kind"] == "self", "name"])


def _of_profile(profile: Profile) -> dict[str, float]:
    table, pairs = profile.table(), profile.pairs("bc")
    scores = table.loc[table["kind"] == "self", "max_score"].dropna()
    found = {} if scores.empty else {"max_score": float(scores.max())}
    alike = pairs[pairs["kind"] == "self"].dropna(subset=["bc"])
    if not alike.empty:
        found["bc"] = float(alike.groupby("layer")["bc"].mean().mean())
    return found


def _of_final(final: Mapping[str, Any], layers: set[str]) -> Iterator[tuple[str, float]]:
    angles = [
        statistics.fmean(statistics.fmean(pair["written"]) for pair in pairs)
        for layer in final["subspaces"]
        if layer["name"] in layers and (pairs := [pair for pair in layer["pairs"] if pair["written"]])
    ]
    if angles:
        yield "angle", statistics.fmean(angles)
    ranks = [head for head in final["score_ranks"] if head["name"] in layers]
    for name in ("rank_99", "bound") if ranks else ():
        yield name, statistics.fmean(head[name] for head in ranks)


def _course(log: list[dict[str, Any]]) -> Iterator[Evaluation]:
    for line in log:
        own = [head for head in line["heads"] if head["kind"] == "self"]
        yield Evaluation(
            cast(int, line["step"]),
            {name: [head[name] for head in own if head.get(name) is not None] for name in EACH_HEAD},
        )
