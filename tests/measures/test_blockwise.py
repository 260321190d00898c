"""Blockwise measures: one pass, the user's own measures, and every case against the float64 oracle."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import row_statistics
from headwise.measures import blockwise
from headwise.measures.blockwise import Block, block_values, measure, one_pass, registered, unregister, why_not
from headwise.measures.catalogue import BLOCK_MEASURES, BY_NAME
from headwise.measures.delimiters import is_delimiter
from headwise.measures.registry import REGISTRY
from headwise.measures.tokens import Tokens, tokens_of
from tests.measures.cases import CASES, F64, H, Largest, case
from tests.oracle import definitions, patterns

ALL = tuple(measure.name for measure in BLOCK_MEASURES)


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    """Measures that a test adds are gone after it."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def some_tokens(call: AttentionCall, seed: int = 3) -> tuple[Tokens, np.ndarray, np.ndarray]:
    """Tokens of a small vocabulary, their ids, and which keys are delimiters."""
    B, _, _, M = call.sizes
    ids = torch.randint(0, 4, (B, M), generator=torch.Generator().manual_seed(seed))
    table = torch.tensor([False, True, False, True])
    geometry = row_statistics(call).geometry
    return tokens_of(call, geometry, ids, table), ids.numpy(), table[ids].numpy()


@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_every_measure_of_every_case(name: str, dtype: torch.dtype) -> None:
    c = case(name, dtype, broken=name in ("plain", "causal"))
    tokens, ids, delimiters = some_tokens(c.call)
    W = torch.randn(7, H * 6, dtype=F64)
    found = one_pass(c.call, c.statistics, ALL, tokens, received=True, block_elements=150)
    after = block_values(c.call, c.statistics, ALL, tokens, output_weight=W)
    real = c.seen.any((1, 2))
    if c.call.real is not None:
        real = real & c.call.real.numpy()
    v = c.call.v.double().numpy()
    expected: dict[str, np.ndarray] = {
        **patterns.token_values(c.p, c.seen, c.own, ids, real, c.sequence),
        **patterns.value_shares(c.p, v, c.seen, c.own, c.first),
        "delimiter": patterns.on_keys(c.p, delimiters),
    }
    expected_after = expected | patterns.value_shares(c.p, v, c.seen, c.own, c.first, W.numpy())
    slack = 1e-12 if dtype == F64 else 2e-5
    for k, name_ in enumerate(ALL):
        for values, oracle in ((found.values, expected), (after, expected_after)):
            assert values.dtype == (F64 if dtype == F64 else torch.float32)
            got, want = values[k].numpy()[c.counted], oracle[name_][c.counted]
            np.testing.assert_allclose(got, want, rtol=slack, atol=slack, err_msg=name_)
    assert found.received is not None
    assert found.received.dtype == F64
    np.testing.assert_allclose(found.received.numpy(), patterns.received(c.p, c.counted), rtol=slack, atol=slack)


def test_the_cases_have_rows_of_every_measure() -> None:
    """A comparison of NaN with NaN says nothing."""
    seen = set()
    for name in CASES:
        c = case(name)
        values = block_values(c.call, c.statistics, ALL, some_tokens(c.call)[0])
        seen |= {name_ for name_, value in zip(ALL, values, strict=True) if (~value.isnan()).sum() > 2}
    assert seen == set(ALL)


def test_the_worked_check() -> None:
    """Weights 0.7 0.2 0.1; tokens a b a in row 2 of three; values of length 1, 2, 4."""
    rows = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]], dtype=F64)
    v = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=F64))[None, None]
    call = AttentionCall(rows.log()[None, None], torch.eye(3, dtype=F64)[None, None], v, scale=1.0)
    s = row_statistics(call)
    tokens = tokens_of(call, s.geometry, torch.tensor([[5, 9, 5]]), torch.arange(10) == 9)
    values = dict(zip(ALL, block_values(call, s, ALL, tokens)[:, 0, 0].tolist(), strict=True))
    nan = math.nan
    total = [0.7 + 0.4 + 0.4, 0.1 + 1.4 + 0.8, 0.2 + 0.2 + 2.8]
    expected = {
        "delimiter": [0.2, 0.7, 0.1],
        "duplicate": [nan, nan, 0.2],
        "induction": [nan, nan, 0.1],
        "value_own": [0.7 / total[0], 1.4 / total[1], 2.8 / total[2]],
        "value_previous": [nan, 0.1 / total[1], 0.2 / total[2]],
        "value_first": [nan, 0.1 / total[1], 0.2 / total[2]],
        "output_norm": [math.hypot(0.7, 0.4, 0.4), math.hypot(0.1, 1.4, 0.8), math.hypot(0.2, 0.2, 2.8)],
    }
    for name, want in expected.items():
        assert values[name] == pytest.approx(want, abs=1e-12, nan_ok=True), name
    received = one_pass(call, s, received=True).received
    assert received is not None
    assert received[0, 0].tolist() == pytest.approx([1.0, 1.0, 1.0], abs=1e-12)


