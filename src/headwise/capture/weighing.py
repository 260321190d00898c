"""Weighing: the measures of a call that need its weights, a few rows at a time, beside its row statistics."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headwise.call import AttentionCall
from headwise.capture.forwards import Forward
from headwise.capture.token_ids import TokenIds
from headwise.kernels import RowStatistics, working_dtype
from headwise.measures.blockwise import one_pass, why_not
from headwise.measures.keys import KeySums, key_sums
from headwise.measures.pairs import PairSums, pair_sums
from headwise.measures.registry import REGISTRY

if TYPE_CHECKING:
    from headwise.measures.catalogue import Selection

OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "wo", "w_o", "output_projection", "proj", "to_out", "out")
"""What models call the linear map W_O that follows the heads."""

PLAIN_LINEAR = (nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear)


@dataclass(frozen=True)
class Weighed:
    """What the weights of a call give.

    Attributes:
        values: Of each blockwise measure per row `[K, B, H, N]`; None where none is asked for.
        keys: What the keys receive; None where that is not asked for.
        pairs: How alike the heads are; None where that is not asked for.
    """

    values: Tensor | None = None
    keys: KeySums | None = None
    pairs: PairSums | None = None


class Weighing:
    """Takes the measures of a `Selection` that need weights.

    Attributes:
        notes: Why a measure is undefined for some calls, by measure.
    """

    def __init__(self, selection: Selection, token_ids: TokenIds, seed: int) -> None:
        self._selection = selection
        self._token_ids = token_ids
        self._seed = seed
        self.notes: dict[str, str] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is asked for."""
        s = self._selection
        return not (s.blockwise or s.keys or s.pairs)

    def of(
        self,
        call: AttentionCall,
        statistics: RowStatistics,
        out: Tensor,
        forward: Forward,
        output_weight: Tensor | None,
    ) -> Weighed:
        """The measures of one call; `out [B, H, N, d_v]` is what it gave."""
        asked = self._selection
        needs = {need for name in asked.blockwise for need in REGISTRY[name].needs}
        tokens = self._token_ids.of(call, statistics.geometry, forward) if "tokens" in needs else None
        able = []
        for name in asked.blockwise:
            why = why_not(name, call, tokens=tokens)
            if why is None:
                able.append(name)
            else:
                self.notes.setdefault(name, why)
        values, received = None, None
        if able or asked.keys:
            failures: dict[str, str] = {}
            done = one_pass(
                call, statistics, able, tokens, out, output_weight=output_weight, received=asked.keys,
                failures=failures,
            )  # fmt: skip
            values, received = done.values, done.received
            for name, why in failures.items():
                self._fail(name, why)
        return Weighed(
            values=self._in_order(call, able, values) if asked.blockwise else None,
            keys=key_sums(call, statistics, received) if asked.keys else None,
            pairs=pair_sums(call, statistics, out, seed=self._seed) if asked.pairs else None,
        )

    def _fail(self, name: str, why: str) -> None:
        """Note that a user's measure failed, and warn of it once."""
        if name not in self.notes:
            self.notes[name] = why
            warnings.warn(f"headwise: measure {name!r} is NaN: {why}", stacklevel=2)

    def _in_order(self, call: AttentionCall, able: list[str], values: Tensor | None) -> Tensor:
        """The values in the order asked for, NaN where a measure cannot be taken."""
        if values is not None and len(able) == len(self._selection.blockwise):
            return values
        B, H, N, _ = call.sizes
        size = (len(self._selection.blockwise), B, H, N)
        whole = torch.full(size, torch.nan, dtype=working_dtype(call), device=call.q.device)
        for k, name in enumerate(self._selection.blockwise):
            if values is not None and name in able:
                whole[k] = values[able.index(name)]
        return whole


def output_weight_of(caller: nn.Module | None, width: int) -> Tensor | None:
    """W_O `[d_model, H * d_v]`, where the module that calls attention has a linear map of its own after the heads.

    Args:
        caller: The module.
        width: `H * d_v`.

    Returns:
        Its weight; None where no child of a usual name is a torch.nn.Linear of this width: then what heads write is
        measured before W_O.
    """
    for name in OUTPUT_PROJECTIONS if caller is not None else ():
        child = getattr(caller, name, None)
        if isinstance(child, (nn.Sequential, nn.ModuleList)) and len(child):
            child = child[0]
        # A subclass may hold its weight in another form.
        if isinstance(child, nn.Linear) and type(child) in PLAIN_LINEAR and child.in_features == width:
            return child.weight.detach() if child.weight.is_floating_point() else None
    return None
