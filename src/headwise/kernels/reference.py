"""Row statistics by their definitions, in float64, from all N x M weights: slow, plain, and what tests compare with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headwise import equations
from headwise.call import AttentionCall
from headwise.kernels.geometry import Geometry
from headwise.kernels.protocol import RowStatistics


class ReferenceKernel:
    """Each statistic as its formula says it."""

    name = "reference"

    def refuses(self, call: AttentionCall) -> str | None:
        """Devices without float64."""
        if call.q.device.type == "mps":
            return "Apple's MPS device has no float64"
        return None

    def run(self, call: AttentionCall, geometry: Geometry) -> RowStatistics:
        """The row statistics of a call, float64."""
        B, H, N, M = call.sizes
        q, k = call.q.double(), equations.repeat_heads(call.k.double(), H)
        mask = call.mask if call.mask is None or call.mask.dtype == torch.bool else call.mask.double()
        visible = equations.visible_keys(
            N, M, mask=mask, causal=call.causal, window=call.window, hide_below=call.hide_below, device=q.device
        )  # fmt: skip
        s = equations.scores(q, k, scale=call.scale, softcap=call.softcap, bias=equations.bias_of(mask))
        s = s.expand(B, H, N, M)
        if visible is not None:
            s = s.masked_fill(~visible, -math.inf)
        sinks = None if call.sinks is None else call.sinks.double()
        p = equations.weights(s, None, sinks)
        logits = s if sinks is None else torch.cat((s, sinks[:, None, None].expand(B, H, N, 1)), -1)
        lse = logits.logsumexp(-1)
        sink = torch.zeros_like(lse) if sinks is None else torch.exp(sinks[:, None] - lse)
        everything = torch.cat((p, sink[..., None]), -1)

        own, first = geometry.own, geometry.first
        at_first = _at(p, first)
        key = torch.arange(M, device=q.device)
        others = torch.where(key == first[:, None, :, None], 0.0, p)
        rest = others.sum(-1) + sink
        left = torch.cat((others, sink[..., None]), -1) / rest[..., None]
        distance = (p * (own[:, None, :, None] - key).abs()).sum(-1) / p.sum(-1)
        return RowStatistics(
            lse=lse,
            max_score=s.amax(-1),
            argmax=s.argmax(-1),
            entropy=_entropy(everything),
            largest=p.amax(-1),
            own=_at(p, own),
            previous=_at(p, own - 1),
            next=_at(p, torch.where(own >= 0, own + 1, -1)),
            first=at_first,
            rest=rest,
            entropy_rest=_entropy(left),
            distance=distance,
            ipr=(p * p).sum(-1),
            sink=sink,
            geometry=geometry,
            has_sinks=sinks is not None,
        )


def _at(p: Tensor, key: Tensor) -> Tensor:
    """`p[b, h, i, key[b, i]]`, 0 where there is no such key."""
    hit = key[:, None, :, None] == torch.arange(p.shape[-1], device=p.device)
    return torch.where(hit, p, 0.0).sum(-1)


def _entropy(p: Tensor) -> Tensor:
    terms: Tensor = torch.special.xlogy(p, p)
    return -terms.sum(-1)
