"""Ranks of scores against the width of heads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headwise.equations import split_heads
from headwise.layer import MultiHeadAttention
from headwise.studies.ranks import alone, ranks_of, score_ranks, scores_of
from headwise.studies.transformer import build
from tests.studies.small import KEY, small_plan, task_of


def test_ranks_worked_out_by_hand() -> None:
    """Singular values 10, 1, 0.1: squares 100, 1, 0.01; the first holds 99.0001 %... less than 99 % with 10, 2, 0.1."""
    found = ranks_of(torch.diag(torch.tensor([10.0, 1.0, 0.1, 0.0], dtype=torch.float64)))
    assert found == {"rank": 3, "rank_99": 1, "stable_rank": pytest.approx(1.0101)}
    found = ranks_of(torch.diag(torch.tensor([10.0, 2.0, 0.1, 0.0], dtype=torch.float64)))
    assert found == {"rank": 3, "rank_99": 2, "stable_rank": pytest.approx(1.0401)}
    assert ranks_of(torch.zeros(3, 3, dtype=torch.float64))["rank"] == 0


def test_scores_are_those_that_the_layer_computes() -> None:
    """The softmax of these scores is the weights that the layer gives itself."""
    layer = MultiHeadAttention(12, 3, head_dim=5).double()
    with torch.no_grad():
        for projection in layer.projections:
            torch.nn.init.normal_(projection.bias)
    x, context = torch.randn(1, 6, 12).double(), torch.randn(1, 4, 12).double()
    _, weights = layer(x, context, return_weights=True)
    torch.testing.assert_close(scores_of(layer, x, context).softmax(-1), weights[0])
    assert split_heads(x, 3).shape == (1, 3, 6, 4)


def test_narrow_heads_have_scores_of_low_rank(tmp_path: Path) -> None:
    for heads, d_k in ((1, 8), (2, 4), (8, 1)):
        plan = small_plan(heads=(heads,))
        model = build(task_of(plan, tmp_path).architecture(), plan.sizes(plan.runs[0]), 0)
        found = score_ranks(model, task_of(plan, tmp_path))
        # The first held-out batch has 2 facts and 3 queries.
        assert [(one["head"], one["d_k"], one["queries"], one["keys"], one["bound"]) for one in found] == [
            (head, d_k, 5, 5, min(5, d_k)) for head in range(heads)
        ]
        assert all(one["rank"] == min(5, d_k) for one in found)
        assert all(1 <= one["stable_rank"] <= one["rank"] for one in found)
        assert next(model.parameters()).dtype == torch.float32


def test_a_sequence_alone_is_without_its_padding() -> None:
    inputs = {
        "input_ids": torch.tensor([[5, 6, 0], [7, 8, 9]]),
        "attention_mask": torch.tensor([[True, True, False], [True, True, True]]),
    }
    assert alone(inputs, 0)["input_ids"].tolist() == [[5, 6]]
    assert set(alone(inputs, 0)) == {"input_ids"}
    assert alone({"vectors": torch.zeros(3, 2, 2)}, 1)["vectors"].dtype == torch.float64
    assert KEY.heads == 2
