"""The compiled sums of row formulas against plain numpy, at every instruction set."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from headwise.kernels import RowFormula, moments
from headwise.kernels.native import LEVELS
from headwise.kernels.native import moments as compiled
from tests.compiled import needs_native
from tests.kernels.test_native import native

pytestmark = needs_native

P = 5


def plain(
    formulas: Sequence[RowFormula], counted: Tensor, bins: Tensor, segment: Tensor | None
) -> dict[str, np.ndarray]:
    """Row by row, in the order of the rows."""
    K, (B, H, N) = len(formulas), counted.shape
    S = 1 if segment is None else int(segment.max()) + 1
    bins = bins.expand(B, N)
    within = torch.zeros(B, N, dtype=torch.int64) if segment is None else segment.expand(B, N)
    made = {name: np.zeros((K, H)) for name in ("rows", "mean", "m2", "low", "high")}
    made |= {name: np.zeros((K, H, B * S)) for name in ("cluster_sum", "cluster_rows")}
    made |= {name: np.zeros((K, H, P)) for name in ("bin_sum", "bin_rows")}
    for k, formula in enumerate(formulas):
        values = formula.values().expand(B, H, N).double()
        for h in range(H):
            x = []
            for b in range(B):
                for n in range(N):
                    value = float(values[b, h, n])
                    if not counted[b, h, n] or math.isnan(value):
                        continue
                    x.append(value)
                    for what, at in (("cluster", b * S + int(within[b, n])), ("bin", int(bins[b, n]))):
                        made[f"{what}_sum"][k, h, at] += value
                        made[f"{what}_rows"][k, h, at] += 1
            made["rows"][k, h] = len(x)
            if x:
                made["mean"][k, h] = np.mean(x)
                made["m2"][k, h] = ((np.array(x) - np.mean(x)) ** 2).sum()
            made["low"][k, h], made["high"][k, h] = min(x, default=math.inf), max(x, default=-math.inf)
    return made


def some(B: int, H: int, N: int, kind: int, seed: int) -> RowFormula:
    """A formula; what it is made of has any of the shapes `[b, h, N]`, written out or expanded, in any order."""
    make = torch.Generator().manual_seed(seed)

    def tensor(i: int) -> Tensor:
        b, h = (B, 1, B, 1)[(kind + i) % 4], (H, H, 1, 1)[(kind + i) % 4]
        x = torch.randn(b, N, h, generator=make).transpose(1, 2)
        return x if kind % 3 == 0 else x.contiguous().expand(B, H, N) if kind % 3 == 1 else x.contiguous()

    statistic = torch.randn(B, H, N, generator=make) + (100.0 if kind % 2 else 0.0)
    statistic[torch.rand(B, H, N, generator=make) < 0.05] = math.nan
    defined = tensor(1) > -0.5
    return RowFormula(
        statistic,
        defined if kind & 1 else None,
        tensor(2) if kind & 2 else None,
        tensor(3).abs() + 0.5 if kind & 4 else None,
        nowhere=kind == 8,
    )


def check(level: int, B: int, H: int, N: int, kinds: Sequence[int], shared: bool, packed: bool, density: float) -> None:
    make = torch.Generator().manual_seed(N)
    formulas = [some(B, H, N, kind, N + 31 * kind) for kind in kinds]
    counted = torch.rand(B, H, N, generator=make) < density
    b = 1 if shared else B
    bins = torch.randint(0, P, (b, N), generator=make).sort(-1).values
    segment = torch.randint(0, 3, (b, N), generator=make).sort(-1).values if packed else None
    patch = pytest.MonkeyPatch()
    patch.setattr(native(), "level", level)
    try:
        found = moments(formulas, counted, bins, P, segment)
    finally:
        patch.undo()
    assert found is not None
    for name, expected in plain(formulas, counted, bins, segment).items():
        exact = {"rtol": 0.0, "atol": 0.0} if name.endswith(("rows", "low", "high")) else {"rtol": 1e-12, "atol": 1e-11}
        np.testing.assert_allclose(found[name].numpy(), expected, **exact, err_msg=f"{name} at {LEVELS[level]}")
        assert found[name].dtype == torch.float64


@pytest.mark.parametrize("level", range(len(LEVELS)))
@given(
    B=st.integers(1, 3), H=st.integers(1, 3), N=st.integers(1, 70), kinds=st.lists(st.integers(0, 8), max_size=4),
    shared=st.booleans(), packed=st.booleans(), density=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
)  # fmt: skip
@example(B=2, H=2, N=33, kinds=list(range(9)), shared=False, packed=True, density=0.9)
@example(B=2, H=2, N=1, kinds=[7], shared=True, packed=False, density=1.0)
def test_sums_are_those_of_the_rows(
    level: int, B: int, H: int, N: int, kinds: list[int], shared: bool, packed: bool, density: float
) -> None:
    if level > native().level:
        pytest.skip(f"this machine has no {LEVELS[level]}")
    check(level, B, H, N, kinds, shared, packed, density)


def test_threads_change_no_bit() -> None:
    B, H, N = 4, 6, 5000
    formulas = [some(B, H, N, kind, kind) for kind in range(8)]
    counted, bins = torch.ones(B, H, N, dtype=torch.bool), (torch.arange(N) % P).sort().values[None]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(moments(formulas, counted, bins, P, None))
    finally:
        torch.set_num_threads(before)
    one, two = found
    assert one is not None
    assert two is not None
    for name, x in one.items():
        assert torch.equal(x, two[name]), name


def test_what_the_kernel_does_not_take_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    one, counted, bins = (
        some(1, 2, 9, 7, 0),
        torch.ones(1, 2, 9, dtype=torch.bool),
        torch.zeros(1, 9, dtype=torch.int64),
    )
    assert moments([one], counted, bins, P, None) is not None
    assert moments([one._replace(statistic=one.statistic.double())], counted, bins, P, None) is None
    assert one.divisor is not None
    assert moments([one._replace(divisor=one.divisor.double())], counted, bins, P, None) is None
    assert moments([], counted.to("meta"), bins, P, None) is None
    monkeypatch.setattr(type(native()), "moments", lambda *_: True)  # memory was refused
    assert moments([one], counted, bins, P, None) is None
    monkeypatch.setattr(compiled, "library", lambda: "it is not there")
    assert moments([one], counted, bins, P, None) is None


def test_values() -> None:
    x, defined = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[True, False, True]]])
    assert RowFormula(x).values() is x
    twice = RowFormula(x, defined, factor=torch.full((1, 1, 3), 4.0), divisor=torch.tensor([[[1.0, 1.0, 8.0]]]))
    torch.testing.assert_close(twice.values(), torch.tensor([[[4.0, math.nan, 1.5]]]), rtol=0, atol=0, equal_nan=True)
    assert RowFormula(x, nowhere=True).values().isnan().all()
