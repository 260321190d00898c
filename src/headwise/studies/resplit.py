"""Trained queries, keys and values, cut anew into other numbers of heads without training.

Eq. 3 changes two things at once where h grows: Q, K and V are cut into more pieces, and scores are divided by the root
of a smaller d_k. Here they stand apart. A layer's Q, K and V, as they enter eq. 1 on held-out data, are cut into h'
heads `[B, h', N, d_k']`, `d_k' = H d_k / h'`, and measured

- at the **trained** scale `1 / sqrt(d_k)`: the cut alone. The scores of all heads together stay what they were,
  `sum_h q_h . k_h = q . k`: each head has a part of them;
- at their **own** scale `1 / sqrt(d_k')`, which is `sqrt(h' / H)` times larger: the cut and the scale.

The effect of the cut is the first minus the trained layer, that of the scale the second minus the first. Every layer
gets the input that it has in the trained model: what a cut layer would do to those after it is not asked. How V is cut
changes no weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, TypeAlias, cast, get_args

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from torch import Tensor, nn

from headwise.capture import watch
from headwise.errors import FileFormatError
from headwise.profile import Profile
from headwise.studies.estimands import MEASURED, by_layer
from headwise.studies.folders import RunFolder
from headwise.studies.plans import Plan
from headwise.studies.tasks.protocol import Task
from headwise.studies.transformer import build

Scale: TypeAlias = Literal["trained", "own"]
SCALES: tuple[Scale, ...] = get_args(Scale)

ROWS = ["self_focus", "self_lift", "entropy_ratio", "max_weight"]
"""What the estimands are made of."""


@dataclass(frozen=True)
class Inputs:
    """What a layer of self-attention gave to eq. 1 on one batch.

    Attributes:
        name: Path of the layer.
        q: Queries `[B, H, N, d_k]`.
        k: Keys `[B, H, M, d_k]`.
        v: Values `[B, H, M, d_v]`.
        mask: Broadcastable to `[B, 1, N, M]`, or None.
        causal: Whether each query sees what stands before it, and itself.
        scale: Factor of the scores.
        real: Rows that are no padding `[B, N]`, or None.
    """

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    real: Tensor | None


def cut(x: Tensor, heads: int) -> Tensor:
    """`[B, H, N, d]` to `[B, heads, N, H d / heads]`: the same numbers, in the order of eq. 2's Concat.

    Raises:
        ValueError: The width does not divide.
    """
    width = x.shape[1] * x.shape[3]
    if heads < 1 or width % heads:
        raise ValueError(f"cut: expected a number of heads that divides the width {width}; got {heads}")
    return cast(Tensor, x.transpose(1, 2).flatten(2).unflatten(2, (heads, -1))).transpose(1, 2)


class _Cut(nn.Module):
    """Eq. 1 of one layer's Q, K and V in another number of heads."""

    def __init__(self, num_heads: int, scale: Scale) -> None:
        super().__init__()
        self.num_heads, self.scale = num_heads, scale

    def forward(self, one: Inputs) -> Tensor:
        q, k, v = (cut(x, self.num_heads) for x in (one.q, one.k, one.v))
        # The trained factor may be another than 1 / sqrt(d_k): it changes by the root of how much narrower a head is.
        scale = one.scale if self.scale == "trained" else one.scale * (one.q.shape[-1] / q.shape[-1]) ** 0.5
        return F.scaled_dot_product_attention(q, k, v, attn_mask=one.mask, is_causal=one.causal, scale=scale)


class _Cuts(nn.Module):
    """All cuts of a layer."""

    def __init__(self, heads: Sequence[int]) -> None:
        super().__init__()
        self.cuts = nn.ModuleDict({f"{scale}-{h}": _Cut(h, scale) for h in heads for scale in SCALES})

    def forward(self, one: Inputs) -> None:
        for module in self.cuts.values():
            module(one)


