"""A small Transformer in three forms, whose heads are `headwise.MultiHeadAttention`: the twins, and what studies train.

    decoder           tokens -> blocks, causal -> an answer at every position           (text, lookup)
    encoder           tokens or vectors -> blocks -> mean over positions -> an answer   (digits)
    encoder-decoder   source -> encoder; target -> decoder that reads it -> an answer   (translation)

Pre-norm (Xiong et al. 2020): `x + Attention(Norm(x))`, then `x + FeedForward(Norm(x))`. Positions are learned vectors,
which are the same whatever the width of a head; rotary positions would not be. Norms have no bias, nor has the
readout: what a position answers then depends only on the direction of its vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.errors import shown
from headwise.layer import KVCache, MultiHeadAttention
from headwise.layer.multi_head import Init

Kind: TypeAlias = Literal["decoder", "encoder", "encoder-decoder"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Architecture:
    """What is asked of the model.

    Attributes:
        kind: "decoder", "encoder" or "encoder-decoder".
        length: The most positions of a sequence.
        vocab: Tokens that exist; None where the input is vectors.
        features: Width of the vectors, where there is no vocabulary.
        outputs: Answers to choose from at a position; None: the vocabulary itself, read out by its embeddings.
    """

    kind: Kind
    length: int
    vocab: int | None = None
    features: int | None = None
    outputs: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no model can be made of."""
        if self.kind not in KINDS:
            raise ValueError(f"Architecture: kind: expected one of {', '.join(KINDS)}; got {shown(self.kind)}")
        if (self.vocab is None) == (self.features is None):
            raise ValueError("Architecture: expected either vocab (token ids) or features (vectors), and not both")
        if self.vocab is None and (self.kind != "encoder" or self.outputs is None):
            raise ValueError(
                "Architecture: vectors go into an encoder, which needs outputs: how many classes there are"
            )
        if self.kind == "encoder-decoder" and self.outputs is not None:
            raise ValueError("Architecture: an encoder-decoder answers with its own vocabulary: leave out outputs")


@dataclass(frozen=True)
class Sizes:
    """The sizes of one model, the number and width of its heads, and how they are initialised."""

    d_model: int
    num_layers: int
    d_ff: int
    num_heads: int
    head_dim: int
    dropout: float = 0.0
    init: Init = "fused"


class LayerCaches(NamedTuple):
    """What a decoder block has read so far: its own tokens, and the encoder's."""

    own: KVCache
    context: KVCache


class Block(nn.Module):
    """Attention, attention to a context where there is one, and a feed-forward network unless `d_ff` is 0."""

    def __init__(self, sizes: Sizes, *, reads_context: bool = False) -> None:
        super().__init__()
        d = sizes.d_model
        self.attention_norm = nn.LayerNorm(d, bias=False)
        self.attention = self._attention(sizes)
        self.context_norm = nn.LayerNorm(d, bias=False) if reads_context else None
        self.context_attention = self._attention(sizes) if reads_context else None
        self.feed_forward_norm = nn.LayerNorm(d, bias=False) if sizes.d_ff else None
        self.feed_forward = (
            nn.Sequential(nn.Linear(d, sizes.d_ff), nn.ReLU(), nn.Linear(sizes.d_ff, d)) if sizes.d_ff else None
        )
        self.dropout = nn.Dropout(sizes.dropout)

    @staticmethod
    def _attention(sizes: Sizes) -> MultiHeadAttention:
        return MultiHeadAttention(sizes.d_model, sizes.num_heads, head_dim=sizes.head_dim, init=sizes.init)

    def forward(
        self,
        x: Tensor,
        *,
        causal: bool,
        mask: Tensor | None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        caches: LayerCaches | None = None,
    ) -> Tensor:
        """`x [B, N, d_model]` to the same shape; masks `[B, N]` and `[B, M]` say which tokens are real."""
        own, read = caches or (None, None)
        heard = self.attention(self.attention_norm(x), causal=causal, key_mask=mask, cache=own)
        x = x + self.dropout(cast(Tensor, heard))
        if self.context_attention is not None and self.context_norm is not None:
            heard = self.context_attention(self.context_norm(x), context, key_mask=context_mask, cache=read)
            x = x + self.dropout(cast(Tensor, heard))
        if self.feed_forward is not None and self.feed_forward_norm is not None:
            x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return x


