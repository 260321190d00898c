"""Multi-head attention, eq. 2 and 3 of Vaswani et al. 2017, on torch's fused attention.

    MultiHead(X, C) = Concat(head_1, ..., head_H) W^O
    head_i          = Attention(X W_i^Q, C W_i^K, C W_i^V)          W_i^Q [d_model, d_k]         (2)
    d_k = d_v       = d_model / H                                                                (3)

C is X itself (self-attention) or another sequence, the context (encoder-decoder attention). With fewer key-value heads
than query heads, neighbouring query heads share theirs: grouped-query attention (Ainslie et al. 2023), or multi-query
attention with one (Shazeer 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.call import Place
from headwise.equations import Alignment, merge_heads, split_heads
from headwise.errors import shown
from headwise.kernels import RowStatistics
from headwise.layer import torch_layers
from headwise.layer.cache import KVCache
from headwise.layer.heads import HeadWeights, heads_and_statistics, split_parameters, statistics_beside, weights_beside
from headwise.layer.inputs import checked_inputs
from headwise.layer.masks import limits_of
from headwise.layer.projection import Projection, xavier_bound
from headwise.layer.widths import widths_of

Init: TypeAlias = Literal["fused", "per_head"]
Norm: TypeAlias = Literal["rms", "layer"]
Position: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Result: TypeAlias = Tensor | tuple[Tensor, Tensor] | tuple[Tensor, RowStatistics] | tuple[Tensor, Tensor, RowStatistics]


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, eq. 2 and 3).

    State dict keys (`+ .bias` where there is one; heads stand one after the other in every block of rows):

    - `qkv_proj.weight [H d_k + H_kv d_k + H_kv d_v, d_model]`: the queries' rows, then the keys', then the values'
      (the order of torch's `in_proj_weight`). With a `d_context` other than d_model instead of it
      `q_proj.weight [H d_k, d_model]` and `kv_proj.weight [H_kv d_k + H_kv d_v, d_context]`.
    - `out_proj.weight [d_model, H d_v]`: W^O transposed.
    - `q_norm.weight [d_k]`, `k_norm.weight [d_k]` with `qk_norm`.

    They do not hold the number of heads: at one width, a layer of other heads loads them too, and computes another
    function.

    Attributes:
        d_model: Width of the tokens.
        d_context: Width of the context's tokens.
        num_heads: Query heads H.
        num_kv_heads: Key-value heads H_kv.
        head_dim: Width of a query and of a key d_k.
        value_head_dim: Width of a value d_v.
        dropout: Probability of dropping a weight while training.
        widths: All of these, and what they cost.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        d_context: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        qk_norm: Norm | None = None,
        init: Init = "fused",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the layer.

        Args:
            d_model: Width of the tokens.
            num_heads: Query heads H.
            num_kv_heads: Key-value heads that they share (GQA; 1: MQA). Default H.
            head_dim: Width of a query and of a key d_k. Default `d_model / num_heads` (eq. 3); any other keeps the
                size of a head fixed whatever their number (Bhojanapalli et al. 2020).
            value_head_dim: Width of a value d_v. Default `head_dim`.
            d_context: Width of the context's tokens. Default d_model.
            bias: Whether the projections have biases.
            dropout: Probability of dropping a weight while training.
            qk_norm: Normalise each head's queries and keys: "rms" or "layer" (Henry et al. 2020).
            init: "fused": Xavier on the whole matrix of all heads, so that at constant width layers start from the
                same Q, K, V whatever H is. "per_head": Xavier on the matrix of each head, which has a larger bound:
                the variance of the scores is `((d_model + H d_k) / (d_model + d_k))^2` times larger (3.2 times at
                H = 8 and constant width). W^O is Xavier as a whole in both, biases are 0.
            device: Where to make the parameters.
            dtype: In which dtype.

        Raises:
            ValueError: A width that does not divide (with the head counts that would fit), or another argument out
                of its range.
        """
        super().__init__()
        if not 0 <= dropout <= 1:
            raise ValueError(f"MultiHeadAttention: dropout: expected a probability in 0..1; got {shown(dropout)}")
        if qk_norm not in (None, *get_args(Norm)):
            raise ValueError(f"MultiHeadAttention: qk_norm: expected None, 'rms' or 'layer'; got {shown(qk_norm)}")
        if init not in get_args(Init):
            raise ValueError(f"MultiHeadAttention: init: expected 'fused' or 'per_head'; got {shown(init)}")
        w = self.widths = widths_of(d_model, num_heads, num_kv_heads, head_dim, value_head_dim, d_context)
        self.d_model, self.d_context = w.d_model, w.d_context
        self.num_heads, self.num_kv_heads = w.num_heads, w.num_kv_heads
        self.head_dim, self.value_head_dim = w.head_dim, w.value_head_dim
        self.dropout = dropout
        self.init = init
        self._identity = object()  # stands for this layer in its caches

        whole = init == "fused"
        q = (w.q, xavier_bound(w.d_model, w.q if whole else w.head_dim))
        k = (w.k, xavier_bound(w.d_context, w.k if whole else w.head_dim))
        v = (w.v, xavier_bound(w.d_context, w.v if whole else w.value_head_dim))
        o = (w.d_model, xavier_bound(w.out, w.d_model))
        self.qkv_proj: Projection | None = None
        self.q_proj: Projection | None = None
        self.kv_proj: Projection | None = None
        # Made in this order, so that a seed gives Q, K, V, O in this order.
        if w.d_context == w.d_model:
            self.qkv_proj = Projection(w.d_model, (q, k, v), bias=bias, device=device, dtype=dtype)
        else:
            self.q_proj = Projection(w.d_model, (q,), bias=bias, device=device, dtype=dtype)
            self.kv_proj = Projection(w.d_context, (k, v), bias=bias, device=device, dtype=dtype)
        self.out_proj = Projection(w.out, (o,), bias=bias, device=device, dtype=dtype)
        self.q_norm = _norm(qk_norm, w.head_dim, device, dtype)
        self.k_norm = _norm(qk_norm, w.head_dim, device, dtype)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool | Alignment | None = False,
        key_mask: Tensor | None = None,
        position: Position | None = None,
        cache: KVCache | None = None,
        measure: bool = False,
        return_weights: bool = False,
    ) -> Result:
        """Attend. N queries read M keys: their own tokens (and those in the cache), or the context's.

        A query that may see no key gets 0 from every head, so its output is the bias of `out_proj`. The output is
        the same, bit by bit, whatever is asked for beside it; with `measure=True`, without gradients and dropout, one
        kernel gives output and statistics where it can (on CPUs), and the output is the same to 1e-5.

        Args:
            x: Tokens `[B, N, d_model]`; one sequence `[N, d_model]` works too.
            context: Tokens to read `[B, M, d_context]`; None: x itself.
            mask: Broadcastable to `[B, H, N, M]`. Bool: True = may attend. Float: added to the scores; -inf, or
                anything at or below -65504, hides the key.
            causal: "upper_left": query i sees keys 0..i. "lower_right": the last query sees every key. True: lower
                right with a cache, upper left without one.
            key_mask: Which keys are real, `[B, M]`: True or 1 = a real key, 0 = padding (Hugging Face's
                attention_mask). With a cache, of the cached and the new keys.
            position: Called as `position(q, positions)` and `position(k, positions)` with q `[B, H, N, d_k]` and the
                new keys, and `positions [N]` (int64, counting on from the cache; a context counts from 0):
                `headwise.RotaryEmbedding`.
            cache: Keys and values of earlier calls of this layer. Not under activation checkpointing, which runs a
                forward twice.
            measure: Also return the row statistics, without holding N x M weights. They have no gradient; in a compiled
                model they are one operation of its graph.
            return_weights: Also return the weights of every head, before dropout; they hold N x M numbers a head.

        Returns:
            `y [B, N, d_model]`, or with what was asked for: `(y, weights)`, `(y, statistics)`,
            `(y, weights, statistics)`. Weights `[B, H, N, M]`, whose rows sum to 1 (to 0 where no key is visible);
            for one sequence `[N, d_model]` and `[H, N, M]`. Statistics are a `RowStatistics` of `[B, H, N]`, detached.

        Raises:
            ValueError: Shapes or dtypes that do not fit: what was expected, what came, what to do.
        """
        if cache is not None and not isinstance(cache, KVCache):
            raise ValueError(f"MultiHeadAttention: cache: expected a headwise.KVCache; got {type(cache).__name__}")
        given = context
        tokens, context, key_mask = checked_inputs(x, context, key_mask, self.widths)
        batched, x = x.dim() != 2, tokens
        B, N, _ = x.shape
        cached = None if cache is None else cache.length if context is None else 0
        M = (cached or 0) + N if context is None else context.shape[1]
        if cache is not None and context is not None and (position is not None or causal):
            raise ValueError(
                "MultiHeadAttention: with a context and a cache it is not known which queries these are, so neither "
                "position nor causal can be used: leave out the cache"
            )
        limits = limits_of(mask, key_mask, causal, (B, self.num_heads, N, M), cached)

        graph = limits.mask is not None and limits.mask.requires_grad
        # [B, H, N, d_k], [B, H_kv, M, d_k], [B, H_kv, M, d_v]
        q, k, v = self._projected(x, context, position, cache, given, graph)
        limits = limits.taken(q.dtype)
        dropout = self.dropout if self.training else 0.0
        place = Place(
            phase="decode" if cached and N == 1 else "prefill",
            kind="self" if context is None else "cross",
            kv_groups=self.num_heads // self.num_kv_heads,
        )
        both = heads_and_statistics(q, k, v, limits, place) if measure and not dropout else None
        statistics: RowStatistics | None
        if both is not None:
            heads, statistics = both
        else:
            heads = F.scaled_dot_product_attention(  # [B, H, N, d_v]; eq. 1 in every head
                q, k, v, **limits.fused(N, M, q.device), dropout_p=dropout,
                enable_gqa=self.num_kv_heads != self.num_heads,
            )  # fmt: skip
            statistics = statistics_beside(q, k, limits, place) if measure else None
        y: Tensor = self.out_proj(merge_heads(heads))  # [B, N, d_model]; Concat(...) W^O

        weights = weights_beside(q, k, limits) if return_weights else None  # [B, H, N, M]
        if not batched:
            y, weights = y[0], None if weights is None else weights[0]
        if statistics is None:
            return y if weights is None else (y, weights)
        return (y, statistics) if weights is None else (y, weights, statistics)

    def per_head_weights(self) -> HeadWeights:
        """Every head's `W_i^Q, W_i^K, W_i^V, W_i^O` and biases, as the paper writes them, with their gradients."""
        return split_parameters(*self.projections, self.out_proj, self.widths)

    @property
    def projections(self) -> tuple[Projection, Projection]:
        """The projection that holds the queries (in its first rows), and the one of keys and values (in its last)."""
        if self.qkv_proj is not None:
            return self.qkv_proj, self.qkv_proj
        assert self.q_proj is not None
        assert self.kv_proj is not None
        return self.q_proj, self.kv_proj

    def reset_parameters(self) -> None:
        """Draw all parameters anew: Q, K, V and O in this order, from the default generator."""
        for module in dict.fromkeys((*self.projections, self.out_proj, self.q_norm, self.k_norm)):
            if module is not None:
                module.reset_parameters()

    # What it costs

    @property
    def num_parameters(self) -> int:
        """How many parameters it has; `4 d_model (d_model + 1)` with the defaults."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def flops_per_token(self) -> int:
        """FLOPs of all projections of one token that is query and key; a multiply-add counts as 2."""
        return self.widths.flops_per_query + self.widths.flops_per_key

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of eq. 1 in all heads for one query and one key, `2 H (d_k + d_v)`."""
        return self.widths.flops_per_pair

    def flops(self, num_queries: int, num_keys: int | None = None, *, batch: int = 1) -> int:
        """FLOPs of a forward; a multiply-add counts as 2, biases and softmax are not counted.

        Every pair of query and key counts: a causal kernel skips up to half of them.

        Args:
            num_queries: N.
            num_keys: M, all projected anew; None: self-attention, M = N.
            batch: B.
        """
        num_keys = num_queries if num_keys is None else num_keys
        w = self.widths
        projections = num_queries * w.flops_per_query + num_keys * w.flops_per_key
        return batch * (projections + num_queries * num_keys * w.flops_per_pair)

    # From torch and back

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> Self:
        """A layer with the parameters of a `torch.nn.MultiheadAttention` (copied), that computes the same.

        Dropout, training mode, device, dtype and requires_grad are taken over. With `kdim == vdim` other than
        embed_dim, they are `d_context`. Masks have another meaning in torch: `masks_from_torch`.

        Raises:
            TypeError: It is no `torch.nn.MultiheadAttention`.
            ValueError: It has what this layer has not, with the reason: bias_k and bias_v, add_zero_attn, different
                kdim and vdim, a forward of its own.
        """
        return torch_layers.from_torch(cls, module)

    def to_torch(self, batch_first: bool = True) -> nn.MultiheadAttention:
        """A `torch.nn.MultiheadAttention` with these parameters (copied), that computes the same.

        Shared keys and values (GQA) are written out for every query head.

        Raises:
            ValueError: It has what torch's has not, with the reason: qk_norm, heads of another width than
                `d_model / num_heads`.
        """
        return torch_layers.to_torch(self, batch_first)

    @staticmethod
    def masks_from_torch(
        attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, num_heads: int | None = None
    ) -> dict[str, Tensor]:
        """The masks of `torch.nn.MultiheadAttention` as keyword arguments `mask` and `key_mask` of `forward`.

        There True means hidden, here True means visible. Float masks are added to the scores in both; a float
        key_padding_mask goes into `mask`. Whoever passed `is_causal=True` with a mask passes the mask alone.

        Args:
            attn_mask: `[N, M]`, or `[B * num_heads, N, M]`.
            key_padding_mask: `[B, M]`.
            num_heads: Needed to split a mask of three dimensions.

        Raises:
            ValueError: Another dtype than bool or float, or a mask of three dimensions that cannot be split.
        """
        return torch_layers.masks_from_torch(attn_mask, key_padding_mask, num_heads)

    def extra_repr(self) -> str:
        """Its sizes."""
        return (
            f"d_model={self.d_model}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, "
            f"head_dim={self.head_dim}, value_head_dim={self.value_head_dim}, d_context={self.d_context}, "
            f"dropout={self.dropout}"
        )

    # Parts of the forward

    def _projected(
        self,
        x: Tensor,
        context: Tensor | None,
        position: Position | None,
        cache: KVCache | None,
        given: Tensor | None,
        graph: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[B, H, N, d_k]`, keys `[B, H_kv, M, d_k]` and values `[B, H_kv, M, d_v]`, as they enter eq. 1.

        `given` is the context as the caller gave it, by which a cache knows it again; `graph`: whether a mask needs a
        gradient.
        """
        w = self.widths
        q_proj, kv_proj = self.projections
        if cache is not None:
            cache.claim(self._identity)
        if context is None:
            q, k, v = q_proj(x).split((w.q, w.k, w.v), -1)  # one matrix product for all three
            past = 0 if cache is None else cache.length
            q = self._in_heads(q, self.num_heads, self.q_norm, position, past)
            k = self._in_heads(k, self.num_kv_heads, self.k_norm, position, past)
            v = split_heads(v, self.num_kv_heads)
            return (q, k, v) if cache is None else (q, *cache.update(k, v, graph=graph or q.requires_grad))

        def keys_and_values(context: Tensor) -> tuple[Tensor, Tensor]:
            k, v = kv_proj(context, slice(-w.k - w.v, None)).split((w.k, w.v), -1)
            return self._in_heads(k, self.num_kv_heads, self.k_norm, position, 0), split_heads(v, self.num_kv_heads)

        parameters = (*kv_proj.parameters(), *(() if self.k_norm is None else self.k_norm.parameters()))
        q = self._in_heads(q_proj(x, slice(0, w.q)), self.num_heads, self.q_norm, position, 0)
        return q, *(
            keys_and_values(context)
            if cache is None
            else cache.of_context(context, q.dtype, keys_and_values, parameters, given)
        )

    def _in_heads(
        self, x: Tensor, num_heads: int, norm: nn.RMSNorm | nn.LayerNorm | None, position: Position | None, past: int
    ) -> Tensor:
        """`[B, N, h * d_k]` to `[B, h, N, d_k]`, normalised and placed; `past` tokens came before."""
        heads = split_heads(x, num_heads)
        if norm is not None:
            heads = norm(heads.to(norm.weight.dtype))  # float32 under autocast
        if position is not None:
            N = x.shape[1]
            placed = position(heads, torch.arange(past, past + N, device=x.device))
            if placed.shape != heads.shape:
                raise ValueError(
                    f"MultiHeadAttention: position: expected it to return the shape it was given, "
                    f"{tuple(heads.shape)}; got {tuple(placed.shape)}"
                )
            heads = placed
        return heads.to(x.dtype)


def _norm(
    kind: Norm | None, width: int, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.RMSNorm | nn.LayerNorm | None:
    kinds: dict[str, Any] = {"rms": nn.RMSNorm, "layer": nn.LayerNorm}
    return None if kind is None else kinds[kind](width, eps=1e-6, device=device, dtype=dtype)