def inputs_of(model: nn.Module, task: Task) -> Iterator[list[Inputs]]:
    """Queries, keys and values of every layer of self-attention, a list for each batch that the task measures.

    Raises:
        ValueError: A layer that cannot be cut: heads share keys and values, see different masks, or their scores are
            more than scaled products.
    """
    model.eval()
    for batch in task.measured():
        heard: list[Any] = []
        with torch.no_grad(), watch(model, measures=["entropy"]).tap(lambda call, *_, to=heard: to.append(call)):
            model(**batch.inputs)
        yield [_inputs(call) for call in heard if call.place.kind == "self"]


def _inputs(call: Any) -> Inputs:
    place, q, k = call.place, call.q, call.k
    if call.v is None or q.shape[1] != k.shape[1]:
        raise ValueError(f"resplit: {place.name}: its {q.shape[1]} heads share {k.shape[1]} keys: they cannot be cut")
    if call.softcap is not None or call.sinks is not None or call.window is not None:
        raise ValueError(f"resplit: {place.name}: its scores are not only scaled products: they cannot be cut")
    if call.mask is not None and call.mask.dim() == 4 and call.mask.shape[1] != 1:
        raise ValueError(f"resplit: {place.name}: its heads see different masks, so they cannot be cut")
    scale = q.shape[-1] ** -0.5 if call.scale is None else call.scale
    return Inputs(place.name, q, k, call.v, call.mask, call.causal is not None, scale, call.real)


def profiles(model: nn.Module, task: Task, heads: Sequence[int]) -> dict[str, Profile]:
    """What each layer's heads would do, cut anew: a profile for each layer of self-attention, by its path.

    Args:
        model: A trained model.
        task: Gives held-out data.
        heads: Numbers of heads h'.

    Returns:
        Profiles whose layers are named `cuts.<scale>-<h'>`, e.g. `cuts.trained-4`.

    Raises:
        ValueError: A width that h' does not divide, or a layer that cannot be cut.
    """
    found: dict[str, Profile] = {}
    cuts = _Cuts(heads)
    for batch in inputs_of(model, task):
        for one in batch:
            with torch.no_grad(), watch(cuts, measures=ROWS, real=one.real) as profile:
                cuts(one)
            if profile.unseen:
                raise ValueError(f"resplit: {one.name}: {profile.unseen[0].reason}")
            found[one.name] = found[one.name].merge(profile) if one.name in found else profile
    return found


@dataclass(frozen=True, order=True)
class Cutting:
    """Which cut a number belongs to: h' heads, at which scale."""

    heads: int
    scale: Scale


def numbers(model: nn.Module, task: Task, heads: Sequence[int]) -> dict[tuple[str, Cutting], float]:
    """The estimands of `headwise.studies.estimands` after each cut, as means over layers.

    Args:
        model: A trained model.
        task: Gives held-out data.
        heads: Numbers of heads h'.
    """
    found: dict[tuple[str, Cutting], list[float]] = {}
    for profile in profiles(model, task, heads).values():
        which = {layer.layer: _cutting(layer.name) for layer in profile.layers}
        for estimand in MEASURED:
            for layer, value in by_layer(profile, estimand).items():
                found.setdefault((estimand, which[layer]), []).append(value)
    return {place: fmean(values) for place, values in found.items()}


def _cutting(name: str) -> Cutting:
    scale, _, heads = name.rpartition(".")[2].partition("-")
    return Cutting(int(heads), "trained" if scale == "trained" else "own")


def model_of(plan: Plan, run: RunFolder, task: Task) -> nn.Module:
    """The trained model of a complete run.

    Raises:
        FileFormatError: Its file is damaged, or of another plan.
    """
    model = build(task.architecture(), plan.sizes(run.key), run.key.seed)
    try:
        model.load_state_dict(read_tensors(run.model_file.read_bytes()))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise FileFormatError(f"{run.model_file}: cannot be read: {type(error).__name__}") from error
    return model.eval()
