"""Attention of a decoding step on a GPU, as three kernels a layer: the keys and values that are seen are read once, the
others not at all, and nothing is laid out anew.

`rl.model.attention.joint` is the same computation in tensors. Sums are in float32 here; queries, the keys that are kept
and the weights of values are rounded to the type of the model. In Triton, which comes with PyTorch for CUDA on Linux:
importing this module without it raises ImportError.

Legend: B rows, K heads of keys, R query heads of each, D head size, M places, C rows of the place with most; SIZE is D,
or the next power of two, and STEP how many keys a program takes at a time.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
import triton
import triton.language as tl
from torch import Tensor

from rl.model.attention import Seen
from rl.model.lean import gated as gated  # two kernels, beside products that take far longer

TILE = 2**14  # bytes of the keys that a program takes at a time; with their values and the next ones, 64 KiB
LEAST = 16  # rows of a product
MOST = 64  # queries of a program
DTYPES: Sequence[torch.dtype] = (torch.float32, torch.float16, torch.bfloat16)
# numbers of queries that share keys, by which they are tried: each has a kernel of its own
TRIED: Sequence[int] = (1, MOST // 2, MOST, 2 * MOST)
PREFILLS = False
rms_norm = F.rms_norm  # one kernel already
linear = None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    norms: Tensor | None,
    epsilon: float,
    cos: Tensor,
    sin: Tensor,
    scaling: float,
    shared: Seen,
    layer: int,
) -> Tensor:
    """[B, K * R * D] of one new token of each row, whose key and value are kept.

    Args:
        query: [B, K * R * D] as projected; `key` and `value` [B, K * D].
        norms: [K * R + K, D] that queries' and keys' heads are multiplied by, once their mean square is 1, if they are.
        cos: [B, 1, D]; `sin` likewise, its first half negated.
    """
    own, prompts = shared.kept(layer)
    (_, K, positions, D), rows = own[0].shape, len(query)  # noqa: N806
    heads = query.shape[1] // D
    scaled = query.new_empty(rows, heads, D)
    _prepared[rows, 3](
        *(query, key, value, query.stride(0), key.stride(0), value.stride(0)),
        *(query if norms is None else norms, epsilon, cos, sin, scaling, scaled),
        *(*own, positions, shared.at),
        Q=heads,
        K=K,
        HALF=D // 2,
        NORMED=norms is not None,
        HEADS=triton.next_power_of_2(heads),
        BLOCK=triton.next_power_of_2(D // 2),
    )
    size = max(LEAST, triton.next_power_of_2(D))
    sizes = {"K": K, "R": heads // K, "D": D, "SIZE": size}
    sizes["STEP"] = max(LEAST, TILE // (size * query.element_size()))
    # of each query what it has found so far, its largest score, and the sum of its weights
    so_far = (
        query.new_empty(rows, heads, D, dtype=torch.float32),
        *query.new_empty(2, rows, heads, dtype=torch.float32),
    )
    grid = shared.grid
    points = torch.arange(rows, device=query.device) if grid.points is None else grid.points
    at_points = points if grid.rows is None else grid.rows
    of_place = grid.columns * sizes["R"]
    queries = min(MOST, max(LEAST, triton.next_power_of_2(of_place)))
    _to_prompts[grid.places, K, triton.cdiv(of_place, queries)](
        *(scaled, *prompts, prompts[0].shape[2], shared.prompt_lengths),
        *(at_points, points, grid.columns, *so_far),
        **sizes,
        QUERIES=queries,
    )
    found = query.new_empty(rows, heads * D)
    queries = max(LEAST, triton.next_power_of_2(sizes["R"]))
    _to_own[rows, K](
        *(scaled, *own, positions, shared.at), *(at_points, points, *so_far, found), **sizes, QUERIES=queries
    )
    return found


@triton.jit(do_not_specialize=["positions"])  # else it is compiled for each kind of them
def _prepared(
    query,
    key,
    value,
    query_stride,
    key_stride,
    value_stride,
    norms,
    epsilon,
    cos,
    sin,
    scaling,
    scaled,
    keys,
    values,
    positions,
    at,
    Q: tl.constexpr,
    K: tl.constexpr,
    HALF: tl.constexpr,
    NORMED: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of a row its queries (kind 0), normalised, rotated and scaled; its keys (1), normalised and rotated, and its
    values (2), where they are kept."""
    row = tl.program_id(0).to(tl.int64)
    kind = tl.program_id(1)
    head = tl.arange(0, HEADS)[:, None]
    lane = tl.arange(0, BLOCK)[None, :]
    given = query + row * query_stride
    heads = Q
    if kind == 1:
        given = key + row * key_stride
        heads = K
    if kind == 2:
        given = value + row * value_stride
        heads = K
    inside = (head < heads) & (lane < HALF)
    within = head * (2 * HALF) + lane
    kept = ((row * K + head) * positions + tl.load(at + row)) * (2 * HALF) + lane
    left = tl.load(given + within, mask=inside, other=0.0)
    right = tl.load(given + within + HALF, mask=inside, other=0.0)
    if kind == 2:
        tl.store(values + kept, left, mask=inside)
        tl.store(values + kept + HALF, right, mask=inside)
    else:
        first = left.to(tl.float32)
        second = right.to(tl.float32)
        if NORMED:
            squares = tl.sum(first * first + second * second, axis=1)[:, None]
            factor = tl.rsqrt(squares / (2 * HALF) + epsilon)
            norm = norms + within
            if kind == 1:
                norm += Q * 2 * HALF
            first = first * factor * tl.load(norm, mask=inside, other=0.0).to(tl.float32)
            second = second * factor * tl.load(norm + HALF, mask=inside, other=0.0).to(tl.float32)
        turn = row * (2 * HALF) + lane
        near = lane < HALF
        one = first * tl.load(cos + turn, mask=near, other=0.0) + second * tl.load(sin + turn, mask=near, other=0.0)
        turn += HALF
        other = second * tl.load(cos + turn, mask=near, other=0.0) + first * tl.load(sin + turn, mask=near, other=0.0)
        if kind == 0:
            to = scaled + row * Q * (2 * HALF) + within
            tl.store(to, one * scaling, mask=inside)
            tl.store(to + HALF, other * scaling, mask=inside)
        else:
            tl.store(keys + kept, one, mask=inside)
            tl.store(keys + kept + HALF, other, mask=inside)


