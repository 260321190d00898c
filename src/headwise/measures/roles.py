"""Roles: labels for heads, each with the number that it rests on. Plain numbers in, no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headwise.measures.catalogue import OFFSETS


@dataclass(frozen=True)
class Thresholds:
    """From where on a head has a role; the defaults are those of docs/measures.md.

    Attributes:
        positional: Share of rows whose largest weight stands at one fixed offset, at least (Voita et al. 2019).
        sink: `alpha_f`, more than this (Gu et al. 2024).
        self_focus: Mean weight on the own position, more than this; so `previous`, `next`, `delimiter`, `duplicate`.
        previous: See above.
        next: See above.
        delimiter: See above.
        duplicate: See above.
        induction: Mean weight on what followed an earlier occurrence, on repeated random tokens, more than this.
        broad: Entropy ratio, more than this.
    """

    positional: float = 0.9
    sink: float = 0.3
    self_focus: float = 0.5
    previous: float = 0.5
    next: float = 0.5
    delimiter: float = 0.5
    duplicate: float = 0.5
    induction: float = 0.5
    broad: float = 0.9


@dataclass(frozen=True)
class Role:
    """One label of one head.

    Attributes:
        label: "positional(-1)", "sink", "self", "previous", "next", "delimiter", "duplicate", "induction", "broad" or
            "mixed".
        evidence: What it rests on, in words with numbers.
        value: The number, or None for "mixed".
        spread: Its standard deviation or error over texts, as given; None where unknown.
    """

    label: str
    evidence: str
    value: float | None = None
    spread: float | None = None


Column = Sequence[float | None]

# Evidence by name: the label, what it says, and the field of the thresholds.
_RULES: dict[str, tuple[str, str, str]] = {
    "alpha_first": ("sink", "weight that the first key receives from a row that may see it", "sink"),
    "self_focus": ("self", "mean weight on the own position", "self_focus"),
    "previous": ("previous", "mean weight on the previous token", "previous"),
    "next": ("next", "mean weight on the next token", "next"),
    "delimiter": ("delimiter", "mean weight on delimiters", "delimiter"),
    "duplicate": ("duplicate", "mean weight on earlier occurrences of the same token", "duplicate"),
    "induction": (
        "induction", "mean weight on what followed an earlier occurrence, on repeated random tokens", "induction",
    ),
    "entropy_ratio": ("broad", "mean entropy ratio", "broad"),
}  # fmt: skip


def roles(
    evidence: Mapping[str, Column],
    *,
    offsets: Sequence[Sequence[float]] | None = None,
    spread: Mapping[str, Column] | None = None,
    thresholds: Thresholds | None = None,
) -> list[tuple[Role, ...]]:
    """The roles of heads; a head can have several.

    Args:
        evidence: A number per head (a list or an array) under any of `alpha_first, self_focus, previous, next,
            delimiter, duplicate, induction` (measured on repeated random tokens), `entropy_ratio`. NaN and None are
            no evidence; other names are left alone.
        offsets: The histogram of `self(i) - argmax` per head, counts or shares `[heads, 18]`: -8..8, then all others.
        spread: The spread of any of them over texts, per head; it is told with the evidence.
        thresholds: From where on a head has a role.

    Returns:
        For each head its roles: "mixed" alone where there is evidence and none is enough, nothing where there is none.
        `positional(d)` looks d tokens on from the own position: `positional(-1)` at the previous token.

    Raises:
        ValueError: Columns of different lengths, or a histogram of other bins.
    """
    limits = thresholds or Thresholds()
    columns = {name: evidence[name] for name in _RULES if name in evidence}
    lengths = {len(column) for column in columns.values()} | ({len(offsets)} if offsets is not None else set())
    if len(lengths) > 1:
        raise ValueError(f"roles: expected a number for each head in every column; got lengths {sorted(lengths)}")
    found = []
    for head in range(next(iter(lengths), 0)):
        labels, known = [], False
        if offsets is not None:
            place = _fixed_offset(offsets[head])
            known = place is not None
            if place is not None and place[1] >= limits.positional:
                labels.append(_positional(*place, limits.positional))
        for name, column in columns.items():
            value = _number(column[head])
            if value is None:
                continue
            known = True
            label, words, field = _RULES[name]
            limit = float(getattr(limits, field))
            if value > limit:
                around = _number(spread[name][head]) if spread and name in spread else None
                over = "" if around is None else f" ± {around:.2g} over texts"
                labels.append(Role(label, f"{words} {value:.{_digits(value)}g}{over} (> {limit:g})", value, around))
        if known and not labels:
            tested = [_RULES[name][0] for name in columns if _number(columns[name][head]) is not None]
            tested = [*(["positional"] if offsets is not None else []), *tested]
            labels.append(Role("mixed", f"none of {', '.join(tested)} is above its threshold"))
        found.append(tuple(labels))
    return found


def _fixed_offset(histogram: Sequence[float]) -> tuple[int, float] | None:
    """The commonest offset `argmax - self(i)` among those counted one by one, and its share of all rows."""
    counts = [float(count) for count in histogram]
    if len(counts) != len(OFFSETS) + 1:
        raise ValueError(f"roles: expected {len(OFFSETS) + 1} bins of offsets; got {len(counts)}")
    total = math.fsum(counts)
    if not total > 0:  # NaN too
        return None
    most = max(range(len(OFFSETS)), key=lambda i: counts[i])
    return -OFFSETS[most], counts[most] / total


def _positional(delta: int, share: float, limit: float) -> Role:
    where = {0: "at the own position", -1: "at the previous token", 1: "at the next token"}
    words = where.get(delta, f"{abs(delta)} tokens {'before' if delta < 0 else 'after'} the own position")
    label = f"positional({delta:+d})" if delta else "positional(0)"
    shown = share if share == 1 else min(share, 0.999)  # "100.0%" is all of them
    return Role(label, f"largest weight {words} in {shown:.1%} of rows (>= {limit:.0%})", share)


def _digits(share: float) -> int:
    """As many as do not make 1 of what is below it."""
    return 6 if share < 1 <= float(f"{share:.3g}") else 3


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
