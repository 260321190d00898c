"""Reading what was kept: which calls hold a head of a sequence, and the texts of its rows and keys."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from numbers import Integral
from operator import index
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from headwise.errors import shown
from headwise.profile.kept import size_text
from headwise.profile.sequences import KEPT_SEQUENCES

if TYPE_CHECKING:
    from headwise.profile.kept import Kept, KeptCall
    from headwise.profile.records import Layer, Sequence

MOST_BYTES = 256 * 10**6

Head: TypeAlias = str | tuple[int, int]
Rows: TypeAlias = slice | int | Many[int] | None


class Holder(Protocol):
    """What is read of a profile."""

    kept: Kept | None

    @property
    def layers(self) -> list[Layer]:
        """Its layers."""

    @property
    def sequences(self) -> list[Sequence]:
        """The first sequences that were read."""

    @property
    def num_sequences(self) -> int:
        """How many were read."""


@dataclass(frozen=True)
class Place:
    """One sequence of a kept call: row `row` of its batch."""

    call: KeptCall
    row: int

    @property
    def num_rows(self) -> int:
        """Queries N."""
        return int(self.call.q.array.shape[2])


@dataclass(frozen=True)
class Looked:
    """A head in one sequence: all its rows, those of later calls (decoding) after those of earlier ones.

    Attributes:
        kept: What was kept.
        places: The calls that hold its rows, in order.
        head: The head's number in its layer.
        sequence: The sequence.
        first: The call that began the text, for the texts of its keys; None where it was not kept.
    """

    kept: Kept
    places: list[Place]
    head: int
    sequence: int
    first: Place | None

    @property
    def num_rows(self) -> int:
        """Rows of all its calls."""
        return sum(place.num_rows for place in self.places)

    @property
    def num_keys(self) -> int:
        """Keys of the call that has the most, M."""
        return max(place.call.num_keys for place in self.places)


def head_weights(profile: Holder, head: Head, rows: Rows, sequence: int, call: int, phase: str | None) -> Any:
    """See `Profile.weights`."""
    from headwise.capture.kept_heads import bounds_of, own_keys, weights

    looked = look(profile, "weights", head, sequence, call, phase)
    numbers = chosen(looked, "weights", rows)
    size = len(numbers) * looked.num_keys * (8 if looked.places[0].call.q.dtype == "float64" else 4)
    if rows is None and size > MOST_BYTES:
        raise ValueError(
            f"weights: all {looked.num_rows:,} rows over {looked.num_keys:,} keys would take {size_text(size)}, more "
            f"than {size_text(MOST_BYTES)}; give rows=, as in rows=slice(0, 64), or use map()"
        )
    found: Any = weights(looked, numbers)
    found.tokens = key_texts(profile, looked, bounds_of(looked))
    own = own_keys(looked)
    found.query_tokens = [str(row) if (at := own[row]) is None else found.tokens[at] for row in numbers]
    return found


def head_output(profile: Holder, head: Head, rows: Rows, sequence: int, call: int, phase: str | None) -> Any:
    """See `Profile.output`."""
    from headwise.capture.kept_heads import output

    looked = look(profile, "output", head, sequence, call, phase)
    if not all(looked.kept.keys[place.call.keys].v for place in looked.places):
        raise ValueError('output: values were not kept; watch with keep="qkv"')
    return output(looked, chosen(looked, "output", rows))


def head_map(
    profile: Holder, head: Head, size: int | tuple[int, int], how: str, sequence: int, call: int, phase: str | None
) -> Any:
    """See `Profile.map`."""
    from headwise.capture.kept_heads import pooled

    most = (size, size) if isinstance(size, Integral) else size
    if not (isinstance(most, tuple) and len(most) == 2 and all(isinstance(one, Integral) for one in most)):
        raise ValueError(f"map: size: expected a whole number of rows and columns, or two; got {shown(size)}")
    return pooled(look(profile, "map", head, sequence, call, phase), most, how)


def look(profile: Holder, method: str, head: Head, sequence: int, call: int, phase: str | None) -> Looked:
    """Find what was kept of a head in one sequence.

    Raises:
        ValueError: Nothing was kept, or nothing of this head, sequence, call or phase.
    """
    if profile.kept is None:
        raise ValueError(f'{method}: nothing was kept to compute weights from; watch with keep="qk"')
    if phase not in (None, "prefill", "decode"):
        raise ValueError(f"{method}: expected phase 'prefill' or 'decode', or None; got {shown(phase)}")
    layer, number = parse_head(profile, method, head)
    kept = profile.kept
    held = [one for one in kept.calls if (one.group.layer, one.group.call) == (layer, call)]
    places = [Place(one, row) for one in held for row in rows_of(one, sequence)]
    for wanted in ("prefill", "decode") if phase is None else (phase,):
        found = [place for place in places if place.call.group.phase == wanted]
        if found:
            kind = found[0].call.group.kind
            found = [place for place in found if place.call.group.kind == kind]
            return Looked(kept, found, number, sequence, _beginning(places, kind))
    raise _missing(profile, method, layer, number, sequence, call, phase)


def rows_of(call: KeptCall, sequence: int) -> list[int]:
    """The rows of a call's batch that belong to a sequence: of a decoding step the first alone (of several beams)."""
    rows = [row for row, number in enumerate(call.sequences) if number == sequence]
    return rows[:1] if call.group.phase == "decode" else rows