@pytest.mark.parametrize("name", ["plain", "packed causal", "window", "chunk", "sinks", "holes"])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_block_size_changes_nothing(name: str, dtype: torch.dtype) -> None:
    c = case(name, dtype)
    tokens = some_tokens(c.call)[0]
    a, b = (
        one_pass(c.call, c.statistics, ALL, tokens, received=True, block_elements=elements) for elements in (1, 1 << 20)
    )
    slack = 1e-13 if dtype == F64 else 1e-6
    torch.testing.assert_close(a.values, b.values, rtol=slack, atol=slack, equal_nan=True)
    torch.testing.assert_close(a.received, b.received, rtol=slack, atol=slack)


def test_outputs_of_the_model_are_taken_where_they_are_given() -> None:
    c = case("causal", torch.float32)
    out = torch.randn(*c.call.sizes[:3], 6)
    found = block_values(c.call, c.statistics, ["output_norm"], out=out, block_elements=200)
    torch.testing.assert_close(found[0], out.norm(dim=-1))


def test_held_weights_are_used() -> None:
    c = case("causal", torch.float32)
    held = torch.rand(*c.call.sizes)
    found = one_pass(c.call, c.statistics, ["delimiter"], some_tokens(c.call)[0], held=held, received=True)
    hidden = torch.from_numpy(c.seen)
    torch.testing.assert_close(found.received, (held * hidden).double().sum(2), rtol=1e-6, atol=1e-6)


