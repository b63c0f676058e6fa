"""Lesson 19: the two kernels of a gated delta net (Yang et al. 2024, https://arxiv.org/abs/2412.06464) over a packed
row, with the state of each sequence in its slot, read once and written once.

A *segment* is a piece of the row that belongs to one sequence. All segments run at the same time, the tokens of one
after another, so a decode and a chunk of a prompt take the same kernel.
"""

import triton
import triton.language as tl

# (tokens, channels) of a tile of `conv_kernel`, (values, warps) of one of `delta_kernel`: the fastest on an H200.
CONV_DECODE, CONV_PROMPT = (2, 128), (8, 128)
DELTA_DECODE, DELTA_PROMPT = (64, 4), (16, 1)


@triton.jit
def conv_kernel(
    x, weight, states, starts, lengths, slots, fresh, out,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channels < CHANNELS
    start, length = tl.load(starts + segment).to(tl.int64), tl.load(lengths + segment)
    state = states + (tl.load(slots + segment) * CHANNELS + channels) * WIDTH + WIDTH  # behind the newest input
    is_old = inside & (tl.load(fresh + segment) == 0)
    for first in range(0, length, BLOCK_T):
        tokens = first + tl.arange(0, BLOCK_T)[:, None]
        mixed = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
        for column in tl.static_range(WIDTH):
            source = tokens - (WIDTH - 1) + column  # below 0: an input of an earlier step
            is_new = (source >= 0) & (tokens < length)
            new = tl.load(x + (start + source) * CHANNELS + channels, mask=is_new & inside, other=0.0)
            old = tl.load(state + source, mask=(source < 0) & is_old, other=0.0)
            factor = tl.load(weight + channels * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
            mixed += (new.to(tl.float32) + old.to(tl.float32)) * factor
        at = out + (start + tokens) * CHANNELS + channels
        tl.store(at, mixed * tl.sigmoid(mixed), mask=(tokens < length) & inside)
    tl.debug_barrier()  # other threads read the old state above
    for column in tl.static_range(WIDTH):
        source = length - WIDTH + column
        new = tl.load(x + (start + source) * CHANNELS + channels, mask=(source >= 0) & inside, other=0.0)
        old = tl.load(state + source, mask=(source < 0) & is_old, other=0.0)  # to the right of what is written
        tl.store(state - WIDTH + column, new.to(tl.float32) + old.to(tl.float32), mask=inside)


@triton.jit
def load_token(
    mixed, a, b, token, head, of_query, of_value, inside, KEYS: tl.constexpr, ROW: tl.constexpr, V_HEADS: tl.constexpr
):  # fmt: skip
    """A token, as the state of one head takes it in: query, key, value, and its gates."""
    place = mixed + token * ROW
    query = tl.load(place + of_query).to(tl.float32)
    key = tl.load(place + KEYS + of_query).to(tl.float32)
    value = tl.load(place + of_value, mask=inside, other=0.0).to(tl.float32)
    gate = token * V_HEADS + head
    return query, key, value, tl.load(a + gate).to(tl.float32), tl.load(b + gate).to(tl.float32)


@triton.jit
def delta_kernel(
    mixed, a, b, a_log, dt_bias, states, starts, lengths, slots, fresh, out, scale,
    K_HEADS: tl.constexpr, V_HEADS: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    segment, head = tl.program_id(0), tl.program_id(1)
    values = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    inside = values < V_DIM
    keys = tl.arange(0, K_DIM)
    row: tl.constexpr = 2 * K_HEADS * K_DIM + V_HEADS * V_DIM
    of_query = head // (V_HEADS // K_HEADS) * K_DIM + keys
    of_value = 2 * K_HEADS * K_DIM + head * V_DIM + values
    start, length = tl.load(starts + segment).to(tl.int64), tl.load(lengths + segment)
    at = states + ((tl.load(slots + segment) * V_HEADS + head) * K_DIM + keys[:, None]) * V_DIM + values
    is_old = tl.load(fresh + segment) == 0
    state = tl.load(at, mask=inside & is_old, other=0.0).to(tl.float32)
    rate, bias = -tl.exp(tl.load(a_log + head).to(tl.float32)), tl.load(dt_bias + head).to(tl.float32)
    query, key, value, time, beta = load_token(
        mixed, a, b, start, head, of_query, of_value, inside, K_HEADS * K_DIM, row, V_HEADS
    )
    for step in range(length):
        token = start + step
        ahead = tl.minimum(token + 1, start + length - 1)  # loads take as long as a step
        next_query, next_key, next_value, next_time, next_beta = load_token(
            mixed, a, b, ahead, head, of_query, of_value, inside, K_HEADS * K_DIM, row, V_HEADS
        )
        query *= tl.rsqrt(tl.sum(query * query) + 1e-6) * scale
        key *= tl.rsqrt(tl.sum(key * key) + 1e-6)
        time += bias
        time = tl.where(time > 20, time, tl.log(1 + tl.exp(tl.minimum(time, 20.0))))  # softplus
        state *= tl.exp(rate * time)
        error = (value - tl.sum(state * key[:, None], axis=0)) * tl.sigmoid(beta)
        state += key[:, None] * error
        attended = tl.sum(state * query[:, None], axis=0)
        tl.store(out + (token * V_HEADS + head) * V_DIM + values, attended, mask=inside)
        query, key, value, time, beta = next_query, next_key, next_value, next_time, next_beta
    tl.store(at, state, mask=inside)


def packed_conv(x, weight, states, starts, lengths, slots, fresh, out) -> None:
    """The short causal convolution of a packed row, and its SiLU.

    Args:
        x, out: [T, channels].
        weight: [channels, width]; the last column is for a token itself.
        states: [slots, channels, width], the last inputs of each sequence; changed in place.
        starts, lengths: of N segments, int32 [N].
        slots: int64 [N]. Two segments may only share one that nothing reads.
        fresh: int32 [N], 1 if there is no state yet.
    """
    channels, width = weight.shape
    tokens, block = CONV_DECODE if len(x) == len(starts) else CONV_PROMPT
    conv_kernel[len(starts), triton.cdiv(channels, block)](
        x, weight, states, starts, lengths, slots, fresh, out, channels, width, BLOCK_T=tokens, BLOCK_C=block
    )


def packed_delta(mixed, a, b, a_log, dt_bias, states, starts, lengths, slots, fresh, out) -> None:
    """The gated delta rule of a packed row.

    Args:
        mixed: [T, 2 x k_heads x k_dim + v_heads x v_dim]: queries, keys and values.
        a, a_log, dt_bias: [T, v_heads], [v_heads], [v_heads]: a state keeps exp(-exp(a_log) x softplus(a + dt_bias)).
        b: [T, v_heads]; a state learns the share sigmoid(b) of an error.
        states: float32 [slots, v_heads, k_dim, v_dim]; changed in place.
        out: [T, v_heads, v_dim].
        The others: see `packed_conv`.
    """
    _, v_heads, k_dim, v_dim = states.shape
    k_heads = (mixed.shape[1] - v_heads * v_dim) // (2 * k_dim)
    values, warps = DELTA_DECODE if len(mixed) == len(starts) else DELTA_PROMPT
    block = min(values, triton.next_power_of_2(v_dim))
    delta_kernel[len(starts), v_heads, triton.cdiv(v_dim, block)](
        mixed, a, b, a_log, dt_bias, states, starts, lengths, slots, fresh, out, k_dim**-0.5,
        k_heads, v_heads, k_dim, v_dim, BLOCK_V=block, num_warps=warps,
    )  # fmt: skip
