"""headwise.compare: what it names first, what it says in words, and that it finds nothing where nothing is."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import headwise
from headwise.profile import Group, Layer, Profile
from headwise.profile.significance import fdr, holm
from tests.models_of_tests import Decoder
from tests.profile.simulating import drawn, part_of, profile_with

COLUMNS = (
    "layer", "head", "label", "head_b", "name", "call", "phase", "kind", "measure", "a", "b", "difference", "size",
    "se", "t", "df", "p", "p_holm", "p_fdr", "paired", "note",
)  # fmt: skip


def texts(seed: int, lengths: tuple[int, ...] = (10, 20, 14, 33), batch: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 50, (batch, n), generator=generator) for n in lengths]


def read(model: nn.Module, batches: list[torch.Tensor], **options: Any) -> Profile:
    with torch.no_grad(), headwise.watch(model, **options) as profile:
        for ids in batches:
            model(ids)
    return profile


@pytest.fixture
def model() -> Decoder:
    return Decoder(layers=3, num_kv_heads=2).eval()


def doubled(model: Any, layer: int, head: int) -> Any:
    """The model with one head's query weights doubled."""
    other = copy.deepcopy(model)
    q = other.layers[layer].attn.q
    rows = slice(head * 8, head * 8 + 8)
    with torch.no_grad():
        q.weight[rows] *= 2
        q.bias[rows] *= 2
    return other


# What it finds


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (1, 3), (2, 0)])
def test_a_head_whose_query_weights_are_doubled_is_named_first(model: Decoder, layer: int, head: int) -> None:
    changed = doubled(model, layer, head)
    before = read(model, texts(0))
    label = f"L{layer}H{head}"
    paired = headwise.compare(before, read(changed, texts(0)))
    assert paired.pairing == "paired: both profiles read the same 16 texts"
    assert paired.table()["paired"].all()
    assert paired.largest(3)["label"].tolist() == [label] * 3
    assert paired.significant().iloc[0]["p_holm"] < 1e-3
    assert paired.findings()[1].startswith(f"{label}: entropy_ratio ")
    assert (paired.significant()["layer"] >= layer).all()  # what comes before it is as it was
    # other texts too, though they have to tell the change from chance
    lengths = (40, 40, 40, 40)
    apart = headwise.compare(read(model, texts(1, lengths, 8)), read(changed, texts(2, lengths, 8)))
    assert not apart.table()["paired"].any()
    assert apart.pairing == "not paired: no text is in both profiles"
    assert apart.largest(1)["label"].tolist() == [label]
    assert apart.significant()["label"].unique().tolist() == [label]


def test_two_profiles_of_one_run_differ_by_nothing(model: Decoder) -> None:
    one, again = read(model, texts(0)), read(model, texts(0)[::-1])
    for other in (again, headwise.Profile().merge(again)):
        found = headwise.compare(one, other)
        table = found.table()
        tested = table["p"].notna()
        assert (table.loc[tested, "p"] == 1).all()
        assert (table.loc[tested, "t"] == 0).all()
        assert found.significant().empty
        assert found.findings() == [
            f"Nothing differs: all {tested.sum()} values that can be tested are equal within rounding."
        ]
        assert table.loc[~tested, "measure"].isin(["max_score", "next", "sink_bias"]).all()


def test_two_kernels_agree_within_rounding(model: Decoder) -> None:
    """float32 and float64 of the same model: far below what any text changes."""
    exact = read(copy.deepcopy(model).double(), texts(0))
    found = headwise.compare(exact, read(model, texts(0)))
    assert found.table()["p"].dropna().eq(1).all()
    half = headwise.compare(exact, read(copy.deepcopy(model).bfloat16(), texts(0)))
    assert half.pairing.startswith("paired: ")
    assert half.table()["p"].dropna().lt(1).any()


def test_disjoint_texts_differ_by_nothing_beyond_chance(model: Decoder) -> None:
    for seed in range(4):
        found = headwise.compare(read(model, texts(10 + seed)), read(model, texts(20 + seed)))
        assert found.findings() == ["Nothing differs beyond chance at 5 % (Holm, 12 heads x 11 measures)."]


def test_a_batch_and_its_padding_do_not_matter(model: Decoder) -> None:
    """The same texts one by one, and in one padded batch, are the same texts."""
    short, long = texts(0, (6,), 2)[0], texts(1, (9,), 2)[0]
    one_by_one = read(model, [*short.split(1), *long.split(1)])
    batch = torch.cat([torch.nn.functional.pad(short, (0, 3)), long])
    mask = torch.ones(4, 9, dtype=torch.long)
    mask[:2, 6:] = 0
    with torch.no_grad(), headwise.watch(model) as padded:
        model(batch, attention_mask=mask)
    found = headwise.compare(one_by_one, padded)
    assert found.pairing == "paired: both profiles read the same 4 texts"
    assert found.table()["p"].dropna().eq(1).all()