def parse_head(profile: Holder, method: str, head: Head) -> tuple[int, int]:
    """Layer and head of "L3H5" or (3, 5).

    Raises:
        ValueError: It is neither, or the profile has no such head.
    """
    pair: tuple[int, int] | None = None
    if isinstance(head, str):
        named = re.fullmatch(r"L(\d+)H(\d+)", head.strip())
        pair = None if named is None else (int(named[1]), int(named[2]))
    elif isinstance(head, tuple | list) and len(head) == 2 and all(hasattr(one, "__index__") for one in head):
        pair = index(head[0]), index(head[1])
    heads = {layer.layer: layer.num_heads for layer in profile.layers}
    if pair is None or not 0 <= pair[1] < heads.get(pair[0], 0):
        there = f"L{min(heads)}H0 to L{max(heads)}H{heads[max(heads)] - 1}" if heads else "none: no layer was caught"
        raise ValueError(f"{method}: expected a head as 'L3H5' or (3, 5), of {there}; got {shown(head)}")
    return pair


def chosen(looked: Looked, method: str, rows: Rows) -> list[int]:
    """The numbers of rows that are asked for; negative ones count from the end.

    Raises:
        ValueError: A row that is not there, or no numbers.
    """
    whole = range(looked.num_rows)
    if rows is None or isinstance(rows, slice):
        return list(whole if rows is None else whole[rows])
    try:
        asked = [index(row) for row in rows] if isinstance(rows, Iterable) else [index(rows)]
    except TypeError:
        raise ValueError(f"{method}: rows: expected a slice, an int, or a list of ints; got {shown(rows)}") from None
    wrong = [row for row in asked if not -len(whole) <= row < len(whole)]
    if wrong:
        group = looked.places[0].call.group
        missing = looked.kept.dropped.get(group, 0)
        more = f" ({missing:,} later calls of the layer were dropped: keep_limit was reached)" if missing else ""
        raise ValueError(
            f"{method}: rows: expected numbers from 0 to {len(whole) - 1} ({group.phase}); got {wrong[0]}{more}"
        )
    return [row % len(whole) for row in asked]


def key_texts(profile: Holder, looked: Looked, bounds: tuple[list[int], list[bool]]) -> list[str]:
    """The text of each key: its token, its position where that is not known, "" where it is padding.

    Args:
        profile: The profile.
        looked: The head.
        bounds: The real keys of the call that began the text, by number; and for each key whether a row may see it.
    """
    real, seen = bounds
    texts = _texts_of(profile, looked)
    if texts is not None and len(texts) == looked.num_keys != len(real):
        return list(texts)  # given as they stand, padding too
    tokens: dict[int, str] = {}
    if texts is not None and _length_of(profile, looked.sequence) == len(real):
        tokens = dict(zip(real, texts, strict=False))
    began = looked.first.call.num_keys if looked.first else 0
    known = set(real)
    return [
        tokens.get(j, str(j)) if j in known or seen[j] or j >= began else "" for j in range(looked.num_keys)
    ]  # fmt: skip


def _beginning(places: list[Place], kind: str) -> Place | None:
    """The call that began the text; None where it was not kept, or a sequence lies in several rows (windows)."""
    first = [place for place in places if place.call.group.phase == "prefill" and place.call.group.kind == kind]
    if not first or sum(place.call is first[0].call for place in first) > 1:
        return None
    return first[0]


def _texts_of(profile: Holder, looked: Looked) -> list[str] | None:
    if looked.first is None or not looked.first.call.of_text:
        return None
    known = profile.sequences
    # Where some sequences have no text, those that have one cannot be told.
    if looked.sequence >= len(known) or len(known) < min(profile.num_sequences, KEPT_SEQUENCES):
        return None
    return known[looked.sequence].tokens


def _length_of(profile: Holder, sequence: int) -> int:
    return profile.sequences[sequence].length


def _missing(
    profile: Holder, method: str, layer: int, head: int, sequence: int, call: int, phase: str | None
) -> ValueError:
    """Why nothing is there."""
    kept = profile.kept
    assert kept is not None
    name = f"L{layer}H{head}"
    of_layer = [one for one in kept.calls if one.group.layer == layer]
    dropped = any(
        (group.layer, group.call) == (layer, call) and phase in (None, group.phase) for group in kept.dropped
    )  # fmt: skip
    if dropped and 0 <= sequence < profile.num_sequences:
        return ValueError(
            f"{method}: {name} in sequence {sequence} was dropped: keep_limit of {size_text(kept.limit)} was reached; "
            "watch with a larger keep_limit=, or fewer layers="
        )
    read = {number for one in of_layer for number in one.sequences}
    if read and sequence not in read:
        return ValueError(
            f"{method}: expected a sequence of {name} that was kept, {_spans(sorted(read))}; got {sequence}"
        )
    there = sorted({f"call {one.group.call} in {one.group.phase}" for one in of_layer})
    asked = f"call {call}" + (f" in {phase}" if phase else "")
    return ValueError(f"{method}: {name} has no {asked}; kept is {', '.join(there) or 'nothing of this layer'}")


def _spans(numbers: list[int]) -> str:
    """Numbers in ascending order as spans: "0 to 3, 5"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first} to {last}" if first != last else str(first) for first, last in spans)
