"""What each head of a layer is: its parameters as the paper writes them, its weights, its row statistics."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from headwise.call import AttentionCall, Place
from headwise.equations import bias_of, repeat_heads, scores, visible_keys, weights
from headwise.kernels import RowStatistics, fused_attention, operations, row_statistics
from headwise.kernels.precision import full_precision, without_autocast
from headwise.layer.masks import Limits
from headwise.layer.widths import Widths


class HeadWeights(NamedTuple):
    """The parameters of every head, as eq. 2 of Vaswani et al. 2017 writes them.

    `head_i = Attention(x w_q[i] + b_q[i], c w_k[i] + b_k[i], c w_v[i] + b_v[i])` and `y = sum_i head_i w_o[i] + b_o`.
    Heads that share keys and values (GQA) have the same `w_k` and `w_v`.

    Attributes:
        w_q: `[H, d_model, d_k]`.
        w_k: `[H, d_context, d_k]`.
        w_v: `[H, d_context, d_v]`.
        w_o: `[H, d_v, d_model]`: the rows of W^O that head i is multiplied with.
        b_q: `[H, d_k]`, None without bias; so are the others.
        b_k: `[H, d_k]`.
        b_v: `[H, d_v]`.
        b_o: `[d_model]`, once for all heads.
    """

    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor
    b_q: Tensor | None
    b_k: Tensor | None
    b_v: Tensor | None
    b_o: Tensor | None


def split_parameters(q: nn.Linear, kv: nn.Linear, out: nn.Linear, widths: Widths) -> HeadWeights:
    """The parameters of each head, with their gradients.

    Args:
        q: Holds the queries in its first rows.
        kv: Holds keys, then values in its last rows.
        out: W^O.
        widths: The widths of the layer.
    """
    H, groups = widths.num_heads, widths.num_heads // widths.num_kv_heads

    def of_heads(rows: Tensor, times: int) -> Tensor:
        heads: Tensor = rows.unflatten(0, (H // times, -1))
        return heads.repeat_interleave(times, 0) if times > 1 else heads

    keys, values = slice(-widths.k - widths.v, -widths.v), slice(-widths.v, None)
    parts = ((q, slice(0, widths.q), 1), (kv, keys, groups), (kv, values, groups))
    w_q, w_k, w_v = (of_heads(linear.weight[rows], times).mT for linear, rows, times in parts)
    b_q, b_k, b_v = (
        None if linear.bias is None else of_heads(linear.bias[rows], times) for linear, rows, times in parts
    )
    return HeadWeights(w_q, w_k, w_v, of_heads(out.weight.mT, 1), b_q, b_k, b_v, out.bias)


def weights_beside(q: Tensor, k: Tensor, limits: Limits) -> Tensor:
    """The weights `[B, H, N, M]` of a fused call, before dropout; differentiable."""
    exact = torch.promote_types(q.dtype, torch.float32)
    with without_autocast(q.device.type):
        keys = repeat_heads(k.to(exact), q.shape[1])
        s = scores(q.to(exact), keys, bias=bias_of(limits.mask, exact))
        visible = visible_keys(
            q.shape[2], k.shape[2], mask=limits.mask, causal=limits.causal, device=q.device
        )  # fmt: skip
        return weights(s, visible).to(q.dtype)


def statistics_beside(q: Tensor, k: Tensor, limits: Limits, place: Place) -> RowStatistics:
    """The row statistics of a fused call, without autograd and in full precision.

    Raises:
        ValueError: Tensors whose numbers cannot be read.
    """
    _check_measurable(q, k)
    if torch.compiler.is_compiling():
        return operations.measured(q, k, mask=limits.mask, causal=limits.causal, cross=place.kind == "cross")
    with without_autocast(q.device.type), full_precision():
        mask = None if limits.mask is None else limits.mask.detach()
        return row_statistics(AttentionCall(q.detach(), k.detach(), mask=mask, causal=limits.causal, place=place))


def heads_and_statistics(
    q: Tensor, k: Tensor, v: Tensor, limits: Limits, place: Place
) -> tuple[Tensor, RowStatistics] | None:
    """Every head's output `[B, H, N, d_v]` and the row statistics from one kernel; None where none gives both.

    That is with gradients, on devices other than CPUs and CUDA's, and where somebody watches torch's operations.
    """
    if torch._C._len_torch_function_stack() or _carries_tangents():
        return None
    if q.device.type not in ("cpu", "cuda") or not q.dtype == k.dtype == v.dtype:
        return None
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (q, k, v, limits.mask)):
        return None
    _check_measurable(q, k)
    if torch.compiler.is_compiling():
        return operations.attended(q, k, v, mask=limits.mask, causal=limits.causal, cross=place.kind == "cross")
    B, H, N, _ = q.shape
    heads = torch.empty(B, N, H, v.shape[-1], dtype=q.dtype, device=q.device).transpose(
        1, 2
    )  # joining them copies nothing
    call = AttentionCall(q.detach(), k.detach(), v.detach(), mask=limits.mask, causal=limits.causal, place=place)
    with without_autocast(q.device.type):
        statistics = fused_attention(call, heads)
    return None if statistics is None else (heads, statistics)


# The compiler asks these once, for a graph that it makes for this state alone.


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _carries_tangents() -> bool:
    """Whether derivatives are carried forward (torch.autograd.forward_ad), of which requires_grad says nothing."""
    return forward_ad._current_level >= 0


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _transforms() -> bool:
    """Whether a torch.func transform runs."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _check_measurable(x: Tensor, k: Tensor) -> None:
    if 0 in x.shape or 0 in k.shape:
        raise ValueError(
            f"MultiHeadAttention: measure=True: expected at least one sequence, query and key; got queries "
            f"{tuple(x.shape)} and keys {tuple(k.shape)}: there is nothing to measure"
        )
    if x.device.type == "meta":
        raise ValueError("MultiHeadAttention: measure=True: meta tensors hold no numbers: measure on a real device")
    compiling = torch.compiler.is_compiling()
    if _transforms() if compiling else torch._C._functorch.is_functorch_wrapped_tensor(x):
        raise ValueError(
            "MultiHeadAttention: measure=True: numbers cannot be read inside a torch.func transform (grad, vmap): "
            "measure in a plain call"
        )
