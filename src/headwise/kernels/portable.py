"""Row statistics in plain torch: any device, any floating dtype, memory linear in M.

Scores are made a tile at a time (some sequences, some key-value heads, some rows, every key they may see), reduced,
and dropped; no N x M tensor ever exists. All sums are relative to the row maximum, so nothing overflows and nothing
cancels: the first key is set aside before summing (what it leaves over is then exact even when it has nearly all the
weight), and the distance is summed as it stands instead of as a difference of two large numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels.geometry import Geometry
from headwise.kernels.protocol import STATISTICS, RowStatistics
from headwise.kernels.tiles import Scratch, Tile, score_tile, working_dtype

TILE_ELEMENTS = 1 << 20
"""Scores held at once: 4 MB in float32, large enough for one matrix product and small enough for a cache."""

NEGLIGIBLE = -1e4
"""Relative scores below this have weight 0 in every dtype; clamping them there keeps 0 * score finite."""


class PortableKernel:
    """The kernel that runs everywhere."""

    name = "portable"

    def refuses(self, call: AttentionCall) -> str | None:
        """None: it runs every call."""
        return None

    def run(self, call: AttentionCall, geometry: Geometry) -> RowStatistics:
        """The row statistics of a call."""
        B, H, N, _ = call.sizes
        dtype = working_dtype(call)
        tiles = list(_tiles(call, geometry))
        scratch = Scratch(4, max(_elements(tile) for tile in tiles), dtype, call.q.device)
        has_sinks = call.sinks is not None
        if len(tiles) == 1:
            return RowStatistics(**_reduce(call, geometry, tiles[0], scratch), geometry=geometry, has_sinks=has_sinks)
        out = {name: torch.empty(B, H, N, dtype=dtype, device=call.q.device) for name in STATISTICS}
        argmax = torch.empty(B, H, N, dtype=torch.int64, device=call.q.device)
        for tile in tiles:
            place = (tile.batch, tile.heads, tile.rows)
            for name, value in _reduce(call, geometry, tile, scratch).items():
                (argmax if name == "argmax" else out[name])[place] = value
        return RowStatistics(**out, argmax=argmax, geometry=geometry, has_sinks=has_sinks)


def _tiles(call: AttentionCall, geometry: Geometry) -> Iterator[Tile]:
    B, H, N, M = call.sizes
    kv_heads = call.k.shape[1]
    group = H // kv_heads
    # Many rows first (one matrix product), then heads, then sequences.
    rows = min(N, max(1, TILE_ELEMENTS // max(1, group * M)), 256)
    heads = min(kv_heads, max(1, TILE_ELEMENTS // max(1, group * rows * M)))
    batch = min(B, max(1, TILE_ELEMENTS // max(1, group * heads * rows * M)))
    limited = call.causal is not None or call.window is not None or call.mask is not None
    # Reading the spans waits for a device; there, only what is known without asking is skipped.
    low, high = geometry.row_spans if limited and call.q.device.type == "cpu" else ([0] * N, [M] * N)
    for r in range(0, N, rows):
        span = slice(r, min(N, r + rows))
        keys = slice(min(low[span]), max(high[span]))
        keys = keys if keys.start < keys.stop else slice(0, 1)  # nothing visible: one hidden key says so
        for b in range(0, B, batch):
            for h in range(0, kv_heads, heads):
                kv = slice(h, min(kv_heads, h + heads))
                queries = slice(kv.start * group, kv.stop * group)
                yield Tile(slice(b, min(B, b + batch)), queries, kv, span, keys)


def _elements(tile: Tile) -> int:
    return math.prod(part.stop - part.start for part in (tile.batch, tile.heads, tile.rows, tile.keys))


def _reduce(call: AttentionCall, geometry: Geometry, tile: Tile, scratch: Scratch) -> dict[str, Tensor]:
    """Every statistic of the tile's rows, each `[b, h, R]`, from its scores `s [b, h, R, m]`."""
    s = score_tile(call, tile, scratch[0])
    top, argmax = s.max(-1)
    shift = top
    if call.sinks is not None:
        logit = call.sinks[tile.heads].to(s.dtype)[:, None]
        shift = torch.maximum(top, logit)
    shift = shift.masked_fill(shift == -math.inf, 0.0)
    x = s.sub_(shift[..., None])
    e = torch.exp(x, out=scratch.shaped(1, x.shape))
    x.clamp_(min=NEGLIGIBLE)

    own, first = torch.broadcast_tensors(_rows(geometry.own, tile), _rows(geometry.first, tile))
    known = torch.stack((own >= 0, own >= 0, own >= 0, first >= 0), -1)
    at = torch.stack((own, own - 1, own + 1, first), -1) - tile.keys.start
    known = (known & (at >= 0) & (at < e.shape[-1]))[:, None]
    at = at.clamp_(0, e.shape[-1] - 1)[:, None].expand(*e.shape[:-1], 4)
    found = e.gather(-1, at)
    e_own, e_previous, e_next, e_first = torch.where(known, found, 0.0).unbind(-1)
    at_first, has_first = at[..., 3:], known[..., 3:]
    x_first = torch.where(has_first, x.gather(-1, at_first), 0.0).squeeze(-1)
    # The first key is set aside, so that what it leaves over is summed exactly.
    e.scatter_(-1, at_first, torch.where(has_first, 0.0, found[..., 3:]))

    mass = e.sum(-1)
    product = scratch.shaped(2, x.shape)
    moment = torch.mul(e, x, out=product).sum(-1)
    squares = torch.mul(e, e, out=product).sum(-1) + e_first * e_first
    key = torch.arange(tile.keys.start, tile.keys.stop, dtype=s.dtype, device=s.device)
    position = own.to(s.dtype)[..., None]  # exact: tokens are fewer than 2^24
    away = torch.sub(position, key, out=scratch.shaped(3, torch.Size((*own.shape, len(key))))).abs_()[:, None]
    travelled = torch.mul(e, away, out=product).sum(-1) + e_first * (own - first).abs()[:, None]
    total_keys = mass + e_first
    sink = torch.zeros_like(mass)
    if call.sinks is not None:
        sink = torch.exp(logit - shift)
        mass = mass + sink
        moment = moment + sink * (logit - shift).clamp(min=NEGLIGIBLE)

    total = mass + e_first
    nothing = total == 0
    total = total.masked_fill(nothing, 1.0)
    log_total = torch.log(total)
    return {
        "lse": (shift + log_total).masked_fill(nothing, -math.inf),
        "max_score": top,
        "argmax": argmax + tile.keys.start,
        "entropy": log_total - (moment + e_first * x_first) / total,
        "largest": torch.exp(top - shift) / total,
        "own": e_own / total,
        "previous": e_previous / total,
        "next": e_next / total,
        "first": e_first / total,
        "rest": mass / total,
        "entropy_rest": torch.log(mass) - moment / mass,
        "distance": travelled / total_keys,
        "ipr": squares / (total * total),
        "sink": sink / total,
    }


def _rows(keys: Tensor, tile: Tile) -> Tensor:
    """The tile's part of key indices `[b, N]`."""
    return (keys[tile.batch] if keys.shape[0] > 1 else keys)[:, tile.rows]
