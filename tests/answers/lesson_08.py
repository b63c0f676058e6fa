"""Answers to the exercises of lesson 08: what learners get wrong, and other ways to be right."""

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
import triton
import triton.language as tl

from changed_kernels import changed

from answers import Wrong
from lessons_lib.kernels.group_decode import decode_groups_kernel, merge_kernel
from lessons_lib.kernels.paged_flash import cache_offsets, find_seq_idx, online_softmax
from lessons_lib.measuring.roofline import Work


# 08.4 attention_work: each mistake is the right count with one thing counted another way


def counting(kv=None, queries=None, pairs=None, per_pair=4, heads=None, size=None, whole=None):
    """`attention_work` with parts replaced; each part is made from (q_lens, context_lens, q_heads, kv_heads, head_dim)."""

    def attempt(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element=2):
        shape = (q_lens, context_lens, q_heads, kv_heads, head_dim)
        elements = (kv or right_kv)(*shape) + (queries or right_queries)(*shape)
        flop = per_pair * (pairs or right_pairs)(*shape) * (heads or right_heads)(*shape) * head_dim
        return Work(bytes=elements * (bytes_per_element if size is None else size), flop=flop)

    return attempt


def right_kv(q_lens, context_lens, q_heads, kv_heads, head_dim):
    return 2 * sum(context_lens) * kv_heads * head_dim


def right_queries(q_lens, context_lens, q_heads, kv_heads, head_dim):
    return 2 * sum(q_lens) * q_heads * head_dim


