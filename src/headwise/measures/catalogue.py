"""What every measure is: its name, formula, unit, range and source. No torch: pages and tables read this.

The order is the order of the columns in a profile's table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One row measure, as docs/measures.md defines it.

    Attributes:
        name: The column of the table.
        title: What a page calls it.
        formula: Per row i, in plain characters; p_ij the weight, s_ij the score, n_i the visible keys.
        unit: The unit of the value ("" for a pure number).
        low: The smallest possible value, or None if unbounded.
        high: The largest possible value as text ("1", "ln n_i", "M"), or None if unbounded.
        reading: How a person reads it.
        source: Where the measure comes from.
        summary: How rows become a head's value: "mean" or "max".
    """

    name: str
    title: str
    formula: str
    unit: str
    low: float | None
    high: str | None
    reading: str
    source: str
    summary: str = "mean"


ROW_MEASURES: tuple[Measure, ...] = (
    Measure(
        "self_focus", "Self-focus", "p_{i,self(i)}", "weight", 0.0, "1",
        "the weight that a position gives itself", "Clark et al. 2019 (current token)",
    ),
    Measure(
        "self_lift", "Self-lift", "n_i * p_{i,self(i)}", "times uniform", 0.0, "M",
        "1 is as much as uniform attention would give; compare at equal lengths only", "headwise",
    ),
    Measure(
        "previous", "Previous token", "p_{i,self(i)-1}", "weight", 0.0, "1",
        "the weight on the token before", "Clark et al. 2019",
    ),
    Measure(
        "next", "Next token", "p_{i,self(i)+1}", "weight", 0.0, "1",
        "the weight on the token after (undefined under a causal mask)", "Clark et al. 2019",
    ),
    Measure(
        "first", "First token", "p_{i,f}", "weight", 0.0, "1",
        "the weight on the first real key: an attention sink", "Xiao et al. 2023; Qiu et al. 2025 (Qwen)",
    ),
    Measure(
        "entropy", "Entropy", "lse_i - sum_j p_ij s_ij - p_sink b_h", "nats", 0.0, "ln n_i",
        "how widely a row spreads its weight", "Zhai et al. 2023",
    ),
    Measure(
        "entropy_ratio", "Entropy ratio", "entropy_i / ln n_i", "", 0.0, "1",
        "1 is uniform attention, 0 is one single key", "headwise",
    ),
    Measure(
        "entropy_rest", "Entropy of the rest", "(H + p_f ln p_f + r ln r) / r, r = 1 - p_f", "nats", 0.0, None,
        "the spread of what the first key leaves over", "headwise",
    ),
    Measure(
        "effective_keys", "Effective keys", "exp(entropy_i)", "keys", 1.0, "n_i",
        "how many keys a row really reads", "headwise (perplexity)",
    ),
    Measure(
        "max_weight", "Largest weight", "exp(max_j s_ij - lse_i)", "weight", 0.0, "1",
        "how sure a row is of one key", "Voita et al. 2019 (confidence; here with EOS)",
    ),
    Measure(
        "distance", "Distance", "sum_j p_ij |self(i) - j| / sum_j p_ij", "tokens", 0.0, "M",
        "how far away a row reads, on average", "Dosovitskiy et al. 2020 (mean attention distance)",
    ),
    Measure(
        "ipr", "Inverse participation ratio", "sum_j p_ij^2", "", 0.0, "1",
        "1 is one single key, 1 / n_i is uniform attention", "headwise",
    ),
    Measure(
        "max_score", "Largest score", "max_j s_ij", "nats", None, None,
        "the largest scaled logit, which QK-clip watches", "Kimi K2 2025", summary="max",
    ),
    Measure(
        "sink_bias", "Sink bias", "p_sink = exp(b_h - lse_i)", "weight", 0.0, "1",
        "the weight that a learned sink logit takes", "OpenAI 2025 (gpt-oss)",
    ),
)  # fmt: skip

OFFSETS = range(-8, 9)
"""Offsets self(i) - argmax that are counted one by one; a last bin holds all others."""

POSITION_BINS = 24
"""Bin b holds positions 2^b - 1 .. 2^(b+1) - 2 after the first real key: 0 | 1-2 | 3-6 | 7-14 | ..."""

BY_NAME: dict[str, Measure] = {measure.name: measure for measure in ROW_MEASURES}


def select(measures: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """The names that `watch(measures=...)` asks for, in table order.

    Args:
        measures: "default" or "all" (every row measure), or a list of names.

    Raises:
        ValueError: A name is unknown; the message lists those that exist.
    """
    if isinstance(measures, str):
        if measures in ("default", "all"):
            return tuple(BY_NAME)
        measures = [measures]
    unknown = [name for name in measures if name not in BY_NAME]
    if unknown or not measures:
        came = ", ".join(map(repr, unknown)) or "an empty list"
        raise ValueError(f"measures: expected names among {', '.join(BY_NAME)}; got {came}")
    return tuple(name for name in BY_NAME if name in set(measures))
