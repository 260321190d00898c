"""Places of heads, and numbers, as the page's data hold them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

LOST = 1e-7
"""Errors come from sums of squares that cancel: of equal sequences about 1e-8 of the value is left over."""

Place = tuple[int, int, str, str, int]


def places(table: DataFrame) -> list[Place]:
    """What tells the heads of a table apart: (layer, call, phase, kind, head) of each row."""
    columns = (table[name].tolist() for name in ("layer", "call", "phase", "kind", "head"))
    return list(zip(*columns, strict=True))


def rounded(value: float | None, digits: int = 6) -> float | int | None:
    """So many significant digits, six where fewer would make 1 of what is below; None where undefined.

    Whole numbers are without their ".0".
    """
    if value is None or not math.isfinite(value):
        return None
    number = float(f"{value:.{digits}g}")
    if digits < 6 and abs(number) == 1 and abs(value) < 1:
        number = float(f"{value:.6g}")
    return int(number) if number.is_integer() and abs(number) < 1e6 else number


def spread(value: float, error: float) -> float | int | None:
    """A standard error, two digits; 0 where it is no more than what its sums lose to rounding."""
    return 0 if abs(error) < LOST * abs(value) else rounded(error, 2)


def numbers(values: Any, digits: int = 6) -> list[float | int | None]:
    """Every number of an array or a sequence, rounded."""
    listed: Sequence[float] = values.tolist() if hasattr(values, "tolist") else values
    return [rounded(value, digits) for value in listed]
