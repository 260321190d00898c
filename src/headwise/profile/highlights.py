"""The heads that stand out, in plain words with numbers; the thresholds are those of docs/measures.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.measures.catalogue import BY_NAME
from headwise.profile.numbers import significant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pandas import DataFrame

MOST = 0.5
"""A head has a role (self, previous, next, first) when more than this share of its weight goes there."""
EVEN = 0.9
"""A head is broad above this entropy ratio."""
SHARPER = 0.1
"""The sharpest head is worth a sentence when its largest weight is this much above the average head's."""
FARTHER = 1.25
"""The farthest head is worth a sentence when it reads this many times as far as the average head."""
QK_CLIP = 100.0
"""The score at which QK-clip steps in (Kimi K2 2025)."""
LITTLE = 0.5
"""A sink writes little when its share of the values read is less than this part of its share of the weight."""
SAME_PATTERN = 0.95
"""Two heads have nearly the same pattern above this Bhattacharyya coefficient."""

_TARGETS = {"previous": "the previous token", "next": "the next token", "first": "the first token"}
_PHASES = {"prefill": "in prefill, ", "decode": "while decoding, "}


@dataclass(frozen=True)
class Highlight:
    """One thing to know about a profile.

    Attributes:
        measure: The table column it speaks of; "" when it speaks of none.
        title: A few words for a heading.
        sentence: The finding, with its numbers.
        heads: Labels of the heads concerned, the strongest first; the sentence names the first few.
        places: The table row of each of `heads`: a label alone can occur in several phases or calls.
    """

    measure: str
    title: str
    sentence: str
    heads: tuple[str, ...]
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Part:
    """The rows of one phase: what a rule reads, and how it builds its sentence."""

    table: DataFrame
    names: dict[int, str]
    where: str
    limit: int
    pairs: DataFrame | None = None

    def values(self, column: str) -> dict[int, float]:
        """Row number to value, the largest first; undefined values are left out."""
        if column not in self.table:
            return {}
        pairs = zip(self.table.index.tolist(), self.table[column].tolist(), strict=True)
        finite = [(int(row), float(value)) for row, value in pairs if math.isfinite(value)]
        return dict(sorted(finite, key=lambda pair: -pair[1]))

    def named(self, rows: Sequence[int]) -> str:
        """The first few heads by name, then how many more."""
        return _listed([self.names[row] for row in rows], self.limit)

    def highlight(self, measure: str, title: str, text: str, rows: Sequence[int]) -> Highlight:
        sentence = self.where + text
        labels = self.table["label"]
        heads = tuple(str(labels.loc[row]) for row in rows)
        return Highlight(measure, title, sentence[0].upper() + sentence[1:], heads, tuple(rows))


def highlights(table: DataFrame, limit: int = 5, pairs: DataFrame | None = None) -> list[Highlight]:
    """What stands out in a profile's table.

    Args:
        table: `Profile.table()`: a row per (layer, call, phase, kind, head).
        limit: How many heads a sentence names before it says "and 4 more"; `Highlight.heads` holds all.
        pairs: `Profile.pairs("bc")`, where pairs of heads were recorded.

    Returns:
        One highlight per finding and phase; never empty: if nothing stands out, one says so.
    """
    if table.empty:
        return [Highlight("", "Nothing was measured", "No attention call was measured; the reasons are listed.", ())]
    table = table.reset_index(drop=True)
    phases = list(dict.fromkeys(table["phase"].tolist()))
    parts = []
    for phase in phases:
        rows = table[table["phase"] == phase]
        where = "" if len(phases) == 1 else _PHASES.get(phase, f"in {phase}, ")
        alike = None if pairs is None else pairs[pairs["phase"] == phase]
        parts.append(_Part(rows, _names(rows), where, max(1, limit), alike))
    made = [rule(part) for rule in _RULES for part in parts]
    found = [highlight for highlight in made if highlight is not None]
    return found + _nothing(parts, bool(found))


def _own_position(part: _Part) -> Highlight | None:
    """The founding article's claim, as a fact: how much weight goes to a position's own key."""
    values = part.values("self_focus")
    if not values:
        return None
    rows = list(values)
    if len(rows) == 1:
        text = f"{part.named(rows)} gives {significant(values[rows[0]])} of its weight to its own position."
        return part.highlight("self_focus", "Own position", text, rows)
    above = list(_focused(part, "self_focus"))
    largest = significant(values[rows[0]])
    lift = part.values("self_lift")
    times = f" ({significant(_mean(lift))}x uniform)" if lift else ""
    heads = f"{len(rows):,} heads" + ("" if len(rows) == len(part.table) else " that have one")
    text = f"the average head gives {significant(_mean(values))} of its weight to its own position{times}; "
    if not above:
        text += f"none of the {heads} gives it more than half (the most is {largest}, {part.named(rows[:1])})."
    elif len(above) == 1:
        text += f"1 of {heads} gives it more than half: {part.named(above)} ({largest})."
    else:
        text += f"{len(above):,} of {heads} give it more than half: {part.named(above)} (up to {largest})."
    return part.highlight("self_focus", "Own position", text, above or rows[:1])


