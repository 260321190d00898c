"""Multi-head attention as the paper writes it, in float64: one head after the other, and no code of headwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def leaves(layer: nn.Module) -> dict[str, Tensor]:
    """Its parameters under their state dict keys, as float64 leaves that gather gradients."""
    return {name: p.detach().double().clone().requires_grad_() for name, p in layer.named_parameters()}


def textbook(
    layer: Any,
    p: dict[str, Tensor],
    x: Tensor,
    context: Tensor | None = None,
    seen: Tensor | None = None,
    bias: Tensor | None = None,
    position: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """y `[B, N, d_model]` and the weights `[B, H, N, M]`.

    Args:
        layer: Read for its sizes only.
        p: Its parameters, laid out as its docstring says.
        x: Tokens `[B, N, d_model]`.
        context: Tokens `[B, M, d_context]`, or None.
        seen: Bool, broadcastable to `[B, H, N, M]`.
        bias: Added to the scores.
        position: Applied to queries and keys, numbered from 0.
    """
    H, G, d, dv = layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.value_head_dim
    source = x if context is None else context
    B, N, M = *x.shape[:2], source.shape[1]
    if "qkv_proj.weight" in p:
        wide, wide_b = p["qkv_proj.weight"], p.get("qkv_proj.bias")
    else:
        wide, wide_b = None, None
    outs, maps = [], []
    for h in range(H):
        g = h // (H // G)
        rows = (
            slice(h * d, (h + 1) * d),
            slice(H * d + g * d, H * d + (g + 1) * d),
            slice(H * d + G * d + g * dv, H * d + G * d + (g + 1) * dv),
        )
        if wide is not None:
            matrices = [wide[r] for r in rows]
            biases = [None if wide_b is None else wide_b[r] for r in rows]
        else:
            k_row, v_row = (slice(r.start - H * d, r.stop - H * d) for r in rows[1:])
            matrices = [p["q_proj.weight"][rows[0]], p["kv_proj.weight"][k_row], p["kv_proj.weight"][v_row]]
            b_q, b_kv = p.get("q_proj.bias"), p.get("kv_proj.bias")
            biases = [None, None, None] if b_q is None else [b_q[rows[0]], b_kv[k_row], b_kv[v_row]]
        q, k, v = (
            t @ w.T + (0 if b is None else b) for t, w, b in zip((x, source, source), matrices, biases, strict=True)
        )
        q, k = normed(q, p, "q_norm"), normed(k, p, "k_norm")
        if position is not None:
            q = position(q[:, None], torch.arange(N))[:, 0]
            k = position(k[:, None], torch.arange(M))[:, 0]
        s = q @ k.transpose(1, 2) / math.sqrt(d)
        if bias is not None:
            s = s + bias.double().expand(B, H, N, M)[:, h]
        if seen is not None:
            visible = seen.expand(B, H, N, M)[:, h]
            s = torch.where(visible, s, -1e300)
            w = torch.softmax(s, -1) * visible.any(-1, keepdim=True)
        else:
            w = torch.softmax(s, -1)
        outs.append(w @ v)
        maps.append(w)
    y = torch.cat(outs, -1) @ p["out_proj.weight"].T
    return y + p.get("out_proj.bias", 0), torch.stack(maps, 1)


def normed(t: Tensor, p: dict[str, Tensor], name: str) -> Tensor:
    weight, shift = p.get(f"{name}.weight"), p.get(f"{name}.bias")
    if weight is None:
        return t
    if shift is None:
        return t / torch.sqrt((t * t).mean(-1, keepdim=True) + 1e-6) * weight
    centred = t - t.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-6) * weight + shift


def seen_by(N: int, M: int, alignment: str | None) -> Tensor | None:
    """Which keys causality leaves, `[N, M]`."""
    if alignment is None:
        return None
    shift = M - N if alignment == "lower_right" else 0
    return torch.tensor([[j <= i + shift for j in range(M)] for i in range(N)])


def shaken(layer: nn.Module) -> nn.Module:
    """The layer with random biases and norms too, so that a forgotten one shows."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return layer


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)
