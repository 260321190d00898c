"""Every benchmark: what is run, on what, in which variants."""

from __future__ import annotations

from dataclasses import dataclass

UNWATCHED = "unwatched"
WATCHED = "watched"
FUSED = "fused"
EAGER = "eager"

VARIANTS = {
    UNWATCHED: "fused attention, nothing measured",
    WATCHED: "fused attention under headwise.watch: all row measures of every head",
    FUSED: "one kernel gives output and statistics: headwise.watch(fuse=True)",
    EAGER: "eager attention with output_attentions=True, then entropy and self-focus alone",
}


@dataclass(frozen=True)
class Case:
    """One forward of a whole model, measured in each variant, every variant in processes of its own."""

    name: str
    model: str
    batch: int
    tokens: int
    variants: tuple[str, ...]
    repeats: int = 3


CASES = {
    case.name: case
    for case in (
        Case("minilm-512", "minilm", 8, 512, (UNWATCHED, WATCHED, FUSED, EAGER), repeats=5),
        Case("smollm2-2048", "smollm2", 1, 2048, (UNWATCHED, WATCHED, FUSED, EAGER)),
        # Eager weights at this length would need 30 x 9 x 8192 x 8192 x 4 bytes = 72 GB.
        Case("smollm2-8192", "smollm2", 1, 8192, (UNWATCHED, WATCHED, FUSED)),
    )
}
