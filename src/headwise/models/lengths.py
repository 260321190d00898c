"""How many tokens a model can read at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Names that configurations give to the number of positions, the commonest first.
_FIELDS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
# Tokenizers that know no limit say a number like 1e30.
_NO_LIMIT = 10**9


def max_length(model: torch.nn.Module, tokenizer: Any | None) -> int | None:
    """The longest input in tokens, special tokens included; None if the model sets no limit.

    The model's own number of positions counts. A tokenizer's limit is often only the length of the training
    examples, so it counts where the model says nothing.
    """
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for field in _FIELDS:
        positions = getattr(text, field, None)
        if isinstance(positions, int) and positions > 0:
            return positions - _offset(model, positions)
    limit = getattr(tokenizer, "model_max_length", None)
    return int(limit) if isinstance(limit, int | float) and 0 < limit < _NO_LIMIT else None


def _offset(model: torch.nn.Module, positions: int) -> int:
    """Positions that RoBERTa and its kin cannot use: they start counting after the padding index."""
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            return padding + 1 if getattr(module, "num_embeddings", 0) == positions else 0
    return 0
