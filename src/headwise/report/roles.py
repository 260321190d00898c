"""The roles of heads for the page: what each role is, from where on a head has it, and each head's evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from headwise.measures.roles import Thresholds
from headwise.profile.numbers import percent, significant
from headwise.report.places import places, rounded, spread

if TYPE_CHECKING:
    from pandas import DataFrame

    from headwise.profile import Profile

HEADS_SHOWN = 12


@dataclass(frozen=True)
class Kind:
    """One role.

    Attributes:
        tag: A letter or sign for a cell of the grid.
        evidence: What a head of this role does, in words.
        threshold: The field of `Thresholds`.
        column: The table column that holds the evidence; "" for the histogram of offsets.
    """

    tag: str
    evidence: str
    threshold: str
    column: str


KINDS: dict[str, Kind] = {
    "positional": Kind("P", "share of rows whose largest weight stands at one fixed offset", "positional", ""),
    "sink": Kind("S", "weight that the first key receives from a row that may see it", "sink", "alpha_first"),
    "self": Kind("O", "mean weight on the own position", "self_focus", "self_focus"),
    "previous": Kind("←", "mean weight on the previous token", "previous", "previous"),
    "next": Kind("→", "mean weight on the next token", "next", "next"),
    "delimiter": Kind("D", "mean weight on delimiters", "delimiter", "delimiter"),
    "duplicate": Kind("U", "mean weight on earlier occurrences of the same token", "duplicate", "duplicate"),
    "induction": Kind("I", "mean weight on what followed an earlier occurrence", "induction", ""),
    "broad": Kind("B", "mean entropy ratio", "broad", "entropy_ratio"),
}
"""In the order of their tags; "mixed" has none."""


def role_data(profile: Profile, table: DataFrame) -> dict[str, Any]:
    """What the page shows of roles.

    Args:
        profile: The profile.
        table: Its table, whose rows the page counts.

    Returns:
        `kinds`: name, tag, rule and number of heads of each role that some head has, and its strongest heads;
        `of`: for each table row `[number in kinds, value, spread, offset]` of each of its roles, the offset of
        "positional" alone; `untested`: roles for which there was no evidence; `mixed`: how many heads have none.
    """
    found, limits = profile.roles(), asdict(Thresholds())
    at = {place: row for row, place in enumerate(places(table))}
    by_kind: dict[str, list[tuple[int, list[Any]]]] = {name: [] for name in KINDS}
    for place, one in zip(places(found), found.to_dict("records"), strict=True):
        name, _, offset = str(one["role"]).removesuffix(")").partition("(")
        if name in by_kind:
            held = [rounded(one["value"], 4), _spread(one["value"], one["spread"]), *([offset] if offset else [])]
            by_kind[name].append((at[place], held))
    labels = table["label"].tolist()
    kinds: list[dict[str, Any]] = []
    of: list[list[list[Any]]] = [[] for _ in range(len(table))]
    for name, heads in by_kind.items():
        if not heads:
            continue
        for row, held in heads:
            of[row].append([len(kinds), *held])
        kind, strongest = KINDS[name], sorted(heads, key=lambda pair: -pair[1][0])[:HEADS_SHOWN]
        kinds.append({
            "name": name, "tag": kind.tag, "evidence": kind.evidence, "heads": len(heads),
            "threshold": _above(name, limits[kind.threshold]),
            "strongest": [{"row": row, "label": labels[row], "says": _says(*held)} for row, held in strongest],
        })  # fmt: skip
    untested = [
        name
        for name, kind in KINDS.items()
        if name == "induction"
        or (kind.column and not table.get(kind.column, table["rows"] * float("nan")).notna().any())
    ]
    mixed = int((found["role"] == "mixed").sum())
    return {"kinds": kinds, "of": of, "untested": untested, "mixed": mixed}


def role_words(roles: dict[str, Any], row: int) -> str:
    """The roles of a table row, as in "previous, positional(-1)"."""
    named = [(roles["kinds"][k]["name"], offset) for k, _, _, *offset in roles["of"][row]]
    return ", ".join(f"{name}({offset[0]})" if offset else name for name, offset in named)


def _spread(value: float, error: float | None) -> float | int | None:
    return None if error is None else spread(value, error)


def _above(name: str, limit: float) -> str:
    return f"≥ {percent(limit)}" if name == "positional" else f"> {limit:g}"


def _says(value: float, spread: float | None, offset: str | None = None) -> str:
    """The number, its spread over sequences, and of a positional head the offset."""
    number = significant(value) if offset is None else f"{_percent(value)} at {offset}".replace("-", "\u2212")
    return number if spread is None else f"{number} ± {significant(spread, 2)}"


def _percent(share: float) -> str:
    """A share in percent with one decimal; never all or nothing where it is not."""
    text = f"{share:.1%}"
    return ">99.9%" if text == "100.0%" and share < 1 else text
