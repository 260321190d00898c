"""Measures between two heads: how alike their patterns are, and how alike what they write.

    bc_i = sum_j sqrt(p^a_ij p^b_ij)        hellinger_i = sqrt(1 - bc_i)
    js_i = sqrt(H(m_i) - (H(p^a_i) + H(p^b_i)) / 2),  m = (p^a + p^b) / 2,  H in bits

averaged over rows (a sink logit is one more key), and the linear CKA of the outputs of each sequence. Patterns cost
H^2 per weight, so they are compared on a sample of rows, in float64: 1 - bc and H(m) - H cancel where heads are alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.blocks import span_of
from headwise.call import AttentionCall
from headwise.kernels import RowStatistics, Tile, row_statistics, weight_tile
from headwise.measures.rows import counted
from headwise.measures.similarity import cka
from headwise.measures.sums import ClusterSums

PAIRS = ("bc", "hellinger", "js", "output_similarity")
"""The measures, in the order of `PairSums`."""

SAMPLED_ROWS = 256
CHUNK_ELEMENTS = 1 << 19


@dataclass(frozen=True)
class PairSums:
    """Sums over the rows of each sequence. K = 4 measures in the order of `PAIRS`, C sequences; float64.

    Attributes:
        total: `[K, H_a, H_b, C]`: the sum over sampled rows; of `output_similarity` the CKA of the sequence.
        rows: `[K, H_a, H_b, C]`: their number; of `output_similarity` 1 where it is defined.
    """

    total: Tensor
    rows: Tensor

    @property
    def sums(self) -> ClusterSums:
        """What merges: add those of other calls; `mean` and `error` are `[K, H_a, H_b]`."""
        return ClusterSums.of(self.total, self.rows)


@torch.no_grad()
def pair_sums(
    call: AttentionCall,
    statistics: RowStatistics,
    out: Tensor | None = None,
    *,
    rows: int | None = SAMPLED_ROWS,
    seed: int = 0,
) -> PairSums:
    """All pairs of heads of one call, `H_a = H_b = H`. A head with itself: 1 where alike is 1, 0 where it is 0.

    Args:
        call: The call.
        statistics: Its row statistics.
        out: The outputs of the heads `[B, H, N, d_v]`; None: `output_similarity` has no rows.
        rows: How many rows to sample, without replacement, over all sequences of the call; outputs are compared on as
            many of each sequence. None: all.
        seed: Of the sample, which has a generator of its own.
    """
    heads = list(range(call.q.shape[1]))
    one = _Side(call, statistics, heads, out)
    return _compare(one, one, rows, seed)


@torch.no_grad()
def between(
    call_a: AttentionCall,
    heads_a: list[int],
    call_b: AttentionCall,
    heads_b: list[int],
    *,
    statistics_a: RowStatistics | None = None,
    statistics_b: RowStatistics | None = None,
    out_a: Tensor | None = None,
    out_b: Tensor | None = None,
    rows: int | None = SAMPLED_ROWS,
    seed: int = 0,
) -> PairSums:
    """Chosen heads of one call against chosen heads of another on the same rows and keys (two layers, two models).

    Args:
        call_a: The one call.
        heads_a: Its heads, H_a of them.
        call_b: The other.
        heads_b: Its heads, H_b of them.
        statistics_a: Row statistics of the calls, where known; and their outputs, as in `pair_sums`.
        statistics_b: See above.
        out_a: See above.
        out_b: See above.
        rows: As in `pair_sums`, of the rows that count in both calls; so is `seed`.
        seed: See above.

    Raises:
        ValueError: Calls of other sequences, rows or keys; a head that does not exist.
    """
    shape_a, shape_b = ((c.sizes[0], *c.sizes[2:]) for c in (call_a, call_b))
    if shape_a != shape_b:
        raise ValueError(f"between: expected calls of the same sequences, rows and keys; got {shape_a} and {shape_b}")
    for call, heads in ((call_a, heads_a), (call_b, heads_b)):
        H = call.q.shape[1]
        if not heads or any(not 0 <= head < H for head in heads):
            raise ValueError(f"between: expected heads from 0 to {H - 1}; got {heads}")
    a = _Side(call_a, statistics_a or row_statistics(call_a), heads_a, out_a)
    b = _Side(call_b, statistics_b or row_statistics(call_b), heads_b, out_b)
    return _compare(a, b, rows, seed)


@dataclass(frozen=True)
class _Side:
    """Some heads of a call."""

    call: AttentionCall
    statistics: RowStatistics
    heads: list[int]
    out: Tensor | None

    def counted(self) -> Tensor:
        """Their rows that count, `[B, H', N]`."""
        return counted(self.statistics).expand(self.call.sizes[:3])[:, self.heads]

    def exactly(self, b: int) -> AttentionCall:
        """One sequence of the call with these heads only, in float64 where the device has it."""
        call, H = self.call, self.call.q.shape[1]
        dtype = torch.float32 if call.q.device.type == "mps" else torch.float64
        everything = self.heads == list(range(H))
        kv = [head // (H // call.k.shape[1]) for head in self.heads]
        k = call.k[b : b + 1]
        tile = Tile(batch=slice(b, b + 1))
        mask = None if call.mask is None else tile.part(call.mask)
        if mask is not None and mask.shape[1] > 1:
            mask = mask[:, self.heads]
        return call.with_(
            q=call.q[b : b + 1, self.heads].to(dtype),
            k=(k if everything else k[:, kv]).to(dtype),
            v=None,
            mask=mask,
            sinks=None if call.sinks is None else call.sinks[self.heads],
            real=None,
        )


def _compare(a: _Side, b: _Side, rows: int | None, seed: int) -> PairSums:
    B, _, N, _ = a.call.sizes
    valid_a = a.counted()
    valid_b = valid_a if b is a else b.counted()
    segment = a.statistics.geometry.segment
    per_row = 1 if segment is None else int(segment.max()) + 1
    sequence = torch.zeros(B, N, dtype=torch.int64) if segment is None else segment.expand(B, N).cpu()
    some = (valid_a.any(1) & valid_b.any(1)).cpu()
    every = (valid_a.all(1) & valid_b.all(1)).cpu()
    generator = torch.Generator().manual_seed(seed)
    drawn = sample(some, rows, generator)
    Ha, Hb = len(a.heads), len(b.heads)
    total = torch.zeros(len(PAIRS), Ha, Hb, B * per_row, dtype=torch.float64)
    number = torch.zeros_like(total)
    for row in range(B):
        place = slice(row * per_row, (row + 1) * per_row)
        at = drawn[row].nonzero().squeeze(-1)
        if len(at):
            valid = (valid_a[row], valid_b[row])
            total[:3, ..., place], number[:3, ..., place] = _patterns(a, b, row, at, valid, sequence[row, at], per_row)
        if a.out is None or b.out is None:
            continue
        for c in range(per_row):
            mine = every[row] & (sequence[row] == c)
            chosen = sample(mine[None], rows, generator)[0].nonzero().squeeze(-1).to(a.out.device)
            outs = [side.out[row, side.heads][:, chosen] for side in (a, b) if side.out is not None]
            value = cka(outs[0], outs[1]).cpu()
            defined = ~torch.isnan(value)
            total[3, ..., place.start + c] = torch.where(defined, value, 0.0)
            number[3, ..., place.start + c] = defined.double()
    return PairSums(total, number)


def sample(among: Tensor, number: int | None, generator: torch.Generator) -> Tensor:
    """A sample without replacement of the True places of a bool tensor, as a bool tensor; None: all of them."""
    places = among.flatten().nonzero().squeeze(-1)
    if number is None or number >= len(places):
        return among
    drawn = torch.zeros(among.numel(), dtype=torch.bool)
    drawn[places[torch.randperm(len(places), generator=generator)[:number]]] = True
    return drawn.view(among.shape)


def _patterns(
    a: _Side, b: _Side, row: int, at: Tensor, valid: tuple[Tensor, Tensor], sequence: Tensor, sequences: int
) -> tuple[Tensor, Tensor]:
    """Sums and numbers of the rows `at` of one batch row, by packed sequence: `[3, H_a, H_b, S]` and `[1, ...]`.

    `valid` are the rows that count, `[H_a, N]` and `[H_b, N]`.
    """
    same = a is b
    exact_a = a.exactly(row)
    exact_b = exact_a if same else b.exactly(row)
    Ha, Hb = len(a.heads), len(b.heads)
    total = torch.zeros(3, Ha, Hb, sequences, dtype=torch.float64)
    number = torch.zeros(1, Ha, Hb, sequences, dtype=torch.float64)
    step = max(1, CHUNK_ELEMENTS // (max(Ha, Hb) * a.call.k.shape[2]))
    for start in range(0, len(at), step):
        some = at[start : start + step].to(a.call.q.device)
        spans = [span_of(side.call, some, side.statistics.geometry) for side in (a, b)]
        keys = slice(min(span.start for span in spans), max(span.stop for span in spans))
        with_sink = a.call.sinks is not None or b.call.sinks is not None
        p = _weights(exact_a, some, keys, with_sink)
        q = p if same else _weights(exact_b, some, keys, with_sink)
        bc = _overlap(p, q)
        values = torch.stack((bc, (1 - bc).sqrt(), _js_distance(p, q, same)))
        if same:
            values[:, range(Ha), range(Ha)] = values.new_tensor([1.0, 0.0, 0.0])[:, None, None]
        used = valid[0][:, None, some] & valid[1][None, :, some]
        of = torch.nn.functional.one_hot(sequence[start : start + step], sequences).double()
        total += torch.where(used, values, 0.0).cpu().double() @ of
        number += used.cpu().double() @ of
    return total, number


def _weights(exact: AttentionCall, rows: Tensor, keys: slice, with_sink: bool) -> Tensor:
    """Weights `[H', R, m]` of one sequence, the sink's as one more key; rows with NaN are 0."""
    p = weight_tile(exact, Tile.of(rows, keys))[0].nan_to_num_(nan=0.0)
    if not with_sink:
        return p
    left = 1 - p.sum(-1, keepdim=True)
    return torch.cat((p, left.clamp_(min=0) if exact.sinks is not None else torch.zeros_like(left)), -1)