def right_pairs(q_lens, context_lens, *_):
    return sum(q * c - q * (q - 1) // 2 for q, c in zip(q_lens, context_lens))


def right_heads(q_lens, context_lens, q_heads, kv_heads, head_dim):
    return q_heads


def returns_a_pair(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element=2):
    work = counting()(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element)
    return work.bytes, work.flop


def swaps_the_counts(*arguments):
    work = counting()(*arguments)
    return Work(work.flop, work.bytes)


def queries_in_elements(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element=2):
    shape = (q_lens, context_lens, q_heads, kv_heads, head_dim)
    return Work(right_kv(*shape) * bytes_per_element + right_queries(*shape), counting()(*shape).flop)


def eats_the_lengths(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element=2):
    work = counting()(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element)
    while q_lens:
        q_lens.pop()
    return work


def forgets_to_return(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element=2):
    Work(bytes=0, flop=0)


def work_by_tokens(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element=2):
    flop = 0
    for q_len, context in zip(q_lens, context_lens):
        for position in range(context - q_len, context):
            flop += 2 * (2 * head_dim * (position + 1)) * q_heads
    cache = sum(2 * context * kv_heads * head_dim for context in context_lens)
    return Work(bytes=bytes_per_element * (cache + sum(2 * q_len * q_heads * head_dim for q_len in q_lens)), flop=flop)


def work_by_triangles(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element=2):
    pairs = sum((c * (c + 1) - (c - q) * (c - q + 1)) / 2 for q, c in zip(q_lens, context_lens))
    elements = right_kv(q_lens, context_lens, q_heads, kv_heads, head_dim) + 2 * sum(q_lens) * q_heads * head_dim
    return Work(flop=4.0 * pairs * q_heads * head_dim, bytes=elements * bytes_per_element)


WORK = [
    Wrong(
        "cached keys only",
        counting(kv=lambda q, c, hq, hkv, d: 2 * (sum(c) - sum(q)) * hkv * d),
        "You left them out",
    ),
    Wrong(
        "new keys twice",
        counting(kv=lambda q, c, hq, hkv, d: 2 * (sum(c) + sum(q)) * hkv * d),
        "You count their keys and values twice",
    ),
    Wrong(
        "queries without head_dim",
        counting(queries=lambda q, c, hq, hkv, d: 2 * sum(q) * hq),
        "`head_dim` is missing in part of the count",
    ),
    Wrong(
        "operations of the first sequence",
        counting(pairs=lambda q, c, *_: right_pairs(q[:1], c[:1])),
        "is a `return` inside the loop",
    ),
    Wrong("only the keys", counting(kv=lambda q, c, hq, hkv, d: sum(c) * hkv * d), "Keys and values: both are read"),
    Wrong(
        "query heads for KV heads",
        counting(kv=lambda q, c, hq, hkv, d: 2 * sum(c) * hq * d),
        "Keys and values have `kv_heads` heads",
    ),
    Wrong(
        "KV heads for query heads",
        counting(queries=lambda q, c, hq, hkv, d: 2 * sum(q) * hkv * d),
        "Queries and outputs have `q_heads` heads",
    ),
    Wrong("no queries and outputs", counting(queries=lambda *_: 0), "The queries and the outputs are missing"),
    Wrong(
        "no outputs",
        counting(queries=lambda q, c, hq, hkv, d: sum(q) * hq * d),
        "Queries are read, and outputs are written",
    ),
    Wrong("elements, not bytes", counting(size=1), "Those are elements, not bytes"),
    Wrong("always two bytes", counting(size=2), "4 here; you used 2"),
    Wrong("always four bytes", counting(size=4), "2 here; you used 4"),
    Wrong(
        "keys of the new tokens only",
        counting(kv=lambda q, c, hq, hkv, d: 2 * sum(q) * hkv * d),
        "not only of the new tokens",
    ),
    Wrong(
        "keys once for every query",
        counting(kv=lambda q, c, hq, hkv, d: 2 * sum(a * b for a, b in zip(q, c)) * hkv * d),
        "again for each new token. All new tokens",
    ),
    Wrong(
        "keys once for every query that sees them",
        counting(kv=lambda q, c, hq, hkv, d: 2 * right_pairs(q, c) * hkv * d),
        "again for each new token that sees",
    ),
    Wrong(
        "as long as the longest",
        counting(kv=lambda q, c, hq, hkv, d: 2 * max(c, default=0) * len(c) * hkv * d),
        "as if all were as long as the longest",
    ),
    Wrong("two operations", counting(per_pair=2), "So 4 per element, not 2"),
    Wrong("one operation", counting(per_pair=1), "takes 4 operations: a multiplication"),
    Wrong("eight operations", counting(per_pair=8), "That's twice too many"),
    Wrong("operations of KV heads", counting(heads=lambda q, c, hq, hkv, d: hkv), "They share keys, not work"),
    Wrong("operations of one head", counting(heads=lambda *_: 1), "The heads are missing"),
    Wrong(
        "no triangle", counting(pairs=lambda q, c, *_: sum(a * b for a, b in zip(q, c))), "That's the whole rectangle"
    ),
    Wrong(
        "does not see itself",
        counting(pairs=lambda q, c, *_: sum(a * b - a * (a + 1) // 2 for a, b in zip(q, c))),
        "A token also sees itself",
    ),
    Wrong(
        "sees one key too many",
        counting(pairs=lambda q, c, *_: right_pairs(q, c) + sum(q)),
        "positions 0 to p, which are p + 1",
    ),
    Wrong(
        "the triangle of the whole context",
        counting(pairs=lambda q, c, *_: sum(b * (b + 1) // 2 for b in c)),
        "as if all of it were new",
    ),
    Wrong(
        "the triangle of the new tokens",
        counting(pairs=lambda q, c, *_: sum(a * (a + 1) // 2 for a in q)),
        "They also see the context before them",
    ),
    Wrong(
        "half of the rectangle",
        counting(pairs=lambda q, c, *_: sum(a * b / 2 if a > 1 else b for a, b in zip(q, c))),
        "Half of the rectangle is the triangle only",
    ),
    Wrong("one query a sequence", counting(pairs=lambda q, c, *_: sum(c)), "You count one query per sequence"),
    Wrong(
        "dense over the row",
        counting(pairs=lambda q, c, *_: sum(q) * sum(c) if len(q) > 1 else right_pairs(q, c)),
        "dense attention over the batch",
    ),
    Wrong(
        "half of the square of the new tokens",
        counting(pairs=lambda q, c, *_: sum(b * a - a * a / 2 for a, b in zip(q, c))),
        "a triangle without its diagonal",
    ),
    Wrong(
        "new tokens after the context",
        counting(pairs=lambda q, c, *_: sum(a * b + a * (a + 1) // 2 for a, b in zip(q, c))),
        "You put the new tokens after the context",
    ),
    Wrong(
        "one long sequence",
        counting(pairs=lambda q, c, *_: right_pairs([sum(q)], [sum(c)])),
        "You count the batch as one long sequence",
    ),
    Wrong(
        "one more operation for the softmax",
        counting(per_pair=1, heads=lambda q, c, hq, hkv, d: hq * (4 * d + 1) / d),
        "The softmax isn't counted",
    ),
    Wrong("queries in elements", queries_in_elements, "Queries and outputs take `bytes_per_element`"),
    Wrong("bytes and operations swapped", swaps_the_counts, "They are swapped"),
    Wrong("a pair in place of a Work", returns_a_pair, "should return a `Work`"),
    Wrong("returns nothing", forgets_to_return, "it returned None"),
    Wrong("empties the list", eats_the_lengths, "changed its argument `q_lens`"),
]

# 08.1 online_softmax


def softmax(*lines):
    return changed(online_softmax, *lines)


SUM = "row_sum * rescale + tl.sum(weights, axis=1)"
ACC = "acc * rescale[:, None]"
WEIGHTS = "weights = tl.exp2(scores - reference[:, None])"
RESCALE = "rescale = tl.exp2(row_max - reference)"
NEW_MAX = "new_max = tl.maximum(row_max, tl.max(scores, axis=1))"
RETURN = f"return weights, new_max, {SUM}, {ACC}"
REFERENCE = 'reference = tl.where(new_max == float("-inf"), 0.0, new_max)'


def undecorated(scores, row_max, row_sum, acc):
    return scores, row_max, row_sum, acc


@triton.jit
def softmax_by_log2(scores, row_max, row_sum, acc):
    """The old state as one more key, of weight row_sum."""
    new_max = tl.maximum(tl.max(scores, 1), row_max)
    is_empty = new_max == float("-inf")
    weights = tl.where(is_empty[:, None], 0.0, tl.exp2(scores - tl.where(is_empty, 0.0, new_max)[:, None]))
    factor = tl.where(row_max == float("-inf"), 0.0, tl.exp2(row_max - tl.where(is_empty, 0.0, new_max)))
    acc = factor[:, None] * acc
    return weights, new_max, tl.sum(weights, 1) + factor * row_sum, acc


@triton.jit
def softmax_with_natural_exponentials(scores, row_max, row_sum, acc):
    ln2 = 0.6931471805599453
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    reference = tl.where(new_max > float("-inf"), new_max, 0.0)
    weights = tl.exp((scores - reference[:, None]) * ln2)
    rescale = tl.exp((row_max - reference) * ln2)
    row_sum *= rescale
    row_sum += tl.sum(weights, axis=1)
    return (weights, new_max, row_sum, acc * tl.expand_dims(rescale, 1))


@triton.jit
def softmax_by_methods(scores, row_max, row_sum, acc):
    here = scores.max(axis=1)
    best = tl.where(here > row_max, here, row_max)
    is_seen = best > float("-inf")
    shrink = tl.exp2(tl.where(is_seen, row_max - best, 0.0))
    weights = tl.exp2(tl.where(is_seen[:, None], scores - best[:, None], float("-inf")))
    return weights, best, tl.fma(row_sum, shrink, weights.sum(axis=1)), acc * shrink[:, None]


@triton.jit
def overwrites_the_maximum(scores, row_max, row_sum, acc):
    row_max = tl.maximum(row_max, tl.max(scores, axis=1))
    reference = tl.where(row_max == float("-inf"), 0.0, row_max)
    weights = tl.exp2(scores - reference[:, None])
    rescale = tl.exp2(row_max - reference)
    return weights, row_max, row_sum * rescale + tl.sum(weights, axis=1), acc * rescale[:, None]


SOFTMAX = [
    Wrong(
        "sum 1 of a row without keys",
        softmax((RETURN, f"new_sum = {SUM}\n    {RETURN.replace(SUM, 'tl.where(new_sum == 0.0, 1.0, new_sum)')}")),
        "hasn't seen a key keeps the sum 0",
    ),
    Wrong("a small number in the sum", softmax((SUM, SUM + " + 1e-6")), "has a sum of exactly 0"),
    Wrong(
        "exponents not below -20",
        softmax((WEIGHTS, WEIGHTS.replace("tl.exp2(", "tl.exp2(tl.maximum(-20.0, ") + ")")),
        "The weight of a masked key is exactly 0",
    ),
    Wrong(
        "the largest factor for every row of acc",
        softmax((f"{SUM}, {ACC}", f"{SUM}, acc * tl.max(rescale, axis=0)")),
        "Every row was rescaled by the same factor, 1. ",
    ),
    Wrong(
        "the smallest factor for every row's sum",
        softmax((f"{SUM}, {ACC}", f"{SUM.replace('rescale', 'tl.min(rescale, axis=0)')}, {ACC}")),
        "Every row was rescaled by the same factor, 0.25",
    ),
    Wrong(
        "acc through float16",
        softmax((RETURN, f"return weights, new_max, {SUM}, ({ACC}).to(tl.float16).to(tl.float32)")),
        "`acc` should be [0.7004]",
    ),
    Wrong(
        "maximum through float16",
        softmax((NEW_MAX, f"{NEW_MAX}.to(tl.float16).to(tl.float32)")),
        "Is the maximum converted to 16 bits",
    ),
    Wrong(
        "weights in float16",
        softmax((WEIGHTS, WEIGHTS + ".to(tl.float16)")),
        "as small as rounding to 16 bits",
    ),
    Wrong(
        "no weights where the maximum is 0",
        softmax((WEIGHTS, WEIGHTS + " * (reference != 0.0)[:, None]")),
        "0 is a score like any other",
    ),
    Wrong(
        "log₂ e once more",
        softmax(("    new_max = tl.maximum", "    scores = scores * 1.4426950408889634\n    new_max = tl.maximum")),
        "You multiplied the scores by log₂ e",
    ),
    Wrong(
        "subtracts the old maximum, or 0 in the first step",
        softmax(
            (WEIGHTS, WEIGHTS.replace("reference[", "tl.where(row_max == float('-inf'), 0.0, row_max)[")),
        ),
        "You subtract the old maximum",
    ),
    Wrong("subtracts 0 or more", softmax((REFERENCE, "reference = tl.maximum(new_max, 0.0)")), "[-400, -401]"),
    Wrong(
        "subtracts -10,000 or more",
        softmax((REFERENCE, "reference = tl.maximum(new_max, -10000.0)")),
        "what you subtract is far above all of these scores",
    ),
    Wrong(
        "0 for masked scores",
        softmax((WEIGHTS, WEIGHTS.replace("scores -", "tl.where(new_max[:, None] == float('-inf'), 0.0, scores) -"))),
        "Masked keys have a weight of 1",
    ),
    Wrong(
        "powers of e",
        softmax((WEIGHTS, WEIGHTS.replace("exp2", "exp")), (RESCALE, RESCALE.replace("exp2", "exp"))),
        "These are powers of e",
    ),
    Wrong(
        "the factor as a power of e", softmax((RESCALE, RESCALE.replace("exp2", "exp"))), "The factor is a power of e"
    ),
    Wrong("acc not rescaled", softmax((f"{SUM}, {ACC}", f"{SUM}, acc")), "`acc` isn't rescaled"),
    Wrong("sum not rescaled", softmax((SUM, "row_sum + tl.sum(weights, axis=1)")), "The old sum isn't rescaled"),
    Wrong("the maximum overwritten first", overwrites_the_maximum, "is `row_max` overwritten before the factor"),
    Wrong("sum starts anew", softmax((SUM, "tl.sum(weights, axis=1)")), "The sum so far is lost"),
    Wrong(
        "the new weights rescaled too",
        softmax((SUM, "(row_sum + tl.sum(weights, axis=1)) * tl.where(row_max == float('-inf'), 1.0, rescale)")),
        "Rescale only the old sum",
    ),
    Wrong(
        "factor upside down",
        softmax((RESCALE, "rescale = tl.where(row_max == float('-inf'), 0.0, tl.exp2(reference - row_max))")),
        "The factor is inverted",
    ),
    Wrong(
        "the wrong axis",
        softmax((NEW_MAX, NEW_MAX.replace("axis=1", "axis=0"))),
        "`weights` should have the sides [1, 2]; yours has [2, 2]",
    ),
    Wrong(
        "the wrong axis for the sum",
        softmax((SUM, SUM.replace("axis=1", "axis=0"))),
        "`axis=1`, along the keys, gives one value per row",
    ),
    Wrong(
        "one maximum for all rows",
        softmax((NEW_MAX, "new_max = tl.maximum(row_max, tl.max(tl.max(scores, axis=1), axis=0))")),
        "Each row has its own maximum",
    ),
    Wrong(
        "the maximum of this turn",
        softmax((NEW_MAX, "new_max = tl.max(scores, axis=1)")),
        "A larger one may have come before",
    ),
    Wrong("the maximum stays", softmax((RETURN, RETURN.replace("new_max", "row_max"))), "The maximum didn't change"),
    Wrong("NaN for rows without a key", softmax((REFERENCE, "reference = new_max")), "−∞ − (−∞) is NaN"),
    Wrong(
        "0 for the maximum of nothing",
        softmax((REFERENCE, f"{REFERENCE}; new_max = reference")),
        "keeps the maximum minus infinity",
    ),
    Wrong("bare exponentials", softmax((WEIGHTS, "weights = tl.exp2(scores)")), "The new maximum isn't subtracted"),
    Wrong("bare natural exponentials", softmax((WEIGHTS, "weights = tl.exp(scores)")), "and you need `tl.exp2`"),
    Wrong(
        "weights by the old maximum",
        softmax(
            (WEIGHTS, "weights = tl.exp2(scores - tl.where(row_max == float('-inf'), reference, row_max)[:, None])")
        ),
        "You subtract the old maximum",
    ),
    Wrong(
        "maximum and sum swapped",
        softmax((RETURN, f"return weights, {SUM}, new_max, {ACC}")),
        "That's the sum. The order is",
    ),
    Wrong("weights last", softmax((RETURN, f"return new_max, {SUM}, {ACC}, weights")), "but the order is wrong"),
    Wrong(
        "an `if` on a tile",
        softmax(
            (REFERENCE, 'reference = new_max\n    if new_max == float("-inf"):\n        reference = new_max * 0.0')
        ),
        "An `if` takes one boolean",
    ),
    Wrong(
        "asks for the old maximum",
        softmax((REFERENCE, 'reference = tl.where(row_max == float("-inf"), 0.0, new_max)')),
        "where the *old* maximum is",
    ),
    Wrong(
        "the bare factor upside down",
        softmax((RESCALE, "rescale = tl.exp2(reference - row_max)")),
        "which is infinite there",
    ),
    Wrong(
        "divided at once",
        softmax((RETURN, f"return weights, new_max, {SUM}, {ACC} / ({SUM})[:, None]")),
        "Don't divide `acc` yet",
    ),
    Wrong(
        "all rescaled, in the first step too",
        softmax((SUM, "(row_sum + tl.sum(weights, axis=1)) * rescale")),
        "Rescale only the old sum",
    ),
    Wrong(
        "asks for the maximum of these keys",
        softmax((REFERENCE, REFERENCE.replace("new_max ==", "tl.max(scores, axis=1) =="))),
        "where *these* keys are all masked",
    ),
    Wrong(
        "a large negative maximum",
        softmax(
            (NEW_MAX, NEW_MAX.replace("tl.max(scores", "tl.max(tl.maximum(scores, -1e30)")),
            (REFERENCE, "reference = new_max"),
        ),
        "not a large negative number",
    ),
    Wrong("the factor in place of acc", softmax((ACC, "rescale")), "is that the factor itself"),
    Wrong("three results", softmax((RETURN, f"return weights, new_max, {SUM}")), "it returned 3 values"),
    Wrong("weights only", softmax((RETURN, "return weights")), "a single value"),
    Wrong("nothing returned", softmax((RETURN, "acc = acc * rescale[:, None]")), "nothing"),
    Wrong("no @triton.jit", undecorated, "a plain Python function"),
]

# 08.3 merge_kernel


def merge(*lines):
    return changed(merge_kernel, *lines)


USED = "split < tl.cdiv(tl.load(context_lens + seq), SPLIT_SIZE)"
LINE = "partial = (token * tl.num_programs(0) + head) * NUM_SPLITS + split\n    lse"
LSE = 'tl.load(partial_lse + partial, mask=is_used, other=float("-inf"))'
SHARES = "weights = tl.exp2(lse - tl.max(lse, axis=0))"
OUTPUTS = "in_partial = is_used[:, None]"
RESULT = "tl.sum(outputs * weights[:, None], axis=0) / tl.sum(weights, axis=0)"
STORE = (
    "tl.store(out + token * stride_out + head * stride_out_head + dim, result.to(out.dtype.element_ty), mask=is_dim)"
)
IDS = "head, seq = tl.program_id(0), tl.program_id(1)"
TOKEN = """    token = seq
    if RAGGED:
        token = tl.load(cu_seqlens_q + seq)
        if tl.load(cu_seqlens_q + seq + 1) - token != 1:
            return
    token"""
COUNT = "tl.cdiv(tl.load(context_lens + seq), SPLIT_SIZE)"


@triton.jit
def merge_one_by_one(
    partial_out, partial_lse, context_lens, cu_seqlens_q, out, stride_out, stride_out_head,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT_SIZE: tl.constexpr, NUM_SPLITS: tl.constexpr, BLOCK_SPLITS: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """One split after the other, with a running maximum."""
    head, seq, dim = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK_D)
    token, count = seq, 1
    if RAGGED:
        token = tl.load(cu_seqlens_q + seq)
        count = tl.load(cu_seqlens_q + seq + 1) - token
    if count == 1:
        line = (token * tl.num_programs(0) + head) * NUM_SPLITS
        top, total, acc = float("-inf"), 0.0, tl.zeros([BLOCK_D], tl.float32)
        for split in range(0, (tl.load(context_lens + seq) + SPLIT_SIZE - 1) // SPLIT_SIZE):
            lse = tl.load(partial_lse + line + split)
            piece = tl.load(partial_out + (line + split) * HEAD_DIM + dim, mask=dim < HEAD_DIM, other=0.0)
            new_top = tl.maximum(top, lse)
            old, new = tl.exp2(top - new_top), tl.exp2(lse - new_top)
            top, total, acc = new_top, total * old + new, acc * old + piece * new
        tl.store(out + token * stride_out + head * stride_out_head + dim, acc / total, mask=dim < HEAD_DIM)


@triton.jit
def merge_by_shares(
    partial_out, partial_lse, context_lens, cu_seqlens_q, out, stride_out, stride_out_head,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT_SIZE: tl.constexpr, NUM_SPLITS: tl.constexpr, BLOCK_SPLITS: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """The log-sum-exp of the whole first, then each split's share."""
    head, seq = tl.program_id(0), tl.program_id(1)
    token = seq
    if RAGGED:
        token = tl.load(cu_seqlens_q + seq)
        if tl.load(cu_seqlens_q + seq + 1) - token != 1:
            return
    split, dim = tl.arange(0, BLOCK_SPLITS), tl.arange(0, BLOCK_D)
    is_used = split * SPLIT_SIZE < tl.load(context_lens + seq)
    line = token * tl.num_programs(0) * NUM_SPLITS + head * NUM_SPLITS + split
    lse = tl.load(partial_lse + line, mask=is_used, other=float("-inf"))
    top = tl.max(lse, axis=0)
    whole = top + tl.log2(tl.sum(tl.exp2(lse - top), axis=0))
    place = line[None, :] * HEAD_DIM + dim[:, None]
    pieces = tl.load(partial_out + place, mask=(dim < HEAD_DIM)[:, None] & is_used[None, :], other=0.0)
    result = tl.sum(tl.exp2(lse - whole)[None, :] * pieces, axis=1)
    tl.store(out + token * stride_out + head * stride_out_head + dim, result, mask=dim < HEAD_DIM)


MERGE = [
    Wrong(
        "clears the next head's output",
        merge(
            (
                STORE,
                "tl.store(out + token * stride_out + (head + 1) * stride_out_head + dim, 0.0, "
                "mask=is_dim & (head + 1 < tl.num_programs(0)))\n"
                f"    {STORE}",
            )
        ),
        "should store out[0, 0]; yours stores out[0, 1], out[0, 0]",
    ),
    Wrong(
        "divides what it reads back in reverse",
        merge(
            (RESULT, "tl.sum(outputs * weights[:, None], axis=0)"),
            (
                STORE,
                f"{STORE}\n"
                "    last = out + token * stride_out + head * stride_out_head + HEAD_DIM - 1 - dim\n"
                "    tl.store(last, tl.load(last, mask=is_dim) / tl.sum(weights, axis=0), mask=is_dim)",
            ),
        ),
        "program (0, 0) stores element 0 of `out` in one place of a tile and loads it in another",
    ),
    Wrong(
        "0 for unused splits in the maximum",
        merge((SHARES, SHARES.replace("tl.max(lse,", "tl.max(tl.where(is_used, lse, 0.0),"))),
        "must not take part in the maximum",
    ),
    Wrong(
        "the end for the start",
        merge(
            (
                TOKEN,
                TOKEN.replace("seq)\n", "seq + 1)\n").replace(
                    "tl.load(cu_seqlens_q + seq + 1) - token", "token - tl.load(cu_seqlens_q + seq)"
                ),
            )
        ),
        "entry seq + 1 is where it ends",
    ),
    Wrong(
        "the plain mean",
        merge((RESULT, f"tl.sum(outputs, axis=0) / {COUNT} + 0 * tl.sum(weights, axis=0)")),
        "This is the plain mean of the splits",
    ),
    Wrong("no maximum subtracted", merge((SHARES, "weights = tl.exp2(lse)")), "exp2(300) overflows float32"),
    Wrong("powers of e", merge((SHARES, SHARES.replace("exp2", "exp"))), "The log-sum-exps are in base 2"),
    Wrong("all splits used", merge((USED, "split < NUM_SPLITS")), "you load them from `partial_lse`"),
    Wrong(
        "unused pieces read",
        merge((OUTPUTS, OUTPUTS.replace("is_used", "(split < NUM_SPLITS)"))),
        "you load them from `partial_out`",
    ),
    Wrong("hidden log-sum-exps are 0", merge((LSE, LSE.replace('float("-inf")', "0.0"))), "count as 0 here"),
    Wrong(
        "divided by the number of splits",
        merge((RESULT, f"tl.sum(outputs * weights[:, None], axis=0) / {COUNT}")),
        "You divided by the number of splits",
    ),
    Wrong(
        "not divided",
        merge((RESULT, "tl.sum(outputs * weights[:, None], axis=0)")),
        "isn't divided by the sum of the weights",
    ),
    Wrong(
        "head and split swapped",
        merge((LINE, "partial = (token * NUM_SPLITS + split) * tl.num_programs(0) + head\n    lse")),
        "Head and split are swapped",
    ),
    Wrong(
        "BLOCK_SPLITS for NUM_SPLITS",
        merge((LINE, LINE.replace("NUM_SPLITS", "BLOCK_SPLITS"))),
        "Do you multiply by BLOCK_SPLITS = 4",
    ),
    Wrong("one split too many", merge((USED, USED.replace("<", "<="))), "`<`, not `<=`"),
    Wrong(
        "no mask", merge((LSE, "tl.load(partial_lse + partial)")), "The tile has BLOCK_SPLITS elements, a power of two"
    ),
    Wrong(
        "the number of splits rounded down",
        merge((USED, "split < tl.load(context_lens + seq) // SPLIT_SIZE")),
        "splits have keys, and all of them count",
    ),
    Wrong(
        "axes of the grid swapped",
        merge((IDS, "head, seq = tl.program_id(1), tl.program_id(0)")),
        "Axis 0 of the grid counts query heads",
    ),
    Wrong("RAGGED not looked at", merge((TOKEN, "    token = seq\n    token")), "With RAGGED"),
    Wrong(
        "sequences without new tokens written too",
        merge((TOKEN, TOKEN.replace("!= 1", "> 1"))),
        "Return unless there is exactly one",
    ),
    Wrong("prefills written too", merge((TOKEN, TOKEN.replace("!= 1", "< 1"))), "another kernel handles those"),
    Wrong(
        "no strides of out",
        merge((STORE, "tl.store(out + (token * tl.num_programs(0) + head) * HEAD_DIM + dim, result, mask=is_dim)")),
        "no gaps between the heads of `out`",
    ),
    Wrong("nothing stored", merge((STORE, "pass")), "nothing was stored to `out`"),
    Wrong(
        "log-sum-exps as weights",
        merge((SHARES, "weights = tl.where(is_used, lse, 0.0)")),
        "the log-sum-exps themselves as weights",
    ),
    Wrong(
        "only the best split",
        merge((SHARES, "weights = (lse == tl.max(lse, axis=0)).to(tl.float32)")),
        "This is only the split with the largest log-sum-exp",
    ),
    Wrong(
        "exponents cut off",
        merge((SHARES, "weights = tl.exp2(tl.minimum(lse, 100.0))")),
        "Cutting the exponents off would change the weights",
    ),
    Wrong(
        "attentions not weighted",
        merge((RESULT, RESULT.replace("outputs * weights[:, None]", "outputs"))),
        "aren't multiplied by their weights",
    ),
    Wrong(
        "splits without keys loaded, then replaced",
        merge((LSE, 'tl.where(is_used, tl.load(partial_lse + partial, mask=split < NUM_SPLITS), float("-inf"))')),
        "the result is right, but program (0, 0) loads split 1",
    ),
    Wrong(
        "as many heads as sequences",
        merge((LINE, LINE.replace("num_programs(0)", "num_programs(1)"))),
        "Do you multiply by the number of sequences",
    ),
    Wrong("cu_seqlens_q without RAGGED", merge((TOKEN, TOKEN.replace("if RAGGED:", "if True:"))), "don't load it"),
    Wrong(
        "lengths by token", merge((USED, USED.replace("context_lens + seq", "context_lens + token"))), "not per token"
    ),
    Wrong(
        "attentions of all splits",
        merge((OUTPUTS, "in_partial = (split < BLOCK_SPLITS)[:, None]")),
        "with the mask as a column",
    ),
    Wrong(
        "attentions BLOCK_D apart",
        merge(("partial[:, None] * HEAD_DIM", "partial[:, None] * BLOCK_D")),
        "Do you multiply by BLOCK_D",
    ),
]

# 08.5 find_seq_idx


def sequence(*lines):
    return changed(find_seq_idx, *lines)


FIRST = "tl.load(cu_seqlens_q + middle) // BLOCK_Q + middle <= tile"
FOUND = "    return low\n"
BOTH = "low, high = 0, num_seqs\n"


@triton.jit
def reads_beyond(tile, cu_seqlens_q, num_seqs, BLOCK_Q: tl.constexpr):
    seq = 0
    while tl.load(cu_seqlens_q + seq + 1) // BLOCK_Q + seq + 1 <= tile + 1:
        seq += 1
    return seq


@triton.jit
def returns_in_the_loop(tile, cu_seqlens_q, num_seqs, BLOCK_Q: tl.constexpr):
    """A search for the number itself, which stops where it is found."""
    low, high = 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        first = tl.load(cu_seqlens_q + middle) // BLOCK_Q + middle
        if first == tile:
            return middle
        if first < tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def one_after_the_other(tile, cu_seqlens_q, num_seqs, BLOCK_Q: tl.constexpr):
    found = 0
    for seq in range(1, num_seqs):
        if tl.load(cu_seqlens_q + seq) // BLOCK_Q + seq <= tile:
            found = seq
    return found


@triton.jit
def counts_in_a_tile(tile, cu_seqlens_q, num_seqs, BLOCK_Q: tl.constexpr):
    seq = tl.arange(0, 16)
    first = tl.load(cu_seqlens_q + seq, mask=seq < num_seqs, other=1 << 20) // BLOCK_Q + seq
    return tl.sum((first <= tile).to(tl.int32), axis=0) - 1


@triton.jit
def looks_twice(tile, cu_seqlens_q, num_seqs, BLOCK_Q: tl.constexpr):
    """Two `if`s with a load each."""
    low, high = 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(cu_seqlens_q + middle) // BLOCK_Q + middle <= tile:
            low = middle
        if tl.load(cu_seqlens_q + middle) // BLOCK_Q + middle > tile:
            high = middle
    return low


@triton.jit
def bounds_inside(tile, cu_seqlens_q, num_seqs, BLOCK_Q: tl.constexpr):
    """Both ends belong to the range that is searched."""
    first, last = 0, num_seqs - 1
    while first < last:
        middle = (first + last + 1) // 2
        if tl.load(cu_seqlens_q + middle) // BLOCK_Q > tile - middle:
            last = middle - 1
        else:
            first = middle
    return first


@triton.jit
def by_powers_of_two(tile, cu_seqlens_q, num_seqs, BLOCK_Q: tl.constexpr):
    """The largest steps first, as long as they stay at or before the tile."""
    step, found = 1, 0
    while step < num_seqs:
        step *= 2
    while step > 0:
        if found + step < num_seqs:
            if tl.load(cu_seqlens_q + found + step) // BLOCK_Q + found + step <= tile:
                found += step
        step //= 2
    return found


SEQUENCE = [
    Wrong("one after the other", one_after_the_other, "it read 63 entries"),
    Wrong(
        "without + middle",
        sequence((FIRST, "tl.load(cu_seqlens_q + middle) // BLOCK_Q <= tile")),
        "You left out `+ middle`",
    ),
    Wrong("strictly before", sequence((FIRST, FIRST.replace("<=", "<"))), "`<= tile`, not `< tile`"),
    Wrong("returns high", sequence((FOUND, "    return high\n")), "`high` is the next one"),
    Wrong("one too few", sequence((FOUND, "    return low - 1\n")), "This is one too low"),
    Wrong("never the last", sequence((BOTH, "low, high = 0, num_seqs - 1\n")), "The last sequence is never found"),
    Wrong(
        "rounds up",
        sequence((FIRST, "tl.cdiv(tl.load(cu_seqlens_q + middle), BLOCK_Q) + middle <= tile")),
        "You round up",
    ),
    Wrong("compares with tokens", sequence((FIRST, "tl.load(cu_seqlens_q + middle) <= tile")), "token counts"),
    Wrong(
        "looks at ends",
        sequence((FIRST, FIRST.replace("+ middle)", "+ middle + 1)"))),
        "You search for the end of the sequence",
    ),
    Wrong("always the first", sequence((FOUND, "    return 0 * low\n")), "always sequence 0"),
    Wrong("always the last", sequence((FOUND, "    return num_seqs - 1\n")), "always the last sequence"),
    Wrong("the index of the tile", sequence((FOUND, "    return tile\n")), "the index of the tile"),
    Wrong(
        "the place in the row",
        sequence((FOUND, "    return tl.load(cu_seqlens_q + low)\n")),
        "where the sequence starts in the packed batch",
    ),
    Wrong(
        "never ends",
        sequence(("while high - low > 1", "while high > low")),
        "their middle, rounded down, is `low` again",
    ),
    Wrong(
        "goes on behind the middle",
        sequence(("low = middle\n", "low = middle + 1\n")),
        "Don't skip the middle",
    ),
    Wrong("returns in the loop", returns_in_the_loop, "`return` isn't allowed inside a loop"),
    Wrong(
        "breaks out of the loop",
        sequence(
            ("    while high - low > 1:\n", "    while high > low:\n        if high - low <= 1:\n            break\n")
        ),
        "has no `break`",
    ),
    Wrong("nothing returned", sequence((FOUND, "    low = tile\n")), "must return its result"),
    Wrong(
        "tile t at token t × BLOCK_Q",
        sequence((FIRST, "tl.load(cu_seqlens_q + middle) <= tile * BLOCK_Q")),
        "Tile t doesn't start at token",
    ),
    Wrong("high jumps over", sequence(("high = middle\n", "high = middle - 1\n")), "not `middle - 1`"),
    Wrong("the wrong half", sequence((FIRST, FIRST.replace("<=", ">"))), "You keep the wrong half"),
    Wrong("low starts at 1", sequence((BOTH, "low, high = 1, num_seqs\n")), "Sequence 0 is never found"),
    Wrong("the first 16 sequences only", counts_in_a_tile, "With few sequences yours is right"),
    Wrong("reads beyond the end", reads_beyond, "read only entries 0 to"),
]

# 08.2 decode_groups_kernel


def groups(*lines):
    return changed(decode_groups_kernel, *lines)


IDS_2 = "kv_head, seq = tl.program_id(0), tl.program_id(1)"
HEADS = "head, is_row = kv_head * GROUP + row, row < GROUP"
HEAD = "kv_head * GROUP + row"
LOOP = "for first in range(0, context_len, BLOCK_N):"
IS_KEY = "is_key = position < context_len"
BLOCKS = "blocks = tl.load(block_tables + seq * stride_table + position // BLOCK_SIZE, mask=is_key, other=0)"
SLOTS = "blocks.to(tl.int64) * stride_block + position % BLOCK_SIZE * stride_slot + kv_head * stride_head"
KEYS = "keys = tl.load(k_cache + elements, mask=is_key[:, None], other=0.0)"
VALUES = "values = tl.load(v_cache + elements, mask=is_key[:, None], other=0.0)"
LOAD_Q = "queries = tl.load(q + offsets, mask=is_row[:, None], other=0.0)"
SCORES = 'scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale'
HIDDEN = 'scores = tl.where(is_key[None, :], scores, float("-inf"))'
STEP = "weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)"
ADD = 'acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")'
INLINE = """new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None]
        row_max = new_max"""
DIVIDED = "(acc / row_sum[:, None])"
STORED = "tl.store(out + offsets, (acc / row_sum[:, None]).to(out.dtype.element_ty), mask=is_row[:, None])"


def inline(*pairs):
    """The softmax in the kernel itself, with one line changed."""
    lines = INLINE
    for old, new in pairs:
        assert old in lines
        lines = lines.replace(old, new)
    return groups((STEP, lines))


@triton.jit
def head_by_head(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One query head after another: right, but each of them loads the keys."""
    kv_head, seq = tl.program_id(0), tl.program_id(1)
    dim, key = tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_N)
    context_len = tl.load(context_lens + seq)
    for member in range(GROUP):
        offsets = seq * stride_seq + (kv_head * GROUP + member) * stride_q_head + dim
        query = tl.load(q + offsets).to(tl.float32)
        row_max, row_sum = float("-inf"), 0.0
        acc = tl.zeros([HEAD_DIM], tl.float32)
        for first in range(0, context_len, BLOCK_N):
            position = first + key
            is_key = position < context_len
            blocks = tl.load(block_tables + seq * stride_table + position // BLOCK_SIZE, mask=is_key, other=0)
            slots = blocks.to(tl.int64) * stride_block + position % BLOCK_SIZE * stride_slot + kv_head * stride_head
            keys = tl.load(k_cache + slots[:, None] + dim[None, :], mask=is_key[:, None], other=0.0)
            values = tl.load(v_cache + slots[:, None] + dim[None, :], mask=is_key[:, None], other=0.0)
            scores = tl.where(is_key, tl.sum(query[None, :] * keys, axis=1) * scale, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(scores, axis=0))
            weights, rescale = tl.exp2(scores - new_max), tl.exp2(row_max - new_max)
            row_sum = row_sum * rescale + tl.sum(weights, axis=0)
            acc = acc * rescale + tl.sum(weights[:, None] * values, axis=0)
            row_max = new_max
        tl.store(out + offsets, acc / row_sum)


@triton.jit
def block_by_block(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A group at a time, but lesson 07's iterations: one block each, in a tile that it doesn't fill."""
    kv_head, seq = tl.program_id(0), tl.program_id(1)
    row, dim, slot = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_N)
    offsets = seq * stride_seq + (kv_head * GROUP + row)[:, None] * stride_q_head + dim[None, :]
    queries = tl.load(q + offsets, mask=(row < GROUP)[:, None], other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    context_len = tl.load(context_lens + seq)
    step = BLOCK_SIZE if BLOCK_SIZE < BLOCK_N else BLOCK_N
    for first in range(0, context_len, step):
        is_key = (slot < step) & (first + slot < context_len)
        block = tl.load(block_tables + seq * stride_table + first // BLOCK_SIZE).to(tl.int64)
        places = block * stride_block + (first + slot) % BLOCK_SIZE * stride_slot + kv_head * stride_head
        keys = tl.load(k_cache + places[:, None] + dim[None, :], mask=is_key[:, None], other=0.0)
        values = tl.load(v_cache + places[:, None] + dim[None, :], mask=is_key[:, None], other=0.0)
        scores = tl.where(is_key[None, :], tl.dot(queries, tl.trans(keys)) * scale, float("-inf"))
        weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
        acc = tl.dot(weights.to(values.dtype), values, acc)
    tl.store(out + offsets, acc / row_sum[:, None], mask=(row < GROUP)[:, None])


@triton.jit
def groups_by_sums(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Without `tl.dot`: products element by element, in float32."""
    kv_head, seq = tl.program_id(0), tl.program_id(1)
    row, dim = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    mine = q + seq * stride_seq + kv_head * GROUP * stride_q_head
    queries = tl.load(mine + row[:, None] * stride_q_head + dim[None, :], mask=row[:, None] < GROUP, other=0.0)
    queries = queries.to(tl.float32)
    row_max = tl.zeros([BLOCK_M], tl.float32) - float("inf")
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    context_len = tl.load(context_lens + seq)
    table = block_tables + seq * stride_table
    for tile in range(0, tl.cdiv(context_len, BLOCK_N)):
        position = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        blocks = tl.load(table + position // BLOCK_SIZE, mask=position < context_len, other=0).to(tl.int64)
        places = kv_head * stride_head + blocks * stride_block + (position % BLOCK_SIZE) * stride_slot
        mask = (position < context_len)[:, None]
        keys = tl.load(k_cache + places[:, None] + dim[None, :], mask=mask, other=0.0).to(tl.float32)
        values = tl.load(v_cache + places[:, None] + dim[None, :], mask=mask, other=0.0).to(tl.float32)
        scores = tl.sum(queries[:, None, :] * keys[None, :, :], axis=2) * scale
        scores += tl.where(position < context_len, 0.0, float("-inf"))[None, :]
        weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
        acc += tl.sum(weights[:, :, None] * values[None, :, :], axis=1)
    places = seq * stride_seq + (kv_head * GROUP + row[:, None]) * stride_q_head + dim[None, :]
    tl.store(out + places, acc / row_sum[:, None], mask=row[:, None] < GROUP)


@triton.jit
def groups_transposed(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys loaded as [HEAD_DIM, BLOCK_N], a `while` loop, the softmax in the kernel."""
    kv_head, seq = tl.program_id(0), tl.program_id(1)
    is_row = (tl.arange(0, BLOCK_M) < GROUP)[:, None]
    dim = tl.arange(0, HEAD_DIM)
    offsets = seq * stride_seq + (kv_head * GROUP + tl.arange(0, BLOCK_M)[:, None]) * stride_q_head + dim[None, :]
    queries = tl.load(q + offsets, mask=is_row, other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    left = tl.load(context_lens + seq)
    first = 0
    while left > 0:
        position = first + tl.arange(0, BLOCK_N)
        is_key = tl.arange(0, BLOCK_N) < left
        blocks = tl.load(block_tables + seq * stride_table + position // BLOCK_SIZE, mask=is_key, other=0)
        places = cache_offsets(blocks, position, stride_block, stride_slot, BLOCK_SIZE, True) + kv_head * stride_head
        keys = tl.load(k_cache + places[None, :] + dim[:, None], mask=is_key[None, :], other=0.0)
        values = tl.load(v_cache + places[:, None] + dim[None, :], mask=is_key[:, None], other=0.0)
        scores = tl.where(is_key[None, :], tl.dot(queries, keys, input_precision="ieee") * scale, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v_cache.dtype.element_ty), values, input_precision="ieee")
        row_max = new_max
        first += BLOCK_N
        left -= BLOCK_N
    tl.store(out + offsets, acc / row_sum[:, None], mask=is_row)


GROUPS = [
    Wrong(
        "reads the output back as columns",
        groups(
            (
                STORED,
                f"{STORED}\n"
                "    turned = out + tl.trans(offsets)\n"
                "    is_there = is_row[None, :] & (dim[:, None] >= 0)\n"
                "    tl.store(turned, tl.load(turned, mask=is_there), mask=is_there)",
            )
        ),
        "stores 64 elements in 2 calls of `tl.store`",
    ),
    Wrong(
        "clears the next sequence's output",
        groups(
            (
                LOAD_Q,
                "tl.store(out + offsets + stride_seq, tl.zeros([BLOCK_M, HEAD_DIM], out.dtype.element_ty), "
                "mask=is_row[:, None] & (seq + 1 < tl.num_programs(1)))\n"
                f"    {LOAD_Q}",
            )
        ),
        "yours stores out[1, 0], out[1, 1], out[0, 0]",
    ),
    Wrong(
        "every tile in float32",
        groups(
            (LOAD_Q, f"{LOAD_Q}.to(tl.float32)"),
            (KEYS, f"{KEYS}.to(tl.float32)"),
            (VALUES, f"{VALUES}.to(tl.float32)"),
        ),
        "no tensor core computes 2 of your `tl.dot`",
    ),
    Wrong("without `tl.dot`", groups_by_sums, "there is no `tl.dot`"),
    Wrong(
        "the output's tiles in float32",
        groups((ADD, ADD.replace("weights.to(values.dtype), values,", "weights, values.to(tl.float32),"))),
        "no tensor core computes 1 of your `tl.dot`",
    ),
    Wrong(
        "the output without `tl.dot`",
        groups((ADD, "acc += tl.sum(weights[:, :, None] * values[None, :, :].to(tl.float32), axis=1)")),
        "there is only one `tl.dot`",
    ),
    Wrong(
        "acc in 16 bits",
        groups((ADD, f"{ADD}.to(values.dtype).to(tl.float32)")),
        "the others add a little each",
    ),
    Wrong(
        "row_sum in 16 bits",
        groups((STEP, f"{STEP}\n        row_sum = row_sum.to(keys.dtype).to(tl.float32)")),
        "`row_sum` and `acc` stay float32",
    ),
    Wrong(
        "row_max in 16 bits",
        groups((STEP, f"{STEP}\n        row_max = row_max.to(keys.dtype).to(tl.float32)")),
        "Scores, in base 2, near 201.5",
    ),
    Wrong("a loop over the heads", head_by_head, "once per query head"),
    Wrong(
        "keys loaded once per row",
        groups(
            (
                KEYS,
                "wide = tl.load(k_cache + elements[None, :, :] + 0 * row[:, None, None], mask=is_key[None, :, None], other=0.0)",
            ),
            (SCORES, "scores = tl.sum(queries[:, None, :] * wide, axis=2) * scale"),
        ),
        "Is there a copy of the tile per row?",
    ),
    Wrong("one block per iteration", block_by_block, "do you still go block by block"),
    Wrong(
        "one block for the whole tile",
        groups((BLOCKS, "blocks = tl.load(block_tables + seq * stride_table + first // BLOCK_SIZE)")),
        "Every position looks up its own",
    ),
    Wrong(
        "the slot counted from the tile",
        groups((SLOTS, SLOTS.replace("position % BLOCK_SIZE", "key"))),
        "in slot p % BLOCK_SIZE",
    ),
    Wrong(
        "one block for the whole tile, and slots past its end",
        groups(
            (BLOCKS, "blocks = tl.load(block_tables + seq * stride_table + first // BLOCK_SIZE)"),
            (SLOTS, SLOTS.replace("position % BLOCK_SIZE", "(first % BLOCK_SIZE + key)")),
        ),
        "Does every position of the tile look up its own block",
    ),
    Wrong(
        "logical blocks",
        groups((SLOTS, SLOTS.replace("blocks.to(tl.int64)", "(position // BLOCK_SIZE).to(tl.int64)"))),
        "come from other slots than the sequence's",
    ),
    Wrong(
        "a step of BLOCK_SIZE",
        groups((LOOP, LOOP.replace("BLOCK_N", "BLOCK_SIZE"))),
        "the tiles overlap",
    ),
    Wrong(
        "keys without a mask", groups((KEYS, "keys = tl.load(k_cache + elements)")), "The mask of the tail is missing"
    ),
    Wrong(
        "values without a mask",
        groups((VALUES, "values = tl.load(v_cache + elements)")),
        "The mask of the tail is missing",
    ),
    Wrong("values without other", groups((VALUES, VALUES.replace(", other=0.0", ""))), "give masked loads `other=0.0`"),
    Wrong("the tail's scores count", groups((HIDDEN, "pass")), "have a score of 0, and a weight"),
    Wrong(
        "the newest key left out",
        groups((IS_KEY, "is_key = position < context_len - 1")),
        "which includes the new token",
    ),
    Wrong("one key too many", groups((IS_KEY, "is_key = position <= context_len")), "You load one position too many"),
    Wrong(
        "the mask of the scores as a column",
        groups((HIDDEN, HIDDEN.replace("[None, :]", "[:, None]"))),
        "The mask of the scores is a column",
    ),
    Wrong(
        "blocks without gaps",
        groups((SLOTS, SLOTS.replace("* stride_block", "* BLOCK_SIZE * stride_slot"))),
        "a block starts at b × stride_block",
    ),
    Wrong(
        "weights always in float16",
        groups((ADD, ADD.replace(".to(values.dtype), values,", ".to(tl.float16), values.to(tl.float16),"))),
        "as small as rounding to 16 bits",
    ),
    Wrong(
        "factors rounded by a GPU",
        groups((SCORES, SCORES.replace(', input_precision="ieee"', ""))),
        "on a GPU 1 of your `tl.dot` calls would round its float32 factors",
    ),
    Wrong(
        "as many tiles as blocks",
        groups((LOOP, "for first in range(0, tl.cdiv(context_len, BLOCK_SIZE) * BLOCK_N, BLOCK_N):")),
        "Your loop ends after 2 tiles of 16 positions, and a context of 40 takes 3",
    ),
    Wrong(
        "first tile only", groups((LOOP, "for first in range(0, BLOCK_N, BLOCK_N):")), "Only the first tile was read"
    ),
    Wrong("acc not rescaled", inline(("acc = acc * rescale[:, None]", "acc = acc")), "`acc` isn't rescaled"),
    Wrong("sum not rescaled", inline(("row_sum * rescale +", "row_sum +")), "`row_sum` isn't rescaled"),
    Wrong(
        "nothing rescaled",
        inline(("row_sum * rescale +", "row_sum +"), ("acc = acc * rescale[:, None]", "acc = acc")),
        "Neither `acc` nor `row_sum`",
    ),
    Wrong("powers of e", inline(("tl.exp2", "tl.exp")), "log2(e) counts twice"),
    Wrong(
        "one sum for all rows",
        inline(("tl.sum(weights, axis=1)", "tl.sum(tl.where(is_row[:, None], weights, 0.0))")),
        "All rows share one sum",
    ),
    Wrong("acc starts anew", groups((ADD, ADD.replace("values, acc,", "values,"))), "only the last tile is in `acc`"),
    Wrong("acc twice", groups((ADD, ADD.replace("acc = ", "acc += "))), "`acc` is counted twice"),
    Wrong(
        "masked scores of -10,000",
        groups((HIDDEN, HIDDEN.replace('float("-inf")', "-10000.0"))),
        "A masked score must be lower",
    ),
    Wrong(
        "divided in every iteration",
        groups((ADD, f"{ADD}\n        acc = acc / row_sum[:, None]")),
        "in every iteration",
    ),
    Wrong("scale twice", groups((STEP, STEP.replace("(scores,", "(scores * scale,"))), "by `scale` twice"),
    Wrong("BLOCK_M heads per KV head", groups((HEAD, "kv_head * BLOCK_M + row")), "KV head × GROUP + row"),
    Wrong(
        "a scalar maximum",
        groups(('row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)', 'row_max = float("-inf")')),
        "where the loop makes a tile, with a tile",
    ),
    Wrong(
        "queries scaled before the loop",
        groups((LOAD_Q, f"{LOAD_Q} * scale"), (SCORES, SCORES.replace(" * scale", ""))),
        "ultiply the scores instead",
    ),
    Wrong("not scaled", groups((SCORES, SCORES.replace(" * scale", ""))), "aren't multiplied by `scale`"),
    Wrong("not divided", groups((DIVIDED, "acc")), "isn't divided by `row_sum`"),
    Wrong("keys as values", groups((VALUES, VALUES.replace("v_cache", "k_cache"))), "No values were loaded"),
    Wrong("round-robin heads", groups((HEAD, "row * tl.num_programs(0) + kv_head")), "Those heads are round-robin"),
    Wrong("heads of KV head 0", groups((HEAD, "row + 0 * kv_head")), "Those are the heads of KV head 0"),
    Wrong("head h + row", groups((HEAD, "kv_head + row")), "not at h"),
    Wrong(
        "padding rows stored", groups((", mask=is_row[:, None])\n", ")\n")), "The tile has BLOCK_M rows, and only GROUP"
    ),
    Wrong(
        "queries of another group",
        groups(("tl.load(q + offsets", "tl.load(q + offsets - kv_head * GROUP * stride_q_head")),
        "The queries that you loaded",
    ),
    Wrong(
        "always KV head 0",
        groups((SLOTS, SLOTS.replace("kv_head * stride_head", "0 * stride_head"))),
        "of KV head 0; this",
    ),
    Wrong("grid's axes swapped", groups((IDS_2, "seq, kv_head = tl.program_id(0), tl.program_id(1)")), "KV head"),
    Wrong(
        "table of sequence 0",
        groups((BLOCKS, BLOCKS.replace("seq * stride_table + ", ""))),
        "block table of sequence 0",
    ),
    Wrong(
        "length of sequence 0",
        groups(("tl.load(context_lens + seq)", "tl.load(context_lens)")),
        "the context length of sequence 0",
    ),
    Wrong(
        "the table without a mask",
        groups((BLOCKS, BLOCKS.replace(", mask=is_key, other=0", ""))),
        "a tile may reach past the last token",
    ),
    Wrong(
        "32-bit offsets", groups((SLOTS, SLOTS.replace("blocks.to(tl.int64)", "blocks"))), "a 32-bit integer goes up"
    ),
    Wrong(
        "the maximum isn't carried",
        groups((STEP, STEP.replace("weights, row_max", "weights, own_max"))),
        "all carried from one iteration to the next",
    ),
    Wrong(
        "results in another order",
        groups((STEP, STEP.replace("weights, row_max", "row_max, weights"))),
        "are they taken in its order",
    ),
    Wrong("weights in float32", groups((ADD, ADD.replace(".to(values.dtype)", ""))), "need the same dtype"),
    Wrong("keys not transposed", groups((SCORES, SCORES.replace("tl.trans(keys)", "keys"))), "`tl.dot`"),
    Wrong(
        "the padding repeats the heads",
        groups((HEADS, "head, is_row = kv_head * GROUP + row % GROUP, row < BLOCK_M")),
        "Do you let the others point at a head too",
    ),
    Wrong(
        "the output's factors in bfloat16",
        groups((ADD, "acc = tl.dot(weights.to(tl.bfloat16), values.to(tl.bfloat16), acc)")),
        "Does a `tl.dot` get bfloat16",
    ),
    Wrong(
        "scores rounded to the cache's dtype",
        groups((SCORES, SCORES.replace(" * scale", ".to(keys.dtype).to(tl.float32) * scale"))),
        "What else do you convert to 16 bits",
    ),
    Wrong(
        "stored in every iteration",
        groups((ADD, f"{ADD}\n        {STORED}")),
        "Store once, after the loop",
    ),
    Wrong(
        "no strides of the heads",
        groups(("head[:, None] * stride_q_head", "head[:, None] * HEAD_DIM")),
        "stride_q_head",
    ),
]

WRONG = {"08.1": SOFTMAX, "08.2": GROUPS, "08.3": MERGE, "08.4": WORK, "08.5": SEQUENCE}
RIGHT = {
    "08.1": [softmax_by_log2, softmax_by_methods, softmax_with_natural_exponentials],
    "08.2": [
        groups_transposed,
        groups(  # products of float32 tiles, each by three products on tensor cores
            (LOAD_Q, f"{LOAD_Q}.to(tl.float32)"),
            (KEYS, f"{KEYS}.to(tl.float32)"),
            (VALUES, f"{VALUES}.to(tl.float32)"),
            (SCORES, SCORES.replace("ieee", "tf32x3")),
            (ADD, ADD.replace("ieee", "tf32x3")),
        ),
        inline(),
        groups((LOOP, "for first in tl.range(0, context_len, BLOCK_N):")),
        groups(  # the scale on the queries, which enter `tl.dot` in the dtype of the cache
            (
                "other=0.0)\n    row_max",
                "other=0.0)\n    queries = (queries * scale).to(q.dtype.element_ty)\n    row_max",
            ),
            (SCORES, SCORES.replace(" * scale", "")),
        ),
    ],
    "08.3": [merge_one_by_one, merge_by_shares],
    "08.4": [work_by_tokens, work_by_triangles],
    "08.5": [by_powers_of_two, bounds_inside, looks_twice],
}
