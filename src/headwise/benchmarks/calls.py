"""One attention call `[1, H, N, d_k]`, float32: torch's fused attention, headwise's kernels, and other ways."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.benchmarks import peak
from headwise.benchmarks.cases import NotRunError, Operation, Parameters
from headwise.benchmarks.registry import BIAS, CAUSAL, EAGER, FLEX, FUSED, PADDING, PORTABLE, QUICK, SDPA, STATISTICS
from headwise.call import Alignment, AttentionCall
from headwise.kernels import Geometry, choose, fused_attention, geometry_of, row_statistics

PORTABLE_TOKENS = 2048
"""Beyond, the portable kernel takes seconds a call, and its ratio has settled."""

WARM_TOKENS = 64


@dataclass(frozen=True)
class Inputs:
    """The inputs of one call, and their geometry, which the layers of a model share.

    Attributes:
        q, k, v: `[1, H, N, d_k]`, as a model's projection lays them out.
        mask: None, bool key padding `[1, 1, 1, N]`, or a float bias `[1, 1, N, N]`.
        kind: "full", "causal", "key padding" or "float bias".
        geometry: Of the call.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    kind: str
    geometry: Geometry | None = None

    @property
    def is_causal(self) -> bool:
        """Whether later keys are hidden."""
        return self.kind == CAUSAL

    @property
    def call(self) -> AttentionCall:
        """The call as headwise sees it."""
        alignment: Alignment | None = "upper_left" if self.is_causal else None
        scale = 1 / math.sqrt(self.q.shape[-1])
        return AttentionCall(self.q, self.k, self.v, mask=self.mask, causal=alignment, scale=scale)


def workload(parameters: Parameters) -> Callable[[str], Operation]:
    """The operations at a point of `tokens`, `head_dim`, `heads`, `kind`; `effort="quick"` leaves FlexAttention out."""
    kind, head_dim = str(parameters["kind"]), int(parameters["head_dim"])
    inputs = make_inputs(int(parameters["tokens"]), head_dim, int(parameters["heads"]), kind)
    small = make_inputs(WARM_TOKENS, head_dim, 1, kind)

    def operation(variant: str) -> Operation:
        if variant == FLEX and parameters.get("effort") == QUICK:
            raise NotRunError("it is compiled anew for each shape, for about 10 s: --full runs it")
        if variant == PORTABLE and inputs.q.shape[2] > PORTABLE_TOKENS:
            raise NotRunError(f"not run beyond {PORTABLE_TOKENS:,} tokens: seconds a call")
        if variant == EAGER:
            _require_memory(inputs)
        make = OPERATIONS[variant]
        if variant != FLEX:
            _discarding(make(small))()  # loads libraries and starts threads
        return _discarding(make(inputs))

    return operation


def make_inputs(tokens: int, head_dim: int, heads: int, kind: str) -> Inputs:
    """Random queries, keys and values; a padded call has an eighth of its keys hidden."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, tokens, heads, head_dim, generator=generator).transpose(1, 2) for _ in range(3))
    mask: Tensor | None = None
    if kind == PADDING:
        mask = (torch.arange(tokens) < tokens - tokens // 8)[None, None, None, :]
    if kind == BIAS:
        mask = torch.randn(1, 1, tokens, tokens, generator=generator)
    bare = Inputs(q, k, v, mask, kind)
    return replace(bare, geometry=geometry_of(bare.call))


def _discarding(operation: Callable[[], object]) -> Operation:
    """The operation without autograd; its tensors are freed before it returns."""

    def run() -> None:
        with torch.no_grad():
            operation()

    return run


def sdpa(inputs: Inputs) -> Callable[[], Tensor]:
    """The fused attention of torch."""
    return lambda: F.scaled_dot_product_attention(
        inputs.q, inputs.k, inputs.v, attn_mask=inputs.mask, is_causal=inputs.is_causal
    )


def fused(inputs: Inputs) -> Callable[[], Tensor]:
    """Output and statistics in one pass, where the native kernel runs."""
    call, shape = inputs.call, inputs.q.transpose(1, 2).shape
    _require_native(call)

    def run() -> Tensor:
        out = torch.empty(shape).transpose(1, 2)
        fused_attention(call, out, inputs.geometry)
        return out

    return run


def statistics(inputs: Inputs, kernel: str = "native") -> Callable[[], object]:
    """All row statistics, without the output."""
    call = inputs.call
    if kernel == "native":
        _require_native(call)
    return lambda: row_statistics(call, kernel, inputs.geometry)


def portable(inputs: Inputs) -> Callable[[], object]:
    """The same by the kernel that is plain torch."""
    return statistics(inputs, "portable")


def eager(inputs: Inputs) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
    """Eq. 1 with all weights at hand, then the entropy and the weight on the own position of each row, from them."""
    q, k, v, mask = inputs.q, inputs.k, inputs.v, inputs.mask
    bias: Tensor | float = 0.0
    if inputs.is_causal:
        bias = torch.full((q.shape[2], k.shape[2]), -torch.inf).triu(1)
    elif mask is not None:
        bias = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else mask

    def run() -> tuple[Tensor, Tensor, Tensor]:
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias).softmax(-1)
        entropy = -torch.special.xlogy(weights, weights).sum(-1)
        return weights @ v, entropy, weights.diagonal(dim1=-2, dim2=-1)

    return run


def flex(inputs: Inputs) -> Callable[[], Tensor]:
    """FlexAttention, compiled for this shape; on CPUs it gives the output alone."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # Of one function torch keeps only so many compiled shapes, and then runs it uncompiled.
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    N, mask = inputs.q.shape[2], inputs.mask
    options: dict[str, Any] = {}
    if inputs.is_causal:
        options["block_mask"] = create_block_mask(lambda b, h, i, j: i >= j, None, None, N, N, device="cpu")
    elif inputs.kind == PADDING and mask is not None:
        real = mask.flatten()
        options["block_mask"] = create_block_mask(lambda b, h, i, j: real[j], None, None, N, N, device="cpu")
    elif mask is not None:
        bias = mask[0, 0]
        options["score_mod"] = lambda score, b, h, i, j: score + bias[i, j]
    return lambda: compiled(inputs.q, inputs.k, inputs.v, **options)


OPERATIONS: dict[str, Callable[[Inputs], Callable[[], object]]] = {
    SDPA: sdpa,
    FUSED: fused,
    STATISTICS: statistics,
    PORTABLE: portable,
    EAGER: eager,
    FLEX: flex,
}


def _require_native(call: AttentionCall) -> None:
    try:
        choose(call, "native")
    except ValueError as error:
        raise NotRunError(str(error)) from error


def _require_memory(inputs: Inputs) -> None:
    """Scores, weights and their logarithms stand side by side."""
    _, H, N, _ = inputs.q.shape
    needed, there = 3 * 4 * H * N * N, peak.available()
    if there is not None and needed > there // 2:
        raise NotRunError(f"would need {needed / 1e9:,.0f} GB for weights; {there / 1e9:,.0f} GB are free")
