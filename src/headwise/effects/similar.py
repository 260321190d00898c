"""How alike the patterns of two models' heads are on the same tokens: what matching heads by pattern needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.capture import watch
from headwise.measures.pairs import between

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def pattern_similarity(
    a: nn.Module,
    b: nn.Module,
    batches: Iterable[Mapping[str, Any] | Tensor],
    *,
    rows: int | None = 256,
    seed: int = 0,
) -> dict[int, NDArray[np.float64]]:
    """The Bhattacharyya coefficient of every head of `a` with every head of `b`, layer by layer.

    Both models read the same batches; of each call `rows` rows are drawn. Attention of the same layer number is
    compared: the first call of a layer in a forward. `compare(x, y, match="pattern", similarity=...)` takes it.

    Args:
        a: The one model.
        b: The other: of the same number of layers, with as many heads or not, in eval mode as `a` is.
        batches: What the models read: keyword arguments, or one tensor.
        rows: Rows of a call to compare; None: all.
        seed: Of the draw.

    Returns:
        For each layer number an array `[H_a, H_b]`, 0..1, 1 = the same pattern.

    Raises:
        ValueError: The models have other layers, or read other tokens.
    """
    total: dict[int, Tensor] = {}
    number: dict[int, Tensor] = {}
    for batch in batches:
        first, second = _calls(a, batch), _calls(b, batch)
        if first.keys() != second.keys():
            raise ValueError(
                f"pattern_similarity: expected the same attention layers in both models; got {sorted(first)} and "
                f"{sorted(second)}"
            )
        for layer, one in first.items():
            other = second[layer]
            found = between(
                one.call, list(range(one.call.q.shape[1])), other.call, list(range(other.call.q.shape[1])),
                statistics_a=one.statistics, statistics_b=other.statistics, rows=rows, seed=seed,
            )  # fmt: skip
            total[layer] = total.get(layer, 0) + found.total[0].sum(-1)
            number[layer] = number.get(layer, 0) + found.rows[0].sum(-1)
    return {layer: torch.where(number[layer] > 0, total[layer] / number[layer], 0.0).numpy() for layer in total}


@dataclass(frozen=True)
class _Seen:
    """An `AttentionCall` and its `RowStatistics`."""

    call: Any
    statistics: Any


def _calls(model: nn.Module, batch: Mapping[str, Any] | Tensor) -> dict[int, _Seen]:
    """The first call of each layer in one forward."""
    seen: dict[int, _Seen] = {}

    def keep(call: Any, statistics: Any, out: Tensor) -> None:
        seen.setdefault(call.place.layer, _Seen(call, statistics))

    with torch.no_grad(), watch(model, measures=["first"]).tap(keep):
        model(**batch) if isinstance(batch, Mapping) else model(batch)
    return seen
