"""A profile as a plain dictionary, ready for JSON: what the page's script and template read."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headwise.measures.catalogue import KEY_MEASURES, Measure
from headwise.profile.numbers import is_share
from headwise.report.keys import key_data
from headwise.report.labels import label_data
from headwise.report.pairs import pair_data
from headwise.report.places import numbers, rounded
from headwise.report.roles import role_data
from headwise.report.text import plain, shown_token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pandas import DataFrame

    from headwise.profile import Profile
    from headwise.profile.highlights import Highlight

__all__ = ["payload", "plain"]

STATISTICS = {"mean": "", "std": "_std", "se": "_se", "min": "_min", "max": "_max"}
"""What is kept of each measure, and its column's suffix; "mean" holds the maximum of `max_score`."""
KEYS = tuple(measure.name for measure in KEY_MEASURES)
COUNTS = ("rows", "masked_rows", "padded_rows", "nonfinite_rows")
TOKENS_SHOWN = 200
EMBEDDED = 250_000
"""Numbers of heads that a page holds, about 2 MB; of more heads only statistics of `FEWER`, and their digits."""
FEWER = {"mean": 4, "se": 2}

_LABEL = re.compile(r"\bL\d+H\d+\b")


def payload(profile: Profile) -> dict[str, Any]:
    """Everything the page shows.

    Columns are lists, one entry per row of `profile.table()`, in its order. NaN and infinities are None.

    Args:
        profile: The profile to show.

    Returns:
        A dictionary of strings, finite numbers, None, lists and dictionaries.
    """
    table = profile.table().reset_index(drop=True)
    measures = [name for name in (*profile.measures, *KEYS) if name in table]
    names = {int(layer): plain(name) for layer, name in zip(table["layer"], table["name"], strict=True)}
    many = len(table) * len(measures) * len(STATISTICS) > EMBEDDED
    statistics = {key: suffix for key, suffix in STATISTICS.items() if not many or key in FEWER}
    pairs = pair_data(profile, names)
    labels, labels_left_out = label_data(profile, table, measures, statistics)
    by, groups, group = _groups(table)
    return {
        "info": {str(key): _plain(value) for key, value in profile.info.items()},
        "summary": _summary(profile, table),
        "measures": [_measure(profile.entry(name)) for name in measures],
        "layers": [_plain(asdict(layer)) for layer in profile.layers],
        "by": by,
        "groups": groups,
        "heads": {
            "group": group,
            **{name: [plain(value) for value in table[name].tolist()] for name in ("label", "phase", "kind")},
            **{name: [int(n) for n in table[name]] for name in ("layer", "head", "call", "kv_head", *COUNTS)},
        },
        "names": {str(layer): name for layer, name in names.items()},
        "values": {
            name: {
                key: numbers(table[name + suffix], FEWER[key] if many else 6)
                for key, suffix in statistics.items()
                if name + suffix in table
            }
            for name in measures
        },
        "highlights": [_highlight(one) for one in profile.highlights()],
        "unseen": [_plain(asdict(one)) for one in profile.unseen],
        "notes": [plain(note) for note in profile.notes],
        "roles": role_data(profile, table),
        "pairs": pairs,
        "keys": key_data(profile, table),
        "labels": labels,
        "left_out": _left_out(many, pairs, labels_left_out),
        **_tokens(profile),
    }


def _left_out(many: bool, pairs: dict[str, Any] | None, labels: list[str]) -> list[str]:
    """What is too much for a page, and where it is to be had."""
    said = []
    if many:
        said.append("the standard deviation, the least and the largest row of each head (profile.table() has them)")
    if pairs and pairs["no_errors"]:
        said.append("the errors of all but the most alike pairs (profile.pairs(name) has them)")
    if pairs and pairs["left_out"]:
        names = ", ".join(pairs["left_out"])
        said.append(f"all but the most alike pairs by {names} (profile.pairs(name) has them)")
    if labels:
        more = f" and {len(labels) - 5:,} more" if len(labels) > 5 else ""
        said.append(f"the rows of the labels {', '.join(labels[:5])}{more} (profile.table(group=...) has them)")
    return said