class Embedded(nn.Module):
    """Tokens and their positions as vectors; the vectors of several ids at one position are added."""

    def __init__(self, d_model: int, vocab: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, d_model)
        self.positions = nn.Embedding(length, d_model)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids `[B, N]` or `[B, N, F]` to `[B, N, d_model]`; `start` tokens came before."""
        x = self.tokens(ids)
        if ids.dim() == 3:
            x = x.sum(2)
        places = torch.arange(start, start + ids.shape[1], device=ids.device)
        return cast(Tensor, math.sqrt(x.shape[-1]) * (x + self.positions(places)))


class Decoder(nn.Module):
    """Every position answers from what stands before it, and from itself."""

    def __init__(self, architecture: Architecture, sizes: Sizes) -> None:
        super().__init__()
        assert architecture.vocab is not None
        self.embedded = Embedded(sizes.d_model, architecture.vocab, architecture.length)
        self.dropout = nn.Dropout(sizes.dropout)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.num_layers))
        self.norm = nn.LayerNorm(sizes.d_model, bias=False)
        outputs = architecture.outputs
        self.readout = None if outputs is None else nn.Linear(sizes.d_model, outputs, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Ids `[B, N]` or `[B, N, F]` to logits `[B, N, outputs]`."""
        x = self.dropout(self.embedded(input_ids))
        for block in self.blocks:
            x = block(x, causal=True, mask=attention_mask)
        return read_out(self.norm(x), self.readout, self.embedded.tokens)


class Encoder(nn.Module):
    """The mean of all positions answers once."""

    def __init__(self, architecture: Architecture, sizes: Sizes) -> None:
        super().__init__()
        d, length = sizes.d_model, architecture.length
        self.embedded = None if architecture.vocab is None else Embedded(d, architecture.vocab, length)
        self.projected = None if architecture.features is None else nn.Linear(architecture.features, d)
        self.positions = None if architecture.features is None else nn.Embedding(length, d)
        self.dropout = nn.Dropout(sizes.dropout)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.num_layers))
        self.norm = nn.LayerNorm(d, bias=False)
        outputs = architecture.outputs
        self.readout = None if outputs is None else nn.Linear(d, outputs, bias=False)

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, *, vectors: Tensor | None = None
    ) -> Tensor:
        """Ids `[B, N]`, or vectors `[B, N, features]`, to logits `[B, outputs]`."""
        if self.embedded is not None:
            x = self.embedded(input_ids)
        else:
            assert self.projected is not None
            assert self.positions is not None
            assert vectors is not None
            x = self.projected(vectors) + self.positions.weight[: vectors.shape[1]]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, causal=False, mask=attention_mask)
        x = self.norm(x)
        if attention_mask is None:
            pooled = x.mean(1)
        else:
            real = attention_mask[..., None].to(x.dtype)
            pooled = (x * real).sum(1) / real.sum(1)
        return read_out(pooled, self.readout, None if self.embedded is None else self.embedded.tokens)


class EncoderDecoder(nn.Module):
    """The original setting: one vocabulary and one table of embeddings for source, target and answer."""

    def __init__(self, architecture: Architecture, sizes: Sizes) -> None:
        super().__init__()
        assert architecture.vocab is not None
        self.num_layers = sizes.num_layers
        self.embedded = Embedded(sizes.d_model, architecture.vocab, architecture.length)
        self.dropout = nn.Dropout(sizes.dropout)
        self.encoder = nn.ModuleList(Block(sizes) for _ in range(sizes.num_layers))
        self.encoder_norm = nn.LayerNorm(sizes.d_model, bias=False)
        self.decoder = nn.ModuleList(Block(sizes, reads_context=True) for _ in range(sizes.num_layers))
        self.norm = nn.LayerNorm(sizes.d_model, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Source ids `[B, M]` and target ids `[B, N]` to logits `[B, N, vocab]`."""
        context = self.encode(input_ids, attention_mask)
        return self.decode(decoder_input_ids, context, attention_mask, decoder_attention_mask)

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Source ids `[B, M]` to the context `[B, M, d_model]` that the decoder reads."""
        x = self.dropout(self.embedded(input_ids))
        for block in self.encoder:
            x = block(x, causal=False, mask=attention_mask)
        return cast(Tensor, self.encoder_norm(x))

    def decode(
        self,
        decoder_input_ids: Tensor,
        context: Tensor,
        attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        caches: list[LayerCaches] | None = None,
    ) -> Tensor:
        """Target ids `[B, N]` to logits; with caches (`new_caches`) only the ids that are new."""
        start = caches[0].own.length if caches else 0
        x = self.dropout(self.embedded(decoder_input_ids, start))
        for number, block in enumerate(self.decoder):
            x = block(
                x, causal=True, mask=decoder_attention_mask, context=context, context_mask=attention_mask,
                caches=caches[number] if caches else None,
            )  # fmt: skip
        return read_out(self.norm(x), None, self.embedded.tokens)

    def new_caches(self) -> list[LayerCaches]:
        """Empty caches for one decoding."""
        return [LayerCaches(KVCache(), KVCache()) for _ in range(self.num_layers)]


def read_out(x: Tensor, readout: nn.Linear | None, tokens: nn.Embedding | None) -> Tensor:
    """Logits by a matrix of their own, or by the embeddings of the tokens."""
    if readout is not None:
        return cast(Tensor, readout(x))
    assert tokens is not None
    return F.linear(x, tokens.weight)
