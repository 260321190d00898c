"""Measures that row statistics cannot give: computed from the exact weights, a block of rows at a time.

One pass over the blocks serves every measure that is asked for, so a second one costs its own arithmetic alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headwise.blocks import BLOCK_ELEMENTS, WeightBlock, weight_blocks, whole
from headwise.call import AttentionCall
from headwise.errors import shown
from headwise.kernels import Geometry, RowStatistics, Tile, working_dtype
from headwise.kernels.precision import full_precision, without_autocast
from headwise.kernels.tiles import visible_tile
from headwise.measures.outputs import output_factors, value_norms_of
from headwise.measures.registry import NEEDS, REGISTRY, measure, registered, unregister
from headwise.measures.rows import counted, nonfinite
from headwise.measures.tokens import Tokens

__all__ = ["Block", "Pass", "block_values", "measure", "one_pass", "registered", "unregister", "why_not"]


@dataclass(frozen=True)
class Block:
    """Some rows of a call's weights, and what a measure may want to know of them. Tensors are to be read only.

    Attributes:
        part: Exact weights `[b, H, R, m]` over `keys`, 0 where a key is hidden.
        keys: The keys of `part`; all others are hidden from every row of the block. `weights` has all of them.
        rows: The queries `[R]`, int64.
        batch: The sequences.
        call: The whole call.
        statistics: The row statistics of the whole call.
        geometry: Which keys each row of the whole call sees.
        tokens: The tokens of the whole call, where known.
        out: The outputs of the heads for these rows `[b, H, R, d_v]`, where given.
        value_norms: `|v_j|`, or `|v_j W_O^h|` where W_O is known, `[b, H, M]`; where a measure needs them.
        factors: `[H, d_v, r]` with `|x factor_h| = |x W_O^h|`, where W_O is known.
    """

    part: Tensor
    keys: slice
    rows: Tensor
    batch: slice
    call: AttentionCall
    statistics: RowStatistics
    geometry: Geometry
    tokens: Tokens | None = None
    out: Tensor | None = None
    value_norms: Tensor | None = None
    factors: Tensor | None = None

    @cached_property
    def weights(self) -> Tensor:
        """The weights over all keys `[b, H, R, M]`."""
        return whole(self.part, self.keys, self.call.k.shape[2])

    @cached_property
    def visible(self) -> Tensor:
        """Which keys the rows may see: bool `[b or 1, H or 1, R, M]`."""
        return self._visible(slice(0, self.call.k.shape[2]))

    @cached_property
    def visible_part(self) -> Tensor:
        """`visible` over `keys` only."""
        return self.visible[..., self.keys] if "visible" in self.__dict__ else self._visible(self.keys)

    def _visible(self, keys: slice) -> Tensor:
        visible = visible_tile(self.call, Tile.of(self.rows, keys, self.batch))
        length = keys.stop - keys.start
        if visible is None:
            return torch.ones(1, 1, len(self.rows), length, dtype=torch.bool, device=self.part.device)
        return visible.expand(*visible.shape[:2], len(self.rows), length)

    @cached_property
    def own(self) -> Tensor:
        """The own key self(i), `[b or 1, R]`; -1 where undefined."""
        return self.of_rows(self.geometry.own)

    @cached_property
    def key_numbers(self) -> Tensor:
        """The numbers of the keys of `part`, `[m]`."""
        return torch.arange(self.keys.start, self.keys.stop, device=self.part.device)

    @cached_property
    def value_total(self) -> Tensor:
        """`sum_j p_ij |v_j|`, `[b, H, R]`."""
        assert self.value_norms is not None
        return self.weighed(self.value_norms[:, :, None])

    def weighed(self, x: Tensor) -> Tensor:
        """`sum_j p_ij x_ij` for an x that broadcasts to `[b, H, R, M]`, such as a bool mask of keys: `[b, H, R]`."""
        return (self.part * x[..., self.keys]).sum(-1)

    def of_rows(self, x: Tensor) -> Tensor:
        """The block's part of something per row of the call: `[B or 1, (H or 1,) N]` to `[b or 1, (H or 1,) R]`."""
        return (x[self.batch] if x.shape[0] > 1 else x)[..., self.rows]

    def of_keys(self, x: Tensor) -> Tensor:
        """The block's part of something per key of the call: `[B or 1, M]` to `[b or 1, M]`."""
        return x[self.batch] if x.shape[0] > 1 else x


