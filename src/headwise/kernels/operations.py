"""Row statistics in compiled graphs: two custom operations, which torch.compile and torch.export leave as they are.

No graph can hold a kernel: its tiles depend on what the mask hides, and the native one is a library of its own. As an
operation of torch it is a node with known shapes, and the graph around it stays whole. Code that is not compiled calls
kernels directly (`headwise.kernels.row_statistics`), which costs less.

    headwise::row_statistics   any call
    headwise::attention        the output too, in the same pass: a call that torch's fused attention could run
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.call import HIDE_BELOW, Alignment, AttentionCall, Place
from headwise.equations import Window, bias_of, visible_keys, window_sides
from headwise.kernels import chooser, native
from headwise.kernels.geometry import Geometry, geometry_of
from headwise.kernels.native.binding import TYPES
from headwise.kernels.precision import full_precision, without_autocast
from headwise.kernels.protocol import STATISTICS, RowStatistics
from headwise.kernels.tiles import working_dtype

# Statistics are [13, B, H, N] in the order of STATISTICS; from `visible` on it is a Geometry.
_RESULTS = (
    "Tensor statistics, Tensor argmax, Tensor visible, Tensor own, Tensor own_visible, Tensor previous_visible, "
    "Tensor next_visible, Tensor first, Tensor first_visible, Tensor real, Tensor segment, Tensor spans"
)
_STATISTICS = (
    "(Tensor q, Tensor k, Tensor? mask, Tensor? sinks, Tensor? real, str? causal, float? scale, float? softcap, "
    f"int? left, int? right, float hide_below, bool cross) -> ({_RESULTS})"
)
_ATTENTION = (
    "(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? real, str? causal, float? scale, float hide_below, "
    f"bool cross) -> (Tensor heads, {_RESULTS})"
)


def measured(
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None = None,
    causal: Alignment | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    window: Window | None = None,
    hide_below: float = HIDE_BELOW,
    real: Tensor | None = None,
    cross: bool = False,
) -> RowStatistics:
    """The row statistics of a call as one node of a graph, without gradients.

    Their geometry is that of `geometry_of`, but its shapes follow from the mask's shape alone, and where nothing is
    packed the segment of every row is 0: shapes may not depend on numbers.

    Args:
        q: As in `headwise.AttentionCall`, like all that follow; the call is made, and checked, inside the operation.
        k: Keys.
        mask: Mask.
        causal: Alignment of the causal limit.
        scale: Factor of the scores.
        softcap: Cap of the scores.
        sinks: Sink logits.
        window: Sliding window.
        hide_below: From where on a float mask hides.
        real: Rows that are no padding.
        cross: Whether the keys belong to another sequence than the queries.
    """
    left, right = window_sides(window)
    found = torch.ops.headwise.row_statistics(
        q.detach(), k.detach(), _detached(mask), _detached(sinks), real, causal, scale, softcap, left, right,
        hide_below, cross,
    )  # fmt: skip
    return _statistics(q, k, mask is not None and not cross, sinks is not None, *found)


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: Alignment | None = None,
    scale: float | None = None,
    hide_below: float = HIDE_BELOW,
    real: Tensor | None = None,
    cross: bool = False,
) -> tuple[Tensor, RowStatistics] | None:
    """The output `[B, H, N, d_v]` and the row statistics as one node of a graph; it has no derivative.

    None where no kernel gives both: the call is then better made of torch's own attention and `measured`. Arguments are
    as there.
    """
    if not _attends(q.device.type, q.dtype, k.dtype, v.dtype):
        return None
    heads, *found = torch.ops.headwise.attention(q, k, v, mask, real, causal, scale, hide_below, cross)
    return heads, _statistics(q, k, mask is not None and not cross, False, *found)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _attends(device: str, *dtypes: torch.dtype) -> bool:
    return device == "cpu" and len({*dtypes}) == 1 and dtypes[0] in TYPES and not isinstance(native.library(), str)


def _detached(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach()


def _statistics(
    q: Tensor, k: Tensor, may_be_packed: bool, has_sinks: bool, statistics: Tensor, argmax: Tensor, *geometry: Tensor
) -> RowStatistics:
    """What an operation returned, as it is called outside."""
    visible, own, own_visible, previous_visible, next_visible, first, first_visible, real, segment, spans = geometry
    may_be_packed = may_be_packed and q.shape[2] == k.shape[2]
    return RowStatistics(
        **dict(zip(STATISTICS, statistics.unbind(0), strict=True)),
        argmax=argmax,
        geometry=Geometry(
            k.shape[2], visible, own, own_visible, previous_visible, next_visible, first, first_visible, real,
            segment if may_be_packed else None, spans,
        ),
        has_sinks=has_sinks,
    )  # fmt: skip


# What the operations do


def _run_statistics(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    real: Tensor | None,
    causal: Alignment | None,
    scale: float | None,
    softcap: float | None,
    left: int | None,
    right: int | None,
    hide_below: float,
    cross: bool,
) -> tuple[Tensor, ...]:
    window = None if left is None and right is None else (left, right)
    call = AttentionCall(
        q, k, None, mask, causal, scale, softcap, sinks, window, hide_below, real, _place(cross)
    )  # fmt: skip
    with without_autocast(q.device.type), full_precision():
        return _results(call, chooser.row_statistics(call))


def _run_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    real: Tensor | None,
    causal: Alignment | None,
    scale: float | None,
    hide_below: float,
    cross: bool,
) -> tuple[Tensor, ...]:
    call = AttentionCall(q, k, v, mask, causal, scale, hide_below=hide_below, real=real, place=_place(cross))
    heads = _heads(call)
    with without_autocast(q.device.type), full_precision():
        geometry = geometry_of(call)
        statistics = chooser.fused_attention(call, heads, geometry)
        if statistics is None:  # numbers that are not finite
            heads.copy_(_torch_attention(call))
            statistics = chooser.row_statistics(call, geometry=geometry)
        return heads, *_results(call, statistics)


def _place(cross: bool) -> Place:
    return Place(kind="cross" if cross else "self")


def _heads(call: AttentionCall) -> Tensor:
    """Memory for the output `[B, H, N, d_v]`, of which joining the heads needs no copy."""
    assert call.v is not None
    B, H, N, _ = call.sizes
    return call.q.new_empty(B, N, H, call.v.shape[-1]).transpose(1, 2)


def _torch_attention(call: AttentionCall) -> Tensor:
    """Torch's own attention, which knows one causal alignment and hides by -inf alone."""
    assert call.v is not None
    _, H, N, M = call.sizes
    mask = None if call.mask is None else call.mask[(None,) * (4 - call.mask.dim())]
    fused = mask is None and (call.causal == "upper_left" or (call.causal is not None and N == M))
    if not fused:
        visible = visible_keys(N, M, mask=mask, causal=call.causal, hide_below=call.hide_below, device=call.q.device)
        bias = bias_of(mask, call.q.dtype)
        mask = visible if bias is None or visible is None else bias.masked_fill(~visible, -math.inf)
    return F.scaled_dot_product_attention(
        call.q, call.k, call.v, mask, is_causal=fused, scale=call.scale, enable_gqa=call.k.shape[1] != H
    )


