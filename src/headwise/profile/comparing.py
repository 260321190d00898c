"""Comparing two profiles head by head: before and after training, two texts, two precisions, two head counts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from headwise.profile import differences
from headwise.profile.comparisons import Comparison
from headwise.profile.matching import MATCHES, by_pattern, matched_groups, matched_layers
from headwise.profile.profiles import Profile
from headwise.profile.significance import fdr, holm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from headwise.profile.differences import Difference, Side
    from headwise.profile.records import Group

CORRECTED_OVER = ("all", "heads")
SUMMARIES = ("mean", "least", "most")


def compare(
    a: Profile,
    b: Profile,
    *,
    match: str = "place",
    measures: Iterable[str] | None = None,
    layers: Iterable[int | str] | None = None,
    similarity: Mapping[int, NDArray[np.float64]] | None = None,
    correct_over: str = "all",
) -> Comparison:
    """What the heads of one profile do more or less than those of another, and which differences are beyond chance.

        before, after = headwise.load("before.headwise"), headwise.load("after.headwise")
        headwise.compare(before, after).significant()

    Each difference is b - a, with its standard error clustered by sequence: paired where both profiles read the same
    token ids, else from two independent samples. P-values are of Student's t, corrected for the number of tests
    (Holm, and the false discovery rate of Benjamini and Hochberg). `headwise.profile.differences` has the formulas.

    Args:
        a: One profile.
        b: The other.
        match: Which heads are compared. "place": those of the same layer and number. "pattern": those whose patterns
            are most alike, one to one within each layer, by `similarity`. "layer": no single heads, but the mean, the
            least and the most over the heads of each layer; head counts may differ.
        measures: Names of the measures to compare; None: those that both profiles hold.
        layers: Compare only these: layer numbers, or module paths (a path takes in everything below it).
        similarity: For match="pattern", by layer number the matrix `[H_a, H_b]` of bc (0..1, 1 = same pattern) between
            the heads of a and of b on the same text.
        correct_over: What p-values are corrected for. "all": every head and measure that is compared, so that
            the chance of any false finding in the whole comparison is bounded. "heads": the heads within each measure,
            for a question about one measure that was asked beforehand.

    Raises:
        TypeError: `a` or `b` is no profile.
        ValueError: The two cannot be compared so; the message says what can be.
    """
    for name, profile in (("a", a), ("b", b)):
        if not isinstance(profile, Profile):
            raise TypeError(f"compare: {name} must be a headwise.Profile; got {type(profile).__name__}")
    for name, value, choices in (("match", match, MATCHES), ("correct_over", correct_over, CORRECTED_OVER)):
        if value not in choices:
            raise ValueError(f"compare: {name}: expected one of {', '.join(map(repr, choices))}; got {value!r}")
    if similarity is not None and match != "pattern":
        raise ValueError(f'compare: similarity= is for match="pattern"; got match={match!r}')
    of, notes = _measures(a, b, measures)
    pairs = matched_layers(a, b, layers, match)
    heads = by_pattern(pairs, similarity) if match == "pattern" else None
    common, *alone = matched_groups(a, b, [x.layer for x, _ in pairs])
    notes += [f"only {name} has {_groups(groups)}" for name, groups in zip("ab", alone, strict=True) if groups]
    if heads is not None:
        for x, y in pairs:
            left = [_left(name, x.layer, n, {p[i] for p in heads[x.layer]}) for i, name, n in _ends(x, y)]
            notes += [note for note in left if note]
    tables, found, sequences = [], [], [0, 0]
    names = {x.layer: x.name for x, _ in pairs}
    for group in common:
        maxima = [name for name in of if a.entry(name).summary == "max"]
        sides = [differences.side_of(profile.groups[group], profile.measures, of, maxima) for profile in (a, b)]
        sequences = [max(n, _sequences(profile, group)) for n, profile in zip(sequences, (a, b), strict=True)]
        one = None if heads is None else heads[group.layer]
        table, difference = _table(group, names[group.layer], sides, of, match, one)
        tables.append(table)
        found.append(difference)
    return Comparison(
        _corrected(tables, correct_over),
        match=match,
        correct_over=correct_over,
        sequences=(sequences[0], sequences[1]),
        pairing=_pairing(a, b, found),
        notes=notes,
        infos=(dict(a.info), dict(b.info)),
    )


def _measures(a: Profile, b: Profile, wanted: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """The measures to compare, and a note on those that only one profile has."""
    common = [name for name in a.measures if name in b.measures]
    if wanted is None:
        if not common:
            raise ValueError(
                f"compare: the profiles have no measure in common; a has {', '.join(a.measures) or 'none'}, "
                f"b has {', '.join(b.measures) or 'none'} (only measures with a value per row can be compared)"
            )
        alone = [
            f"only {name} has the measures {', '.join(left)}"
            for name, profile in (("a", a), ("b", b))
            if (left := [measure for measure in profile.measures if measure not in common])
        ]
        return common, alone
    asked = [wanted] if isinstance(wanted, str) else list(wanted)
    missing = [name for name in asked if name not in common]
    if missing or not asked:
        came = ", ".join(map(repr, missing)) or "an empty list"
        raise ValueError(f"compare: measures: expected names among {', '.join(common) or 'none'}; got {came}")
    return [name for name in common if name in asked], []


def _table(
    group: Group, name: str, sides: list[Side], of: list[str], match: str, pairs: list[tuple[int, int, float]] | None
) -> tuple[pd.DataFrame, Difference]:
    """A row for each measure and head of one group."""
    import numpy as np
    import pandas as pd

    a, b = sides
    units: list[int] | list[str]
    others: list[int] | list[str]
    if match == "layer":
        a, b = a.over_heads(), b.over_heads()
        units = others = list(SUMMARIES)
        labels = [f"L{group.layer} {summary}" for summary in SUMMARIES]
    else:
        if pairs is not None:
            a, b = a.heads([i for i, _, _ in pairs]), b.heads([j for _, j, _ in pairs])
        units = list(range(a.value.shape[1])) if pairs is None else [i for i, _, _ in pairs]
        others = units if pairs is None else [j for _, j, _ in pairs]
        labels = [f"L{group.layer}H{head}" for head in units]
    found = differences.difference(a, b)
    note = found.note
    if pairs is not None:
        matched = np.array([f"bc {bc:.3f}" for _, _, bc in pairs], dtype=object)
        note = np.where(note == "", matched, note + ("; " + matched))
    elif found.pairing == differences.PARTLY:
        note = np.where(note == "", f"{found.shared} texts are in both profiles", note)
    K, X = a.value.shape
    numbers = {
        "a": a.value,
        "b": b.value,
        **{n: getattr(found, n) for n in ("difference", "size", "se", "t", "df", "p")},
    }
    columns: dict[str, Any] = {
        "layer": group.layer,
        "head": units * K,
        "label": labels * K,
        "head_b": others * K,
        "name": name,
        "call": group.call,
        "phase": group.phase,
        "kind": group.kind,
        "measure": np.repeat(of, X),
        **{column: array.ravel() for column, array in numbers.items()},
        "p_holm": np.nan,
        "p_fdr": np.nan,
        "paired": found.pairing == differences.PAIRED,
        "note": note.ravel(),
    }
    return pd.DataFrame(columns), found


def _corrected(tables: list[pd.DataFrame], correct_over: str) -> pd.DataFrame:
    import pandas as pd

    table = pd.concat(tables, ignore_index=True)
    families = [table.index] if correct_over == "all" else [rows.index for _, rows in table.groupby("measure")]
    for family in families:
        p = table.loc[family, "p"].to_numpy()
        table.loc[family, "p_holm"] = holm(p)
        table.loc[family, "p_fdr"] = fdr(p)
    return table


def _pairing(a: Profile, b: Profile, found: list[Difference]) -> str:
    """In words, whether sequences were paired; as most groups say."""
    counts = Counter((one.pairing, one.shared) for one in found)
    (kind, shared), number = counts.most_common(1)[0]
    reason = a.unpairable or b.unpairable or "a profile holds no sums of single sequences"
    texts = f"{shared} text{'s' if shared != 1 else ''}"
    sentence = {
        differences.PAIRED: f"paired: both profiles read the same {texts}",
        differences.PARTLY: f"paired in part: {texts} {'are' if shared != 1 else 'is'} in both profiles, "
        "the others are taken for independent",
        differences.APART: "not paired: no text is in both profiles",
        differences.UNKNOWN_TEXTS: "not paired: the models were given no token ids, so their texts are not known",
        differences.NO_SUMS: f"not paired: {reason}",
    }[kind]
    return sentence if number == len(found) else f"{sentence}; so for {number} of {len(found)} groups of calls"


def _sequences(profile: Profile, group: Group) -> int:
    return int(profile.groups[group].closed().arrays["sequences"].max(initial=0))


def _groups(groups: list[Group]) -> str:
    texts = [f"L{g.layer} {g.phase} {g.kind}" + (f" (call {g.call})" if g.call else "") for g in groups]
    return ", ".join(texts[:6]) + (f" and {len(texts) - 6} more" if len(texts) > 6 else "")


def _ends(x: Any, y: Any) -> list[tuple[int, str, int]]:
    return [(0, "a", x.num_heads), (1, "b", y.num_heads)]


def _left(name: str, layer: int, heads: int, used: set[Any]) -> str:
    """A note on the heads of a layer that have no partner."""
    left = [f"L{layer}H{head}" for head in range(heads) if head not in used]
    return f"no partner for {', '.join(left)} of {name}" if left else ""
