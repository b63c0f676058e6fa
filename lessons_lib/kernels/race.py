"""Lesson 12: engine/sampling.py's race (exponential race, or Gumbel-max) in one kernel: one program per row, no
sort, and only tokens are written.

A program makes several passes over its row, tile by tile; after the first, most reads hit the GPU's cache. Rows are
independent, so a row gets the same token in any batch.
"""

import torch
import triton
import triton.language as tl

TILE, NUM_WARPS = 8192, 32  # measured on an H100, see tools/gpu_bench/sampling.py

# SplitMix64 and the table, see engine/sampling.py.
STEP = tl.constexpr(0x9E3779B97F4A7C15)
FIRST_FACTOR = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND_FACTOR = tl.constexpr(0x94D049BB133111EB)
NUM_SETTINGS = tl.constexpr(7)
BELOW_ONE = tl.constexpr(1 - 2**-24)
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def mixed(x):
    """Hash a uint64 with SplitMix64. `>>` fills with zeros."""
    x = x + STEP
    x = (x ^ (x >> 30)) * FIRST_FACTOR
    x = (x ^ (x >> 27)) * SECOND_FACTOR
    return x ^ (x >> 31)


@triton.jit
def times(stream, ids):
    """Each token's exponential random number."""
    bits = mixed(stream + ids.to(tl.uint64) * STEP) >> 32
    number = tl.minimum((bits.to(tl.uint32).to(tl.float32) + 0.5) * (2.0**-32), BELOW_ONE)
    # Near 0, 1 - number loses digits; use the series of the logarithm there.
    series = number * (1 + number * (1 / 2 + number * (1 / 3 + number * (1 / 4 + number / 5))))
    return tl.where(number < 1 / 16, series, -tl.log(1 - number))


@triton.jit
def load_tile(row, start, vocabulary, TILE: tl.constexpr):
    """Load a tile of token ids and their logits, -inf beyond the vocabulary."""
    ids = start + tl.arange(0, TILE)
    return ids, tl.load(row + ids, mask=ids < vocabulary, other=-INFINITY).to(tl.float32)


@triton.jit
def comes_before(logits, ids, value, token):
    """True for tokens that rank before (value, token): larger logits first, then smaller ids."""
    return (logits > value) | ((logits == value) & (ids < token))


@triton.jit
def winner_before(row, vocabulary, highest, inverse_temperature, stream, value, token, TILE: tl.constexpr):
    """The winner of the race among tokens that rank before (value, token), int32."""
    best = tl.full([TILE], -INFINITY, tl.float32)
    winner = tl.zeros([TILE], tl.int32)
    for start in range(0, vocabulary, TILE):
        ids, logits = load_tile(row, start, vocabulary, TILE)
        score = tl.exp((logits - highest) * inverse_temperature) / times(stream, ids)
        is_better = comes_before(logits, ids, value, token) & (score > best)
        best = tl.where(is_better, score, best)
        winner = tl.where(is_better, ids, winner)
    return tl.min(tl.where(best == tl.max(best, axis=0), winner, vocabulary), axis=0)