@given(st.sampled_from(["plain", "causal", "padded", "sinks", "no groups"]), st.permutations(range(H)))
def test_permuting_heads_permutes_results(name: str, order: list[int]) -> None:
    c = case(name)
    call = c.call
    k, v = (x.repeat_interleave(H // x.shape[1], 1) for x in (call.k, call.v))
    call = call.with_(k=k, v=v)
    sinks = None if call.sinks is None else call.sinks[order]
    other = call.with_(q=call.q[:, order], k=k[:, order], v=v[:, order], sinks=sinks)
    tokens = some_tokens(call)[0]
    a, b = (one_pass(x, row_statistics(x), ALL, tokens, received=True) for x in (call, other))
    torch.testing.assert_close(a.values[:, :, order], b.values, rtol=1e-12, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(a.received[:, order], b.received, rtol=1e-12, atol=1e-12)


@given(st.integers(0, 2**32 - 1), st.sampled_from(list(CASES)))
def test_ranges(seed: int, name: str) -> None:
    c = case(name, size=4.0, seed=seed)
    values = block_values(c.call, c.statistics, ALL, some_tokens(c.call, seed % 1000)[0])
    for entry, value in zip(BLOCK_MEASURES, values, strict=True):
        known = value[torch.from_numpy(c.counted) & ~value.isnan()]
        assert (known >= 0).all(), entry.name
        if entry.high is not None:
            assert (known <= float(entry.high) + 1e-12).all(), entry.name


@pytest.mark.parametrize("mask", [None, torch.rand(1, 1, 1, 1200) > 0.2])
def test_memory_is_linear(mask: Tensor | None) -> None:
    n = 1200
    call = AttentionCall(*(torch.randn(1, 2, n, 4) for _ in range(3)), mask=mask, causal="upper_left")
    tokens = tokens_of(call, row_statistics(call).geometry, torch.randint(0, 50, (1, n)), torch.arange(50) < 5)
    s = row_statistics(call)
    with Largest() as seen:
        one_pass(call, s, ALL, tokens, received=True, block_elements=1 << 15)
    assert n <= seen.elements <= 1 << 17 < n * n


# Measures of one's own


def test_a_measure_of_ones_own() -> None:
    def ahead(block: Block) -> Tensor:
        """The weight on keys after the own position."""
        keys = torch.arange(block.weights.shape[-1])
        return block.weighed(keys > block.own[:, None, :, None])

    entry = measure("ahead", ahead, formula="sum_{j > self(i)} p_ij", unit="weight", title="Ahead")
    assert (entry.name, entry.title, entry.unit, entry.summary) == ("ahead", "Ahead", "weight", "mean")
    assert registered()["ahead"] is entry
    c = case("plain")
    found = block_values(c.call, c.statistics, ["ahead", "output_norm"], block_elements=100)
    later = np.arange(12)[None] > np.arange(12)[:, None]
    np.testing.assert_allclose(found[0].numpy(), (c.p * later).sum(-1), atol=1e-12)
    unregister("ahead")
    assert "ahead" not in registered()
    with pytest.raises(ValueError, match="got 'ahead'"):
        block_values(c.call, c.statistics, ["ahead"])


def test_what_a_block_shows() -> None:
    c = case("padded, causal apart", torch.float32)
    tokens = some_tokens(c.call)[0]
    out = torch.randn(*c.call.sizes[:3], 6)
    shown: list[Block] = []

    def look(block: Block) -> Tensor:
        shown.append(block)
        return block.weights.sum(-1)

    measure("look", look, needs=["tokens", "values", "out"])
    block_values(c.call, c.statistics, ["look"], tokens, out, block_elements=100)
    assert sum(block.part.shape[0] * block.part.shape[2] for block in shown) == 36
    for block in shown:
        rows = block.rows
        assert rows.dtype == torch.int64
        np.testing.assert_allclose(block.weights.numpy(), c.p[block.batch][:, :, rows], atol=1e-6)
        want = c.seen[block.batch][:, :, rows]
        assert np.array_equal(block.visible.expand(*want.shape).numpy(), want)
        part = want[..., block.keys]
        assert np.array_equal(block.visible_part.expand(*part.shape).numpy(), part)
        assert np.array_equal(block.own.expand(part.shape[0], -1).numpy(), c.own[block.batch][:, rows])
        assert torch.equal(block.out, out[block.batch][:, :, rows])
        lengths = c.call.v[block.batch].norm(dim=-1).repeat_interleave(2, 1)
        torch.testing.assert_close(block.value_norms, lengths)
        assert block.tokens is tokens
        assert block.call is c.call
        assert block.statistics is c.statistics
        assert block.geometry is c.statistics.geometry
        assert block.key_numbers.tolist() == list(range(12))[block.keys]


def test_what_no_measure_needs_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "value_norms_of", lambda *_: pytest.fail("norms were not asked for"))
    measure("look", lambda block: block.part.sum(-1) if block.out is block.value_norms is None else None)
    c = case("plain")
    torch.testing.assert_close(block_values(c.call, c.statistics, ["look"])[0], torch.ones(3, 4, 12, dtype=F64))


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (lambda block: block.part, r"'odd': expected a value for each row, .* = \(3, 4, 12\); got \(3, 4, 12, 12\)"),
        (lambda block: block.part.sum((-1, -2)), r"measure 'odd': .*\(3, 4, 12\); got \(3, 4\)"),
        (lambda block: 0.5, r"measure 'odd': expected a tensor .* = \(3, 4, 12\); got float"),
        (lambda block: block.part.sum(-1) * 1j, r"measure 'odd': expected real numbers; got torch.complex"),
    ],
)  # fmt: skip
def test_values_of_a_wrong_shape(gives: Any, message: str) -> None:
    measure("odd", gives)
    c = case("plain")
    with pytest.raises(ValueError, match=message):
        block_values(c.call, c.statistics, ["odd"])


def test_whole_numbers_and_bools_become_numbers() -> None:
    measure("sure", lambda block: block.part.amax(-1) > 0.5)
    c = case("plain", torch.float32)
    assert torch.equal(block_values(c.call, c.statistics, ["sure"])[0], (c.statistics.largest > 0.5).float())


