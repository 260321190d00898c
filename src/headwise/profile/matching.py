"""Matching: which heads of two profiles are compared with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from headwise.profile.profiles import Profile
    from headwise.profile.records import Group, Layer

MATCHES = ("place", "pattern", "layer")


def matched_layers(
    a: Profile, b: Profile, wanted: int | str | Iterable[int | str] | None, match: str
) -> list[tuple[Layer, Layer]]:
    """The layers that are compared, by number.

    Raises:
        ValueError: A layer is in one profile only, or has another name or (where heads are matched by place) other
            heads in each; `wanted` names one that is in neither.
    """
    mine, theirs = ({layer.layer: layer for layer in profile.layers} for profile in (a, b))
    if wanted is not None:
        asked = [wanted] if isinstance(wanted, (int, str)) else list(wanted)
        for one in asked:
            if not any(_is(one, layer) for layer in (*mine.values(), *theirs.values())):
                raise ValueError(f"compare: layers: neither profile has a layer {one!r}; they have {_listed(mine)}")
        mine, theirs = (
            {number: layer for number, layer in side.items() if any(_is(one, layer) for one in asked)}
            for side in (mine, theirs)
        )
    if not mine or not theirs:
        empty = " and ".join(name for name, side in (("a", mine), ("b", theirs)) if not side)
        raise ValueError(f"compare: expected two profiles of attention layers; got none in {empty}")
    if mine.keys() != theirs.keys():
        alone = [
            f"{name} has {_listed(side.keys() - other.keys())} alone"
            for name, side, other in (("a", mine, theirs), ("b", theirs, mine))
            if side.keys() - other.keys()
        ]
        common = sorted(mine.keys() & theirs.keys())
        way_out = f"layers={common} compares those that both have" if common else "they have no layer in common"
        raise ValueError(f"compare: both profiles must have the same layers; {' and '.join(alone)}; {way_out}")
    for number in sorted(mine):
        x, y = mine[number], theirs[number]
        if x.name != y.name and match != "layer":
            raise ValueError(
                f"compare: layer {number} is {x.name!r} in a and {y.name!r} in b: they are of other models, or their "
                'layers ran in another order; match="layer" compares layers by number alone, without heads'
            )
        if x.num_heads != y.num_heads and match == "place":
            raise ValueError(
                f"compare: layer {number} ({x.name}) has {x.num_heads} heads in a and {y.num_heads} in b, so heads "
                'have no common places; match="layer" compares what the heads of each layer do together'
            )
    return [(mine[number], theirs[number]) for number in sorted(mine)]


def matched_groups(a: Profile, b: Profile, layers: Iterable[int]) -> tuple[list[Group], list[Group], list[Group]]:
    """Groups of these layers that both profiles have, that only a has, that only b has; in table order.

    Raises:
        ValueError: They have none in common.
    """
    numbers = set(layers)

    def ordered(groups: set[Group]) -> list[Group]:
        return sorted(groups, key=lambda g: (g.layer, g.call, g.phase != "prefill", g.kind))

    mine, theirs = ({group for group in profile.groups if group.layer in numbers} for profile in (a, b))
    if not mine & theirs:
        raise ValueError(
            "compare: the two profiles have no attention calls of the same kind in common; "
            f"a has {_kinds(mine)}, b has {_kinds(theirs)}"
        )
    return ordered(mine & theirs), ordered(mine - theirs), ordered(theirs - mine)


def by_pattern(
    layers: Iterable[tuple[Layer, Layer]], similarity: Mapping[int, NDArray[np.float64]] | None
) -> dict[int, list[tuple[int, int, float]]]:
    """For each layer the pairs (head of a, head of b, their similarity) whose sum of similarities is the largest.

    Raises:
        ValueError: There is no similarity of a layer, or it has another shape than `[H_a, H_b]`, or is not finite.
    """
    import numpy as np

    if similarity is None:
        raise ValueError(
            'compare: match="pattern" needs similarity=, for each layer the matrix [H_a, H_b] of bc between the heads '
            "of a and those of b on the same text: a profile holds sums, no weights"
        )
    pairs: dict[int, list[tuple[int, int, float]]] = {}
    for x, y in layers:
        if x.layer not in similarity:
            raise ValueError(f"compare: similarity: there is no matrix of layer {x.layer}; got {_listed(similarity)}")
        matrix = np.asarray(similarity[x.layer], np.float64)
        if matrix.shape != (x.num_heads, y.num_heads) or not np.isfinite(matrix).all():
            what = f"shape {matrix.shape}" if np.isfinite(matrix).all() else "NaN or infinite entries"
            raise ValueError(
                f"compare: similarity of layer {x.layer}: expected finite numbers [{x.num_heads}, {y.num_heads}], "
                f"a row a head of a; got {what}"
            )
        pairs[x.layer] = [(i, j, float(matrix[i, j])) for i, j in assignment(matrix)]
    return pairs


def assignment(gain: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Pairs (row, column) with the largest sum of `gain [R, C]`, each used once at most, the shorter side wholly.

    The Hungarian method with potentials, in O(R^2 C) (Kuhn 1955; Jonker and Volgenant 1987).
    """
    import numpy as np

    if gain.shape[0] > gain.shape[1]:
        return sorted((i, j) for j, i in assignment(gain.T))
    R, C = gain.shape
    cost = -gain
    row_price, column_price = np.zeros(R), np.zeros(C)
    row_of = np.full(C, -1)
    for start in range(R):
        # The cheapest way from the row `start` to a free column, over columns that are taken.
        distance, came_from = np.full(C, np.inf), np.full(C, -1)
        done = np.zeros(C, bool)
        row, column, reached = start, -1, 0.0
        while True:
            through = reached + cost[row] - row_price[row] - column_price
            better = ~done & (through < distance)
            distance[better], came_from[better] = through[better], column
            column = int(np.argmin(np.where(done, np.inf, distance)))
            reached, done[column] = float(distance[column]), True
            if row_of[column] < 0:
                break
            row = int(row_of[column])
        passed = done & (row_of >= 0)
        row_price[start] += reached
        row_price[row_of[passed]] += reached - distance[passed]
        column_price[done] -= reached - distance[done]
        while column >= 0:
            before = int(came_from[column])
            row_of[column] = start if before < 0 else row_of[before]
            column = before
    return sorted((int(row), column) for column, row in enumerate(row_of) if row >= 0)


def _is(one: int | str, layer: Layer) -> bool:
    return layer.layer == one if isinstance(one, int) else layer.name == one or layer.name.startswith(one + ".")


def _listed(numbers: Iterable[int]) -> str:
    listed = sorted(numbers)
    shown = ", ".join(map(str, listed[:8])) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
    return f"layer{'s' if len(listed) != 1 else ''} {shown or 'none'}"


def _kinds(groups: set[Group]) -> str:
    return ", ".join(sorted({f"{group.phase} {group.kind}" for group in groups})) or "none"
