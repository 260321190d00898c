"""A made-up profile with the shape of a real one: highlights and the page are tested without a model."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from headwise.measures.catalogue import BY_NAME, CATALOGUE, Measure
from headwise.profile import Layer, Sequence, Unseen
from headwise.profile.highlights import Highlight, highlights

TOPS = {
    "self_lift": 20.0, "entropy": 4.0, "entropy_rest": 4.0, "effective_keys": 40.0, "distance": 60.0,
    "max_score": 30.0,
}  # fmt: skip
"""A plausible largest value for the measures that are not shares."""


@dataclass
class SyntheticProfile:
    rows: pd.DataFrame
    layers: list[Layer]
    measures: tuple[str, ...] = tuple(BY_NAME)
    unseen: list[Unseen] = field(default_factory=list)
    verified: float | None = 1.2e-6
    bound: float = 1e-5
    info: dict[str, str | int | float] = field(default_factory=dict)
    sequences: list[Sequence] = field(default_factory=list)
    num_sequences: int = 3
    notes: list[str] = field(default_factory=list)
    labels: tuple[str, ...] = ()
    key_totals: dict[Any, Any] = field(default_factory=dict)
    pair_totals: dict[Any, Any] = field(default_factory=dict)

    def table(self) -> pd.DataFrame:
        return self.rows.copy()

    def roles(self) -> pd.DataFrame:
        """None: the histogram of offsets, which roles need, is not made up."""
        columns = ["layer", "head", "label", "call", "phase", "kind", "role", "value", "spread", "evidence"]
        return pd.DataFrame(columns=columns)

    def highlights(self) -> list[Highlight]:
        return highlights(self.table())

    def entry(self, measure: str) -> Measure:
        return CATALOGUE.get(measure) or Measure(measure, measure, "", "", None, None, "", "")


def synthetic(
    layers: int = 3,
    heads: int = 4,
    *,
    kv_heads: int | None = None,
    phases: tuple[str, ...] = ("prefill",),
    kinds: tuple[str, ...] = ("self",),
    calls: int = 1,
    name: str = "encoder.layer.{}.attention.self",
    causal: bool = True,
    tokens: list[str] | None = None,
    seed: int = 0,
    **info: str | int | float,
) -> Any:
    """A profile of `layers` x `heads`; layer i has the kind `kinds[i % len(kinds)]`."""
    draw = random.Random(seed)
    kv_heads = kv_heads or heads
    rows: list[dict[str, Any]] = []
    for layer in range(layers):
        for call in range(calls):
            for phase in phases:
                for head in range(heads):
                    row: dict[str, Any] = {
                        "layer": layer, "head": head, "label": f"L{layer}H{head}", "name": name.format(layer),
                        "call": call, "phase": phase, "kind": kinds[layer % len(kinds)],
                        "kv_head": head * kv_heads // heads, "rows": 128, "masked_rows": 0, "padded_rows": 12,
                        "nonfinite_rows": 0,
                    }  # fmt: skip
                    for measure in BY_NAME:
                        value = TOPS.get(measure, 1.0) * draw.random() ** 3
                        if (causal and measure == "next") or measure == "sink_bias":
                            value = float("nan")
                        row |= {measure: value, f"{measure}_std": value / 3, f"{measure}_se": float("nan")}
                        row |= {
                            f"{measure}_min": value * 0.4,
                            f"{measure}_max": min(value * 1.7, TOPS.get(measure, 1.0)),
                        }
                    rows.append(row)
    return SyntheticProfile(
        rows=pd.DataFrame(rows),
        layers=[
            Layer(
                i,
                name.format(i),
                heads,
                kv_heads,
                head_dim=32,
                kinds=(kinds[i % len(kinds)],),
                phases=("prefill",),
                calls=1,
                causal=("upper_left",),
                verified=1.2e-6,
            )
            for i in range(layers)
        ],
        sequences=[Sequence(len(tokens), None, tokens)] if tokens else [],
        info={
            "headwise": "0.1.0",
            "created": "2026-07-30T12:34:00+00:00",
            "model": "toy",
            "dtype": "float32",
            **info,
        },
    )
