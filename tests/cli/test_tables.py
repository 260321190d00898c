"""The table in the terminal: its numbers never say 1 or 0 where that is not so."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console

from headwise.cli import tables
from tests.report.recorded import filled


def said(profile: Any) -> str:
    console = Console(width=100, record=True, highlight=False, file=None)
    with console.capture() as capture:
        tables.show(profile, console=console)
    return capture.get()


def test_a_mean_just_below_one_is_not_one() -> None:
    rows = {"self_focus": [[0.9999, 0.9998]], "first": [[0.0001, 0.0001]], "distance": [[0.01, 0.02]]}
    text = said(filled(rows))
    line = next(line for line in text.splitlines() if line.startswith("L0 "))
    assert line.split() == ["L0", ">0.999", "<0.001", "<0.1", "L0H0", ">0.999"]
    exact = said(filled({"self_focus": [[1.0, 1.0]], "first": [[0.0, 0.0]], "distance": [[0.96, 0.96]]}))
    line = next(line for line in exact.splitlines() if line.startswith("L0 "))
    assert line.split()[1:4] == ["1.000", "0.000", "1.0"]


def test_the_sink_rate_is_not_all_where_one_head_is_none() -> None:
    alpha = np.full((1, 250, 1), 0.9)
    alpha[0, 7] = 0.1
    assert ">99% of the heads give the first key more than 0.3" in said(
        filled({"first": np.full((1, 250), 0.9)}, alpha=alpha)
    )
    alpha[0, 7] = 0.9
    assert " 100% of the heads" in said(filled({"first": np.full((1, 250), 0.9)}, alpha=alpha))


def test_a_profile_prints_like_its_table() -> None:
    text = repr(filled({"self_focus": [[0.9999, 0.00001, 1.0]]}))
    assert [word for word in (">0.999", "<0.001", "1.000") if word in text] == [">0.999", "<0.001", "1.000"]


def test_numbers_are_whole_on_a_narrow_terminal() -> None:
    profile = filled({"self_focus": [[0.25, 0.5]], "distance": [[123.4, 5.6]], "max_score": [[12.5, 5.5]]})
    console = Console(width=20, highlight=False)
    with console.capture() as capture:
        tables.show(profile, console=console)
    wide, narrow = (
        next(line for line in text.splitlines() if line.startswith("L0 ")) for text in (said(profile), capture.get())
    )
    assert narrow.split() == wide.split()
    assert "…" not in narrow