def _most_weight(measure: str) -> Callable[[_Part], Highlight | None]:
    """The rule for heads that put most of their weight on one relative place."""

    def rule(part: _Part) -> Highlight | None:
        values = _focused(part, measure)
        rows = list(values)
        if not rows:
            return None
        put, their, up_to = ("puts", "its", "") if len(rows) == 1 else ("put", "their", "up to ")
        text = (
            f"{part.named(rows)} {put} more than half of {their} weight on {_TARGETS[measure]} "
            f"({up_to}{significant(values[rows[0]])})."
        )
        return part.highlight(measure, BY_NAME[measure].title, text, rows)

    return rule


def _focused(part: _Part, measure: str) -> dict[int, float]:
    """Heads with most of their weight on one place by choice: over a few keys, even attention puts it there too."""
    even = {row for row, ratio in part.values("entropy_ratio").items() if ratio > EVEN}
    return {row: value for row, value in part.values(measure).items() if value > MOST and row not in even}


def _writes_little(part: _Part) -> Highlight | None:
    """Sinks whose values are short: weights say where a head looks, not what it takes from there."""
    shares = part.values("value_first")
    weights = {row: value for row, value in _focused(part, "first").items() if row in shares}
    rows = [row for row, weight in weights.items() if shares[row] < LITTLE * weight]
    if not rows:
        return None
    rows.sort(key=lambda row: shares[row] / weights[row])
    named = [
        f"{part.names[row]} (weight {significant(weights[row])}, values {significant(shares[row])})" for row in rows
    ]
    give, their, take = ("head gives", "its", "takes") if len(rows) == 1 else ("heads give", "their", "take")
    text = (
        f"{len(rows):,} {give} the first token more than half of {their} weight, but {take} from it less than half as "
        f"large a share of the values read (by length): {_listed(named, max(1, part.limit // 2))}."
    )
    return part.highlight("value_first", "Sinks that write little", text, rows)


def _induction(part: _Part) -> Highlight | None:
    values = _focused(part, "induction")
    rows = list(values)
    if not rows:
        return None
    put, their, up_to = ("puts", "its", "") if len(rows) == 1 else ("put", "their", "up to ")
    text = (
        f"{part.named(rows)} {put} more than half of {their} weight on what followed an earlier occurrence of the "
        f"token ({up_to}{significant(values[rows[0]])}); induction_scores tests that on random tokens."
    )
    return part.highlight("induction", "Induction heads", text, rows)


def _same_pattern(part: _Part) -> Highlight | None:
    """Pairs of heads of one layer that look at the same keys, and how many of them only share a sink."""
    if part.pairs is None:
        return None
    close = part.pairs[part.pairs["bc"] > SAME_PATTERN].sort_values("bc", ascending=False, kind="stable")
    if close.empty:
        return None
    keys = zip(*(part.table[name].tolist() for name in ("label", "call", "kind")), strict=True)
    row_of = dict(zip(keys, part.table.index.tolist(), strict=True))
    found = [
        (*(row_of[one[head], one["call"], one["kind"]] for head in ("a", "b")), float(one["bc"]))
        for one in close.to_dict("records")
    ]
    sinks = set(_focused(part, "first"))
    both = sum(a in sinks and b in sinks for a, b, _ in found)
    named = [f"{part.names[a]} and {part.names[b]} ({significant(bc)})" for a, b, bc in found]
    of_all, have = int(part.pairs["bc"].count()), "has" if len(found) == 1 else "have"
    text = (
        f"{len(found):,} of {of_all:,} pair{'s' if of_all > 1 else ''} of heads in a layer {have} nearly the same "
        f"pattern (bc > {SAME_PATTERN:g})"
    )
    if both:
        text += f"; in {both:,} of them both lean on the first token"
    text += f": {_listed(named, max(1, part.limit // 2), '; ')}."
    return part.highlight("bc", "Heads alike", text, [row for a, b, _ in found for row in (a, b)])


def _broad(part: _Part) -> Highlight | None:
    values = part.values("entropy_ratio")
    rows = [row for row, value in values.items() if value > EVEN]
    if not rows:
        return None
    spread, its, they, up_to = ("spreads", "its", "it", "") if len(rows) == 1 else ("spread", "their", "they", "up to ")
    text = (
        f"{part.named(rows)} {spread} {its} weight almost evenly over the keys {they} may see "
        f"(entropy ratio {up_to}{significant(values[rows[0]])}; 1 is uniform)."
    )
    return part.highlight("entropy_ratio", "Broad heads", text, rows)


