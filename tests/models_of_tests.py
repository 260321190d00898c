"""Small models that call fused attention in the ways that real ones do."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Attention over its own tokens, through F.scaled_dot_product_attention."""

    def __init__(
        self, width: int = 32, num_heads: int = 4, num_kv_heads: int | None = None, causal: bool = False
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_dim = width // num_heads
        self.causal = causal
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, self.num_kv_heads * self.head_dim)
        self.v = nn.Linear(width, self.num_kv_heads * self.head_dim)
        self.o = nn.Linear(width, width)
        self.dropout = 0.0

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        keys = x if context is None else context
        q, k, v = (
            p(t).view(*t.shape[:2], -1, self.head_dim).transpose(1, 2)
            for p, t in ((self.q, x), (self.k, keys), (self.v, keys))
        )
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal and mask is None, enable_gqa=self.num_kv_heads != self.num_heads,
        )  # fmt: skip
        return self.o(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.attn = SelfAttention(**options)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(x, mask=mask)
        return x + self.mlp(x)


class Decoder(nn.Module):
    """A small language model: token ids and a mask over tokens, as Hugging Face models take them."""

    def __init__(self, layers: int = 2, causal: bool = True, **options: object) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(Block(causal=causal, **options) for _ in range(layers))
        self.causal = causal

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        mask = None
        if attention_mask is not None:
            mask = attention_mask[:, None, None, :].bool()
            if self.causal:
                n = input_ids.shape[1]
                mask = mask & torch.ones(n, n, dtype=torch.bool).tril()
        for layer in self.layers:
            x = layer(x, mask)
        return x
