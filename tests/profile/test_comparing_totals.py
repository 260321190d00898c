"""Comparing what is kept as sums over sequences: what the first key receives, and how alike pairs of heads are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import headwise
from headwise.profile import Group, Layer, Profile
from headwise.profile.significance import two_sided
from headwise.profile.totals import Totals
from tests.models_of_tests import Decoder
from tests.profile.simulating import GROUP, part_of
from tests.profile.test_comparing import doubled, read, texts

MEASURES = ["first", "alpha_first", "bc", "js"]


def with_totals(alpha: Any = None, pairs: Any = None, rows: Any = 1.0, group: Group = GROUP) -> Profile:
    """A profile of one layer: alpha `[H, C]` of the first key, or pairs `[4, H, H, C]`, over C sequences."""
    profile = Profile(("first",))
    values = np.asarray(alpha if alpha is not None else pairs, float)
    H, C = values.shape[0] if alpha is not None else values.shape[1], values.shape[-1]
    layer = Layer(group.layer, "attn", H, H, 8, ("self",), ("prefill",), 1, ("none",))
    profile.record(layer, group, part_of(np.ones((1, H, C)), 1.0))
    n = np.broadcast_to(np.asarray(rows, float), values.shape)
    total = values * n
    sums = {
        "sequences": (n > 0).sum(-1).astype(float), "s": total.sum(-1), "ss": (total**2).sum(-1),
        "sn": (total * n).sum(-1), "n": n.sum(-1), "nn": (n**2).sum(-1),
    }  # fmt: skip
    if alpha is not None:
        profile.put_keys(group, (1,), {name: array[:, None] for name, array in sums.items()})
    else:
        profile.put_pairs(group, (1,), sums)
    return profile


def test_alpha_first_is_compared_by_welchs_test() -> None:
    """With one number a sequence it is the textbook test of two samples."""
    rng = np.random.default_rng(0)
    x, y = rng.random((3, 7)), rng.random((3, 12)) + 0.2
    table = headwise.compare(with_totals(x), with_totals(y), measures="alpha_first").table()
    table = table.sort_values("head")
    a, b = x.var(1, ddof=1) / 7, y.var(1, ddof=1) / 12
    t = (y.mean(1) - x.mean(1)) / np.sqrt(a + b)
    df = (a + b) ** 2 / (a**2 / 6 + b**2 / 11)
    size = (y.mean(1) - x.mean(1)) / np.sqrt((x.var(1) + y.var(1)) / 2)
    for column, expected in {"t": t, "df": df, "p": two_sided(t, df), "size": size}.items():
        np.testing.assert_allclose(table[column].to_numpy(), expected, rtol=1e-9, err_msg=column)
    assert table["label"].tolist() == ["L0H0", "L0H1", "L0H2"]
    assert not table["paired"].any()


def test_pairs_are_compared_with_sequences_of_unequal_length() -> None:
    rng = np.random.default_rng(1)
    one, other = (rng.random((4, 3, 3, 9)) for _ in range(2))
    rows = rng.integers(1, 40, 9)
    table = headwise.compare(with_totals(pairs=one, rows=rows), with_totals(pairs=other), measures=["js"]).table()
    row = table[table["label"] == "L0H0/L0H2"].iloc[0]
    s, n = one[2, 0, 2] * rows, rows
    mean = s.sum() / n.sum()
    variance = 9 / 8 * ((s - mean * n) ** 2).sum() / n.sum() ** 2
    assert row["a"] == pytest.approx(mean, rel=1e-12)
    assert row["se"] == pytest.approx(math.sqrt(variance + other[2, 0, 2].var(ddof=1) / 9), rel=1e-9)
    spread = math.sqrt((((s - mean * n) ** 2).sum() / (n**2).sum() + other[2, 0, 2].var()) / 2)
    assert row["size"] == pytest.approx(row["difference"] / spread, rel=1e-9)
    assert (row["head"], row["head_b"], row["measure"]) == ("H0/H2", "H0/H2", "js")
    assert len(table) == 3


def test_totals_agree_with_the_tables_of_the_profiles() -> None:
    model = Decoder(layers=2).eval()
    a, b = read(model, texts(0), measures=MEASURES), read(doubled(model, 0, 1), texts(0), measures=MEASURES)
    found = headwise.compare(a, b, measures=["alpha_first", "bc"])
    table = found.table()
    keys = table[table["measure"] == "alpha_first"].sort_values("label")
    one, other = a.table(), b.table()
    np.testing.assert_allclose(keys["difference"], other["alpha_first"] - one["alpha_first"], atol=1e-12)
    np.testing.assert_allclose(keys["se"], np.hypot(one["alpha_first_se"], other["alpha_first_se"]), rtol=1e-9)
    pairs = table[table["measure"] == "bc"].sort_values("label")
    assert pairs["label"].tolist() == [f"{x}/{y}" for x, y in zip(a.pairs()["a"], a.pairs()["b"], strict=True)]
    np.testing.assert_allclose(pairs["b"], b.pairs()["bc"], atol=1e-12)
    np.testing.assert_allclose(pairs["se"], np.hypot(a.pairs()["bc_se"], b.pairs()["bc_se"]), rtol=1e-9)
    assert (
        found.pairing == "not paired: sums of what keys receive and of pairs of heads are not kept for single sequences"
    )
    assert found.sequences == (16, 16)


def test_rows_and_totals_together() -> None:
    model = Decoder(layers=2).eval()
    a, b = (read(model, texts(seed), measures=MEASURES) for seed in (0, 1))
    found = headwise.compare(a, b, measures=MEASURES)
    assert set(found.table()["measure"]) == set(MEASURES)
    assert found.notes == ["alpha_first, bc, js: not paired, as no sums of single sequences are kept of them"]
    assert "20 heads or pairs" in found.findings()[0]
    assert set(headwise.compare(a, b).table()["measure"]) == {"first"}, "totals are compared when asked for"
    assert "12 pairs x 1 measure" in headwise.compare(a, b, measures=["bc"]).findings()[0]
    again = headwise.compare(a, a, measures=["alpha_first", "bc"])
    assert again.findings() == ["Nothing differs: all 20 values that can be tested are equal within rounding."]


def test_layers_are_compared_without_an_error_of_the_mean() -> None:
    few, many = Decoder(layers=1, num_heads=2).eval(), Decoder(layers=1, num_heads=4).eval()
    a, b = read(few, texts(0), measures=MEASURES), read(many, texts(0), measures=MEASURES)
    table = headwise.compare(a, b, measures=["bc", "alpha_first"], match="layer").table()
    bc = table[table["measure"] == "bc"].set_index("head")
    assert bc.loc["mean", "b"] == pytest.approx(b.pairs()["bc"].mean(), rel=1e-12)
    assert bc.loc["most", "b"] == pytest.approx(b.pairs()["bc"].max(), rel=1e-12)
    assert bc.loc["least", "a"] == pytest.approx(a.pairs()["bc"].item(), rel=1e-12)
    assert bc["p"].isna().all()


def test_pairs_follow_the_heads_that_were_matched() -> None:
    rng = np.random.default_rng(2)
    one = rng.random((4, 3, 3, 5))
    one = (one + one.swapaxes(1, 2)) / 2
    order = [2, 0, 1]  # head i of b is head order[i] of a
    other = one[:, order][:, :, order]
    similarity = {0: np.eye(3)[:, order]}
    a, b = with_totals(pairs=one), with_totals(pairs=other)
    found = headwise.compare(a, b, measures=["bc"], match="pattern", similarity=similarity).table()
    assert (found["difference"] == 0).all()
    assert dict(zip(found["head"], found["head_b"], strict=True))["H0/H1"] == "H1/H2"
    assert (headwise.compare(a, b, measures=["bc"]).table()["difference"] != 0).any()


def test_a_measure_that_was_not_recorded_says_how_to_record_it() -> None:
    a, b = with_totals(np.ones((2, 3))), with_totals(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r'among first, alpha_first; got \'bc\'; watch both with measures=\["bc"\]'):
        headwise.compare(a, b, measures=["bc"])
    with pytest.raises(ValueError, match="need two heads in a layer"):
        headwise.compare(*(with_totals(pairs=np.ones((4, 1, 1, 3))) for _ in range(2)), measures=["bc"])


def test_what_only_one_profile_has_of_a_layer_is_said() -> None:
    a, b = (with_totals(np.full((2, 3), 0.5)) for _ in range(2))
    second = GROUP._replace(layer=1)
    a.merge(with_totals(np.full((2, 3), 0.5), group=second))
    rows_alone = with_totals(np.full((2, 3), 0.5), group=second)
    rows_alone.key_totals.clear()
    b.merge(rows_alone)
    found = headwise.compare(a, b, measures=["alpha_first"])
    assert found.notes == ["alpha_first: nothing to compare in L1 prefill self"]
    assert len(found.table()) == 2


@pytest.mark.parametrize("method", ["keys", "pairs"])
def test_keys_and_pairs_are_not_kept_by_label(method: str) -> None:
    model = Decoder(layers=1).eval()
    with torch.no_grad(), headwise.watch(model, measures=["alpha_first", "bc"], groups=["x", "y"]) as profile:
        model(torch.zeros(2, 4, dtype=torch.long))
    assert len(getattr(profile, method)()) > 0
    with pytest.raises(ValueError, match=rf"^{method}: .* not by label; got group='x': watch the sequences of this"):
        getattr(profile, method)(group="x")


def test_the_spread_of_sequences_weighs_them_by_their_rows() -> None:
    total, n = np.array([2.0, 9.0, 4.0]), np.array([4.0, 10.0, 5.0])
    sums = {"sequences": 3.0, "s": 15.0, "ss": (total**2).sum(), "sn": total @ n, "n": 19.0, "nn": (n**2).sum()}
    totals = Totals({name: np.array([value]) for name, value in sums.items()})
    mean = 15 / 19
    expected = math.sqrt((n**2 * (total / n - mean) ** 2).sum() / (n**2).sum())
    assert totals.spread()[0] == pytest.approx(expected, rel=1e-12)
    assert totals.freedom()[0] == pytest.approx(19**2 / (n**2).sum() - 1, rel=1e-12)
