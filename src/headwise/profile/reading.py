"""The tables that a profile gives: its heads, by position and offset, what keys receive, pairs of heads, roles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from headwise.errors import shown
from headwise.measures.catalogue import OFFSETS, PAIR_MEASURES
from headwise.measures.roles import Thresholds, roles
from headwise.profile.accumulators import COUNTS
from headwise.profile.numbers import in_cell

if TYPE_CHECKING:
    import pandas as pd
    import xarray

    from headwise.profile.accumulators import Accumulator
    from headwise.profile.profiles import Profile
    from headwise.profile.records import Group, Layer

PLACE = ("call", "phase", "kind")
COLUMN_PARTS = ("", "_std", "_min", "_max", "_se")
EVIDENCE = ("self_focus", "previous", "next", "delimiter", "duplicate", "entropy_ratio", "alpha_first")
PAIRS = tuple(measure.name for measure in PAIR_MEASURES)
"""In the order in which their sums are kept."""


def heads_table(profile: Profile, label: str | None) -> pd.DataFrame:
    """See `Profile.table`."""
    import pandas as pd

    groups = profile.ordered()
    sums = profile.groups
    if label is not None:
        if not profile.labelled:
            raise ValueError("table: no groups were recorded; label sequences or tokens with watch(groups=...)")
        if label not in profile.labelled:
            raise ValueError(f"table: expected a group among {', '.join(profile.labelled)}; got {shown(label)}")
        sums = profile.labelled[label]
    layers = {layer.layer: layer for layer in profile.layers}
    parts = [_columns(profile, layers[one.layer], one, sums[one], label is None) for one in groups if one in sums]
    if parts:
        return pd.DataFrame(_joined(parts))
    place = ["layer", "head", "label", "name", *PLACE, "kv_head", *COUNTS]
    return pd.DataFrame(columns=place + [m + part for m in profile.measures for part in COLUMN_PARTS])


def text_of(profile: Profile) -> str:
    """The profile as text: its table, what was caught, and what was not."""
    table = profile.table()
    shown = [c for c in ("label", "name", "phase", "kind", "rows", *profile.measures) if c in table.columns]
    heads = sum(layer.num_heads for layer in profile.layers)
    parts = ((len(profile.layers), "attention layer"), (heads, "head"), (profile.num_sequences, "sequence"))
    notes = [", ".join(f"{count:,} {what}{'s' if count != 1 else ''}" for count, what in parts)]
    if profile.verified is not None:
        notes.append(f"verified: worst |Pv - out| = {profile.verified:.1e}")
    notes += profile.notes
    notes += [f"not measured: {u.name or 'at the root'}: {u.reason}; {u.way_out}" for u in profile.unseen]
    rows = [] if table.empty else [table[shown].to_string(index=False, float_format=in_cell)]
    return "\n".join([*rows, *notes])


def _columns(profile: Profile, layer: Layer, group: Group, accumulator: Accumulator, with_keys: bool) -> dict[str, Any]:
    """The columns of one group's heads: arrays of numbers, and lists of words."""
    import numpy as np

    sums, heads = accumulator.closed(), np.arange(layer.num_heads)
    per_kv = max(1, layer.num_heads // max(1, layer.num_kv_heads))
    columns: dict[str, Any] = {
        "layer": np.full_like(heads, group.layer),
        "head": heads,
        "label": [f"L{group.layer}H{head}" for head in heads],
        "name": [layer.name] * len(heads),
        "call": np.full_like(heads, group.call),
        "phase": [group.phase] * len(heads),
        "kind": [group.kind] * len(heads),
        "kv_head": heads // per_kv,
    }
    columns |= {name: sums.arrays["counts"][i].astype("int64") for i, name in enumerate(COUNTS)}
    of_measures = sums.columns([profile.entry(measure).summary for measure in profile.measures])
    for measure, parts in zip(profile.measures, of_measures, strict=True):
        columns |= {measure + part: values for part, values in parts.items()}
    if with_keys and group in profile.key_totals:
        keys = profile.key_totals[group].closed()
        columns |= {"alpha_first": keys.mean()[:, 0], "alpha_first_se": keys.error()[:, 0]}
    return columns


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of all groups, one under the other; NaN where a group lacks one."""
    import numpy as np

    joined: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        pieces = [part.get(name, np.full(len(part["head"]), np.nan)) for part in parts]
        words = isinstance(pieces[0], list)
        joined[name] = [word for piece in pieces for word in piece] if words else np.concatenate(pieces)
    return joined


def position_table(profile: Profile, measure: str) -> pd.DataFrame:
    """See `Profile.by_position`."""
    import pandas as pd

    groups = profile.ordered()
    if measure not in profile.measures:
        raise ValueError(f"expected a measure among {', '.join(profile.measures)}; got {shown(measure)}")
    k = profile.measures.index(measure)
    records = []
    for group in groups:
        sums = profile.groups[group]
        total, rows = sums.arrays["bin_sum"][k], sums.arrays["bin_rows"][k]
        for head, b in zip(*rows.nonzero(), strict=True):
            span = {"start": 2 ** int(b) - 1, "end": 2 ** (int(b) + 1) - 2}
            numbers = {"rows": int(rows[head, b]), "mean": float(total[head, b] / rows[head, b])}
            records.append(_head(group, int(head)) | span | numbers)
    return pd.DataFrame(records, columns=["layer", "head", "label", *PLACE, "start", "end", "rows", "mean"])


def offsets_table(profile: Profile) -> pd.DataFrame:
    """See `Profile.offsets`."""
    import pandas as pd

    names = [*map(str, OFFSETS), "other"]
    records = [
        _head(group, head) | dict(zip(names, counts.astype(int).tolist(), strict=True))
        for group in profile.ordered()
        for head, counts in enumerate(profile.groups[group].arrays["offsets"])
    ]
    return pd.DataFrame(records, columns=["layer", "head", "label", *PLACE, *names])


def _head(group: Group, head: int) -> dict[str, Any]:
    place = {"call": group.call, "phase": group.phase, "kind": group.kind}
    return {"layer": group.layer, "head": head, "label": f"L{group.layer}H{head}"} | place


def keys_table(profile: Profile) -> pd.DataFrame:
    """See `Profile.keys`."""
    import pandas as pd

    _require(profile, "key_totals", "keys", "what keys receive was", "alpha_first")
    tables = []
    for group in _recorded(profile, "key_totals"):
        totals = profile.key_totals[group].closed()
        alpha, error, count = totals.mean(), totals.error(), totals.arrays["sequences"]
        heads, positions = alpha.shape
        head = [h for h in range(heads) for _ in range(positions)]
        table = pd.DataFrame({
            "layer": group.layer, "head": head, "label": [f"L{group.layer}H{h}" for h in head],
            "call": group.call, "phase": group.phase, "kind": group.kind, "position": list(range(positions)) * heads,
            "sequences": count.ravel().astype("int64"), "alpha": alpha.ravel(), "alpha_se": error.ravel(),
        })  # fmt: skip
        tables.append(table[table["sequences"] > 0])
    return pd.concat(tables, ignore_index=True)


def sink_rate(profile: Profile, eps: float) -> float:
    """See `Profile.sink_rate`."""
    _require(profile, "key_totals", "sink_rate", "what keys receive was", "alpha_first")
    first: list[float] = [
        value
        for group in _recorded(profile, "key_totals")
        for value in profile.key_totals[group].closed().mean()[:, 0].tolist()
        if not math.isnan(value)
    ]
    return sum(value > eps for value in first) / len(first) if first else math.nan


def pairs_table(profile: Profile, measure: str) -> pd.DataFrame:
    """See `Profile.pairs`."""
    import pandas as pd

    if measure not in PAIRS:
        raise ValueError(f"pairs: expected a measure among {', '.join(PAIRS)}; got {shown(measure)}")
    _require(profile, "pair_totals", "pairs", "pairs of heads were", measure)
    k = PAIRS.index(measure)
    records = []
    for group in _recorded(profile, "pair_totals"):
        totals = profile.pair_totals[group].closed()
        mean, error, count = totals.mean()[k], totals.error()[k], totals.arrays["sequences"][k]
        place = {"call": group.call, "phase": group.phase, "kind": group.kind}
        for a in range(len(mean)):
            for b in range(a + 1, len(mean)):
                names = {"layer": group.layer, "a": f"L{group.layer}H{a}", "b": f"L{group.layer}H{b}"}
                found = {measure: mean[a, b], f"{measure}_se": error[a, b], "sequences": int(count[a, b])}
                records.append(names | place | found)
    return pd.DataFrame(records, columns=["layer", "a", "b", *PLACE, measure, f"{measure}_se", "sequences"])


def roles_table(profile: Profile, thresholds: Thresholds | None, induction: pd.DataFrame | None) -> pd.DataFrame:
    """See `Profile.roles`."""
    import pandas as pd

    limits = thresholds or Thresholds()
    table = profile.table()
    evidence: dict[str, Any] = {name: table[name].tolist() for name in EVIDENCE if name in table}
    spread: dict[str, Any] = {name: table[f"{name}_se"].tolist() for name in evidence}
    if induction is not None:
        if not {"label", "induction", "induction_se"} <= set(getattr(induction, "columns", ())):
            raise ValueError(
                f"roles: induction: expected the table of headwise.induction_scores; got {type(induction).__name__}"
            )
        known = dict(zip(induction["label"], induction["induction"], strict=True))
        errors = dict(zip(induction["label"], induction["induction_se"], strict=True))
        evidence["induction"] = [known.get(label) for label in table["label"]]
        spread["induction"] = [errors.get(label) for label in table["label"]]
    counts = profile.offsets()
    histogram = counts[[*map(str, OFFSETS), "other"]].to_numpy().tolist()
    found = roles(evidence, offsets=histogram, spread=spread, thresholds=limits) if len(table) else []
    records = []
    for row, labels in zip(table.to_dict("records"), found, strict=True):
        place = {name: row[name] for name in ("layer", "head", "label", *PLACE)}
        for role in labels:
            records.append(
                place | {"role": role.label, "value": role.value, "spread": role.spread, "evidence": role.evidence}
            )
    columns = ["layer", "head", "label", *PLACE, "role", "value", "spread", "evidence"]
    return pd.DataFrame(records, columns=columns)


def dataset(profile: Profile) -> xarray.Dataset:
    """See `Profile.to_xarray`."""
    try:
        import xarray
    except ImportError:
        raise ImportError('to_xarray: xarray is not installed: pip install "headwise[xarray]"') from None
    table = profile.table()
    place = [f"{call} {phase} {kind}" for call, phase, kind in zip(*(table[c] for c in PLACE), strict=True)]
    several = len(set(place)) > 1
    index = ["group", "layer", "head"] if several else ["layer", "head"]
    measures = [name for name in (*profile.measures, "alpha_first") if name in table]
    columns = [*measures, *(f"{name}_se" for name in measures), "label", "name", "rows"]
    data = xarray.Dataset.from_dataframe(table.assign(group=place).set_index(index)[columns])
    data = data.set_coords(["label", "name"])
    for name in measures:
        entry = profile.entry(name)
        words = {"units": entry.unit or "1", "long_name": entry.title, "description": entry.reading}
        data[name].attrs |= words | {"formula": entry.formula, "source": entry.source}
        data[f"{name}_se"].attrs |= {"units": entry.unit or "1", "long_name": f"{entry.title}: standard error"}
    data.attrs |= {key: value for key, value in profile.info.items() if value is not None}
    return data


def heads_where(profile: Profile, condition: str) -> list[tuple[int, int]]:
    """See `Profile.heads`."""
    table = profile.table()
    try:
        truth = table.eval(condition)
        if str(getattr(truth, "dtype", "")) != "bool":
            raise TypeError("it is no comparison")
        chosen = table[truth]
        pairs = zip(chosen["layer"].tolist(), chosen["head"].tolist(), strict=True)
    except (SyntaxError, NameError, ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
        columns = ", ".join(
            (
                "layer",
                "head",
                "name",
                "phase",
                "kind",
                "rows",
                *(m for m in (*profile.measures, "alpha_first") if m in table),
            )
        )
        raise ValueError(
            f"heads: expected a condition on columns such as {columns}; got {shown(condition)}: {error}"
        ) from None
    return list(dict.fromkeys((int(layer), int(head)) for layer, head in pairs))


def _require(profile: Profile, what: str, method: str, words: str, measure: str) -> None:
    if not _recorded(profile, what):
        raise ValueError(f'{method}: {words} not recorded; watch with measures=["{measure}"] or "all"')


def _recorded(profile: Profile, what: str) -> list[Group]:
    """The groups that something was recorded of, in table order."""
    ordered = profile.ordered()
    return [group for group in ordered if group in getattr(profile, what)]
