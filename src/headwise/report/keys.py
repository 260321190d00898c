"""Keys for the page: what the first key and the strongest keys receive, with their tokens where these are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwise.report.places import places, rounded, spread
from headwise.report.text import shown_token

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pandas import DataFrame

    from headwise.profile import Profile
    from headwise.profile.records import Group
    from headwise.profile.totals import Totals

    Array = NDArray[np.float64]

EPS = 0.3
"""The threshold of a sink rate (Gu et al. 2024)."""
FEW_ROWS, FEW_OF_ALL = 8, 8
"""Under a causal limit the last keys are seen by few rows, and receive much of those: they are not ranked if these are
fewer than 8, or than an eighth of the longest text."""
OF_A_HEAD, OF_ALL = 5, 8


def key_data(profile: Profile, table: DataFrame) -> dict[str, Any] | None:
    """What the page shows of keys; None if nothing was recorded.

    Args:
        profile: The profile.
        table: Its table, whose rows the page counts.

    Returns:
        `eps` and `sink_rate`; `strongest`: for each table row the keys that receive most, `[position, alpha, error]`;
        `views`: for each phase and kind of attention the keys that receive most on average over its heads, with
        their token, the heads above `eps`, and the head that gives most; `tokens`: token by position, where
        all recorded texts have the same there; `few`: how many rows must see a key, where some keys are not ranked.
    """
    import numpy as np

    if not profile.key_totals:
        return None
    at = {place: row for row, place in enumerate(places(table))}
    layers = {layer.layer: layer for layer in profile.layers}
    strongest: list[list[list[Any]] | None] = [None] * len(table)
    by_view: dict[tuple[str, str], list[tuple[Group, Array]]] = {}
    few = 0
    for group in profile.ordered():
        if group not in profile.key_totals:
            continue
        totals = profile.key_totals[group].closed()
        alpha, error = totals.mean(), totals.error()
        if group.phase == "prefill" and group.kind != "cross" and set(layers[group.layer].causal) - {"none"}:
            alpha, needed = _ranked(alpha, totals)
            few = max(few, needed)
        by_view.setdefault((group.phase, group.kind), []).append((group, alpha))
        for head, row in enumerate(alpha):
            best = [int(j) for j in np.argsort(-np.nan_to_num(row, nan=-1.0), kind="stable")[:OF_A_HEAD]]
            strongest[at[group.layer, group.call, group.phase, group.kind, head]] = [
                [j, rounded(row[j], 4), spread(row[j], error[head, j])] for j in best if np.isfinite(row[j])
            ]
    tokens = _tokens(profile)
    views = [
        {"phase": phase, "kind": kind, "keys": _strongest(groups, tokens, at)}
        for (phase, kind), groups in by_view.items()
    ]
    used = {j for keys in strongest for j, *_ in keys or []}
    return {
        "eps": EPS,
        "sink_rate": rounded(profile.sink_rate(EPS)),
        "strongest": strongest,
        "views": views,
        "tokens": {str(j): tokens[j] for j in sorted(used) if j in tokens},
        "few": few,
    }


def _ranked(alpha: Array, totals: Totals) -> tuple[Array, int]:
    """What keys receive under a causal limit, NaN for those that too few rows may see; and how many it takes."""
    import numpy as np

    sequences = totals.arrays["sequences"]
    positions = sequences.shape[-1]
    needed = max(FEW_ROWS, positions // FEW_OF_ALL)
    # A sequence of length T shows key j to T - j rows; as many sequences as have a key q have a row q.
    rows = np.flip(np.cumsum(np.flip(sequences, -1), -1), -1)
    enough = (rows >= needed * sequences) | (np.arange(positions) == 0)
    return np.where(enough, alpha, np.nan), needed if (~enough).any() else 0


def _strongest(
    groups: list[tuple[Group, Array]], tokens: dict[int, str], at: dict[tuple[int, int, str, str, int], int]
) -> list[dict[str, Any]]:
    """The keys that receive most on average over heads."""
    import numpy as np

    longest = max(alpha.shape[1] for _, alpha in groups)
    alpha = np.concatenate(
        [np.pad(one, [(0, 0), (0, longest - one.shape[1])], constant_values=np.nan) for _, one in groups]
    )
    rows = [at[g.layer, g.call, g.phase, g.kind, head] for g, one in groups for head in range(len(one))]
    labels = [f"L{g.layer}H{head}" for g, one in groups for head in range(len(one))]
    number = np.isfinite(alpha).sum(0)
    mean = np.where(number > 0, np.nansum(alpha, 0) / np.maximum(number, 1), -1.0)
    found = []
    for j in np.argsort(-mean, kind="stable")[:OF_ALL].tolist():
        if number[j]:
            best = int(np.nanargmax(alpha[:, j]))
            found.append({
                "position": j, "token": tokens.get(j), "alpha": rounded(mean[j], 4), "heads": int(number[j]),
                "above": int((alpha[:, j] > EPS).sum()), "row": rows[best], "label": labels[best],
                "most": rounded(alpha[best, j], 4),
            })  # fmt: skip
    return found


def _tokens(profile: Profile) -> dict[int, str]:
    """The token at each position that all texts share; none where positions cannot be told from texts.

    That is so where a text was not kept, where packed texts share a row, and in a model that also reads across
    (its decoder reads other tokens than those that were kept).
    """
    texts = [sequence.tokens for sequence in profile.sequences]
    most = max((int(t.closed().arrays["sequences"].max()) for t in profile.key_totals.values()), default=0)
    crosses = any(group.kind == "cross" for group in profile.groups)
    if not texts or len(texts) < profile.num_sequences or most > profile.num_sequences or crosses:
        return {}
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        return {}
    shared = {}
    for j in range(max(map(len, known))):
        there = {text[j] for text in known if j < len(text)}
        if len(there) == 1:
            shared[j] = shown_token(there.pop())
    return shared
