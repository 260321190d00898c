"""Cases of real models, from the cache that the tests use too."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from scripts import fetch_models

from headwise.benchmarks import registry
from headwise.benchmarks.cases import Case, Parameters
from headwise.benchmarks.registry import ATTNREAD, BERTVIZ, EAGER, EVERYTHING, FUSED, PAGE, UNWATCHED, WATCHED

WATCHING = (UNWATCHED, WATCHED, FUSED, EAGER)
MINILM, SMOLLM2 = "minilm", "smollm2"


def minilm() -> Parameters:
    """Where all-MiniLM-L6-v2 lies."""
    return {"source": str(fetch_models.minilm())}


def smollm2() -> Parameters:
    """Where SmolLM2 lies as float32 safetensors, made once beside its GGUF file: that takes long to unpack."""
    file = fetch_models.smollm2()
    folder = file.parent / "float32"
    if not (folder / "config.json").exists():
        _unpack(file, folder)
    return {"source": str(folder)}


def _unpack(file: Path, folder: Path) -> None:
    import torch
    import transformers
    from safetensors.torch import save_file

    model = transformers.AutoModel.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    with tempfile.TemporaryDirectory(dir=file.parent) as unfinished:
        inside = Path(unfinished) / folder.name
        inside.mkdir()
        save_file(model.state_dict(), inside / "model.safetensors", metadata={"format": "pt"})
        config = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
        (inside / "config.json").write_text(json.dumps(config))
        inside.rename(folder)


def _minilm(name: str, *variants: str, batch: int, tokens: int, turns: int = 5, repeats: int = 1) -> Case:
    case = registry.of_model(
        name, MINILM, batch=batch, tokens=tokens, variants=variants, baseline=variants[0], turns=turns, repeats=repeats
    )
    return replace(case, prepare=minilm)


def _smollm2(name: str, *variants: str, tokens: int) -> Case:
    return replace(registry.of_model(name, SMOLLM2, batch=1, tokens=tokens, variants=variants), prepare=smollm2)


def _page(tokens: int) -> Case:
    """The page of headwise beside that of bertviz: of measures the one, of all weights the other."""
    case = _minilm(f"page-{tokens}", PAGE, BERTVIZ, batch=1, tokens=tokens)
    return replace(case, about=f"{case.about}, and a page of it")


OWN = (
    registry.add(_minilm("minilm-512", *WATCHING, batch=8, tokens=512, turns=9, repeats=5)),
    registry.add(_smollm2("smollm2-2048", *WATCHING, tokens=2048)),
    # Eager weights at this length need 30 x 9 x 8192 x 8192 x 4 bytes = 72 GB: most machines will refuse.
    registry.add(_smollm2("smollm2-8192", *WATCHING, tokens=8192)),
    registry.add(_smollm2("smollm2-4096", UNWATCHED, WATCHED, EVERYTHING, tokens=4096)),
    # attnread runs the model once for every 64 keys of every layer: short texts alone.
    registry.add(_smollm2("smollm2-256", *WATCHING, ATTNREAD, tokens=256)),
    registry.add(_page(128)),
    registry.add(_page(512)),
)

DEFAULT = ("attention", *(case.name for case in OWN), "length-65536")
"""What `make bench` runs."""
