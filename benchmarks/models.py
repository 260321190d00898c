"""The real models of the benchmarks, from the cache that the tests use too."""

from __future__ import annotations

import json
import tempfile
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
    from safetensors.torch import save_file
    from transformers import AutoModel

    file = smollm2()
    folder = file.parent / "float32"
    if not (folder / "config.json").exists():
        model = AutoModel.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
        with tempfile.TemporaryDirectory(dir=file.parent) as unfinished:
            save_file(model.state_dict(), Path(unfinished) / "model.safetensors", metadata={"format": "pt"})
            config = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
            (Path(unfinished) / "config.json").write_text(json.dumps(config))
            Path(unfinished).rename(folder)
            Path(unfinished).mkdir()
    return folder