@dataclass(frozen=True)
class Pass:
    """What one pass over the weights of a call gives.

    Attributes:
        values: A value per row of each measure asked for `[K, B, H, N]`, float32 (float64 for float64 inputs); NaN
            where the measure is undefined for the row.
        received: `sum_i p_ij` over the rows that count `[B, H, M]`, float64; None where it was not asked for.
    """

    values: Tensor
    received: Tensor | None


def block_values(
    call: AttentionCall,
    statistics: RowStatistics,
    names: tuple[str, ...] | list[str],
    tokens: Tokens | None = None,
    out: Tensor | None = None,
    *,
    output_weight: Tensor | None = None,
    held: Tensor | None = None,
    block_elements: int = BLOCK_ELEMENTS,
) -> Tensor:
    """The values of blockwise measures per row `[K, B, H, N]`: see `one_pass`."""
    return one_pass(
        call, statistics, names, tokens, out, output_weight=output_weight, held=held, block_elements=block_elements
    ).values


def one_pass(
    call: AttentionCall,
    statistics: RowStatistics,
    names: tuple[str, ...] | list[str] = (),
    tokens: Tokens | None = None,
    out: Tensor | None = None,
    *,
    output_weight: Tensor | None = None,
    received: bool = False,
    held: Tensor | None = None,
    block_elements: int = BLOCK_ELEMENTS,
    failures: dict[str, str] | None = None,
) -> Pass:
    """Every blockwise measure that is asked for, in one pass over the weights; without autograd, linear memory.

    Args:
        call: The call.
        statistics: Its row statistics.
        names: Names of registered measures; the K of the result, in this order.
        tokens: Its tokens, for measures that need them.
        out: The outputs of the heads `[B, H, N, d_v]`, for measures that need them; None: computed from v.
        output_weight: W_O `[d_model, H * d_v]`, where known: what heads write is then measured after it.
        received: Whether to sum the weight that each key receives.
        held: Weights `[B, H, N, M]` that the model holds itself.
        block_elements: How many weights a block may hold.
        failures: Where to note why a user's measure failed, by name: it is NaN then, and the others go on. None: its
            error is raised.

    Raises:
        ValueError: No such measure, something that one needs is not given, or one gives values of another shape.
    """
    for name in names:
        why = why_not(name, call, tokens=tokens, out=out)
        if why:
            raise ValueError(f"measure {name!r}: {why}")
    B, H, N, M = call.sizes
    if out is not None and (out.dim() != 4 or tuple(out.shape[:3]) != (B, H, N)):
        raise ValueError(
            f"out: expected the outputs of the heads, [B, H, N, d_v] = {(B, H, N)}; got {tuple(out.shape)}"
        )
    dtype, device = working_dtype(call), call.q.device
    wanted = [REGISTRY[name] for name in names]
    needs = {need for one in wanted for need in one.needs}
    with torch.no_grad(), without_autocast(device.type), full_precision():
        rows_that_count = counted(statistics).expand(B, H, N)
        # NaN weights of rows that do not count would spoil the sums over keys. A device is not waited for.
        broken = device.type != "cpu" or bool(nonfinite(statistics).any())
        factors = None
        if needs & {"values", "out"}:
            written = call.v if call.v is not None else out
            factors = output_factors(call, output_weight, 0 if written is None else written.shape[-1])
        norms = value_norms_of(call, factors) if "values" in needs else None
        values = torch.full((len(wanted), B, H, N), math.nan, dtype=dtype, device=device)
        sums = torch.zeros(B, H, M, dtype=torch.float64, device=device) if received else None
        geometry = statistics.geometry
        # By the softmax of each row: with the lse, rounded to float32, rows of large scores would not sum to 1.
        for cut in weight_blocks(call, block_elements=block_elements, geometry=geometry, held=held):
            assert isinstance(cut.rows, slice)
            if wanted:
                block = Block(
                    part=cut.part,
                    keys=cut.keys,
                    rows=torch.arange(cut.rows.start, cut.rows.stop, device=device),
                    batch=cut.batch,
                    call=call,
                    statistics=statistics,
                    geometry=geometry,
                    tokens=tokens,
                    out=_outputs(call, cut, out) if "out" in needs else None,
                    value_norms=None if norms is None else norms[cut.batch],
                    factors=factors,
                )
                for k, one in enumerate(wanted):
                    name = one.entry.name
                    if failures is not None and name in failures:
                        continue
                    try:
                        values[k, cut.batch, :, cut.rows] = _checked(one.per_block(block), block, name)
                    except Exception as error:
                        if failures is None or one.own:
                            raise
                        values[k] = math.nan
                        failures[name] = _why_it_failed(error, one.needs)
            if sums is not None:
                used = rows_that_count[cut.batch, :, cut.rows]
                part = torch.where(used[..., None], cut.part, 0.0) if broken else cut.part
                sums[cut.batch, :, cut.keys] += (used[:, :, None].to(dtype) @ part).squeeze(2)
    return Pass(values, sums)


