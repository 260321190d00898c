"""The tokens that a layer is called with, checked and with a batch dimension."""

from __future__ import annotations

from torch import Tensor

from headwise.errors import require
from headwise.layer.widths import Widths


def checked_inputs(
    x: Tensor, context: Tensor | None, key_mask: Tensor | None, widths: Widths
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Tokens `[B, N, d_model]`, context `[B, M, d_context]` and key mask `[B, M]`, where one sequence needs no B.

    Raises:
        TypeError: What must be a tensor is none.
        ValueError: Shapes that do not fit: what was expected, what came, what to do.
    """
    if x is None:
        raise TypeError("MultiHeadAttention: x: expected tokens [B, N, d_model]; got None")
    require("MultiHeadAttention", Tensor, x=x, context=context, key_mask=key_mask)
    d_model, d_context = widths.d_model, widths.d_context
    if not x.is_floating_point():
        raise ValueError(f"MultiHeadAttention: x: expected floating point; got {x.dtype}: token ids need an embedding")
    if x.dim() not in (2, 3) or x.shape[-1] != d_model:
        raise ValueError(
            f"MultiHeadAttention: x: expected [B, N, d_model] or [N, d_model] with d_model = {d_model}; "
            f"got {tuple(x.shape)}"
        )
    if context is None and d_context != d_model:
        raise ValueError(
            f"MultiHeadAttention: this layer reads a context of width d_context = {d_context}, other than "
            f"d_model = {d_model}, so it cannot attend to x itself: pass context [B, M, {d_context}]"
        )
    if context is not None and (
        context.dim() != x.dim() or context.shape[-1] != d_context or context.shape[:-2] != x.shape[:-2]
    ):
        expected = ", ".join([*map(str, x.shape[:-2]), "M", str(d_context)])
        raise ValueError(
            f"MultiHeadAttention: context: expected [{expected}] beside x {tuple(x.shape)}; got {tuple(context.shape)}"
        )
    if x.dim() == 2:
        x = x[None]
        context = None if context is None else context[None]
        key_mask = key_mask[None] if key_mask is not None and key_mask.dim() == 1 else key_mask
    return x, context, key_mask