@triton.jit
def _seen(scaled, keys, values, length, found, most, total, D: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr):
    """Go on with what queries [N, SIZE] have found so far, through `length` keys: one softmax over all, whose largest
    score is known last (arXiv 1805.02867)."""
    lane = tl.arange(0, SIZE)
    inside = lane < D
    for start in range(0, length, STEP):
        position = start + tl.arange(0, STEP)
        there = position < length
        of_keys = keys + position[None, :] * D + lane[:, None]
        key = tl.load(of_keys, mask=there[None, :] & inside[:, None], other=0.0)
        scores = tl.where(there[None, :], tl.dot(scaled, key, input_precision="ieee"), float("-inf"))
        now = tl.maximum(most, tl.max(scores, axis=1))
        before = tl.exp(most - now)
        weights = tl.exp(scores - now[:, None])
        of_values = values + position[:, None] * D + lane[None, :]
        value = tl.load(of_values, mask=there[:, None] & inside[None, :], other=0.0)
        found = found * before[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        total = total * before + tl.sum(weights, axis=1)
        most = now
    return found, most, total


@triton.jit(do_not_specialize=["positions", "columns"])
def _to_prompts(
    scaled,
    keys,
    values,
    positions,
    lengths,
    rows,
    points,
    columns,
    found,
    most,
    total,
    K: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    SIZE: tl.constexpr,
    STEP: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """Of a place and a head the queries of its rows, through the prompt."""
    place = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    index = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
    column = index // R
    point = place * columns + column
    known = column < columns
    row = tl.load(rows + point, mask=known, other=0)
    known = known & (tl.load(points + row, mask=known, other=-1) == point)  # else nobody is at that point
    lane = tl.arange(0, SIZE)
    query = (row * K + head) * R + index % R
    where = query[:, None] * D + lane[None, :]
    inside = known[:, None] & (lane < D)[None, :]
    of_head = (place * K + head) * positions * D
    nothing = tl.zeros([QUERIES, SIZE], tl.float32)
    least = tl.full([QUERIES], float("-inf"), tl.float32)
    weight = tl.zeros([QUERIES], tl.float32)
    of_rows = tl.load(scaled + where, mask=inside, other=0.0)
    length = tl.load(lengths + place)
    sums, largest, weight = _seen(
        of_rows, keys + of_head, values + of_head, length, nothing, least, weight, D, SIZE, STEP
    )
    tl.store(found + where, sums, mask=inside)
    tl.store(most + query, largest, mask=known)
    tl.store(total + query, weight, mask=known)


@triton.jit(do_not_specialize=["positions"])
def _to_own(
    scaled,
    keys,
    values,
    positions,
    at,
    rows,
    points,
    found,
    most,
    total,
    out,
    K: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    SIZE: tl.constexpr,
    STEP: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """Of a row and a head the queries, behind the prompt, through the row's own keys."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    index = tl.arange(0, QUERIES)
    known = index < R
    lane = tl.arange(0, SIZE)
    query = (row * K + head) * R + index
    where = query[:, None] * D + lane[None, :]
    inside = known[:, None] & (lane < D)[None, :]
    of_head = (row * K + head) * positions * D
    of_row = tl.load(scaled + where, mask=inside, other=0.0)
    # what a row at no point, which nobody uses, has found so far was never written
    at_point = tl.load(rows + tl.load(points + row + 0 * index))
    behind = known & (at_point == row)
    so_far = tl.load(found + where, mask=inside & behind[:, None], other=0.0)
    largest = tl.load(most + query, mask=behind, other=float("-inf"))
    weight = tl.load(total + query, mask=behind, other=0.0)
    length = tl.load(at + row) + 1
    sums, _, weight = _seen(of_row, keys + of_head, values + of_head, length, so_far, largest, weight, D, SIZE, STEP)
    tl.store(out + where, sums / weight[:, None], mask=inside)
