"""Numbers in words and cells: what is below 1 is never shown as 1, what is above 0 never as 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwise.measures.catalogue import Measure

SAME = 5e-7
"""Nearer to 1 than this is 1: a page keeps six digits, and kernels agree to fewer."""
MOST_DIGITS = 7


def significant(value: float, digits: int = 3) -> str:
    """A number in a sentence: `digits` significant digits, more where they would make 1 of what is below it.

    Args:
        value: Any finite number.
        digits: Significant digits, at least 1.

    Returns:
        "0.9996" rather than "1"; "1,250" from 1000 on, without an exponent between 1e-4 and 1e6.
    """
    size = abs(value)
    if 100 <= size < 1e6:
        return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}"
    if size < 1 - SAME:
        while digits < MOST_DIGITS and abs(float(f"{value:.{digits}g}")) >= 1:
            digits += 1
    return f"{value:.{digits}g}"


def fixed(value: float, decimals: int, *, share: bool = False) -> str:
    """A number in a column: so many decimals; "<0.001" where these would show 0, ">0.999" where 1.

    Args:
        value: Any finite number.
        decimals: Digits after the point.
        share: The value lies between 0 and 1, so that 1 says "all".
    """
    text, step = f"{value:,.{decimals}f}", 10.0**-decimals
    if value and not float(text.replace(",", "")):
        return f"<{step:.{decimals}f}" if value > 0 else f">-{step:.{decimals}f}"
    if share and value < 1 - SAME and float(text.replace(",", "")) >= 1:
        return f">{1 - step:.{decimals}f}"
    return text


def in_cell(value: float) -> str:
    """A number in a plain table: three decimals."""
    return fixed(value, 3, share=True)


def percent(share: float) -> str:
    """A share 0..1 in whole percent: ">99%" where that would round to all, "<1%" where it would to none."""
    text = f"{share:.0%}"
    if text == "100%" and share < 1 - SAME:
        return ">99%"
    return "<1%" if text == "0%" and share > 0 else text


def is_share(measure: Measure) -> bool:
    """Whether a measure lies between 0 and 1 for every head."""
    return measure.low == 0 and measure.high == "1"