@pytest.mark.parametrize("name", ["a b", "", "1st", "bc-2"])
def test_names_are_identifiers(name: str) -> None:
    with pytest.raises(ValueError, match="expected a name that is an identifier"):
        measure(name, lambda block: block.part.sum(-1))


@pytest.mark.parametrize(
    "name", [*BY_NAME, *ALL, "js", "bc", "alpha_first", "head", "layer", "rows", "entropy_std", "duplicate_se"]
)
def test_names_that_are_taken(name: str) -> None:
    with pytest.raises(ValueError, match=f"measure '{name}': a measure or column .* exists"):
        measure(name, lambda block: block.part.sum(-1))
    assert name not in REGISTRY or REGISTRY[name].own


def test_registering_again() -> None:
    def make() -> Any:
        def mine(block: Block) -> Tensor:
            return block.part.sum(-1)

        return mine

    measure("mine", make())
    measure("mine", make(), title="A cell that ran twice")
    assert registered()["mine"].title == "A cell that ran twice"
    with pytest.raises(ValueError, match=r"another function has this name; unregister\('mine'\) first"):
        measure("mine", is_delimiter)
    with pytest.raises(ValueError, match=r"expected a measure that was added \(mine\); got 'induction'"):
        unregister("induction")
    with pytest.raises(ValueError, match="got 'nothing'"):
        unregister("nothing")


def test_a_sum_and_a_need_that_do_not_exist() -> None:
    function: Any = lambda block: block.part.sum(-1)  # noqa: E731
    with pytest.raises(ValueError, match="expected reduce 'mean' or 'max'; got 'sum'"):
        measure("mine", function, "sum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected needs among tokens, delimiters, values, out; got 'ids'"):
        measure("mine", function, needs=("ids", "tokens"))
    with pytest.raises(ValueError, match="expected a function from a Block to values; got 3"):
        measure("mine", 3)  # type: ignore[arg-type]
    assert measure("mine", function, "max", needs="out").summary == "max"


def test_what_is_missing_is_said() -> None:
    c = case("plain")
    plain = tokens_of(c.call, c.statistics.geometry, torch.zeros(3, 12, dtype=torch.int64))
    assert "none are known" in str(why_not("induction", c.call))
    assert why_not("induction", c.call, tokens=plain) is None
    assert "which tokens are delimiters" in str(why_not("delimiter", c.call, tokens=plain))
    assert "values v" in str(why_not("value_own", c.call.with_(v=None)))
    assert "values v" in str(why_not("output_norm", c.call.with_(v=None)))
    assert why_not("output_norm", c.call) is None
    out = torch.randn(3, 4, 12, 6, dtype=F64)
    assert why_not("output_norm", c.call.with_(v=None), out=out) is None
    W = torch.randn(5, 24, dtype=F64)
    found = block_values(c.call.with_(v=None), c.statistics, ["output_norm"], out=out, output_weight=W)
    assert torch.equal(found, block_values(c.call, c.statistics, ["output_norm"], out=out, output_weight=W))
    with pytest.raises(ValueError, match=r"\[B, H, N, d_v\] = \(3, 4, 12\); got \(3, 12, 24\)"):
        block_values(c.call, c.statistics, ["output_norm"], out=torch.zeros(3, 12, 24))
    with pytest.raises(ValueError, match="measure 'duplicate': it needs the tokens"):
        block_values(c.call, c.statistics, ["output_norm", "duplicate"])
    with pytest.raises(ValueError, match=r"expected names among delimiter, .*output_norm; got 'nothing'"):
        block_values(c.call, c.statistics, ["nothing"])


def test_the_catalogue_has_every_measure_and_no_other() -> None:
    assert tuple(name for name, one in REGISTRY.items() if one.own) == ALL
    for entry in BLOCK_MEASURES:
        assert entry.title
        assert entry.reading
        assert entry.formula
        doc = " ".join((REGISTRY[entry.name].per_block.__doc__ or "").split())
        assert entry.source.split(" et al")[0] in doc
        assert entry.formula.split(",")[0] in doc
    assert not set(ALL) & set(definitions.MEASURES)
