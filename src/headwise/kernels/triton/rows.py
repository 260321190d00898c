"""The row loop on a GPU: one program for each block of rows, one pass over the keys that the block may see.

A program holds BLOCK_ROWS rows (queries of one head, or of the heads that share a key-value head where a call has few
queries) and walks tiles of BLOCK_KEYS keys. For each tile:

  1. S = scale q k^T, softcap, mask: what a row may not see is -inf;
  2. the running maximum m of each row, and its key, the first of equals;
  3. scores of the own, previous, next and first key picked out where the tile has them; the first key is set aside;
  4. weights exp(S - m) and their sums; what was summed before shrinks by exp(m_before - m);
  5. out = alpha out + weights v, if there are values.

Sums leave the first key out (a sink that holds nearly all the weight must not drown the rest); it is added at the end.
Which keys a row sees comes from its span (`Geometry.spans`: causal and window limits and the ends of its mask) and from
the mask between. A NaN or +inf among a row's scores makes its sums NaN, and its maximum says which of the two it was.
See docs/measures.md for the statistics.
"""

# What Triton compiles has no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:  # TritonKernel refuses every call then
    triton = tl = None


def _rows(
    q, k, v, out, mask, sinks, own, first, spans, statistics, argmax,
    H, G, N, M, heads, groups, blocks, plane,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, v_b, v_h, v_n, v_d, out_b, out_h, out_n, out_d,
    mask_b, mask_h, mask_n, mask_m, own_b, first_b, span_b, span_h, scale, softcap, hide_below,
    D_K: tl.constexpr, D_V: tl.constexpr, BIAS: tl.constexpr, CAPPED: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Statistics of BLOCK_ROWS rows, and their output where there is `v`: launch.py names the arguments."""
    program = tl.program_id(0)
    # Under causality the last rows see most keys: they start first, so that no long block is left over.
    block = blocks - 1 - program % blocks
    group = program // blocks % groups
    b = (program // blocks // groups).to(tl.int64)
    row = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    real = row < heads * N
    row = tl.where(real, row, heads * N - 1)
    head = (group * heads + row // N).to(tl.int64)
    n = (row % N).to(tl.int64)
    kv_head = (group * heads // G).to(tl.int64)

    own_at = tl.load(own + b * own_b + n).to(tl.int32)
    first_at = tl.load(first + b * first_b + n).to(tl.int32)
    span = spans + b * span_b + head * span_h + n * 2
    low, high = tl.load(span).to(tl.int32), tl.load(span + 1).to(tl.int32)
    position = own_at.to(tl.float32)
    # An undefined key must have no neighbours either.
    own_at = tl.where(own_at < 0, -4, own_at)
    own_least, own_most = tl.min(own_at, 0), tl.max(own_at, 0)
    first_least, first_most = tl.min(first_at, 0), tl.max(first_at, 0)

    d, e, one = tl.arange(0, BLOCK_DK), tl.arange(0, BLOCK_DV), tl.arange(0, BLOCK_KEYS)
    queries = tl.load(
        (q + b * q_b + head * q_h + n * q_n)[:, None] + d[None, :].to(tl.int64) * q_d,
        mask=real[:, None] & (d < D_K)[None, :], other=0.0,
    )  # fmt: skip
    # Within a tile 32 bits suffice (launch.py sees to it): wide addresses would fill the registers.
    k_start, k_offset = k + b * k_b + kv_head * k_h, d[:, None] * k_d + one[None, :] * k_n
    if WIDEN:
        queries = queries.to(tl.float32)

    top = tl.full([BLOCK_ROWS], -float("inf"), tl.float32)
    best = tl.zeros([BLOCK_ROWS], tl.int32)
    s_own, s_previous, s_next, s_first = top, top, top, top
    mass = tl.zeros([BLOCK_ROWS], tl.float32)
    moment, squares, travelled = mass, mass, mass
    if v is not None:
        v_start, v_offset = v + b * v_b + kv_head * v_h, one[:, None] * v_n + e[None, :] * v_d
        acc = tl.zeros([BLOCK_ROWS, BLOCK_DV], tl.float32)

    if mask is not None:
        mask_row = mask + b * mask_b + head * mask_h + n * mask_n

    for j in range(tl.min(low, 0) // BLOCK_KEYS * BLOCK_KEYS, tl.max(high, 0), BLOCK_KEYS):
        key = j + one
        inside = key < M
        j_wide = tl.cast(j, tl.int64)
        k_tile = tl.load(k_start + j_wide * k_n + k_offset, mask=(d < D_K)[:, None] & inside[None, :], other=0.0)
        if WIDEN:
            k_tile = k_tile.to(tl.float32)
        s = tl.dot(queries, k_tile, input_precision="ieee") * scale
        if CAPPED:
            # tanh by its series below 1/4, else by exp: the difference 1 - exp(-2y) has lost its digits there.
            y = s / softcap
            size = tl.abs(y)
            t = tl.exp(-2.0 * size)
            far = (1.0 - t) / (1.0 + t)
            z = y * y
            near = y + y * z * (((62.0 / 2835 * z - 17.0 / 315) * z + 2.0 / 15) * z - 1.0 / 3)
            s = softcap * tl.where(size < 0.25, near, tl.where(y < 0, -far, far))
        visible = (key[None, :] >= low[:, None]) & (key[None, :] < high[:, None])
        if mask is not None:
            entry = tl.load(
                (mask_row + j_wide * mask_m)[:, None] + (one * mask_m)[None, :], mask=inside[None, :], other=0
            )
            bias = entry.to(tl.float32) if BIAS else tl.where(entry != 0, 0.0, -float("inf"))
            s += bias
            # NaN hides nothing: a broken mask must show.
            visible = visible & ((bias > hide_below) | (bias != bias))
        s = tl.where(visible, s, -float("inf"))

        highest = tl.max(s, 1)
        at = tl.min(tl.where(s == highest[:, None], key[None, :], M), 1)
        best = tl.where(highest > top, at, best)
        before = top
        top = tl.maximum(top, highest)

        has_own = (own_most >= j - 1) & (own_least <= j + BLOCK_KEYS)
        has_first = (first_most >= j) & (first_least < j + BLOCK_KEYS)
        if has_own | has_first:
            s_own = _picked(s_own, s, key, own_at)
            s_previous = _picked(s_previous, s, key, own_at - 1)
            s_next = _picked(s_next, s, key, own_at + 1)
            s_first = _picked(s_first, s, key, first_at)
            s = tl.where(key[None, :] == first_at[:, None], -float("inf"), s)

        # A row that has seen nothing yet has no maximum; any finite number serves.
        shift = tl.where(top == -float("inf"), 0.0, top)
        # From the limit on a weight is exactly 0, and its product with x stays finite.
        x = tl.maximum(s - shift[:, None], -1e4, propagate_nan=tl.PropagateNan.ALL)
        p = tl.exp(x)
        fall = tl.where(before == -float("inf"), -1e4, tl.maximum(before - shift, -1e4))
        alpha = tl.exp(fall)
        moment = (moment + fall * mass) * alpha + tl.sum(p * x, 1)
        mass = mass * alpha + tl.sum(p, 1)
        squares = squares * (alpha * alpha) + tl.sum(p * p, 1)
        travelled = travelled * alpha + tl.sum(p * tl.abs(position[:, None] - key[None, :].to(tl.float32)), 1)
        if v is not None:
            v_tile = tl.load(v_start + j_wide * v_n + v_offset, mask=inside[:, None] & (e < D_V)[None, :], other=0.0)
            p = p.to(v_tile.dtype)
            if WIDEN:
                p, v_tile = p.to(tl.float32), v_tile.to(tl.float32)
            acc = tl.dot(p, v_tile, acc * alpha[:, None], input_precision="ieee")

    # The sink may stand above every score: all sums move to the larger of the two.
    shift = tl.where(top == -float("inf"), 0.0, top)
    fall = tl.zeros([BLOCK_ROWS], tl.float32)
    at_sink = fall
    if sinks is not None:
        sink = tl.load(sinks + head)
        new = tl.maximum(sink, top)
        new = tl.where(new == -float("inf"), 0.0, new)
        fall = tl.where(top == -float("inf"), 0.0, tl.maximum(shift - new, -1e4))
        shift = new
        x = tl.maximum(sink - shift, -1e4, propagate_nan=tl.PropagateNan.ALL)
        at_sink = tl.exp(x)
        shrink = tl.exp(fall)
        moment = (moment + fall * mass) * shrink + at_sink * x
    else:
        shrink = tl.exp(fall)
    of_keys = mass * shrink
    x_first = tl.maximum(s_first - shift, -1e4, propagate_nan=tl.PropagateNan.ALL)
    at_first = tl.exp(x_first)
    mass = of_keys + at_sink
    total = mass + at_first
    nothing = total == 0
    total = tl.where(nothing, 1.0, total)
    log_total = tl.log(total)
    walk = tl.where(first_at < 0, 0.0, tl.abs(position - first_at.to(tl.float32)))
    largest = tl.exp(tl.maximum(top - shift, -1e4)) / total
    broken = (total != total) & (top != float("inf"))

    # In the order of headwise.kernels.protocol.STATISTICS.
    to = (b * H + head) * N + n
    argmax += to
    to = statistics + to
    plane = plane.to(tl.int64)
    tl.store(argmax, best.to(tl.int64), mask=real)
    tl.store(to, tl.where(nothing, -float("inf"), shift + log_total), mask=real)
    tl.store(to + plane, tl.where(broken, float("nan"), top), mask=real)
    tl.store(to + 2 * plane, log_total - (moment + at_first * x_first) / total, mask=real)
    tl.store(to + 3 * plane, largest, mask=real)
    tl.store(to + 4 * plane, tl.exp(tl.maximum(s_own - shift, -1e4)) / total, mask=real)
    tl.store(to + 5 * plane, tl.exp(tl.maximum(s_previous - shift, -1e4)) / total, mask=real)
    tl.store(to + 6 * plane, tl.exp(tl.maximum(s_next - shift, -1e4)) / total, mask=real)
    tl.store(to + 7 * plane, at_first / total, mask=real)
    tl.store(to + 8 * plane, mass / total, mask=real)
    tl.store(to + 9 * plane, tl.where(mass == 0, float("nan"), tl.log(mass) - moment / mass), mask=real)
    tl.store(to + 10 * plane, (travelled * shrink + at_first * walk) / (of_keys + at_first), mask=real)
    tl.store(to + 11 * plane, (squares * shrink * shrink + at_first * at_first) / (total * total), mask=real)
    tl.store(to + 12 * plane, at_sink / total, mask=real)

    if v is not None:
        wide = real[:, None] & (e < D_V)[None, :]
        v_first = tl.load(
            (v_start + first_at.to(tl.int64) * v_n)[:, None] + e[None, :] * v_d,
            mask=wide & (at_first > 0)[:, None],
            other=0.0,
        ).to(tl.float32)
        acc = (acc * shrink[:, None] + at_first[:, None] * v_first) / total[:, None]
        place = (out + b * out_b + head * out_h + n * out_n)[:, None] + e[None, :].to(tl.int64) * out_d
        tl.store(place, acc.to(out.dtype.element_ty), mask=wide)


def _pick(score, s, key, wanted):
    """Each row's score of the key it wants, from the tile that has it: the sum of one score and zeros."""
    here = (wanted >= tl.min(key, 0)) & (wanted <= tl.max(key, 0))
    return tl.where(here, tl.sum(tl.where(key[None, :] == wanted[:, None], s, 0.0), 1), score)


rows: Any = None
if triton is not None:
    _picked = triton.jit(_pick)
    # Sizes and the strides of whole sequences: one compiled form for all. Other strides say how memory is read best.
    rows = triton.jit(
        _rows,
        do_not_specialize=[
            "H", "G", "N", "M", "heads", "groups", "blocks", "plane", "mask_b", "mask_h",
            "own_b", "first_b", "span_b", "span_h",
        ],
    )  # fmt: skip