def _sharpest(part: _Part) -> Highlight | None:
    values = part.values("max_weight")
    row = next(iter(values), None)
    if row is None or values[row] < _mean(values) + SHARPER:
        return None
    text = (
        f"{part.names[row]} is the sharpest: a row's largest weight averages {significant(values[row])} "
        f"(the average head: {significant(_mean(values))})."
    )
    return part.highlight("max_weight", "Sharpest head", text, [row])


def _farthest(part: _Part) -> Highlight | None:
    values = part.values("distance")
    row = next(iter(values), None)
    if row is None or values[row] < _mean(values) * FARTHER:
        return None
    text = (
        f"{part.names[row]} reads farthest: {significant(values[row])} {BY_NAME['distance'].unit} away "
        f"on average (the average head: {significant(_mean(values))})."
    )
    return part.highlight("distance", "Farthest head", text, [row])


def _largest_score(part: _Part) -> Highlight | None:
    values = part.values("max_score")
    if not values:
        return None
    rows = list(values)
    above = [row for row in rows if values[row] > QK_CLIP]
    largest = significant(values[rows[0]])
    if above:
        reach, up_to = ("reaches a score", "") if len(above) == 1 else ("reach scores", "up to ")
        text = f"{part.named(above)} {reach} above {QK_CLIP:g}, QK-clip's threshold ({up_to}{largest})."
    else:
        text = f"the largest score is {largest} ({part.named(rows[:1])}); QK-clip would step in at {QK_CLIP:g}."
    return part.highlight("max_score", "Largest score", text, above or rows[:1])


def _nonfinite(part: _Part) -> Highlight | None:
    counts = {row: count for row, count in part.values("nonfinite_rows").items() if count > 0}
    if not counts:
        return None
    rows = list(counts)
    text = (
        f"{part.named(rows)} met NaN or infinite scores ({_rows_of(counts)}): those rows are counted, never averaged."
    )
    return part.highlight("nonfinite_rows", "Scores that are not finite", text, rows)


def _masked(part: _Part) -> Highlight | None:
    counts = {row: count for row, count in part.values("masked_rows").items() if count > 0}
    if not counts:
        return None
    layers = sorted({int(part.table["layer"].loc[row]) for row in counts})
    some = f"layer {layers[0]}" if len(layers) == 1 else f"layers {_listed(list(map(str, layers)), part.limit)}"
    text = f"in {some}, rows may see no key at all ({_rows_of(counts)}): they are counted, never averaged."
    return part.highlight("masked_rows", "Rows that see nothing", text, list(counts))


_RULES: tuple[Callable[[_Part], Highlight | None], ...] = (
    _own_position, *map(_most_weight, _TARGETS), _writes_little, _induction, _same_pattern, _broad, _sharpest,
    _farthest, _largest_score, _nonfinite, _masked,
)  # fmt: skip


def _nothing(parts: Sequence[_Part], said_something: bool) -> list[Highlight]:
    """The honest sentence when no head passes any threshold, or when nothing could be measured."""
    roles = {"self_focus": "its own position", **_TARGETS}
    defined = [name for name in roles if any(part.values(name) for part in parts)]
    if any(_focused(part, name) for part in parts for name in defined):
        return []
    ratios = [value for part in parts for value in part.values("entropy_ratio").values()]
    if any(value > EVEN for value in ratios):
        return []
    clauses = []
    if defined:
        clauses.append(f"no head puts more than half of its weight on {_either([roles[n] for n in defined])}")
    if ratios:
        clauses.append(f"{'none' if defined else 'no head'} spreads its weight almost evenly")
    if clauses:
        text = "; ".join(clauses) + "."
    elif said_something:
        return []
    else:
        text = "nothing can be said of these heads: none of the measures that speak of what stands out was recorded."
        if any(measure in part.table for part in parts for measure in BY_NAME):
            text = "nothing can be said of these heads: no measure is defined for any of them."
    return [Highlight("", "No head stands out", text[0].upper() + text[1:], ())]


def _names(rows: DataFrame) -> dict[int, str]:
    """What to call each row: its label, and its call or kind where the label alone is ambiguous."""
    names = {int(row): str(label) for row, label in rows["label"].items()}  # type: ignore[call-overload]
    notes: dict[int, list[str]] = {row: [] for row in names}
    for column, words in (("call", "call {}"), ("kind", "{}-attention")):
        several = rows.groupby("label")[column].transform("nunique") > 1
        for row, value in rows.loc[several, column].items():
            notes[int(row)].append(words.format(value))  # type: ignore[call-overload]
    return {row: f"{name} ({', '.join(notes[row])})" if notes[row] else name for row, name in names.items()}


def _listed(names: Sequence[str], limit: int, comma: str = ", ") -> str:
    shown, more = list(names[:limit]), len(names) - limit
    if more > 0:
        return f"{comma.join(shown)} and {more:,} more"
    if comma != ", ":
        return comma.join(shown)
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def _rows_of(counts: dict[int, float]) -> str:
    most = int(max(counts.values()))
    return f"up to {most:,} {'row' if most == 1 else 'rows'} a head"


def _mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values)
