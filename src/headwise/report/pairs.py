"""Pairs of heads for the page: how alike each two heads of a layer are."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headwise.measures.catalogue import PAIR_MEASURES
from headwise.report.places import numbers, rounded, spread

if TYPE_CHECKING:
    from headwise.profile import Profile

EMBEDDED = 140_000
"""Numbers of pairs that a page holds: about 1 MB. Errors go first, then whole measures from the last on."""
MOST_ALIKE = 10

ALIKE_IS_LARGE = ("bc", "output_similarity")


def pair_data(profile: Profile, names: dict[int, str]) -> dict[str, Any] | None:
    """What the page shows of pairs; None if none were recorded.

    Args:
        profile: The profile.
        names: Module paths by layer.

    Returns:
        `measures`: catalogue entries with `ends`, the least and largest value, and whether large is `alike`;
        `places`: for each group of calls with two heads its layer, its `heads`, and by measure the `values` and the
        `errors` of its pairs (0, 1), (0, 2), ..., (1, 2), ...; `top`: by measure the most alike `[place, a, b, value,
        error]`; `left_out`: measures of which only `top` is here; `no_errors`: whether errors are left out too.
    """
    import numpy as np

    groups = [group for group in profile.ordered() if group in profile.pair_totals] if profile.pair_totals else []
    means, errors, halves, places = [], [], [], []
    for group in groups:
        totals = profile.pair_totals[group].closed()
        heads = totals.arrays["n"].shape[-1]
        if heads < 2:
            continue
        half = np.triu_indices(heads, 1)
        means.append(totals.mean()[:, *half])
        errors.append(totals.error()[:, *half])
        halves.append(half)
        places.append({
            "layer": group.layer, "call": group.call, "phase": group.phase, "kind": group.kind, "heads": heads,
            "sequences": int(totals.arrays["sequences"].max()), "name": names.get(group.layer, ""),
            "values": {}, "errors": {},
        })  # fmt: skip
    if not places:
        return None
    of_place = np.repeat(np.arange(len(places)), [len(half[0]) for half in halves])
    first, second = (np.concatenate([half[i] for half in halves]) for i in (0, 1))
    value, error = np.concatenate(means, 1), np.concatenate(errors, 1)
    known_of = {m.name: np.flatnonzero(np.isfinite(value[k])) for k, m in enumerate(PAIR_MEASURES)}
    number = sum(map(bool, map(len, known_of.values())))
    errors_too = 2 * number * value.shape[1] <= EMBEDDED
    fit = number if errors_too else EMBEDDED // value.shape[1]
    shown: list[dict[str, Any]] = []
    left_out, top = [], {}
    for k, measure in enumerate(PAIR_MEASURES):
        known = known_of[measure.name]
        if not len(known):
            continue
        alike = measure.name in ALIKE_IS_LARGE
        best = known[np.argsort(-value[k, known] if alike else value[k, known], kind="stable")[:MOST_ALIKE]]
        top[measure.name] = [
            [int(of_place[i]), int(first[i]), int(second[i]), rounded(value[k, i], 4), spread(value[k, i], error[k, i])]
            for i in best
        ]
        ends = [rounded(value[k, known].min(), 4), rounded(value[k, known].max(), 4)]
        entry = {**asdict(measure), "alike": alike, "ends": ends}
        if len(shown) >= fit:
            left_out.append(measure.name)
        else:
            for place, mean, se in zip(places, means, errors, strict=True):
                place["values"][measure.name] = numbers(mean[k], 4 if errors_too else 3)
                if errors_too and place["sequences"] > 1:
                    place["errors"][measure.name] = [
                        spread(*one) for one in zip(mean[k].tolist(), se[k].tolist(), strict=True)
                    ]
        shown.append({**entry, "left_out": measure.name in left_out})
    return {"measures": shown, "places": places, "top": top, "left_out": left_out, "no_errors": not errors_too}
