"""Every benchmark that headwise brings along, and where others are added.

Attention and length need nothing but torch. Cases of real models are made from a model (`of_model`): `headwise bench
--model` makes one of the user's own, and the project's own are added by its `benchmarks` folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headwise.benchmarks.cases import Case, Parameters, Point, Variant
from headwise.errors import InputError

SDPA, FUSED, STATISTICS, PORTABLE, EAGER, FLEX = "sdpa", "fused", "statistics", "portable", "eager", "flex"
UNWATCHED, WATCHED, EVERYTHING, PAGE, ATTNREAD, BERTVIZ = (
    "unwatched", "watched", "everything", "page", "attnread", "bertviz",
)  # fmt: skip
FULL, CAUSAL, PADDING, BIAS = "full", "causal", "key padding", "float bias"
KINDS = (FULL, CAUSAL, PADDING, BIAS)
QUICK = "quick"

ATTENTION = "headwise.benchmarks.calls:workload"
MODEL = "headwise.benchmarks.models:workload"

ATTENTION_VARIANTS = (
    Variant(SDPA, "torch.nn.functional.scaled_dot_product_attention: the output alone"),
    Variant(FUSED, "headwise's native kernel: the output and all row statistics"),
    Variant(STATISTICS, "headwise's native kernel: all row statistics, without the output"),
    Variant(PORTABLE, "headwise's portable kernel: all row statistics, without the output"),
    Variant(EAGER, "softmax in plain torch: the output, entropy and self-focus, with all N x N weights"),
    Variant(FLEX, "FlexAttention, compiled: the output alone (torch gives no lse or maximum on CPUs)"),
)
MODEL_VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(UNWATCHED, "the model with torch's fused attention, nothing measured"),
        Variant(WATCHED, "the same under headwise.watch: all row measures of every head"),
        Variant(FUSED, "headwise.watch(fuse=True): one kernel gives output and statistics"),
        Variant(EAGER, "eager attention, output_attentions=True, then entropy and self-focus alone"),
        Variant(EVERYTHING, 'headwise.watch(measures="all"): also of tokens, values, keys and pairs of heads'),
        Variant(PAGE, "headwise.watch, then the report page of it"),
        Variant(ATTNREAD, "attnread: weights from identity-value passes, then entropy and self-focus", "attnread"),
        Variant(BERTVIZ, "eager attention, output_attentions=True, then bertviz's head_view of it", "bertviz"),
    )
}

HEADS = {512: 24, 2048: 6, 8192: 2}
"""Heads by length, so that every call takes a few milliseconds at least."""

CASES: dict[str, Case] = {}


def add(case: Case) -> Case:
    """Add a case.

    Raises:
        ValueError: There is one of that name.
    """
    if case.name in CASES:
        raise ValueError(f"there is a benchmark {case.name!r} already")
    CASES[case.name] = case
    return case


def find(names: Sequence[str]) -> list[Case]:
    """The cases of these names.

    Raises:
        InputError: There is none of a name.
    """
    for name in names:
        if name not in CASES:
            raise InputError(f"no benchmark {name!r}; there are {', '.join(CASES)}")
    return [CASES[name] for name in names]


def of_model(
    name: str,
    model: str,
    *,
    batch: int,
    tokens: int,
    variants: Iterable[str] = tuple(MODEL_VARIANTS),
    baseline: str = UNWATCHED,
    turns: int = 3,
    repeats: int = 1,
    source: str | None = None,
) -> Case:
    """One forward of a whole model in each variant, each run in a process of its own.

    Args:
        name: The case's name.
        model: The model's name, as the result shows it.
        batch: Sequences.
        tokens: Tokens of each; random ones: what they are does not change what is computed.
        variants: Names out of MODEL_VARIANTS.
        baseline: The variant that ratios are taken to.
        turns: Samples of each variant.
        repeats: Forwards of a sample: a short one is as long as what disturbs it.
        source: Where the model lies, or its hub name; None if `prepare` is to say it.
    """
    parameters: dict[str, str | int] = {"model": model, "batch": batch, "tokens": tokens}
    several = "" if repeats == 1 else f" (of {repeats} in a process the median)"
    return Case(
        name=name,
        level="model",
        about=f"one forward of {model}, {batch} x {tokens:,} tokens, float32{several}",
        points=(Point(f"{model}, {batch} x {tokens:,}", parameters),),
        variants=tuple(MODEL_VARIANTS[variant] for variant in variants),
        baseline=baseline,
        workload=MODEL,
        turns=turns,
        repeats=repeats,
        fresh=True,
        prepare=None if source is None else lambda: {"source": source},
    )


def _call(tokens: int, head_dim: int, heads: int, kind: str, **more: str | int) -> Point:
    parameters: Parameters = {"tokens": tokens, "head_dim": head_dim, "heads": heads, "kind": kind, **more}
    name = f"{tokens} x {head_dim}, {kind}"
    return Point(name, parameters, cost=tokens * tokens * heads * (head_dim + 32))


add(
    Case(
        name="attention",
        level="attention",
        about="one attention call, float32, by length, head size and mask",
        points=tuple(_call(n, d, HEADS[n], kind) for kind in KINDS for n in HEADS for d in (32, 64, 128)),
        variants=ATTENTION_VARIANTS,
        baseline=SDPA,
        workload=ATTENTION,
        turns=9,
        warmups=2,
    )
)
add(
    Case(
        name="attention-quick",
        level="attention",
        about="one attention call, float32, at two lengths: a minute's worth",
        points=tuple(_call(n, 64, HEADS[n], kind, effort=QUICK) for kind in KINDS for n in (512, 2048)),
        variants=ATTENTION_VARIANTS,
        baseline=SDPA,
        workload=ATTENTION,
        turns=5,
        warmups=1,
    )
)
add(
    Case(
        name="length-65536",
        level="length",
        about="one causal layer of 9 heads with d_k = 64, float32, each run in a process of its own",
        points=(_call(8192, 64, 9, CAUSAL), _call(65536, 64, 9, CAUSAL)),
        variants=tuple(variant for variant in ATTENTION_VARIANTS if variant.name in (SDPA, FUSED, STATISTICS)),
        baseline=SDPA,
        workload=ATTENTION,
        turns=3,
        fresh=True,
    )
)
