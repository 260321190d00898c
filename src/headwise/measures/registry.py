"""The blockwise measures that exist: those of headwise, and those that users add."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from torch import Tensor

from headwise.errors import shown
from headwise.measures import outputs, tokens
from headwise.measures.catalogue import BLOCK_MEASURES, BY_NAME, COLUMNS, KEY_MEASURES, PAIR_MEASURES, Measure

if TYPE_CHECKING:
    from headwise.measures.blockwise import Block

PerBlock: TypeAlias = "Callable[[Block], Tensor]"

NEEDS = ("tokens", "delimiters", "values", "out")
"""What a measure may ask for: token ids; which of them are delimiters; the norms of the values; the heads' outputs."""

SUFFIXES = ("_std", "_min", "_max", "_se")


@dataclass(frozen=True)
class BlockMeasure:
    """A blockwise measure.

    Attributes:
        entry: Its entry in the catalogue.
        per_block: From a block of weights to a value per row `[b, H, R]`, NaN where it is undefined.
        needs: What it needs beside the weights, among `NEEDS`.
        own: Whether it is one of headwise's own.
    """

    entry: Measure
    per_block: PerBlock
    needs: frozenset[str] = frozenset()
    own: bool = False


_FUNCTIONS: dict[str, tuple[PerBlock, frozenset[str]]] = {
    "delimiter": (tokens.delimiter, frozenset({"tokens", "delimiters"})),
    "duplicate": (tokens.duplicate, frozenset({"tokens"})),
    "induction": (tokens.induction, frozenset({"tokens"})),
    "value_own": (outputs.value_own, frozenset({"values"})),
    "value_previous": (outputs.value_previous, frozenset({"values"})),
    "value_first": (outputs.value_first, frozenset({"values"})),
    "output_norm": (outputs.output_norm, frozenset({"out"})),
}

REGISTRY: dict[str, BlockMeasure] = {
    entry.name: BlockMeasure(entry, *_FUNCTIONS[entry.name], own=True) for entry in BLOCK_MEASURES
}


def measure(
    name: str,
    per_block: PerBlock,
    reduce: Literal["mean", "max"] = "mean",
    *,
    formula: str = "",
    unit: str = "",
    title: str | None = None,
    reading: str = "",
    needs: Iterable[str] = (),
) -> Measure:
    """Add a measure of your own, computed from the exact weights a block of rows at a time.

    From then on `name` is a measure like any other. Registering the same function under the same name again (a
    notebook cell that is run twice) replaces it.

    Args:
        name: The column of the table: a Python identifier that no other measure or column has.
        per_block: Takes a `Block` and gives a value per row `[b, H, R]`; NaN where it is undefined for the row.
        reduce: How rows become a head's value: their "mean" or their "max".
        formula: The formula per row, for the pages.
        unit: The unit of the value.
        title: What a page calls it; the name if None.
        reading: How a person reads it.
        needs: What it needs beside the weights: "tokens", "delimiters" (of the tokens), "values" (`block.value_norms`),
            "out" (`block.out`).

    Returns:
        Its entry in the catalogue.

    Raises:
        ValueError: A name that is no identifier or taken, a `reduce` or a need that does not exist.

    Example:
        How much weight lies on even positions::

            def even(block):
                return block.weights[..., ::2].sum(-1)

            headwise.measure("even_positions", even)
    """
    if not callable(per_block):
        raise ValueError(f"measure {name!r}: expected a function from a Block to values; got {shown(per_block)}")
    if reduce not in ("mean", "max"):
        raise ValueError(f"measure {name!r}: expected reduce 'mean' or 'max'; got {shown(reduce)}")
    asked = frozenset((needs,) if isinstance(needs, str) else needs)
    if asked - set(NEEDS):
        came = ", ".join(map(repr, sorted(asked - set(NEEDS))))
        raise ValueError(f"measure {name!r}: expected needs among {', '.join(NEEDS)}; got {came}")
    if asked & {"delimiters"}:
        asked |= {"tokens"}
    _check_name(name, per_block)
    entry = Measure(name, title or name, formula, unit, None, None, reading, "user", summary=reduce)
    REGISTRY[name] = BlockMeasure(entry, per_block, asked)
    return entry


def registered() -> dict[str, Measure]:
    """The catalogue entries of all blockwise measures, headwise's own first."""
    return {name: one.entry for name, one in REGISTRY.items()}


def unregister(name: str) -> None:
    """Take back a measure that was added with `measure`.

    Raises:
        ValueError: No such measure was added.
    """
    if name not in REGISTRY or REGISTRY[name].own:
        added = [key for key, one in REGISTRY.items() if not one.own]
        raise ValueError(
            f"unregister: expected a measure that was added ({', '.join(added) or 'none'}); got {shown(name)}"
        )
    del REGISTRY[name]


def _check_name(name: str, per_block: PerBlock) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"measure: expected a name that is an identifier, like 'even_positions'; got {shown(name)}")
    before = REGISTRY.get(name)
    if before is not None and not before.own:
        if _identity(before.per_block) != _identity(per_block):
            raise ValueError(f"measure {name!r}: another function has this name; unregister({name!r}) first")
        return
    others = {*BY_NAME, *(entry.name for entry in (*KEY_MEASURES, *PAIR_MEASURES)), *REGISTRY}
    # The table has columns like entropy_std beside entropy.
    taken = others | set(COLUMNS) | {other + suffix for other in others for suffix in SUFFIXES}
    clash = [word for word in (name, *(name + suffix for suffix in SUFFIXES)) if word in taken]
    if clash:
        raise ValueError(f"measure {name!r}: a measure or column {clash[0]!r} exists; choose another name")


def _identity(function: PerBlock) -> tuple[str | None, str]:
    return getattr(function, "__module__", None), getattr(function, "__qualname__", repr(function))
