"""How many rows may see each key, and where each key stands in its sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.blocks import BLOCK_ELEMENTS
from headwise.call import AttentionCall
from headwise.kernels import Geometry, Tile
from headwise.kernels.tiles import visible_tile


def visible_rows(call: AttentionCall, geometry: Geometry, rows: Tensor) -> Tensor:
    """How many of some rows may see each key.

    Args:
        call: The call.
        geometry: Its geometry.
        rows: Which rows to count, bool `[b, h, N]`, each of b and h whole or 1.

    Returns:
        `[b', h', M]`, float64; whole where the rows or the mask are, else 1.
    """
    _, _, N, M = call.sizes
    spans = geometry.spans
    b, h = (max(rows.shape[i], spans.shape[i]) for i in (0, 1))
    one = rows.expand(b, h, N).double()
    whole_spans = call.mask is None or (
        call.q.device.type == "cpu" and bool((geometry.visible == (spans[..., 1] - spans[..., 0]).clamp(min=0)).all())
    )
    if whole_spans:
        # +1 where a row's span begins, -1 where it ends; a row that sees nothing has the span (M, 0).
        low, high = spans.expand(b, h, N, 2).unbind(-1)
        one = torch.where(low < high, one, 0.0)
        steps = one.new_zeros(b, h, M + 1).scatter_add_(-1, low, one).scatter_add_(-1, high, -one)
        return steps.cumsum(-1)[..., :M]
    seen = one.new_zeros(b, h, M)
    step = max(1, BLOCK_ELEMENTS // max(1, b * h * M))
    for start in range(0, N, step):
        part = slice(start, min(N, start + step))
        visible = visible_tile(call, Tile(rows=part))
        assert visible is not None
        visible = visible.expand(*visible.shape[:2], part.stop - part.start, M)
        seen += (one[:, :, None, part].float() @ visible.float()).squeeze(2)
    return seen


def key_positions(call: AttentionCall, geometry: Geometry) -> Tensor:
    """`j - f` of each key in its own sequence, int64 `[b, M]`; -1 before f and for keys of no sequence."""
    M = call.k.shape[2]
    key = torch.arange(M, device=geometry.first.device)
    # Packed sequences have one first key each, and keys stand where rows stand; else all rows share one.
    first = geometry.first if geometry.segment is not None else geometry.first.amax(-1, keepdim=True)
    return torch.where((first >= 0) & (key >= first), key - first, -1)