def test_some_texts_in_both(model: Decoder) -> None:
    found = headwise.compare(read(model, texts(0)), read(model, texts(0)[:2]))
    assert found.pairing == "paired in part: 8 texts are in both profiles, the others are taken for independent"
    assert found.sequences == (16, 8)
    assert not found.table()["paired"].any()
    assert "8 texts are in both profiles" in found.table()["note"].tolist()
    assert found.significant().empty


# The table


def three_heads(effect: float = 4.0, texts_b: Any = range(1, 11), **more: Any) -> tuple[Profile, Profile]:
    """Entropy and first of three heads; entropy of head 1 differs."""
    rng = np.random.default_rng(0)
    (S, N), (T, M) = (drawn(rng, (2, 3, 10)) for _ in range(2))
    T[0, 1] += effect * M[0, 1]
    names = ("entropy", "first")
    return profile_with(S, N, range(1, 11), names, **more), profile_with(T, M, texts_b, names, **more)


def test_columns_and_order() -> None:
    a, b = three_heads()
    found = headwise.compare(a, b)
    table = found.table()
    assert tuple(table.columns) == COLUMNS
    assert len(table) == 6
    first = table.iloc[0]
    assert (first["label"], first["measure"], first["head_b"]) == ("L0H1", "entropy", 1)
    assert first["p_holm"] < 0.05 < table["p_holm"].iloc[1]
    assert table["p"].iloc[1:].is_monotonic_increasing
    values = {name: p.table().set_index("label")["entropy"] for name, p in (("a", a), ("b", b))}
    assert first["a"] == values["a"]["L0H1"]
    assert first["b"] == values["b"]["L0H1"]
    assert first["difference"] == first["b"] - first["a"]
    assert first["size"] == pytest.approx(first["difference"])  # the standard deviation of rows is 1 in both
    assert first["t"] == pytest.approx(first["difference"] / first["se"])
    assert found.largest(2).equals(table.head(2))
    assert found.significant().equals(table.head(1))


def test_what_differs_comes_by_size_and_not_by_certainty() -> None:
    """A tiny change without noise is more certain than a large one; the large one comes first."""
    rng = np.random.default_rng(1)
    S = rng.normal(size=(1, 2, 12))
    change = np.stack([0.01 + 1e-4 * rng.normal(size=12), 3 + rng.normal(size=12)])
    found = headwise.compare(profile_with(S, 1, range(1, 13)), profile_with(S + change, 1, range(1, 13)))
    table = found.significant()
    assert table["label"].tolist() == ["L0H1", "L0H0"]
    assert table["t"].iloc[0] < table["t"].iloc[1]


def test_the_correction_is_over_all_or_over_heads() -> None:
    a, b = three_heads()
    together, apart = (headwise.compare(a, b, correct_over=over).table() for over in ("all", "heads"))
    np.testing.assert_allclose(together["p_holm"], holm(together["p"].to_numpy()))
    np.testing.assert_allclose(together["p_fdr"], fdr(together["p"].to_numpy()))
    for _, rows in apart.groupby("measure"):
        np.testing.assert_allclose(rows["p_holm"], holm(rows["p"].to_numpy()))
        np.testing.assert_allclose(rows["p_fdr"], fdr(rows["p"].to_numpy()))
    assert apart["p_holm"].iloc[0] == pytest.approx(together["p_holm"].iloc[0] / 2)
    first = headwise.compare(a, b, correct_over="heads").findings()[0]
    assert "at 5 % (Holm, 3 heads within each measure)" in first


def test_alpha_and_method() -> None:
    a, b = three_heads(effect=1.2)
    found = headwise.compare(a, b)
    p = found.table()
    for alpha in (0.01, 0.05, 0.3, 0.7):
        for method in ("holm", "fdr"):
            assert len(found.significant(alpha, method)) == (p[f"p_{method}"] <= alpha).sum()
            assert found.table(alpha, method)[f"p_{method}"].le(alpha).is_monotonic_decreasing
    with pytest.raises(ValueError, match="method: expected one of 'holm', 'fdr'; got 'bonferroni'"):
        found.significant(method="bonferroni")
    for alpha in (0, 1, 5, math.nan):
        with pytest.raises(ValueError, match="alpha: expected a number between 0 and 1"):
            found.significant(alpha)


def test_a_measure_that_some_heads_lack_is_no_test() -> None:
    rng = np.random.default_rng(3)
    S, N = drawn(rng, (2, 3, 6))
    lacking = N.copy()
    lacking[1, 2] = 0
    a = profile_with(S, lacking, None, ("entropy", "first"))
    found = headwise.compare(a, profile_with(S + 1, N, None, ("entropy", "first")))
    table = found.table()
    assert table["p_holm"].isna().sum() == 1
    assert table.iloc[-1][["label", "measure", "note"]].tolist() == ["L0H2", "first", "undefined in a"]
    assert "(Holm, 5 tests: 3 heads x 2 measures)" in found.findings()[0]


