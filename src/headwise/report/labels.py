"""The numbers of the rows of one label of `watch(groups=...)`, for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwise.report.places import numbers, places
from headwise.report.text import plain

if TYPE_CHECKING:
    from pandas import DataFrame

    from headwise.profile import Profile

EMBEDDED = 120_000
"""Numbers of labels that a page holds: about 1 MB."""


def label_data(
    profile: Profile, table: DataFrame, measures: list[str], statistics: dict[str, str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """What the page shows of labels.

    Args:
        profile: The profile.
        table: Its table, whose rows the page counts.
        measures: Names of the measures shown.
        statistics: What is kept of each measure, and its column's suffix.

    Returns:
        For each label its `name`, the `rows` of each head, and `values` like those of the whole page, None where the
        label has no rows of a head; and the labels that are left out because there are too many numbers.
    """
    shown, left_out, used = [], [], 0
    order = places(table)
    size = len(table) * len(measures) * len(statistics)
    for label in profile.labels:
        if used + size > EMBEDDED:
            left_out.append(plain(label))
            continue
        used += size
        own = profile.table(group=label)
        own = own.set_index(["layer", "call", "phase", "kind", "head"]).reindex(order)
        shown.append({
            "name": plain(label),
            "rows": [int(n) for n in own["rows"].fillna(0)],
            "values": {
                name: {
                    key: numbers(own[name + suffix].to_numpy())
                    for key, suffix in statistics.items()
                    if name + suffix in own
                }
                for name in measures
            },
        })  # fmt: skip
    return shown, left_out
