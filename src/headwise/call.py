"""AttentionCall: one evaluation of eq. 1 inside a model, and where it was made. The value that flows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor

from headwise.errors import require, shown

Alignment: TypeAlias = Literal["upper_left", "lower_right"]

HIDE_BELOW = -65504.0
"""A float mask hides a key at -inf or at or below this: the lowest half-precision number."""


@dataclass(frozen=True)
class Place:
    """Where in a model an attention call was made.

    Attributes:
        layer: Number of the attention module, counted in order of first call.
        name: Path of the module, "" if attention was called outside any module.
        call: The nth attention inside this module in one forward of the root module.
        phase: "prefill", or "decode" when one query per sequence continues a cache.
        kind: "self", "cross", or "window" (self-attention that sees a sliding window).
        kv_groups: Query heads per key-value head as the model has them, even where it repeated k and v.
    """

    layer: int = 0
    name: str = ""
    call: int = 0
    phase: Literal["prefill", "decode"] = "prefill"
    kind: Literal["self", "cross", "window"] = "self"
    kv_groups: int = 1


@dataclass(frozen=True)
class AttentionCall:
    """The inputs of eq. 1 as a model gave them.

    Attributes:
        q: Queries `[B, H, N, d_k]`.
        k: Keys `[B, H_kv, M, d_k]`; query head h reads key-value head `h // (H / H_kv)`.
        v: Values `[B, H_kv, M, d_v]`, or None where only row statistics are wanted: they need no values.
        mask: Broadcastable to `[B, H, N, M]`; bool (True = may attend) or float (added to the scores).
        causal: None, "upper_left" or "lower_right".
        scale: Factor of the scores.
        softcap: `softcap * tanh(s / softcap)` before the mask is added, or None.
        sinks: One logit per query head `[H]`, or None.
        window: As in `headwise.attention`.
        hide_below: A float mask hides a key at or below this value.
        real: Rows that are no padding `[B, N]`, or None: told from the mask.
        place: Where the call was made.
    """

    q: Tensor
    k: Tensor
    v: Tensor | None = None
    mask: Tensor | None = None
    causal: Alignment | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    window: int | tuple[int | None, int | None] | None = None
    hide_below: float = HIDE_BELOW
    real: Tensor | None = None
    place: Place = field(default_factory=Place)

    def __post_init__(self) -> None:
        """Check that the shapes fit, so that every kernel may rely on them.

        Raises:
            TypeError: What must be a tensor is none.
            ValueError: What was expected and what came.
        """
        if self.q is None or self.k is None:
            raise TypeError("AttentionCall: expected q and k; got None")
        require("AttentionCall", Tensor, q=self.q, k=self.k, v=self.v, mask=self.mask, sinks=self.sinks, real=self.real)
        q, k, v = self.q, self.k, self.v
        places = {t.device for t in (q, k, v, self.mask, self.sinks) if t is not None}
        if len(places) > 1:
            raise ValueError(
                f"AttentionCall: expected tensors on one device; got {', '.join(sorted(map(str, places)))}"
            )
        shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}" + ("" if v is None else f", v {tuple(v.shape)}")
        if q.dim() != 4 or k.dim() != 4 or (v is not None and v.dim() != 4):
            raise ValueError(f"AttentionCall: expected 4 dimensions [B, heads, tokens, width]; got {shapes}")
        if not q.is_floating_point() or q.dtype != k.dtype:
            raise ValueError(f"AttentionCall: q and k must share a floating dtype; got {q.dtype} and {k.dtype}")
        if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
            raise ValueError(f"AttentionCall: q and k must have the same batch and width; got {shapes}")
        if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
            raise ValueError(f"AttentionCall: the heads of q must be a multiple of those of k; got {shapes}")
        if 0 in q.shape or 0 in k.shape:
            raise ValueError(f"AttentionCall: expected at least one sequence, query and key; got {shapes}")
        if v is not None and v.shape[:3] != k.shape[:3]:
            raise ValueError(f"AttentionCall: k and v must have the same batch, heads and keys; got {shapes}")
        full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        if self.mask is not None and not _broadcasts(tuple(self.mask.shape), full):
            raise ValueError(f"AttentionCall: mask {tuple(self.mask.shape)} does not broadcast to {full}")
        if self.mask is not None and self.mask.dtype != torch.bool and not self.mask.is_floating_point():
            raise ValueError(f"AttentionCall: mask must be bool (True = may attend) or float; got {self.mask.dtype}")
        if self.real is not None and tuple(self.real.shape) != (q.shape[0], q.shape[2]):
            raise ValueError(f"AttentionCall: real must be {(q.shape[0], q.shape[2])}; got {tuple(self.real.shape)}")
        if self.sinks is not None and tuple(self.sinks.shape) != (q.shape[1],):
            raise ValueError(f"AttentionCall: sinks must be {(q.shape[1],)}; got {tuple(self.sinks.shape)}")
        if self.softcap is not None and not self.softcap > 0:
            raise ValueError(f"AttentionCall: softcap must be above 0, or None; got {self.softcap}")
        if self.causal not in (None, "upper_left", "lower_right"):
            raise ValueError(
                f"AttentionCall: causal: expected None, 'upper_left' or 'lower_right'; got {shown(self.causal)}"
            )

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, H, N, M."""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2]

    @property
    def is_cross(self) -> bool:
        """Whether the keys belong to another sequence than the queries."""
        return self.place.kind == "cross"

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return replace(self, **changes)


def _broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    if not 1 <= len(shape) <= len(full):
        return False
    return all(size in (1, whole) for size, whole in zip(reversed(shape), reversed(full), strict=False))