def _overlap(p: Tensor, q: Tensor) -> Tensor:
    """`sum_j sqrt(p_j q_j)`, `[H_a, H_b, R]`, of weights `[H_a, R, m]` and `[H_b, R, m]`."""
    roots = p.sqrt().transpose(0, 1)
    others = roots if q is p else q.sqrt().transpose(0, 1)
    return (roots @ others.transpose(1, 2)).permute(1, 2, 0).clamp(0, 1)


def _js_distance(p: Tensor, q: Tensor, same: bool) -> Tensor:
    """The Jensen-Shannon distance, base 2, `[H_a, H_b, R]`; `same`: each pair once."""
    minus_p = _x_ln_x(p.clone()).sum(-1)
    minus_q = minus_p if same else _x_ln_x(q.clone()).sum(-1)
    found = p.new_zeros(len(p), len(q), p.shape[1])
    for head in range(len(p)):
        first = head + 1 if same else 0
        if first == len(q):
            break
        middle = (q[first:] + p[head]).mul_(0.5)
        nats = (minus_p[head] + minus_q[first:]) / 2 - _x_ln_x(middle).sum(-1)
        found[head, first:] = (nats / math.log(2)).clamp(0, 1).sqrt()
        if same:
            found[first:, head] = found[head, first:]
    return found


def _x_ln_x(x: Tensor) -> Tensor:
    """`x ln x` in place of x, 0 at 0."""
    return x.mul_(x.clamp(min=torch.finfo(x.dtype).tiny).log_())