def test_measures_and_calls_that_are_not_in_both_are_noted() -> None:
    a, b = three_heads()
    only = profile_with(np.ones((1, 3, 4)), 1, None, ("entropy",))
    assert headwise.compare(a, only).notes == ["only a has the measures first"]
    assert headwise.compare(only, b).notes == ["only b has the measures first"]


def test_nothing_is_changed_by_comparing(tmp_path: Path) -> None:
    a, b = three_heads()
    tables = a.table(), b.table()
    found = headwise.compare(a, b)
    table = found.table()
    table["p"] = 7.0
    assert found.table()["p"].max() <= 1
    for profile, table in zip((a, b), tables, strict=True):
        assert profile.table().equals(table)
        profile.save(tmp_path / "p")
        assert headwise.load(tmp_path / "p").table().equals(table)


def test_profiles_from_files_compare_as_they_did(tmp_path: Path, model: Decoder) -> None:
    a, b = read(model, texts(0)), read(doubled(model, 0, 2), texts(0))
    for name, profile in (("a", a), ("b", b)):
        profile.save(tmp_path / name)
    before = headwise.compare(a, b)
    after = headwise.compare(headwise.load(tmp_path / "a"), headwise.load(tmp_path / "b"))
    pd.testing.assert_frame_equal(before.table(), after.table())
    assert before.pairing == after.pairing


def test_a_file_of_format_1_compares_without_pairs() -> None:
    old = headwise.load(Path(__file__).parent / "schema1.headwise")
    found = headwise.compare(old, old)
    assert found.pairing == ("not paired: a profile's file is of format 1, which has no sums of single sequences")
    assert found.table()["p"].dropna().eq(1).all()
    assert found.sequences == (6, 6)
    layers = headwise.compare(old, old, match="layer")
    assert layers.table()["p"].isna().all()
    assert layers.findings() == [
        "Nothing can be tested: without sums of single sequences a mean over heads has no standard error."
    ]


# In words


def test_one_sequence_says_what_to_do(model: Decoder) -> None:
    one, other = (read(model, texts(seed, (12,), 1)) for seed in (0, 1))
    found = headwise.compare(one, other)
    assert found.findings() == ["Nothing can be tested: with one sequence there is no standard error; record several."]
    table = found.table()
    assert table["p"].isna().all()
    sizes = table["size"].abs().dropna()
    assert sizes.is_monotonic_decreasing
    assert len(sizes) > 100


def test_findings_name_heads_numbers_and_how_many() -> None:
    a, b = three_heads()
    first, head = headwise.compare(a, b).findings()
    assert first == "1 of 6 differences are beyond chance at 5 % (Holm, 3 heads x 2 measures), in 1 head: L0H1."
    numbers = r"L0H1: entropy (\S+) in a, (\S+) in b \((\+\S+), standard error \S+, corrected p (\S+)\)\."
    found = re.fullmatch(numbers, head)
    assert found is not None
    assert float(found[2]) - float(found[1]) == pytest.approx(float(found[3]), abs=0.01)
    loose = headwise.compare(a, b).findings(alpha=0.9, method="fdr", limit=1)
    assert "at 90 % (false discovery rate, 3 heads x 2 measures)" in loose[0]
    assert len(loose) == 2


def test_phases_are_told_apart_only_where_there_are_several() -> None:
    rng = np.random.default_rng(0)

    def both(shift: float) -> Profile:
        S, N = drawn(rng, (1, 2, 9))
        profile = profile_with(S, N, range(1, 10))
        part = part_of(S + shift * N, N, range(1, 10), first=100)
        profile.record(Layer(0, "attn", 2, 2, 8), Group(0, 0, "decode", "self"), part)
        return profile

    found = headwise.compare(both(0), both(8))
    assert "in 2 heads: " in found.findings()[0]
    assert "(Holm, 4 heads x 1 measure)" in found.findings()[0]
    assert {f[: f.index(":")] for f in found.findings()[1:]} == {"L0H0 (decode)", "L0H1 (decode)"}
    assert "phase" in repr(found)
    assert "phase" not in repr(headwise.compare(*three_heads()))


def test_in_a_terminal_and_in_a_notebook() -> None:
    a, b = three_heads()
    a.info["model"] = "<b>"
    found = headwise.compare(a.merge(profile_with(np.ones((2, 3, 2)), 1, [77, 78], ("entropy", "first"))), b)
    text = repr(found)
    lines = text.splitlines()
    assert lines[0] == found.findings()[0]
    assert any(line.split()[:2] == ["L0H1", "entropy"] for line in lines)
    assert "a: 12 sequences; b: 10; paired in part: 10 texts are in both profiles" in lines[-1]
    assert "nan" not in text.lower()
    page = found._repr_html_()
    assert page.count("<tr") == 7
    assert "L0H1" in page
    found.notes.append("<script>")
    assert "<script>" not in found._repr_html_()


