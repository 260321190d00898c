"""Numbers in words and cells: what is below 1 is never shown as 1, what is above 0 never as 0."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.profile.numbers import SAME, fixed, in_cell, percent, significant


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.5, "0.5"), (0.1234567, "0.123"), (0.9996, "0.9996"), (0.99996, "0.99996"), (0.99999999, "1"), (1.0, "1"),
        (-0.9996, "-0.9996"), (0.0, "0"), (12.34, "12.3"), (626, "626.0"), (1250.0, "1,250"), (4e-7, "4e-07"),
    ],
)  # fmt: skip
def test_a_number_in_a_sentence(value: float, said: str) -> None:
    assert significant(value) == said


@pytest.mark.parametrize(
    ("value", "share", "said"),
    [
        (0.9996, True, ">0.999"), (0.9996, False, "1.000"), (0.99949, True, "0.999"), (1.0, True, "1.000"),
        (0.0004, True, "<0.001"), (-0.0004, False, ">-0.001"), (0.0, True, "0.000"), (1.0004, True, "1.000"),
        (1234.5, False, "1,234.500"), (1 - SAME / 2, True, "1.000"),
    ],
)  # fmt: skip
def test_a_number_in_a_column(value: float, share: bool, said: str) -> None:
    assert fixed(value, 3, share=share) == said


def test_a_column_without_decimals() -> None:
    assert fixed(0.2, 0) == "<1"
    assert fixed(0.9, 0, share=True) == ">0"


@pytest.mark.parametrize(("share", "said"), [(0.996, ">99%"), (1.0, "100%"), (0.004, "<1%"), (0.0, "0%"), (0.5, "50%")])
def test_a_share_in_percent(share: float, said: str) -> None:
    assert percent(share) == said
    assert percent(math.nan) == "nan%"


@given(st.floats(0, 1))
def test_only_all_is_one_and_only_nothing_is_zero(value: float) -> None:
    for text in (significant(value), in_cell(value)):
        bound = text[:1] in "<>"
        number = float(text.lstrip("<>"))
        assert (number >= 1 and not bound) == (value >= 1 - SAME)
        assert (number == 0 and not bound) == (value == 0)
        if not bound:
            assert abs(number - value) <= max(5.1e-4, 5.1e-3 * value)
