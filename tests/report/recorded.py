"""Profiles of chosen numbers, with all that `watch(measures="all")` adds: what the page shows is known beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.measures.catalogue import OFFSETS
from headwise.profile import Group, Layer, Profile, Sequence
from tests.profile.simulating import part_of

ROWS = 64
TEXTS = 3
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2>"


def sums(total: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The sums over sequences (the last axis) that a profile keeps of keys and pairs."""
    return {
        "sequences": (rows > 0).sum(-1).astype(float), "s": total.sum(-1), "ss": (total**2).sum(-1),
        "sn": (total * rows).sum(-1), "n": rows.sum(-1), "nn": (rows**2).sum(-1),
    }  # fmt: skip


def filled(
    means: dict[str, Any],
    *,
    alpha: Any = None,
    pairs: Any = None,
    offsets: Any = None,
    labels: dict[str, dict[str, Any]] | None = None,
    tokens: list[list[str]] | None = None,
    kind: str = "self",
    causal: str = "none",
) -> Profile:
    """A profile of three texts.

    Args:
        means: The mean of each measure, by layer and head; the texts have it less a tenth, as it is, and a tenth more.
        alpha: What keys receive `[layers, heads, positions]`, in every text.
        pairs: How alike heads are `[layers, 4, heads, heads]`, in every text.
        offsets: The share of rows whose largest weight is at the own position, by layer and head; the others are far.
        labels: By label the measures of its rows, as `means`.
        tokens: The texts; None: three that share their first token.
        kind: Of the attention.
        causal: Its alignment.
    """
    arrays = {name: np.asarray(value, float) for name, value in means.items()}
    L, H = next(iter(arrays.values())).shape
    profile = Profile(tuple(arrays))
    for layer in range(L):
        group = Group(layer, 0, "prefill", kind)
        one = Layer(layer, f"layers.{layer}.attn", H, H, 8, (kind,), ("prefill",), 1, (causal,))
        profile.record(one, group, _part(arrays, layer, offsets))
        for label, own in (labels or {}).items():
            profile.record(one, group, _part({k: np.asarray(v, float) for k, v in own.items()}, layer, None), label)
        names = tuple(range(TEXTS))
        if alpha is not None:
            received = np.repeat(np.asarray(alpha, float)[layer][..., None], TEXTS, -1)
            profile.put_keys(group, names, sums(received, np.ones_like(received)))
        if pairs is not None:
            alike = np.repeat(np.asarray(pairs, float)[layer][..., None], TEXTS, -1)
            profile.put_pairs(group, names, sums(alike * ROWS, np.full_like(alike, ROWS)))
    texts = tokens or [["<s>", "a", "b"], ["<s>", "c", "b"], ["<s>", "d"]]
    profile.record_sequences([Sequence(len(text), None, text) for text in texts], len(texts))
    return profile


def _part(arrays: dict[str, np.ndarray], layer: int, offsets: Any) -> Any:
    mean = np.stack([array[layer] for array in arrays.values()])
    rows = np.full((*mean.shape, TEXTS), float(ROWS))
    part = part_of(mean[..., None] * np.array([0.9, 1.0, 1.1]) * rows, rows, std=0.01)
    part.counts[0] = TEXTS * ROWS
    share = np.zeros(mean.shape[1]) if offsets is None else np.asarray(offsets, float)[layer]
    part.offsets[:, OFFSETS.index(0)] = np.round(share * 1000)
    part.offsets[:, -1] = 1000 - np.round(share * 1000)
    return part


def alike(*upper: float, heads: int = 3) -> np.ndarray:
    """The four measures of the pairs (0, 1), (0, 2), ...: bc as given, distances 1 - bc, outputs half as alike."""
    bc = np.eye(heads)
    bc[np.triu_indices(heads, 1)] = upper
    bc = np.maximum(bc, bc.T)
    return np.stack([bc, 1 - bc, 1 - bc, bc / 2])


def whole() -> Profile:
    """Two layers of three heads with roles, keys, pairs and labels, and strings that want to be more than text."""
    return filled(
        {
            "self_focus": [[0.9999, 0.2, 0.1], [0.1, 0.0001, 0.6]],
            "first": [[0.0, 0.7, 0.8], [0.2, 0.3, 0.1]],
            "entropy": [[1.5, 1.25, 0.5], [2.0, 1.0, 0.75]],
        },
        alpha=[[[0.1, 0.2, 0.05], [0.7, 0.1, 0.1], [0.8, 0.1, 0.0]], [[0.2, 0.4, 0.1], [0.3, 0.1, 0.1], [0.1, 0, 0]]],
        pairs=[alike(0.5, 0.25, 0.975), alike(0.125, 0.75, 0.99996)],
        offsets=[[0.95, 0.5, 0.1], [0.0, 0.0, 0.999]],
        labels={
            "question": {"self_focus": [[0.3] * 3] * 2, "first": [[0.05] * 3] * 2, "entropy": [[3.0] * 3] * 2},
            HOSTILE: {"self_focus": [[0.4] * 3] * 2, "first": [[0.06] * 3] * 2, "entropy": [[4.0] * 3] * 2},
        },
        tokens=[[HOSTILE, "我", "b"], [HOSTILE, "مرحبا", "b"], [HOSTILE, "👩‍👩‍👧‍👦"]],
    )