# Layers


def test_two_head_counts_are_compared_by_layer() -> None:
    rng = np.random.default_rng(5)
    S, N = drawn(rng, (1, 4, 12))
    a = profile_with(S, N, range(1, 13))
    T = np.repeat(S[:, :2] + 2 * N[:, :2], 1, axis=1)
    b = profile_with(T, N[:, :2], range(1, 13))
    found = headwise.compare(a, b, match="layer")
    table = found.table().set_index("head")
    assert set(table.index) == {"mean", "least", "most"}
    means = {name: p.table()["entropy"] for name, p in (("a", a), ("b", b))}
    for name, mean in means.items():
        assert table.loc["mean", name] == pytest.approx(mean.mean())
        assert table.loc["least", name] == mean.min()
        assert table.loc["most", name] == mean.max()
    assert table.loc["mean", "p_holm"] == table.loc["mean", "p"] < 0.05
    assert table.loc[["least", "most"], "p"].isna().all()
    assert table.loc["most", "note"] == "an extreme over heads has no standard error"
    assert found.findings()[0].endswith("(Holm, 1 layer x 1 measure), in 1 layer: L0 mean.")
    assert table["label"].tolist() == [f"L0 {head}" for head in table.index]


def test_a_layer_by_hand() -> None:
    """Heads 0 and 1 shift by c + 1 and c + 3 in text c: their mean by c + 2; mean 2 at c = -1, 0, 1, se 1 / sqrt 3."""
    S = np.arange(6.0).reshape(1, 2, 3)
    shift = np.array([-1.0, 0, 1])
    T = S + np.stack([shift + 1, shift + 3])
    found = headwise.compare(profile_with(S, 1, [1, 2, 3]), profile_with(T, 1, [1, 2, 3]), match="layer")
    mean = found.table().set_index("head").loc["mean"]
    assert mean[["difference", "se", "df"]].tolist() == pytest.approx([2.0, 1 / math.sqrt(3), 2.0])


# Real models


def windows(tokenizer: Any, module: Any, number: int, length: int) -> list[list[int]]:
    """The first windows of a module's source."""
    text = Path(module.__file__).read_text("utf-8")
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    assert len(ids) >= number * length
    return [ids[i * length : (i + 1) * length] for i in range(number)]


def read_windows(model: Any, cut: list[list[int]]) -> Profile:
    return read(model, [torch.tensor(cut[i : i + 8]) for i in range(0, len(cut), 8)])


@pytest.mark.slow
def test_random_halves_of_a_text_differ_at_the_stated_rate_at_most() -> None:
    """MiniLM reads 48 windows of a real text; 150 random splits into halves: Holm finds anything in 5 % at most."""
    import argparse

    from tests.real_models import load_minilm

    model, tokenizer = load_minilm()
    single = [read_windows(model, [one]) for one in windows(tokenizer, argparse, 48, 48)]
    rng = np.random.default_rng(0)
    splits, any_found, small = 150, 0, []
    for _ in range(splits):
        order = rng.permutation(len(single))
        halves = []
        for chosen in (order[:24], order[24:]):
            half = Profile()
            for i in chosen:
                half.merge(single[i])
            halves.append(half)
        found = headwise.compare(*halves)
        any_found += not found.significant().empty
        small.append((found.table()["p"] <= 0.05).mean())
    assert any_found / splits <= 0.05 + 3.09 * math.sqrt(0.05 * 0.95 / splits)
    assert 0.02 <= np.mean(small) <= 0.07


@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, 12])
def test_in_a_real_model_the_doubled_head_is_named_first(layer: int) -> None:
    import argparse

    from tests.real_models import load_smollm2

    model, tokenizer = load_smollm2()
    cut = windows(tokenizer, argparse, 12, 48)
    before, width, head = read_windows(model, cut), 64, 4
    weight = model.model.layers[layer].self_attn.q_proj.weight
    rows = slice(head * width, (head + 1) * width)
    kept = weight.data[rows].clone()
    try:
        weight.data[rows] *= 2
        after = read_windows(model, cut)
    finally:
        weight.data[rows] = kept
    found = headwise.compare(before, after)
    assert found.pairing == "paired: both profiles read the same 12 texts"
    assert found.largest(1)["label"].tolist() == [f"L{layer}H{head}"]
    assert found.significant()["layer"].min() == layer
    same = headwise.compare(before, read_windows(model, cut))
    assert same.significant().empty
