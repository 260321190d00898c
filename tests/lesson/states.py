"""States of the lesson as a reader may make them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from headwise.lesson.working import example


@st.composite
def states(draw: st.DrawFn, **fixed: Any) -> dict[str, Any]:
    """A state with other numbers, tokens, heads, scale and masks."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    N, T = draw(st.integers(1, 5)), draw(st.integers(1, 4))

    def rows(n: int, m: int) -> list[list[float]]:
        made: list[list[float]] = rng.normal(0, 1.5, (n, m)).round(1).tolist()
        return made

    state = example()
    state |= {
        "tokens": [f"t{i}" for i in range(N)],
        "x": rows(N, 4),
        **{name: rows(4, 4) for name in ("wq", "wk", "wv", "wo")},
        "target": [f"y{i}" for i in range(T)],
        "y": rows(T, 4),
        "pad": rows(1, 4)[0],
        "look": draw(st.integers(0, N - 1)),
        "heads": draw(st.sampled_from((1, 2, 4))),
        "scale": draw(st.booleans()),
        "causal": draw(st.booleans()),
        "wide": {**state["wide"], "x": rows(N, 12), **{name: rows(12, 12) for name in ("wq", "wk", "wv")}},
    }
    return state | fixed
