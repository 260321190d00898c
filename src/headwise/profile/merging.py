"""Merging: what another profile of the same model recorded, added to a profile."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from headwise.errors import require
from headwise.profile.accumulators import Accumulator
from headwise.profile.kept import merge_kept
from headwise.profile.totals import Totals

if TYPE_CHECKING:
    from headwise.profile.profiles import Profile


def merge(profile: Profile, other: Profile) -> None:
    """See `Profile.merge`."""
    require("merge", type(profile), other=other)
    if profile.measures != other.measures:
        raise ValueError(
            f"merge: both profiles must hold the same measures; got {', '.join(profile.measures)} "
            f"and {', '.join(other.measures)}"
        )
    mine, theirs = profile._layers, {layer.layer: layer for layer in other.layers}
    profile._settle()
    for number in mine.keys() & theirs.keys():
        a, b = mine[number], theirs[number]
        if (a.name, a.num_heads) != (b.name, b.num_heads):
            raise ValueError(
                f"merge: layer {number} is {a.name!r} with {a.num_heads} heads in one profile, "
                f"{b.name!r} with {b.num_heads} in the other: they are of other models, "
                "or their layers ran in another order"
            )
    for number, layer in theirs.items():
        if number in mine:
            mine[number].absorb(layer)
        else:
            mine[number] = deepcopy(layer)
    if other.unpairable:
        profile.drop_sequence_sums(other.unpairable)
    for group, sums in other.groups.items():
        profile._sums(group).merge(sums)
    profile.count_sequence_sums()
    for label, groups in other.labelled.items():
        for group, sums in groups.items():
            profile.labelled.setdefault(label, {}).setdefault(group, Accumulator(clusters=None)).merge(sums)
    for mine_of, theirs_of in ((profile.key_totals, other.key_totals), (profile.pair_totals, other.pair_totals)):
        for group, totals in theirs_of.items():
            mine_of.setdefault(group, Totals()).merge(totals)
    profile.entries = {**other.entries, **profile.entries}
    for text in other.notes:
        profile.note(text)
    merge_kept(profile, other)
    for unseen in other.unseen:
        profile.record_unseen(unseen.name, unseen.reason, unseen.way_out, unseen.count)
    profile.record_sequences(other.sequences, other.num_sequences)
    profile.info = {**other.info, **profile.info}
