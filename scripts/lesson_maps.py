"""Compute the attention maps that the lesson carries (step 10): python scripts/lesson_maps.py.

Writes src/headwise/lesson/static/maps.json: the weights of every head of MiniLM-L6 on one sentence. The weights come
from the model's eager attention in float64; what headwise measures from the fused attention must agree.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import headwise
from scripts.fetch_models import minilm

SENTENCE = "The animal didn't cross the street because it was too tired."
PLACE = Path(__file__).parents[1] / "src" / "headwise" / "lesson" / "static" / "maps.json"
AGREES = 1e-5


def maps() -> dict[str, Any]:
    """Tokens, and for each head its weights in thousandths, its self-focus and its entropy (nats)."""
    from transformers import AutoModel, AutoTokenizer

    folder = minilm()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(SENTENCE, return_tensors="pt")
    with torch.no_grad():
        eager = AutoModel.from_pretrained(folder, attn_implementation="eager").double().eval()
        weights = torch.cat(eager(**batch, output_attentions=True).attentions)  # [layers, heads, N, N]
        fused = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
        with headwise.watch(fused, measures=["self_focus", "entropy"]) as profile:
            fused(**batch)
    self_focus = weights.diagonal(dim1=-2, dim2=-1).mean(-1)
    entropy = torch.special.entr(weights).sum(-1).mean(-1)
    measured = profile.table()
    for name, exact in (("self_focus", self_focus), ("entropy", entropy)):
        error = abs(torch.tensor(measured[name].to_numpy()) - exact.flatten()).max()
        if not error < AGREES:
            raise SystemExit(f"{name}: measured and eager differ by {error:.1e}")
    return {
        "model": "MiniLM-L6",
        "tokens": tokenizer.convert_ids_to_tokens(batch["input_ids"][0]),
        "self_focus": [[round(value, 5) for value in layer] for layer in self_focus.tolist()],
        "entropy": [[round(value, 5) for value in layer] for layer in entropy.tolist()],
        "facts": facts(weights),
        "thousandths": (weights * 1000).round().long().flatten(2).tolist(),
    }


def facts(weights: torch.Tensor) -> dict[str, Any]:
    """What the lesson's text says of weights `[layers, heads, N, N]`."""
    own, previous, after = (weights.diagonal(offset, -2, -1).mean(-1) for offset in (0, -1, 1))
    ends = (weights[..., 0] + weights[..., -1]).mean(-1)
    return {
        "heads": own.numel(),
        "self_heads": int((own > 0.5).sum()),
        "mean_self_focus": round(float(own.mean()), 5),
        "ends_heads": int((ends > 0.5).sum()),
        "previous_head": label(previous),
        "previous_weight": round(float(previous.max()), 5),
        "next_head": label(after),
        "next_weight": round(float(after.max()), 5),
    }


def label(value: torch.Tensor) -> str:
    """The head with the largest value, as L3H5."""
    layer, head = divmod(int(value.argmax()), value.shape[1])
    return f"L{layer}H{head}"


if __name__ == "__main__":
    PLACE.write_text(json.dumps(maps(), separators=(",", ":")) + "\n", "utf-8")
    print(f"{PLACE}: {PLACE.stat().st_size:,} bytes")