def _plain(value: Any) -> Any:
    """`value` with every string shown plainly and every number finite or None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return rounded(value)
    return value if value is None or isinstance(value, bool | int) else plain(value)


def _measure(measure: Measure) -> dict[str, Any]:
    """The catalogue's entry; `fixed` says that the range is 0 to 1 for every head."""
    return {**asdict(measure), "fixed": is_share(measure)}


def _groups(table: DataFrame) -> tuple[list[str], list[str], list[int]]:
    """The views in which a head label is unambiguous.

    A model whose layers differ in kind still is one view; a head seen in prefill and in decode makes two.

    Returns:
        The columns that tell the views apart, each view's name, and the view of each row.
    """
    repeats = table.groupby("label", sort=False)
    by = [c for c in ("phase", "kind", "call") if len(table) and int(repeats[c].nunique().max()) > 1]
    keys = list(zip(*(table[column] for column in by), strict=True)) if by else [()] * len(table)
    order = list(dict.fromkeys(keys))
    names = []
    for key in order:
        parts = [f"call {value}" if column == "call" else str(value) for column, value in zip(by, key, strict=True)]
        names.append(plain(", ".join(parts)) or "all")
    return by, names, [order.index(key) for key in keys]


def _summary(profile: Profile, table: DataFrame) -> dict[str, Any]:
    """What was measured, in numbers."""
    heads = table.groupby("layer")["head"].nunique().tolist()
    rows = table.groupby("label")["rows"].sum().tolist()
    verified = profile.verified
    return {
        "layers": len(heads),
        "heads_per_layer": [min(heads, default=0), max(heads, default=0)],
        "heads": sum(heads),
        "rows": [int(min(rows, default=0)), int(max(rows, default=0))],
        "sequences": profile.num_sequences,
        "verified": None if verified is None else _plain(float(verified)),
        "verified_limit": profile.bound,
        "compared": verified is not None,
        "not_verifiable": sum(layer.not_verifiable for layer in profile.layers),
        "counts": {name: _counts(table, name) for name in COUNTS[1:]},
    }


def _counts(table: DataFrame, column: str) -> dict[str, Any]:
    """How many rows were set aside: the largest number for one head, and the layers where it happens."""
    per_head = table.groupby(["layer", "head"])[column].sum()
    per_layer = per_head.groupby(level="layer").max()
    layers = [int(layer) for layer in per_layer.index[per_layer > 0]]
    return {"most": int(per_layer.max()) if layers else 0, "layers": layers}


def _highlight(highlight: Highlight) -> dict[str, Any]:
    """A highlight whose sentence is cut where it names a head, so that the name can be a link to its row."""
    sentence, end = highlight.sentence, 0
    parts: list[dict[str, Any]] = []
    waiting = list(zip(highlight.heads, highlight.places, strict=False))
    for match in _LABEL.finditer(sentence):
        if not waiting or waiting[0][0] != match.group():
            continue
        parts += [{"text": plain(sentence[end : match.start()])}]
        parts += [{"text": match.group(), "row": waiting.pop(0)[1]}]
        end = match.end()
    parts.append({"text": plain(sentence[end:])})
    return {
        "measure": highlight.measure,
        "title": highlight.title,
        "sentence": plain(sentence),
        "parts": [part for part in parts if part["text"]],
    }


def _tokens(profile: Profile) -> dict[str, Any]:
    """The beginning of the first recorded text that has tokens."""
    texts: Sequence[list[str]] = [sequence.tokens for sequence in profile.sequences if sequence.tokens]
    tokens = texts[0] if texts else []
    return {
        "tokens": [shown_token(token) for token in tokens[:TOKENS_SHOWN]],
        "tokens_in_all": len(tokens),
    }
