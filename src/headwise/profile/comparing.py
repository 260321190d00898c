"""Comparing two profiles head by head: before and after training, two texts, two precisions, two head counts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from headwise.errors import shown
from headwise.measures.catalogue import KEY_MEASURES, PAIR_MEASURES
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

    Matched = list[tuple[int, int, float]]
    from headwise.profile.records import Group

CORRECTED_OVER = ("all", "heads")
SUMMARIES = ("mean", "least", "most")
KEYS = tuple(measure.name for measure in KEY_MEASURES)
PAIRS = tuple(measure.name for measure in PAIR_MEASURES)
TOTALS = (*KEYS, *PAIRS)
"""What is kept as sums over all sequences, not of each: it is compared when asked for, unpaired."""


def compare(
    a: Profile,
    b: Profile,
    *,
    match: str = "place",
    measures: Iterable[str] | None = None,
    layers: int | str | Iterable[int | str] | None = None,
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
        measures: Names of the measures to compare; None: those with a value per row that both profiles hold.
            "alpha_first" and the measures between heads (bc, hellinger, js, output_similarity) are compared when named
            here: unpaired, as their sums are not kept for single sequences; a pair of heads has a row "L0H1/L0H3".
        layers: Compare only this one, or these: layer numbers, or module paths (a path takes in everything below it).
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
            raise ValueError(f"compare: {name}: expected one of {', '.join(map(repr, choices))}; got {shown(value)}")
    if similarity is not None and match != "pattern":
        raise ValueError(f'compare: similarity= is for match="pattern"; got match={shown(match)}')
    of, notes = _measures(a, b, measures)
    pairs = matched_layers(a, b, layers, match)
    heads = by_pattern(pairs, similarity) if match == "pattern" else None
    common, *alone = matched_groups(a, b, [x.layer for x, _ in pairs])
    notes += [f"only {name} has {_groups(groups)}" for name, groups in zip("ab", alone, strict=True) if groups]
    if heads is not None:
        for x, y in pairs:
            left = [_left(name, x.layer, n, {p[i] for p in heads[x.layer]}) for i, name, n in _ends(x, y)]
            notes += [note for note in left if note]
    by_row, totals = [name for name in of if name not in TOTALS], [name for name in of if name in TOTALS]
    tables, found, sequences = [], [], [0, 0]
    lacking: dict[str, list[Group]] = {}
    names = {x.layer: x.name for x, _ in pairs}
    for group in common:
        one = None if heads is None else heads[group.layer]
        name = names[group.layer]
        if by_row:
            maxima = [measure for measure in by_row if a.entry(measure).summary == "max"]
            sides = [differences.side_of(profile.groups[group], profile.measures, by_row, maxima) for profile in (a, b)]
            table, difference = _table(group, name, sides, by_row, match, one)
            tables.append(table)
            found.append(difference)
        for measure in totals:
            tables.append(_of_totals(group, name, (a, b), measure, match, one))
            if not len(tables[-1]):
                lacking.setdefault(measure, []).append(group)
        sequences = [max(n, _sequences(profile, group)) for n, profile in zip(sequences, (a, b), strict=True)]
    if not sum(map(len, tables)):
        raise ValueError(
            f"compare: measures: {', '.join(of)} need two heads in a layer, recorded in the same calls of both profiles"
        )
    notes += [f"{measure}: nothing to compare in {_groups(groups)}" for measure, groups in lacking.items()]
    if by_row and totals:
        notes.append(f"{', '.join(totals)}: not paired, as no sums of single sequences are kept of them")
    return Comparison(
        _corrected(tables, correct_over),
        match=match,
        correct_over=correct_over,
        sequences=(sequences[0], sequences[1]),
        pairing=_pairing(a, b, found) if found else f"not paired: {differences.NO_TOTALS_BY_SEQUENCE}",
        notes=notes,
        infos=(dict(a.info), dict(b.info)),
    )


def _measures(a: Profile, b: Profile, wanted: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """The measures to compare, and a note on those that only one profile has."""
    common = [name for name in a.measures if name in b.measures]
    totals = [name for name in TOTALS if _holds(a, name) and _holds(b, name)]
    if wanted is None:
        if not common:
            raise ValueError(
                f"compare: the profiles have no measure in common; a has {', '.join(a.measures) or 'none'}, "
                f"b has {', '.join(b.measures) or 'none'} (measures with a value per row)"
                + (f"; measures= may name {', '.join(totals)}" if totals else "")
            )
        alone = [
            f"only {name} has the measures {', '.join(left)}"
            for name, profile in (("a", a), ("b", b))
            if (left := [measure for measure in profile.measures if measure not in common])
        ]
        return common, alone
    asked = [wanted] if isinstance(wanted, str) else list(wanted)
    missing = [name for name in asked if name not in common + totals]
    if missing or not asked:
        came = ", ".join(map(shown, missing)) or "an empty list"
        known = ", ".join(common + totals) or "none"
        unrecorded = [name for name in missing if name in TOTALS]
        way_out = f'; watch both with measures=["{unrecorded[0]}"] or "all" to compare it' if unrecorded else ""
        raise ValueError(f"compare: measures: expected names among {known}; got {came}{way_out}")
    return [name for name in common + totals if name in asked], []


def _holds(profile: Profile, measure: str) -> bool:
    """Whether a profile has sums of what keys receive, or of pairs of heads."""
    return bool(profile.key_totals if measure in KEYS else profile.pair_totals)


def _of_totals(
    group: Group, name: str, profiles: tuple[Profile, Profile], measure: str, match: str, heads: Matched | None
) -> pd.DataFrame:
    """A row for each head, or each two heads, of one group: what keys receive, or how alike pairs are."""
    import pandas as pd

    kept = [(p.key_totals if measure in KEYS else p.pair_totals).get(group) for p in profiles]
    if kept[0] is None or kept[1] is None:
        return pd.DataFrame()
    closed = [totals.closed() for totals in kept if totals is not None]
    if measure in KEYS:
        sides = [differences.side_of_totals(totals, range(len(totals.arrays["n"])), 0) for totals in closed]
        return _table(group, name, sides, [measure], match, heads)[0]
    k = PAIRS.index(measure)
    H = [totals.arrays["n"].shape[-1] for totals in closed]
    order = [(i, i) for i in range(H[0])] if heads is None else [(i, j) for i, j, _ in heads]
    matched = [(p, q) for n, p in enumerate(order) for q in order[n + 1 :]]
    if match == "layer":
        chosen = [[(i, j) for i in range(n) for j in range(i + 1, n)] for n in H]
    else:
        chosen = [[(p[side], q[side]) for p, q in matched] for side in (0, 1)]
    if not all(chosen):
        return pd.DataFrame()
    sides = [
        differences.side_of_totals(totals, k, [i for i, _ in two], [j for _, j in two])
        for totals, two in zip(closed, chosen, strict=True)
    ]
    if match == "layer":
        return _table(group, name, sides, [measure], match, None)[0]
    labels = [f"L{group.layer}H{i}/L{group.layer}H{j}" for i, j in chosen[0]]
    units, others = ([f"H{i}/H{j}" for i, j in two] for two in chosen)
    found = differences.difference(*sides)
    return _frame(group, name, sides, found, [measure], labels, units, others, found.note)


def _table(
    group: Group, name: str, sides: list[Side], of: list[str], match: str, pairs: Matched | None
) -> tuple[pd.DataFrame, Difference]:
    """A row for each measure and head of one group."""
    import numpy as np

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
    return _frame(group, name, [a, b], found, of, labels, units, others, note), found


def _frame(
    group: Group,
    name: str,
    sides: list[Side],
    found: Difference,
    of: list[str],
    labels: list[str],
    units: list[int] | list[str],
    others: list[int] | list[str],
    note: NDArray[np.object_],
) -> pd.DataFrame:
    """Differences of K measures `of` and X heads (or summaries, or pairs) as rows, measure by measure."""
    import numpy as np
    import pandas as pd

    K = len(of)
    numbers = {"a": sides[0].value, "b": sides[1].value}
    numbers |= {n: getattr(found, n) for n in ("difference", "size", "se", "t", "df", "p")}
    columns: dict[str, Any] = {
        "layer": group.layer,
        "head": units * K,
        "label": labels * K,
        "head_b": others * K,
        "name": name,
        "call": group.call,
        "phase": group.phase,
        "kind": group.kind,
        "measure": np.repeat(of, len(labels)),
        **{column: array.ravel() for column, array in numbers.items()},
        "p_holm": np.nan,
        "p_fdr": np.nan,
        "paired": found.pairing == differences.PAIRED,
        "note": note.ravel(),
    }
    return pd.DataFrame(columns)


def _corrected(tables: list[pd.DataFrame], correct_over: str) -> pd.DataFrame:
    import pandas as pd

    table = pd.concat([table for table in tables if len(table)], ignore_index=True)
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
    kept = [profile.groups[group].closed().arrays["sequences"]]
    kept += [of[group].closed().arrays["sequences"] for of in (profile.key_totals, profile.pair_totals) if group in of]
    return max(int(array.max(initial=0)) for array in kept)


def _groups(groups: list[Group]) -> str:
    texts = [f"L{g.layer} {g.phase} {g.kind}" + (f" (call {g.call})" if g.call else "") for g in groups]
    return ", ".join(texts[:6]) + (f" and {len(texts) - 6} more" if len(texts) > 6 else "")


def _ends(x: Any, y: Any) -> list[tuple[int, str, int]]:
    return [(0, "a", x.num_heads), (1, "b", y.num_heads)]


def _left(name: str, layer: int, heads: int, used: set[Any]) -> str:
    """A note on the heads of a layer that have no partner."""
    left = [f"L{layer}H{head}" for head in range(heads) if head not in used]
    return f"no partner for {', '.join(left)} of {name}" if left else ""
