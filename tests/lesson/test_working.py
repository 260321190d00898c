"""The lesson's numbers: the article's, those worked out by hand, an independent computation, and the laws."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.lesson.working import WIDTHS, example, normals, visible, work
from tests.lesson import oracle
from tests.lesson.states import states

NUMBERS = work(example())


def close(found: Any, expected: Any, path: str = "") -> None:
    """Every number that is expected is found, to rounding."""
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys(), path
        for key, value in expected.items():
            close(found[key], value, f"{path}.{key}")
    elif isinstance(expected, list) and expected and isinstance(expected[0], dict | str):
        assert len(found) == len(expected), path
        for i, value in enumerate(expected):
            close(found[i], value, f"{path}.{i}")
    elif isinstance(expected, str):
        assert found == expected, path
    else:
        np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-9, atol=1e-12, err_msg=path)


# The article's example


def test_the_weights_are_the_articles() -> None:
    rounded = [[round(value, 1) for value in row] for row in NUMBERS["scores"]["weights"]]
    assert rounded == [[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.2, 0.1, 0.7]]
    assert example()["tokens"] == ["我", "是", "谁"]
    assert np.shape(example()["x"]) == (3, 4)


def test_projections_worked_out_by_hand() -> None:
    assert NUMBERS["qkv"]["q"] == [[0, 1, 2, 1], [1, 1, 0, 2], [2, 3, 1, 1]]
    assert NUMBERS["qkv"]["v"] == [[1, 0, 2, 1], [0, 3, 1, 0], [1, 3, 2, 1]]
    assert NUMBERS["qkv"]["k"][2] == pytest.approx([1.4, 0.5, -2.4, -1.6])
    # 2 * 1.4 + 3 * 0.5 + 1 * (-2.4) + 1 * (-1.6), and its half
    assert NUMBERS["scores"]["products"][2][2] == pytest.approx(0.3)
    assert NUMBERS["scores"]["scores"][2][2] == pytest.approx(0.15)


def test_self_focus_and_entropy_worked_out_by_hand() -> None:
    """The worked check of docs/measures.md: weights of exactly 0.7, 0.2 and 0.1."""
    p = [[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.2, 0.1, 0.7]]
    state = example()
    # q_i = 2 e_i, so that s_ij = 2 k_ji / 2.
    state |= {"x": np.eye(3, 4).tolist(), "wq": (2 * np.eye(4)).tolist()}
    state["wk"] = [[math.log(p[i][j]) if i < 3 else 0.0 for i in range(4)] for j in range(3)] + [[0.0] * 4]
    found = work(state)["scores"]
    np.testing.assert_allclose(found["weights"], p, atol=1e-12)
    assert found["self_focus"] == pytest.approx([0.7, 0.5, 0.7])
    assert found["entropy"] == pytest.approx([0.80182, 1.02965, 0.80182], abs=5e-6)
    assert found["mean_self_focus"] == pytest.approx(1.9 / 3)


def test_one_code_is_a_weighted_sum_of_three_values() -> None:
    found = NUMBERS["output"]
    p, v = NUMBERS["scores"]["weights"][1], NUMBERS["qkv"]["v"]
    assert found["sum"] == pytest.approx([sum(p[j] * v[j][c] for j in range(3)) for c in range(4)])
    assert found["sum"] == pytest.approx(found["z"][1])
    assert [round(value, 1) for value in found["sum"]] == [0.5, 2.4, 1.5, 0.5]


def test_the_example_shows_what_the_text_says() -> None:
    found = NUMBERS
    # Step 6: padding takes more than any real key, though its score is 0.
    assert example()["pad"] == [0, 0, 0, 0]
    assert max(found["masks"]["none"][0]) == found["masks"]["none"][0][-1]
    # Step 7: "who" reads 谁, "I" reads 我.
    reads = [example()["tokens"][row.index(max(row))] for row in found["places"]["cross"]]
    assert dict(zip(example()["target"], reads, strict=True)) | {"<s>": ""} == {
        "<s>": "", "who": "谁", "am": "是", "I": "我",
    }  # fmt: skip
    # Step 9: one head dwells on itself; cut in two, one of them does not.
    one, two = found["cuts"][0], found["cuts"][1]
    assert one["self_focus"][0] > 0.8
    assert min(two["self_focus"]) < 0.5 < max(two["self_focus"])


# Against an independent computation


@given(states())
def test_every_number_equals_an_independent_computation(state: dict[str, Any]) -> None:
    close(work(state), oracle.work(state))


def test_the_example_equals_an_independent_computation() -> None:
    close(NUMBERS, oracle.work(example()))


# Laws


@given(states())
def test_the_parts_of_the_heads_add_up_to_the_product_of_one(state: dict[str, Any]) -> None:
    for cut in work(state)["cuts"]:
        q, k = np.array(cut["q"]), np.array(cut["k"])
        assert len(cut["parts"]) == cut["h"] == q.shape[1] // cut["d_k"]
        np.testing.assert_allclose(np.sum(cut["parts"], 0), q @ k.T, atol=1e-9)
        assert cut["difference"] < 1e-9


@given(states(heads=1))
def test_one_head_is_steps_3_and_4(state: dict[str, Any]) -> None:
    found = work(state)
    (head,) = found["heads"]["heads"]
    np.testing.assert_allclose(head["weights"], found["scores"]["weights"], atol=1e-12)
    np.testing.assert_allclose(found["heads"]["concat"], found["output"]["z"], atol=1e-12)


@given(states())
def test_fused_equals_separate(state: dict[str, Any]) -> None:
    found = work(state)["heads"]
    np.testing.assert_allclose(found["fused_out"], found["out"], rtol=1e-9, atol=1e-9)
    assert found["difference"] < 1e-9


@given(states(causal=False))
def test_the_padding_mask_is_the_same_as_no_padding_row(state: dict[str, Any]) -> None:
    found = work(state)
    masked = np.array(found["masks"]["padding"])
    assert (masked[:, -1] == 0).all()
    np.testing.assert_allclose(masked[:-1, :-1], found["scores"]["weights"], atol=1e-12)


@given(states(causal=True))
def test_a_causal_mask_leaves_the_first_row_one_key(state: dict[str, Any]) -> None:
    found = work(state)
    N = len(state["tokens"])
    for p in (found["scores"]["weights"], found["masks"]["causal"], *(h["weights"] for h in found["heads"]["heads"])):
        np.testing.assert_array_equal(p[0], [1.0] + [0.0] * (len(p) - 1))
        assert (np.triu(p, 1) == 0).all()
    assert visible(N, causal=True) == np.tril(np.ones((N, N))).astype(bool).tolist()
    assert visible(N, causal=False) == np.ones((N, N)).astype(bool).tolist()


@given(states())
def test_every_row_of_weights_sums_to_one(state: dict[str, Any]) -> None:
    found = work(state)
    every = [found["scores"]["weights"], *found["masks"].values()]
    every += [found["places"][name] for name in ("encoder", "decoder", "cross")]
    every += [head["weights"] for head in found["heads"]["heads"]]
    every += [p for cut in found["cuts"] for p in cut["weights"]]
    for p in every:
        np.testing.assert_allclose(np.sum(p, -1), 1.0, atol=1e-12)


@given(states(scale=True), st.integers(0, 4))
def test_another_row_of_x_leaves_a_query_as_it_is(state: dict[str, Any], row: int) -> None:
    """Step 2: a projection works row by row."""
    row %= len(state["x"])
    before = work(state)["qkv"]["q"]
    state["x"] = [old if i == row else [9.0, 9.0, 9.0, 9.0] for i, old in enumerate(state["x"])]
    np.testing.assert_allclose(work(state)["qkv"]["q"][row], before[row], atol=1e-12)


def test_without_the_scale_every_score_doubles() -> None:
    """Step 3: what the answer says of d_k = 4."""
    without = work(example() | {"scale": False})["scores"]
    np.testing.assert_allclose(without["scores"], 2 * np.array(NUMBERS["scores"]["scores"]))
    assert all(max(a) > max(b) for a, b in zip(without["weights"], NUMBERS["scores"]["weights"], strict=True))


@pytest.mark.parametrize("h", [2, 3, 4, 6])
def test_how_often_one_head_has_more_self_focus_on_random_numbers(h: int) -> None:
    """Step 9: in about nine of ten draws or more if W^K resembles W^Q, in about half of them if it does not."""
    rng = np.random.default_rng(h)

    def self_focus(q: oracle.Array, k: oracle.Array, heads: int) -> float:
        d_k = q.shape[1] // heads
        slices = [slice(i * d_k, (i + 1) * d_k) for i in range(heads)]
        return float(np.mean([np.diag(oracle.softmax(q[:, s] @ k[:, s].T / math.sqrt(d_k))).mean() for s in slices]))

    more = {"alike": 0, "free": 0}
    for _ in range(400):
        x = rng.integers(-2, 3, (3, 12)).astype(float)
        w_q, noise = rng.normal(0, 0.3, (2, 12, 12))
        for name, w_k in (("alike", w_q / 2 + noise), ("free", noise)):
            more[name] += self_focus(x @ w_q, x @ w_k, 1) > self_focus(x @ w_q, x @ w_k, h)
    assert more["alike"] > 0.87 * 400
    assert 0.4 * 400 < more["free"] < 0.6 * 400


# Random numbers, and what the scale does to them


def test_normals_are_mulberry32_and_box_muller() -> None:
    assert list(itertools.islice(oracle.mulberry32(0), 3)) == [
        0.26642920868471265, 0.0003297457005828619, 0.2232720274478197,
    ]  # fmt: skip
    for seed in (0, 1, 8923, 2**32 - 1):
        uniform = oracle.mulberry32(seed)
        expected = [
            math.sqrt(-2 * math.log(1 - one)) * math.cos(2 * math.pi * two)
            for one, two in itertools.islice(zip(uniform, uniform, strict=False), 50)
        ]
        np.testing.assert_allclose(normals(seed, 50), expected, rtol=1e-13)


def test_normals_are_standard_normal_and_reproducible() -> None:
    drawn = normals(3, 200_000)
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.var() - 1) < 0.01
    assert abs((drawn**4).mean() - 3) < 0.1
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01
    np.testing.assert_array_equal(normals(3, 100), drawn[:100])
    assert not np.array_equal(normals(4, 100), drawn[:100])


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 123456789])
def test_without_the_scale_entropy_and_gradient_fade_as_heads_widen(seed: int) -> None:
    state = example()
    state["random"]["seed"] = seed
    found = work(state)["random"]
    assert [one["d_k"] for one in found] == list(WIDTHS) == [4, 16, 64, 256, 1024]
    for name in ("entropy", "gradient"):
        unscaled = [one["unscaled"][name] for one in found]
        assert all(b < a for a, b in itertools.pairwise(unscaled[:4]))
        assert unscaled[4] < 0.2
        scaled = [one["scaled"][name] for one in found]
        assert max(scaled) < 1.15 * min(scaled)
    for one in found:
        assert one["scaled"]["deviation"] == pytest.approx(1, abs=0.25)
        assert one["unscaled"]["deviation"] == pytest.approx(one["scaled"]["deviation"] * math.sqrt(one["d_k"]))
        for kind in ("scaled", "unscaled"):
            assert 0 <= one[kind]["entropy"] <= math.log(16)
            assert 1 / 16 <= one[kind]["largest"] <= 1


def test_the_table_of_step_5_from_its_definition() -> None:
    random = example()["random"]
    for one in NUMBERS["random"]:
        d_k = one["d_k"]
        drawn = normals(random["seed"] * 7919 + d_k, 80 * d_k).reshape(80, d_k)
        s = drawn[:64] @ drawn[64:].T
        for kind, scores in (("scaled", s / math.sqrt(d_k)), ("unscaled", s)):
            p = oracle.softmax(scores)
            expected = {
                "deviation": scores.std(),
                "entropy": -(p * np.log(np.maximum(p, 1e-300))).sum(1).mean(),
                "largest": p.max(1).mean(),
                "gradient": np.mean([np.trace(np.diag(row) - np.outer(row, row)) for row in p]),
            }
            close(one[kind], expected)
