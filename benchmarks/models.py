"""The real models of the benchmarks, from the cache that the tests use too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from scripts.fetch_models import minilm, smollm2


def load(name: str, implementation: str) -> Any:
    """A model by name ("minilm", "smollm2"), float32, in eval mode, with an attention implementation."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = minilm() if name == "minilm" else _dense_smollm2()
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation=implementation, dtype=torch.float32)
    return model.eval()


def _dense_smollm2() -> Path:
    """SmolLM2 as a folder of float32 safetensors beside its GGUF file, made once: a GGUF takes long to unpack."""
    from transformers import AutoModel

    file = smollm2()
    folder = file.parent / "float32"
    if not (folder / "config.json").exists():
        model = AutoModel.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
        unfinished = file.parent / "float32.unfinished"
        model.save_pretrained(unfinished)
        unfinished.replace(folder)
    return folder
