"""The numbers that a study is asked for: one a run, each a small function of the run's profile or of its `final.json`.

What is averaged, in this order: the rows of a head, the heads of a layer, the layers of self-attention. Attention to
another sequence has no own key and stays out. Rows that see a single key stay out too: there the weight on the own key
is 1 and the lift 1 whatever the model does (the first row under a causal mask).

    self_lift         n_i p_ii: the mean over position bins (powers of two, each as important as another, because the
                      lift can be as large as n_i) of the mean over rows; 1 = as much as uniform attention
    own_largest       share of rows whose largest weight is on their own key
    self_focus        p_ii: mean over heads
    least_self_focus  that of the head which has the least of it, in each layer
    most_self_focus   that of the head which has the most
    entropy_ratio     spread of a row, 1 = uniform: mean over heads
    max_weight        largest weight of a row: mean over heads
    heldout_loss      nats
    score             the task's own

**The diagonal of the head-averaged map** is no number of its own: `(1/H sum_h P_h)_ii = 1/H sum_h (P_h)_ii`, so its
mean over rows is the layer's mean `self_focus`, exactly. It is answered there, once. Which key is the largest in the
head-averaged map is another question, which the sums of single heads cannot answer.

`least_self_focus` falls with the number of heads by chance alone: the least of several is below their mean. The same
number of the untrained models shows how much of that there is, and is taken off where it is judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from headwise.profile import Profile

State: TypeAlias = Literal["trained", "untrained"]
ByHead: TypeAlias = dict[int, dict[int, float]]
"""A number of each head, by layer."""
Span: TypeAlias = tuple[int, int]
"""Positions from the first real key, both included."""

FINAL = ("heldout_loss", "score")
SINGLE = 1.0
"""What self_focus, self_lift and max_weight are where a row sees one key."""


class _Sums(NamedTuple):
    rows: int
    total: float


def with_choice(profile: Profile, measure: str) -> dict[int, dict[int, dict[Span, _Sums]]]:
    """Sums of a measure over the rows of self-attention that see two keys or more, by layer, head and positions.

    Args:
        profile: Holds `entropy_ratio`, which is defined for just these rows.
        measure: One that is 1 where a row sees a single key, or `entropy_ratio`.
    """
    choice = {place: sums.rows for place, sums in _binned(profile, "entropy_ratio")}
    found: dict[int, dict[int, dict[Span, _Sums]]] = defaultdict(lambda: defaultdict(dict))
    for (layer, head, span), (rows, total) in _binned(profile, measure):
        kept = choice.get((layer, head, span), 0)
        if kept:
            found[layer][head][span] = _Sums(kept, total - (rows - kept) * SINGLE)
    return found


def _binned(profile: Profile, measure: str) -> Iterator[tuple[tuple[int, int, Span], _Sums]]:
    rows: Iterable[Any] = profile.by_position(measure).itertuples(index=False)
    for one in rows:
        if one.kind == "self":
            place = (int(one.layer), int(one.head), (int(one.start), int(one.end)))
            yield place, _Sums(int(one.rows), float(one.rows * one.mean))


def mean_of(profile: Profile, measure: str) -> ByHead:
    """The mean of a measure over the rows that have a choice, of each head."""
    return {
        layer: {head: _mean(spans.values()) for head, spans in heads.items()}
        for layer, heads in with_choice(profile, measure).items()
    }


def _mean(sums: Iterable[_Sums]) -> float:
    several = list(sums)
    return sum(one.total for one in several) / sum(one.rows for one in several)


def lift_by_position(profile: Profile) -> dict[Span, float]:
    """The mean `self_lift` of each position bin: over rows, then heads, then the layers that have such rows."""
    found: dict[Span, list[float]] = defaultdict(list)
    for heads in with_choice(profile, "self_lift").values():
        for span in sorted({span for spans in heads.values() for span in spans}):
            found[span].append(fmean(spans[span].total / spans[span].rows for spans in heads.values() if span in spans))
    return {span: fmean(values) for span, values in sorted(found.items())}


def clipped(span: Span, length: int) -> Span:
    """The positions of a bin that there are: with 128 positions the bin 127..254 holds position 127 alone."""
    return span[0], max(span[0], min(span[1], length - 1))


def self_lift(profile: Profile) -> ByHead:
    """The mean over position bins of the mean lift, of each head."""
    return {
        layer: {head: fmean(one.total / one.rows for one in spans.values()) for head, spans in heads.items()}
        for layer, heads in with_choice(profile, "self_lift").items()
    }


def own_largest(profile: Profile) -> ByHead:
    """The share of rows with a choice whose largest weight is on their own key, of each head."""
    single: dict[tuple[int, int], int] = defaultdict(int)
    for (layer, head, _), sums in _binned(profile, "self_focus"):
        single[layer, head] += sums.rows
    for (layer, head, _), sums in _binned(profile, "entropy_ratio"):
        single[layer, head] -= sums.rows
    found: ByHead = defaultdict(dict)
    table = profile.offsets()
    names = [name for name in table.columns if name == "other" or name.lstrip("-").isdecimal()]
    records: list[Any] = table[table["kind"] == "self"].to_dict("records")
    for one in records:
        layer, head = int(one["layer"]), int(one["head"])
        alone = single[layer, head]
        rows = sum(int(one[name]) for name in names) - alone
        if rows:
            found[layer][head] = (int(one["0"]) - alone) / rows
    return found


MEASURED: Mapping[str, tuple[Callable[[Profile], ByHead], Callable[[Iterator[float]], float]]] = {
    "self_lift": (self_lift, fmean),
    "own_largest": (own_largest, fmean),
    "self_focus": (lambda profile: mean_of(profile, "self_focus"), fmean),
    "least_self_focus": (lambda profile: mean_of(profile, "self_focus"), min),
    "most_self_focus": (lambda profile: mean_of(profile, "self_focus"), max),
    "entropy_ratio": (lambda profile: mean_of(profile, "entropy_ratio"), fmean),
    "max_weight": (lambda profile: mean_of(profile, "max_weight"), fmean),
}
"""How each number of a profile is made: from each head's, and what joins the heads of a layer."""


def by_layer(profile: Profile, estimand: str) -> dict[int, float]:
    """An estimand of each layer of self-attention."""
    of_heads, joined = MEASURED[estimand]
    return {layer: joined(iter(heads.values())) for layer, heads in of_heads(profile).items()}