@triton.jit
def amount_before(row, vocabulary, highest, inverse_temperature, value, token, TILE: tl.constexpr):
    """Number of tokens that rank before (value, token), and the sum of their weights; the likeliest weighs 1."""
    count = tl.zeros([TILE], tl.int32)
    mass = tl.zeros([TILE], tl.float32)
    for start in range(0, vocabulary, TILE):
        ids, logits = load_tile(row, start, vocabulary, TILE)
        is_before = comes_before(logits, ids, value, token)
        count += is_before.to(tl.int32)
        mass += tl.where(is_before, tl.exp((logits - highest) * inverse_temperature), 0.0)
    return tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def to_order(x):
    """Map a float32 to an integer in the same order, to bisect between floats."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, -(bits & 0x7FFFFFFF), bits).to(tl.int64)


@triton.jit
def from_order(key):
    """Inverse of `to_order`."""
    size = tl.abs(key).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.where(key < 0, -size, size)


@triton.jit
def kth_largest(row, vocabulary, low, high, k, TILE: tl.constexpr):
    """The k-th largest of the logits of at least `low`, or `low` if there are fewer. `high` is the largest.

    Bisection of at most 32 iterations. Both ends move to existing logits, so it usually ends earlier.
    """
    while low < high:
        low_key, high_key = to_order(low), to_order(high)
        middle = from_order(low_key + (high_key - low_key + 1) // 2)
        count = tl.zeros([TILE], tl.int32)
        above = tl.full([TILE], INFINITY, tl.float32)
        below = tl.full([TILE], -INFINITY, tl.float32)
        for start in range(0, vocabulary, TILE):
            _, logits = load_tile(row, start, vocabulary, TILE)
            is_above = logits >= middle
            count += is_above.to(tl.int32)
            above = tl.minimum(above, tl.where(is_above, logits, INFINITY))
            below = tl.maximum(below, tl.where(is_above, -INFINITY, logits))
        num_above = tl.sum(count, axis=0)
        if num_above >= k:
            low = tl.min(above, axis=0)
        else:
            high = tl.maximum(tl.max(below, axis=0), low)
        if num_above == k:
            high = low
    return low


@triton.jit
def race_kernel(logits, highest, table, numbers, tokens, vocabulary, stride, TILE: tl.constexpr):
    """tokens[row] = the token drawn from that row. Program i draws for row i of the table.

    Args:
        logits: pointer to [N, vocabulary], any floating-point dtype.
        highest: pointer to [N], the largest logit of each row; if it isn't finite, nothing is written.
        table: pointer to int64 [programs, 7], see `settings_table` in engine/sampling.py.
        numbers: pointer to the same memory, as float64.
        tokens: pointer to int64 [N].
        stride: elements from the start of one row of logits to the start of the next.
        TILE: logits per load, a power of two.
    """
    entry = tl.program_id(0) * NUM_SETTINGS
    index = tl.load(table + entry)
    seed, position = tl.load(table + entry + 1).to(tl.uint64), tl.load(table + entry + 2).to(tl.uint64)
    top_k = tl.load(table + entry + 3).to(tl.int32)
    inverse_temperature = tl.load(numbers + entry + 4).to(tl.float32)
    top_p = tl.load(numbers + entry + 5)
    margin = tl.load(numbers + entry + 6).to(tl.float32)
    row, top = logits + index * stride, tl.load(highest + index).to(tl.float32)
    if tl.abs(top) < INFINITY:
        stream = mixed(mixed(seed) + position)
        value, token = top - margin, vocabulary  # only tokens that rank before these two may be drawn
        if top_k < vocabulary:
            value = kth_largest(row, vocabulary, value, top, top_k, TILE)
        limit = top_p  # on the weight of tokens that rank before a drawn one
        if top_p < INFINITY:
            count, mass = amount_before(row, vocabulary, top, inverse_temperature, value, token, TILE)
            # Ties at the threshold may exceed `top_k`.
            surplus = tl.maximum(count - top_k, 0)
            limit = top_p * (mass - surplus * tl.exp((value - top) * inverse_temperature)).to(tl.float64)
        is_drawn = False
        while not is_drawn:
            token = winner_before(row, vocabulary, top, inverse_temperature, stream, value, token, TILE)
            is_drawn = True
            if (top_k < vocabulary) | (limit < INFINITY):
                value = tl.load(row + token).to(tl.float32)
                rank, mass = amount_before(row, vocabulary, top, inverse_temperature, value, token, TILE)
                is_drawn = (rank == 0) | ((rank < top_k) & (mass < limit))
        tl.store(tokens + index, token.to(tl.int64))


def race(logits: torch.Tensor, highest: torch.Tensor, table: torch.Tensor, tokens: torch.Tensor) -> None:
    """Run `engine.sampling.race` as a kernel, asynchronously."""
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    vocabulary = logits.shape[-1]
    race_kernel[(len(table),)](
        logits, highest, table, table.view(torch.float64), tokens, vocabulary, logits.stride(0),
        TILE=min(TILE, triton.next_power_of_2(vocabulary)), num_warps=NUM_WARPS,
    )  # fmt: skip
