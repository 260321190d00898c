"""The rank of the scores: how many patterns a head can tell apart, against the width of its queries and keys.

The scores of head h for N queries and M keys are `S = Q K^T / sqrt(d_k)`, a product over d_k: their rank is at most
d_k, so with `d_k < min(N, M)` a head cannot have any scores it likes (low-rank bottleneck, Bhojanapalli et al. 2020).
Computed in float64, of single held-out sequences without padding, before mask and softmax:

- `rank`: singular values above `max(N, M) eps sigma_1`, eps = 2.2e-16 (Golub & Van Loan 2013, 5.4.1);
- `bound`: `min(N, M, d_k)`;
- `rank_99`: how many of the largest singular values hold 99 % of the squared Frobenius norm: what is really used;
- `stable_rank`: `|S|_F^2 / sigma_1^2`.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from headwise.layer import MultiHeadAttention
from headwise.studies.tasks.protocol import Task

SEQUENCES = 4
SHARE = 0.99


def ranks_of(scores: Tensor) -> dict[str, float]:
    """`rank`, `rank_99` and `stable_rank` of one matrix of scores `[N, M]` in float64."""
    values = torch.linalg.svdvals(scores)
    largest = float(values[0])
    if largest == 0:
        return {"rank": 0, "rank_99": 0, "stable_rank": 0.0}
    energy = values.square().cumsum(0) / values.square().sum()
    return {
        "rank": int((values > max(scores.shape) * torch.finfo(scores.dtype).eps * largest).sum()),
        "rank_99": int((energy < SHARE).sum()) + 1,
        "stable_rank": float(values.square().sum()) / largest**2,
    }


@torch.no_grad()
def score_ranks(model: nn.Module, task: Task) -> list[dict[str, Any]]:
    """The ranks of every head's scores, averaged over a few held-out sequences, as `final.json` holds them.

    The model is run once more, in float64; the given one stays as it is.
    """
    exact = copy.deepcopy(model).double().eval()
    found: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
    widths: dict[str, int] = {}

    def listen(name: str, layer: MultiHeadAttention) -> Any:
        def heard(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], __: Any) -> None:
            x = args[0]
            context = args[1] if len(args) > 1 and args[1] is not None else x
            widths[name] = layer.head_dim
            for head, scores in enumerate(scores_of(layer, x, context)):
                found[name, head].append({"queries": x.shape[1], "keys": context.shape[1], **ranks_of(scores)})

        return layer.register_forward_hook(heard, with_kwargs=True)

    for name, layer in exact.named_modules():
        if isinstance(layer, MultiHeadAttention):
            listen(name, layer)
    batch = task.measured()[0]
    for number in range(min(SEQUENCES, len(batch.targets))):
        exact(**alone(dict(batch.inputs), number))
    return [
        {
            "name": name,
            "head": head,
            "d_k": widths[name],
            "sequences": len(several),
            **{what: sum(one[what] for one in several) / len(several) for what in several[0]},
            "bound": sum(min(one["queries"], one["keys"], widths[name]) for one in several) / len(several),
        }
        for (name, head), several in found.items()
    ]


def scores_of(layer: MultiHeadAttention, x: Tensor, context: Tensor) -> Tensor:
    """The scores `[H, N, M]` of one sequence `x [1, N, d_model]` that reads `context [1, M, d_context]`, unmasked."""
    if layer.q_norm is not None:
        raise ValueError("score_ranks: this layer normalises its queries and keys (qk_norm), which is not in W_Q, W_K")
    w = layer.per_head_weights()
    q, k = x[0] @ w.w_q, context[0] @ w.w_k  # [H, N, d_k], [H, M, d_k]
    if w.b_q is not None and w.b_k is not None:
        q, k = q + w.b_q[:, None], k + w.b_k[:, None]
    return q @ k.mT / math.sqrt(layer.head_dim)


def alone(inputs: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """One sequence of a batch, without its padding, in float64 where it is vectors."""
    one = {name: value[number : number + 1] for name, value in inputs.items()}
    for ids, mask in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
        if ids in one and mask in one:
            real = one.pop(mask)[0].bool()
            one[ids] = one[ids][:, real]
    return {name: value.double() if value.is_floating_point() else value for name, value in one.items()}
