"""The model of a run, with the initial weights of its seed.

One seed gives one set of initial weights: each matrix is drawn from a generator of its own, named by the seed and the
matrix. At fixed width the fused Q, K, V and O matrices do not depend on the number of heads, so all models of one seed
are equal bit by bit before training. With a fixed head size everything but the attention layers is. With
`init="per_head"`, a control, the bound of Q, K and V depends on the width of a head: at fixed width they are the same
draws times a factor that grows with the number of heads.
"""

from __future__ import annotations

import torch
from torch import nn

from headwise.layer.projection import Projection
from headwise.models.transformer import Architecture, Decoder, Encoder, EncoderDecoder, Sizes
from headwise.studies.seeding import derived


def build(architecture: Architecture, sizes: Sizes, seed: int) -> nn.Module:
    """The model with the initial weights of a seed; the random state of the caller stays as it is."""
    form = {"decoder": Decoder, "encoder": Encoder, "encoder-decoder": EncoderDecoder}[architecture.kind]
    with torch.random.fork_rng(devices=[]):
        model: nn.Module = form(architecture, sizes)
        for name, module in model.named_modules():
            if next(module.parameters(recurse=False), None) is not None:
                torch.manual_seed(derived(seed, "weights", name))
                _draw(module)
    return model


@torch.no_grad()
def _draw(module: nn.Module) -> None:
    if isinstance(module, Projection | nn.LayerNorm):
        module.reset_parameters()
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
    elif isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    else:
        raise TypeError(f"no rule for the initial weights of {type(module).__name__}")
