"""The judge for real models: every measure from the weights of their own eager attention, by definition."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.oracle.definitions import MEASURES, first_keys, own_keys, row_values


@dataclass
class EagerCall:
    """One eager attention: the weights that `output_attentions=True` gives, float64, and the scores from q and k."""

    module: Any
    weights: np.ndarray
    scores: np.ndarray
    visible: np.ndarray


@contextmanager
def eager_calls(model: Any) -> Iterator[list[EagerCall]]:
    """Record every call of the model's own eager attention function."""
    modeling = importlib.import_module(type(model).__module__)
    original = modeling.eager_attention_forward
    calls: list[EagerCall] = []

    def recording(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        if attention_mask is not None:
            # A float64 mask's lowest number is -inf to the float32 softmax of some models: NaN on fully masked rows.
            attention_mask = attention_mask.clamp(min=torch.finfo(torch.float32).min)
        out, weights = original(module, query, key, value, attention_mask, *args, **kwargs)
        scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
        keys = key.double().repeat_interleave(query.shape[1] // key.shape[1], 1)
        scores = query.double() @ keys.mT * scaling
        visible = torch.ones(weights.shape, dtype=torch.bool)
        if attention_mask is not None:
            visible &= attention_mask > -65504.0
        # Some models take their softmax in float32 whatever they run in, which leaves no digits of 1 - p near p = 1:
        # the same weights once more, in float64.
        exact = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1).nan_to_num()
        sees = visible.any(-1, keepdim=True)
        assert torch.allclose(exact, torch.where(sees, weights.double(), 0.0), atol=1e-5)
        calls.append(EagerCall(module, exact.numpy(), scores.numpy(), visible.numpy()))
        return out, weights

    modeling.eager_attention_forward = recording
    try:
        yield calls
    finally:
        modeling.eager_attention_forward = original


def expected_measures(
    model: Any, calls: list[EagerCall], real: np.ndarray, causal: bool
) -> dict[tuple[str, str], dict[str, np.ndarray]]:
    """Head values by (module path, phase): the mean over rows that count (max_score: the maximum).

    Args:
        model: The model that made the calls.
        calls: Its eager calls, of one prefill and, with a cache, the decoding steps after it.
        real: Tokens of the prompt that are no padding, bool `[B, N]`.
        causal: Whether it is a decoder.
    """
    names = {module: name for name, module in model.named_modules()}
    rows: dict[tuple[str, str], dict[str, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
    started: set[str] = set()
    for call in calls:
        name = names[call.module]
        phase = "decode" if name in started else "prefill"
        started.add(name)
        visible = call.visible
        own = own_keys(visible, causal=causal)
        weights = np.where(visible, call.weights, 0.0)
        values = row_values(weights, call.scores, visible, own, first_keys(visible))
        B, H, N, _ = weights.shape
        counted = real if phase == "prefill" else np.ones((B, N), dtype=bool)
        counted = counted[:, None] & (visible.sum(-1) >= 1)
        for measure in MEASURES:
            kept = np.where(counted, values[measure], np.nan)
            rows[name, phase][measure].append(kept.transpose(1, 0, 2).reshape(H, -1))
    return {
        place: {measure: _over_rows(np.concatenate(parts, 1), measure) for measure, parts in by_measure.items()}
        for place, by_measure in rows.items()
    }


def _over_rows(values: np.ndarray, measure: str) -> np.ndarray:
    some = ~np.isnan(values).all(1)
    out = np.full(len(values), np.nan)
    out[some] = np.nanmax(values[some], 1) if measure == "max_score" else np.nanmean(values[some], 1)
    return out


def worst_error(table: Any, expected: dict[tuple[str, str], dict[str, np.ndarray]]) -> dict[str, float]:
    """Largest |table - expected| / max(1, |expected|) per measure; a NaN on one side only is infinite."""
    worst: dict[str, float] = dict.fromkeys(MEASURES, 0.0)
    places = set(zip(table["name"], table["phase"], strict=True))
    assert places == set(expected), f"caught {places}, expected {set(expected)}"
    for (name, phase), by_measure in expected.items():
        rows = table[(table["name"] == name) & (table["phase"] == phase)].sort_values("head")
        for measure, wanted in by_measure.items():
            got = rows[measure].to_numpy()
            error = np.abs(got - wanted) / np.maximum(1, np.abs(wanted))
            error = np.where(np.isnan(got) & np.isnan(wanted), 0.0, np.nan_to_num(error, nan=np.inf))
            worst[measure] = max(worst[measure], float(error.max()))
    return worst