def _results(call: AttentionCall, s: RowStatistics) -> tuple[Tensor, ...]:
    """Statistics and geometry in the shapes of `_shapes`, no tensor a view of another."""
    g = s.geometry
    segment = torch.zeros_like(g.own) if g.segment is None else g.segment
    tensors = (
        g.visible, g.own, g.own_visible, g.previous_visible, g.next_visible, g.first, g.first_visible, g.real, segment,
        g.spans,
    )  # fmt: skip
    geometry = [
        tensor.expand(shape).clone(memory_format=torch.contiguous_format)
        for tensor, (shape, _) in zip(tensors, _shapes(call)[2:], strict=True)
    ]
    return torch.stack([getattr(s, name) for name in STATISTICS]), s.argmax.contiguous(), *geometry


def _shapes(call: AttentionCall) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """Shape and dtype of every result: they follow from the shapes of a call."""
    B, H, N, _ = call.sizes
    b, h = (1, 1) if call.mask is None else (1, 1, 1, 1, *call.mask.shape)[-4:-2]
    rows, heads = (b, N), (b, h, N)
    return (
        ((len(STATISTICS), B, H, N), working_dtype(call)),
        ((B, H, N), torch.int64),
        (heads, torch.int64),
        (rows, torch.int64),
        *[(heads, torch.bool)] * 3,
        (rows, torch.int64),
        (heads, torch.bool),
        (rows if call.real is None else (B, N), torch.bool),
        (rows, torch.int64),
        ((*heads, 2), torch.int64),
    )


# What they are known to return before they have run


def _fake_statistics(
    q: Tensor, k: Tensor, mask: Tensor | None, sinks: Tensor | None, real: Tensor | None, *_: object
) -> tuple[Tensor, ...]:
    call = AttentionCall(q, k, mask=mask, sinks=sinks, real=real)
    return tuple(q.new_empty(shape, dtype=dtype) for shape, dtype in _shapes(call))


def _fake_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, real: Tensor | None, *_: object
) -> tuple[Tensor, ...]:
    call = AttentionCall(q, k, v, mask=mask, real=real)
    return _heads(call), *(q.new_empty(shape, dtype=dtype) for shape, dtype in _shapes(call))


torch.library.custom_op("headwise::row_statistics", _run_statistics, mutates_args=(), schema=_STATISTICS).register_fake(
    _fake_statistics
)
torch.library.custom_op("headwise::attention", _run_attention, mutates_args=(), schema=_ATTENTION).register_fake(
    _fake_attention
)
