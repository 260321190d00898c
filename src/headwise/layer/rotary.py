"""Rotary position embedding (RoPE): Su et al. 2021, "RoFormer", eq. 34."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.errors import shown


class RotaryEmbedding(nn.Module):
    """Turns each pair of features of a query or key by an angle that grows with its position.

    The pair `t` at position `i` is turned by `i * base^(-2t / dim)`, so a score depends on positions only through
    `i - j`. Give it to a layer: `mha(x, position=RotaryEmbedding(mha.head_dim))`. It has no parameters and no buffers:
    nothing to move between devices, nothing that `to_empty` could lose.
    """

    def __init__(self, dim: int, base: float = 10000.0, interleaved: bool = False) -> None:
        """Choose what is turned.

        Args:
            dim: How many features are turned, even; the rest of a wider head stays as it is.
            base: The longest wavelength is about `2 pi base` tokens.
            interleaved: The pairs are features `(2t, 2t + 1)`, as in the paper. False: `(t, t + dim / 2)`, as in
                Llama and most models of Hugging Face. A permutation of features turns one into the other.

        Raises:
            ValueError: `dim` is odd or below 2, or `base` not positive.
        """
        super().__init__()
        if not isinstance(dim, int) or dim < 2 or dim % 2:
            raise ValueError(f"RotaryEmbedding: dim: expected an even number of features, 2 or more; got {shown(dim)}")
        if not 0 < base < float("inf"):
            raise ValueError(f"RotaryEmbedding: base: expected a positive, finite number; got {shown(base)}")
        self.dim = dim
        self.base = float(base)
        self.interleaved = interleaved

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn queries or keys.

        Angles are computed in float32 at least (in float64 for float64), whatever the dtype of `x`.

        Args:
            x: `[B, H, N, d]`, d >= dim.
            positions: Integers `[N]`, or `[B, N]` where sequences count differently.

        Returns:
            `[B, H, N, d]` in the dtype of `x`.

        Raises:
            ValueError: Shapes that do not fit.
        """
        if x.shape[-1] < self.dim:
            raise ValueError(
                f"RotaryEmbedding: it turns dim = {self.dim} features, but the heads are {x.shape[-1]} wide: "
                "use RotaryEmbedding(head_dim)"
            )
        if positions.dim() not in (1, 2) or positions.shape[-1] != x.shape[-2]:
            raise ValueError(
                f"RotaryEmbedding: positions: expected [N] or [B, N] with N = {x.shape[-2]}; "
                f"got {tuple(positions.shape)}"
            )
        if positions.is_floating_point() or (positions.dim() == 2 and positions.shape[0] not in (1, x.shape[0])):
            raise ValueError(
                f"RotaryEmbedding: positions: expected integers [N], or [B, N] with B = {x.shape[0]}; "
                f"got {positions.dtype} {tuple(positions.shape)}"
            )
        exact = torch.promote_types(x.dtype, torch.float32)
        t = torch.arange(0, self.dim, 2, dtype=exact, device=x.device) / self.dim  # [dim / 2]
        angle = positions.to(exact)[..., None] * self.base**-t  # [..., N, dim / 2]
        if positions.dim() == 2:
            angle = angle[:, None]  # the same in every head
        cos, sin = angle.cos(), angle.sin()

        turned, rest = x[..., : self.dim].to(exact), x[..., self.dim :]
        a, b = (turned[..., 0::2], turned[..., 1::2]) if self.interleaved else turned.chunk(2, -1)
        pair = (a * cos - b * sin, a * sin + b * cos)
        turned = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        return torch.cat((turned.to(x.dtype), rest), -1)

    def extra_repr(self) -> str:
        """The numbers it was made with."""
        return f"dim={self.dim}, base={self.base:g}, interleaved={self.interleaved}"
