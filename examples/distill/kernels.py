"""Two Triton kernels that carry most of the sampling time. Each has its plain PyTorch twin in ``sample.py``."""

import triton
import triton.language as tl


@triton.jit
def decode_attention_kernel(
    query, keys, values, out, position, scale,
    heads: tl.constexpr, context: tl.constexpr, width: tl.constexpr, padded: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One program: one head of one row. query and out [B, heads, width]; keys and values [B, heads, context, width]."""
    program = tl.program_id(0).to(tl.int64)
    length = tl.load(position) + 1
    column = tl.arange(0, padded)
    inside = column < width
    q = tl.load(query + program * width + column, mask=inside, other=0.0).to(tl.float32) * scale
    cache = program * context * width
    largest = -float("inf")
    total = 0.0
    mixed = tl.zeros([padded], tl.float32)
    for start in range(0, length, block):
        row = start + tl.arange(0, block)
        cells = cache + row[:, None] * width + column[None, :]
        live = (row < length)[:, None] & inside[None, :]
        k = tl.load(keys + cells, mask=live, other=0.0).to(tl.float32)
        v = tl.load(values + cells, mask=live, other=0.0).to(tl.float32)
        score = tl.where(row < length, tl.sum(k * q[None, :], 1), -float("inf"))
        new_largest = tl.maximum(largest, tl.max(score, 0))
        shrink = tl.exp(largest - new_largest)
        weight = tl.exp(score - new_largest)
        total = total * shrink + tl.sum(weight, 0)
        mixed = mixed * shrink + tl.sum(weight[:, None] * v, 0)
        largest = new_largest
    tl.store(out + program * width + column, (mixed / total).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gumbel_argmax_kernel(logits, temperature, seed, out, vocabulary: tl.constexpr, block: tl.constexpr):
    """One program: one row of logits [B, vocabulary]. argmax(logits / T + Gumbel noise) is a sample of softmax(logits /
    T).

    One call of the random generator returns four values, so the row is read in four quarters side by side.
    """
    row = tl.program_id(0).to(tl.int64)
    quarter: tl.constexpr = vocabulary // 4
    inverse = 1.0 / tl.load(temperature + row)
    key = tl.load(seed)
    best = tl.full([block], -float("inf"), tl.float32)
    best_id = tl.zeros([block], tl.int32)
    for start in range(0, quarter, block):
        column = start + tl.arange(0, block)
        inside = column < quarter
        u0, u1, u2, u3 = tl.rand4x(key, (row * quarter + column).to(tl.int32))
        for part in tl.static_range(4):
            u = u0 if part == 0 else (u1 if part == 1 else (u2 if part == 2 else u3))
            index = column + part * quarter
            logit = tl.load(logits + row * vocabulary + index, mask=inside, other=-float("inf")).to(tl.float32)
            noisy = logit * inverse - tl.log(-tl.log(u))
            better = noisy > best
            best_id = tl.where(better, index, best_id)
            best = tl.where(better, noisy, best)
    winner = tl.argmax(best, 0)
    chosen = tl.sum(tl.where(tl.arange(0, block) == winner, best_id, 0), 0)
    tl.store(out + row, chosen.to(tl.int64))
