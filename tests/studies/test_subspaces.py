"""Principal angles between what heads read and write."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.layer import MultiHeadAttention
from headwise.studies.subspaces import principal_angles, subspaces, value_output_bases


def test_angles_worked_out_by_hand() -> None:
    """The plane of x and y against the line at 30 degrees above it; and against itself, turned by 0.001 degrees."""
    plane = torch.eye(3, dtype=torch.float64)[:, :2]
    up = math.radians(30)
    line = torch.tensor([[math.cos(up)], [0.0], [math.sin(up)]], dtype=torch.float64)
    assert principal_angles(plane, line).tolist() == pytest.approx([30.0])
    assert principal_angles(line, plane).tolist() == pytest.approx([30.0])
    small = math.radians(1e-6)
    turned = torch.tensor(
        [[1.0, 0.0], [0.0, math.cos(small)], [0.0, math.sin(small)]], dtype=torch.float64
    )  # fmt: skip
    # By the cosine alone an angle this small would come out as 0.
    assert principal_angles(plane, turned).tolist() == pytest.approx([0.0, 1e-6], rel=1e-6, abs=1e-12)


def layer_of(read: list[list[int]], written: list[list[int]], d: int = 6) -> MultiHeadAttention:
    """Heads of width 2 that read and write along these axes."""
    layer = MultiHeadAttention(d, len(read), head_dim=2)
    values, out = torch.zeros(2 * len(read), d), torch.zeros(d, 2 * len(read))
    for head, (axes_in, axes_out) in enumerate(zip(read, written, strict=True)):
        for i in range(2):
            values[2 * head + i, axes_in[i]] = 3.0
            out[axes_out[i], 2 * head + i] = -0.5
    with torch.no_grad():
        assert layer.qkv_proj is not None
        layer.qkv_proj.weight[-2 * len(read) :] = values
        layer.out_proj.weight.copy_(out)
    return layer


def test_heads_that_read_alike_and_write_apart() -> None:
    layer = layer_of(read=[[0, 1], [0, 1]], written=[[0, 1], [1, 4]])
    (found,) = subspaces(torch.nn.ModuleDict({"attention": layer}))
    assert (found["name"], found["d_v"], found["d_model"]) == ("attention", 2, 6)
    (pair,) = found["pairs"]
    assert (pair["a"], pair["b"]) == (0, 1)
    assert pair["read"] == [0.0, 0.0]
    assert pair["read_overlap"] == pytest.approx(1)
    assert pair["written"] == [0.0, 90.0]
    assert pair["written_overlap"] == pytest.approx(0.5)


def test_bases_are_those_of_the_product() -> None:
    """What a head adds lies in what it writes, and does not change along what it does not read."""
    layer = MultiHeadAttention(10, 2, head_dim=3).double()
    weights = layer.per_head_weights()
    for head, (read, written) in enumerate(value_output_bases(layer)):
        product = weights.w_v[head] @ weights.w_o[head]
        assert read.shape == written.shape == (10, 3)
        torch.testing.assert_close(read.mT @ read, torch.eye(3, dtype=torch.float64))
        torch.testing.assert_close(read @ read.mT @ product, product)
        torch.testing.assert_close(product @ written @ written.mT, product)


def test_a_head_that_writes_nothing_has_no_angles() -> None:
    layer = layer_of(read=[[0, 1], [0, 1]], written=[[0, 1], [1, 4]])
    with torch.no_grad():
        layer.out_proj.weight[:, 2:] = 0
    (found,) = subspaces(layer)
    assert found["pairs"][0]["written"] == []
    assert found["pairs"][0]["written_overlap"] is None


def test_one_head_has_no_pairs() -> None:
    assert subspaces(MultiHeadAttention(6, 1))[0]["pairs"] == []


def test_random_subspaces_overlap_as_much_as_their_share_of_the_space() -> None:
    torch.manual_seed(1)
    (found,) = subspaces(MultiHeadAttention(64, 16))
    overlaps = [pair["read_overlap"] for pair in found["pairs"]]
    assert len(overlaps) == 120
    assert sum(overlaps) / len(overlaps) == pytest.approx(4 / 64, abs=0.01)