def why_not(name: str, call: AttentionCall, *, tokens: Tokens | None = None, out: Tensor | None = None) -> str | None:
    """Why a blockwise measure cannot be taken of this call, with these tokens and outputs; None if it can.

    Raises:
        ValueError: No such measure.
    """
    if name not in REGISTRY:
        raise ValueError(f"measures: expected names among {', '.join(REGISTRY)}; got {shown(name)}")
    needs = REGISTRY[name].needs
    if "tokens" in needs and tokens is None:
        return "it needs the tokens of the call; none are known"
    if "delimiters" in needs and (tokens is None or tokens.delimiters is None):
        return "it needs to know which tokens are delimiters: give a tokenizer, or the tokens as strings"
    if call.v is None and ("values" in needs or ("out" in needs and out is None)):
        return "it needs the values v of the call; none were kept"
    return None


def _outputs(call: AttentionCall, cut: WeightBlock, out: Tensor | None) -> Tensor:
    """The outputs of the block's rows `[b, H, R, d_v]`: as the model computed them, or else P v."""
    if out is not None:
        return out[cut.batch, :, cut.rows].to(cut.part.dtype)
    assert call.v is not None
    v = call.v[cut.batch, :, cut.keys].to(cut.part.dtype)
    b, H, R, m = cut.part.shape
    return (cut.part.reshape(b, v.shape[1], -1, m) @ v).view(b, H, R, -1)


def _why_it_failed(error: Exception, needs: frozenset[str]) -> str:
    """What to tell of a user's measure that raised an error."""
    why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    missing = [need for need in NEEDS if need not in needs]
    hint = f"; if it uses what was not asked for, give needs= ({', '.join(missing)})" if "NoneType" in why else ""
    return f"it failed: {why}{hint}"


def _checked(value: object, block: Block, name: str) -> Tensor:
    """A user's values, if they are a number per row of the block."""
    b, H, R = block.part.shape[:3]
    if not isinstance(value, Tensor):
        raise ValueError(f"measure {name!r}: expected a tensor [b, H, R] = {(b, H, R)}; got {type(value).__name__}")
    if tuple(value.shape) != (b, H, R):
        raise ValueError(
            f"measure {name!r}: expected a value for each row, [b, H, R] = {(b, H, R)}; got {tuple(value.shape)}"
        )
    if value.is_complex():
        raise ValueError(f"measure {name!r}: expected real numbers; got {value.dtype}")
    return value.to(block.part.dtype)
