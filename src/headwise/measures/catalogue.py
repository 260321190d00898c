"""What every measure is: its name, formula, unit, range and source. No torch: pages and tables read this.

The order is the order of the columns in a profile's table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwise.errors import shown


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

BLOCK_MEASURES: tuple[Measure, ...] = (
    Measure(
        "delimiter", "Delimiters", "sum_j p_ij [t_j is a delimiter]", "weight", 0.0, "1",
        "the weight on special, punctuation and line-break tokens", "Clark et al. 2019",
    ),
    Measure(
        "duplicate", "Duplicate token", "sum_{j < self(i)} p_ij [t_j = t_i]", "weight", 0.0, "1",
        "the weight on earlier occurrences of the same token (rows that see one)",
        "Wang et al. 2022 (duplicate token heads)",
    ),
    Measure(
        "induction", "Induction", "sum_{j <= self(i)} p_ij [t_{j-1} = t_i]", "weight", 0.0, "1",
        "the weight on what followed an earlier occurrence of the current token (rows that see such a key)",
        "Olsson et al. 2022 (prefix matching)",
    ),
    Measure(
        "value_own", "Own value", "p_is |v_s| / sum_j p_ij |v_j|, s = self(i)", "share", 0.0, "1",
        "the own position's share of what the row reads, values counted by their length", "Kobayashi et al. 2020",
    ),
    Measure(
        "value_previous", "Previous value", "p_is |v_s| / sum_j p_ij |v_j|, s = self(i) - 1", "share", 0.0, "1",
        "the previous token's share of what the row reads, values counted by their length", "Kobayashi et al. 2020",
    ),
    Measure(
        "value_first", "First value", "p_if |v_f| / sum_j p_ij |v_j|", "share", 0.0, "1",
        "the first real key's share of what the row reads: small beside the weight on it where a sink holds no value",
        "Kobayashi et al. 2020",
    ),
    Measure(
        "output_norm", "Output norm", "|out_h|, with W_O known |out_h W_O^h|", "", 0.0, None,
        "how much the head writes", "Kobayashi et al. 2020",
    ),
)  # fmt: skip
"""Measures of a row that need its weights (and tokens, or values), not only its statistics."""

KEY_MEASURES: tuple[Measure, ...] = (
    Measure(
        "alpha_first", "Weight received by the first key", "alpha_f = sum_i p_if / #{i that may see f}", "weight", 0.0,
        "1", "how much weight the first real key gets from a row that may see it: above 0.3 a sink",
        "Gu et al. 2024",
    ),
)  # fmt: skip
"""Measures of a head made from what its keys receive."""

PAIR_MEASURES: tuple[Measure, ...] = (
    Measure(
        "bc", "Bhattacharyya coefficient", "mean_i sum_j sqrt(p^a_ij p^b_ij)", "", 0.0, "1",
        "1 is the same pattern, 0 no key in common", "Bhattacharyya 1943",
    ),
    Measure(
        "hellinger", "Hellinger distance", "mean_i sqrt(1 - bc_i)", "", 0.0, "1",
        "0 is the same pattern, 1 no key in common", "Hellinger 1909",
    ),
    Measure(
        "js", "Jensen-Shannon distance", "mean_i sqrt(H(m_i) - (H(p^a_i) + H(p^b_i)) / 2), m = (p^a + p^b) / 2, base 2",
        "", 0.0, "1", "0 is the same pattern, 1 no key in common", "Lin 1991; Endres and Schindelin 2003",
    ),
    Measure(
        "output_similarity", "Output similarity", "|Y_a^T Y_b|^2 / (|Y_a^T Y_a| |Y_b^T Y_b|), Y = centred outputs", "",
        0.0, "1", "linear CKA: 1 is the same output up to rotation and scale", "Kornblith et al. 2019",
    ),
)  # fmt: skip
"""Measures between two heads."""

COLUMNS = (
    "layer", "head", "label", "name", "call", "phase", "kind", "kv_head", "rows", "masked_rows", "padded_rows",
    "nonfinite_rows",
)  # fmt: skip
"""Columns of a table that are no measures."""

OFFSETS = range(-8, 9)
"""Offsets self(i) - argmax that are counted one by one; a last bin holds all others."""

POSITION_BINS = 24
"""Bin b holds positions 2^b - 1 .. 2^(b+1) - 2 after the first real key: 0 | 1-2 | 3-6 | 7-14 | ..."""

BY_NAME: dict[str, Measure] = {measure.name: measure for measure in ROW_MEASURES}


CATALOGUE: dict[str, Measure] = {
    measure.name: measure for measure in (*ROW_MEASURES, *BLOCK_MEASURES, *KEY_MEASURES, *PAIR_MEASURES)
}
"""Every measure of headwise."""


@dataclass(frozen=True)
class Selection:
    """The measures that a watch takes.

    Attributes:
        rows: Row measures, from the row statistics.
        blockwise: Measures of a row that need its weights.
        keys: Whether to sum what every key receives.
        pairs: Whether to compare the heads of a layer with each other.
    """

    rows: tuple[str, ...]
    blockwise: tuple[str, ...] = ()
    keys: bool = False
    pairs: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The measures that have a value per row, in table order."""
        return self.rows + self.blockwise


def select(measures: str | list[str] | tuple[str, ...], registered: tuple[str, ...] = ()) -> Selection:
    """What `watch(measures=...)` asks for.

    Args:
        measures: "default" (every row measure), "all" (every measure), or a name or list of names.
        registered: Blockwise measures that exist, users' own among them; "all" takes them too.

    Raises:
        ValueError: A name is unknown; the message lists those that exist.
    """
    if isinstance(measures, str):
        if measures == "default":
            return Selection(tuple(BY_NAME))
        if measures == "all":
            return Selection(tuple(BY_NAME), registered, keys=True, pairs=True)
        measures = [measures]
    measures = list(measures) if isinstance(measures, Iterable) else [measures]
    blockwise = dict.fromkeys((*(m.name for m in BLOCK_MEASURES), *registered))
    keys, pairs = {m.name for m in KEY_MEASURES}, {m.name for m in PAIR_MEASURES}
    known = {*BY_NAME, *blockwise, *keys, *pairs}
    unknown = [name for name in measures if not isinstance(name, str) or name not in known]
    if "default" in measures or "all" in measures:
        raise ValueError(f"measures: 'default' and 'all' stand alone; got {', '.join(map(shown, measures))}")
    if unknown or not measures:
        came = ", ".join(map(shown, unknown[:3])) or "an empty list"
        names = ", ".join(dict.fromkeys((*BY_NAME, *blockwise, *CATALOGUE)))
        raise ValueError(f"measures: expected 'default', 'all', or names among {names}; got {came}")
    asked = set(measures)
    return Selection(
        tuple(name for name in BY_NAME if name in asked),
        tuple(name for name in blockwise if name in asked),
        keys=bool(asked & keys),
        pairs=bool(asked & pairs),
    )
