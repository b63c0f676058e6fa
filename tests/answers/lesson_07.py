"""Answers to the exercises of lesson 07: what learners get wrong, and other ways to be right.

Most wrong kernels are the reference with a piece of its source replaced.
"""

import inspect

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
import triton
import triton.language as tl
from changed_kernels import changed, with_source

from answers import Wrong
from lessons_lib.kernels.basics import add_kernel
from lessons_lib.kernels.simple_paged import attend_blocks, decode_heads_kernel, one_block_kernel, write_kernel


def stub(kernel):
    """The kernel's signature, without a body."""
    return inspect.getsource(kernel.fn).split('"""')[0]


# 07.1 add_kernel


def plain_add(x, y, out, n_elements, BLOCK):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets) + tl.load(y + offsets), mask=offsets < n_elements)


ADD = [
    Wrong(
        "float64 through float32",
        changed(add_kernel, ("total, mask", "total.to(tl.float32), mask")),
        "as small as rounding to float32",
    ),
    Wrong(
        "the address of y",
        changed(add_kernel, ("tl.load(y + offsets, mask=mask)", "y + offsets")),
        "computed with an address as if it were a value",
    ),
    Wrong(
        "only full tiles",
        changed(
            add_kernel,
            ("    tl.store(", "    if tl.program_id(0) * BLOCK + BLOCK <= n_elements:\n        tl.store("),
        ),
        "or is it skipped?",
    ),
    Wrong(
        "one summand in float16",
        changed(add_kernel, ("tl.load(y + offsets, mask=mask)", "tl.load(y + offsets, mask=mask).to(tl.float16)")),
        "as small as rounding to 16 bits",
    ),
    Wrong(
        "stores to the first tile",
        changed(add_kernel, ("tl.store(out + offsets", "tl.store(out + tl.arange(0, BLOCK)")),
        "The loads are right",
    ),
    Wrong(
        "adds to the output",
        changed(
            add_kernel,
            ("tl.store(out + offsets, total", "tl.store(out + offsets, total + tl.load(out + offsets, mask=mask)"),
        ),
        "what `out` held before",
    ),
    Wrong(
        "4 for BLOCK",
        changed(add_kernel, ("* BLOCK + tl.arange(0, BLOCK)", "* 4 + tl.arange(0, 4)")),
        "Is the 4 of the example in your code",
    ),
    Wrong(
        "a mask for ten numbers",
        changed(add_kernel, ("offsets < n_elements", "offsets < 10")),
        "with the argument `n_elements`, 2 here",
    ),
    Wrong(
        "no mask on the loads",
        changed(add_kernel, ("offsets, mask=mask) +", "offsets) +")),
        "the last program's tile goes further",
    ),
    Wrong(
        "mask by the size of the tile",
        changed(add_kernel, ("offsets < n_elements", "tl.arange(0, BLOCK) < n_elements")),
        "Does it compare the place in the tile",
    ),
    Wrong(
        "program id forgotten",
        changed(add_kernel, ("tl.program_id(0) * BLOCK + ", "")),
        "All programs add the same elements",
    ),
    Wrong("not multiplied by BLOCK", changed(add_kernel, ("* BLOCK +", "+")), "Each program starts one element after"),
    Wrong(  # a mask `offsets < BLOCK` gets the same message
        "multiplied by the n_elements",
        changed(add_kernel, ("* BLOCK +", "* n_elements +")),
        "all of them below `n_elements`, 8. What are yours, and what does your mask compare them with?",
    ),
    Wrong(
        "<= in the mask",
        changed(add_kernel, ("offsets < n_elements", "offsets <= n_elements")),
        "`offsets < n_elements`, not `<=`",
    ),
    Wrong(
        "the last element left out",
        changed(add_kernel, ("offsets < n_elements", "offsets < n_elements - 1")),
        "The last element is left out",
    ),
    Wrong("subtracts", changed(add_kernel, ("+ tl.load(y", "- tl.load(y")), "x − y"),
    Wrong("adds x twice", changed(add_kernel, ("tl.load(y +", "tl.load(x +")), "You load `x` twice"),
    Wrong(
        "loads the same part of y each time",
        changed(add_kernel, ("tl.load(y + offsets", "tl.load(y + tl.arange(0, BLOCK)")),
        "doesn't move to",
    ),
    Wrong("stores into x", changed(add_kernel, ("tl.store(out", "tl.store(x")), "stores to `x`"),
    Wrong(
        "returns the sum",
        changed(add_kernel, ("tl.store(out + offsets, total, mask=mask)", "return total")),
        "A kernel returns nothing",
    ),
    Wrong(
        "adds addresses",
        changed(add_kernel, ("tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)", "x + y + offsets")),
        "add two addresses",
    ),
    Wrong(
        "a tile as long as the tensor",
        changed(add_kernel, ("tl.arange(0, BLOCK)", "tl.arange(0, n_elements)")),
        "known when the kernel is compiled",
    ),
    Wrong("indexes a pointer", changed(add_kernel, ("tl.load(x + offsets, mask=mask)", "x[offsets]")), "has no `[i]`"),
    Wrong(
        "stores all to one address",
        changed(add_kernel, ("tl.store(out + offsets", "tl.store(out")),
        "many values to one address",
    ),
    Wrong(
        "one program does everything",
        with_source(
            stub(add_kernel)
            + "for first in range(0, n_elements, BLOCK):\n"
            + "        offsets = first + tl.arange(0, BLOCK)\n"
            + "        mask = offsets < n_elements\n"
            + "        tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)\n",
            "add_kernel",
            triton=triton,
            tl=tl,
        ),
        "One program does everything",
    ),
    Wrong(
        "program 0 does everything, the others nothing",
        with_source(
            stub(add_kernel)
            + "if tl.program_id(0) == 0:\n"
            + "        for first in range(0, n_elements, BLOCK):\n"
            + "            offsets = first + tl.arange(0, BLOCK)\n"
            + "            mask = offsets < n_elements\n"
            + "            total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)\n"
            + "            tl.store(out + offsets, total, mask=mask)\n",
            "add_kernel",
            triton=triton,
            tl=tl,
        ),
        "the others do nothing",
    ),
    Wrong(
        "an if for the mask",
        changed(
            add_kernel,
            (
                "    tl.store(out + offsets, total, mask=mask)",
                "    if mask:\n        tl.store(out + offsets, total)",
            ),
        ),
        "The interpreter takes the `if` for True",
    ),
    Wrong(
        "the shape of a pointer",
        changed(add_kernel, ("offsets < n_elements", "offsets < x.shape[0]")),
        "A pointer has no shape",
    ),
    Wrong(
        "a print left behind",
        changed(add_kernel, ("    tl.store", "    print(offsets)\n    tl.store")),
        "Remove it when you're done",
    ),
    Wrong(
        "reads the output back in reverse",
        changed(
            add_kernel,
            (
                "total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)",
                "total = tl.load(x + offsets, mask=mask)",
            ),
            (
                "mask=mask)\n    tl.store(out + offsets, total, mask=mask)",
                "mask=mask)\n    tl.store(out + offsets, total, mask=mask)\n"
                "    last = tl.program_id(0) * BLOCK + BLOCK - 1 - tl.arange(0, BLOCK)\n"
                "    both = tl.load(out + last, mask=last < n_elements) + tl.load(y + last, mask=last < n_elements)\n"
                "    tl.store(out + last, both, mask=last < n_elements)",
            ),
        ),
        "program 0 stores element 0 of `out` in one place of a tile and loads it in another",
    ),
    Wrong(
        "stores twice, in two orders",
        changed(
            add_kernel,
            (
                "    tl.store(out + offsets, total, mask=mask)",
                "    last = tl.program_id(0) * BLOCK + BLOCK - 1 - tl.arange(0, BLOCK)\n"
                "    tl.store(out + last, tl.load(x + last, mask=last < n_elements), mask=last < n_elements)\n"
                "    tl.store(out + offsets, total, mask=mask)",
            ),
        ),
        "program 0 stores element 0 of `out` in one place of a tile and stores it in another",
    ),
    Wrong("not a kernel", plain_add, "@triton.jit"),
]


@triton.jit
def add_by_pointers(x, y, out, n_elements, BLOCK: tl.constexpr):
    start = tl.program_id(axis=0) * BLOCK
    lanes = tl.arange(0, BLOCK)
    left = n_elements - start
    a = tl.load(x + start + lanes, mask=lanes < left, other=0.0)
    b = tl.load(y + start + lanes, mask=lanes < left, other=0.0)
    tl.store(out + start + lanes, a + b, mask=lanes < left)


@triton.jit
def add_one_by_one(x, y, out, n_elements, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    for i in range(start, min(start + BLOCK, n_elements)):
        tl.store(out + i, tl.load(x + i) + tl.load(y + i))


@triton.jit
def add_with_clamped_loads(x, y, out, n_elements, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    there = tl.minimum(offsets, n_elements - 1)
    tl.store(out + offsets, tl.load(x + there) + tl.load(y + there), mask=offsets < n_elements)


@triton.jit
def add_moved_pointers(x, y, out, n_elements, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    lane = tl.arange(0, BLOCK)
    x += first
    y += first
    out += first
    is_there = lane < tl.minimum(BLOCK, n_elements - first)
    total = tl.load(x + lane, is_there, 0.0)
    total += tl.load(y + lane, is_there, 0.0)
    tl.store(out + lane, total, is_there)


@triton.jit
def add_in_two_stores(x, y, out, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    tl.store(out + offsets, tl.load(x + offsets, mask=mask), mask=mask)
    tl.store(out + offsets, tl.load(out + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def add_across_barriers(x, y, out, n_elements, BLOCK: tl.constexpr):
    first, lane = tl.program_id(0) * BLOCK, tl.arange(0, BLOCK)
    offsets, last = first + lane, first + BLOCK - 1 - lane
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n_elements), mask=offsets < n_elements)
    tl.debug_barrier()
    total = tl.load(out + last, mask=last < n_elements) + tl.load(y + last, mask=last < n_elements)
    tl.store(out + last, total, mask=last < n_elements)


# 07.2 one_block_kernel

ONE_KEYS = "tl.load(k_block + offsets, mask=is_key[:, None], other=0.0)"
ONE_VALUES = "tl.load(v_block + offsets, mask=is_key[:, None], other=0.0)"
ONE_WHERE = 'scores = tl.where(is_key, scores, float("-inf"))'


def one_block(*pairs):
    return changed(one_block_kernel, *pairs)


ONE_BLOCK = [
    Wrong(
        "divides what it reads back in reverse",
        one_block(
            (" / tl.sum(weights, axis=0)\n", "\n"),
            (
                "tl.store(out + dim, result)",
                "tl.store(out + dim, result)\n"
                "    last = out + HEAD_DIM - 1 - dim\n"
                "    tl.store(last, tl.load(last) / tl.sum(weights, axis=0))",
            ),
        ),
        "program 0 stores element 0 of `out` in one place of a tile and loads it in another",
    ),
    Wrong(
        "hidden slots in the sum",
        one_block(("tl.sum(weights, axis=0)\n", "tl.sum(tl.where(is_key, weights, 1.0), axis=0)\n")),
        "by 1 for each slot without a token",
    ),
    Wrong(
        "no mask at all",
        one_block(
            (ONE_KEYS, "tl.load(k_block + offsets)"), (ONE_VALUES, "tl.load(v_block + offsets)"), (ONE_WHERE, "")
        ),
        "Slots without a token count in your result",
    ),
    Wrong(
        "loads without a mask, scores with one",
        one_block((ONE_KEYS, "tl.load(k_block + offsets)"), (ONE_VALUES, "tl.load(v_block + offsets)")),
        "0 × NaN is NaN",
    ),
    Wrong("masked scores stay 0", one_block((ONE_WHERE, "")), "have a score of 0 here"),
    Wrong(
        "no other for the values",
        one_block((ONE_VALUES, "tl.load(v_block + offsets, mask=is_key[:, None])")),
        "masked elements may be anything",
    ),
    Wrong(
        "-1,000 for minus infinity",
        one_block((ONE_WHERE, "scores = tl.where(is_key, scores, -1000.0)")),
        "below every score",
    ),
    Wrong("no maximum", one_block(("scores - tl.max(scores, axis=0)", "scores")), "exp(200) overflows"),
    Wrong(
        "maximum of masked scores",
        one_block(
            (ONE_WHERE, ""),
            (
                "tl.exp(scores - tl.max(scores, axis=0))",
                "tl.where(is_key, tl.exp(scores - tl.max(scores, axis=0)), 0.0)",
            ),
        ),
        "which is above all of them",
    ),
    Wrong("scale forgotten", one_block(("axis=1) * scale", "axis=1)")), "not multiplied by `scale`"),
    Wrong("divided by scale", one_block(("axis=1) * scale", "axis=1) / scale")), "You divided by `scale`"),
    Wrong(
        "own scale",
        one_block(("axis=1) * scale", "axis=1) / tl.sqrt(HEAD_DIM + 0.0)")),
        "multiplied by 1 / sqrt(HEAD_DIM)",
    ),
    Wrong(
        "arguments of where swapped",
        one_block((ONE_WHERE, 'scores = tl.where(is_key, float("-inf"), scores)')),
        "takes `a` where the condition is True",
    ),
    Wrong("values without weights", one_block(("weights[:, None] * values", "values")), "without their weights"),
    Wrong("Python's max", one_block(("tl.max(scores, axis=0)", "max(scores)")), "Python's `max` can't take a tile"),
    Wrong(
        "scale on the result",
        one_block(("axis=1) * scale", "axis=1)"), ("out + dim, result", "out + dim, result * scale")),
        "You multiplied the result by `scale`",
    ),
    Wrong("not divided", one_block((" / tl.sum(weights, axis=0)", "")), "not divided by the sum"),
    Wrong(
        "divided by the tokens", one_block(("tl.sum(weights, axis=0)", "num_tokens")), "divided by the number of tokens"
    ),
    Wrong(
        "exponential forgotten",
        one_block(("tl.exp(scores - tl.max(scores, axis=0))", "tl.where(is_key, scores, 0.0)")),
        "exponential is missing",
    ),
    Wrong(
        "divided by the scores",
        one_block(("/ tl.sum(weights, axis=0)", "/ tl.sum(scores, axis=0)")),
        "divided by the sum of the scores",
    ),
    Wrong(
        "maximum minus score",
        one_block(("scores - tl.max(scores, axis=0)", "tl.max(scores, axis=0) - scores")),
        "The smallest score has the largest weight",
    ),
    Wrong("powers of 2", one_block(("tl.exp(", "tl.exp2(")), "powers of 2"),
    Wrong("one sum for all keys", one_block(("* keys, axis=1)", "* keys)")), "All weights are equal"),
    Wrong("HEAD_DIM for the stride", one_block(("* stride_slot", "* HEAD_DIM")), "not HEAD_DIM"),
    Wrong("one too few", one_block(("slot < num_tokens", "slot < num_tokens - 1")), "The newest token is left out"),
    Wrong("one too many", one_block(("slot < num_tokens", "slot <= num_tokens")), "One key too many"),
    Wrong("values read as keys", one_block(("tl.load(v_block", "tl.load(k_block")), "If you have such a line"),
    Wrong(
        "keys and values swapped",
        one_block(
            ("query[None, :] * keys", "query[None, :] * values"),
            ("weights[:, None] * values", "weights[:, None] * keys"),
        ),
        "swapped",
    ),
    Wrong("summed along the wrong axis", one_block(("* keys, axis=1)", "* keys, axis=0)")), "along `axis=0` N"),
    Wrong(
        "stores one element",
        one_block(("tl.store(out + dim, result)", "tl.store(out, tl.sum(result, axis=0))")),
        "The result is a tile",
    ),
    Wrong("the query as a pointer", one_block(("tl.load(q + dim)", "q + dim")), "Load the values first"),
    Wrong(
        "matrix product of Python",
        one_block(("tl.sum(query[None, :] * keys, axis=1)", "query @ keys")),
        "`@` isn't a matrix product",
    ),
    Wrong(
        "returns the result", one_block(("tl.store(out + dim, result)", "return result")), "A kernel returns nothing"
    ),
    Wrong(
        "a diagonal of the keys",
        one_block(("slot[:, None] * stride_slot + dim[None, :]", "slot[:, None] * stride_slot + dim[None, :] * 0")),
        "one column per element",
    ),
    Wrong(
        "an if for the mask",
        one_block(
            (ONE_WHERE, 'if is_key:\n        scores = scores + 0.0\n    else:\n        scores = scores - float("inf")')
        ),
        "An `if` takes one boolean",
    ),
]


@triton.jit
def one_block_by_library(
    q, k_block, v_block, out, num_tokens, scale, stride_slot, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    dim = tl.arange(0, HEAD_DIM)
    slot = tl.arange(0, BLOCK_SIZE)
    keep = (slot < num_tokens)[:, None]
    place = slot[:, None] * stride_slot + dim[None, :]
    s = tl.sum(tl.load(k_block + place, keep, 0.0) * (tl.load(q + dim) * scale)[None, :], 1)
    p = tl.softmax(tl.where(slot < num_tokens, s, -float("inf")))
    tl.store(out + dim, tl.sum(tl.load(v_block + place, keep, 0.0) * p[:, None], 0))


@triton.jit
def one_block_transposed(
    q, k_block, v_block, out, num_tokens, scale, stride_slot, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    dim, slot = tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_SIZE)
    is_key = slot[None, :] < num_tokens
    place = slot[None, :] * stride_slot + dim[:, None]
    keys = tl.load(k_block + place, mask=is_key, other=0.0)
    scores = tl.sum(tl.load(q + dim)[:, None] * keys, axis=0) * scale
    highest = tl.max(tl.where(slot < num_tokens, scores, float("-inf")), axis=0)
    weights = tl.where(slot < num_tokens, tl.exp(scores - highest), 0.0)
    weights /= tl.sum(weights, axis=0)
    tl.store(out + dim, tl.sum(weights[None, :] * tl.load(v_block + place, mask=is_key, other=0.0), axis=1))


@triton.jit
def one_block_token_by_token(
    q, k_block, v_block, out, num_tokens, scale, stride_slot, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    dim = tl.arange(0, HEAD_DIM)
    query = tl.load(q + dim) * scale
    highest = float("-inf")
    for slot in range(num_tokens):
        highest = tl.maximum(highest, tl.sum(query * tl.load(k_block + slot * stride_slot + dim), axis=0))
    total, acc = 0.0, tl.zeros([HEAD_DIM], tl.float32)
    for slot in range(num_tokens):
        weight = tl.exp(tl.sum(query * tl.load(k_block + slot * stride_slot + dim), axis=0) - highest)
        total += weight
        acc += weight * tl.load(v_block + slot * stride_slot + dim)
    tl.store(out + dim, acc / total)


@triton.jit
def one_block_with_a_low_number(
    q, k_block, v_block, out, num_tokens, scale, stride_slot, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    slot, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    offsets = slot[:, None] * stride_slot + dim[None, :]
    mask = (slot[:, None] < num_tokens) & (dim[None, :] < HEAD_DIM)
    keys, values = tl.load(k_block + offsets, mask, other=0), tl.load(v_block + offsets, mask, other=0)
    scores = tl.where(slot < num_tokens, tl.sum(keys * tl.load(q + dim)[None, :], axis=1) * scale, -1e38)
    weights = tl.exp(scores - tl.max(scores))
    tl.store(out + dim, tl.sum(values * weights[:, None], axis=0) / tl.sum(weights))


# 07.5 write_kernel

WRITE = [
    Wrong(
        "reads the slot back in reverse",
        changed(
            write_kernel,
            (
                "    tl.store(cache + slot * stride_slot + offsets, values, mask=mask)",
                "    tl.store(cache + slot * stride_slot + offsets, values, mask=mask)\n"
                "    last = cache + slot * stride_slot + n_elements - 1 - offsets\n"
                "    tl.store(last, tl.load(last, mask=mask), mask=mask)",
            ),
        ),
        "of `cache` in one place of a tile and loads it in another",
    ),
    Wrong(
        "stores each element from every thread",
        changed(
            write_kernel,
            (
                "    tl.store(cache + slot * stride_slot + offsets, values, mask=mask)",
                "    each = cache + slot * stride_slot + offsets[:, None] + tl.zeros([1, BLOCK], tl.int32)\n"
                "    tl.store(each, values[None, :] + tl.zeros([BLOCK, 1], values.dtype), mask=mask[:, None] & mask[None, :])\n"
                "    tl.store(cache + slot * stride_slot + offsets, values, mask=mask)",
            ),
        ),
        "several values to element",
    ),
    Wrong("128 elements", changed(write_kernel, ("tl.arange(0, BLOCK)", "tl.arange(0, 128)")), "only the first 128"),
    Wrong("the slot of token 0", changed(write_kernel, ("slot_mapping + token", "slot_mapping")), "to the same slot"),
    Wrong(
        "mask by the stride",
        changed(write_kernel, ("offsets < n_elements", "offsets < stride_slot")),
        "The slot's start is right",
    ),
    Wrong(
        "ignores the mapping",
        changed(write_kernel, ("slot = tl.load(slot_mapping + token)", "slot = token")),
        "you used the index of the token",
    ),
    Wrong(
        "slot taken for a block",
        changed(write_kernel, ("slot * stride_slot", "slot * 4 * stride_slot")),
        "The slot isn't a block",
    ),
    Wrong(
        "the slot inside its block",
        changed(write_kernel, ("slot * stride_slot", "slot % 4 * stride_slot")),
        "You split the slot into block",
    ),
    Wrong(
        "not multiplied by the stride",
        changed(write_kernel, ("slot * stride_slot", "slot")),
        "A slot has many elements",
    ),
    Wrong(
        "n_elements for the stride of slots",
        changed(write_kernel, ("slot * stride_slot", "slot * n_elements")),
        "Two slots are `stride_slot` apart",
    ),
    Wrong(
        "n_elements for the stride of new",
        changed(write_kernel, ("token * stride_new", "token * n_elements")),
        "Two tokens are `stride_new` apart",
    ),
    Wrong(
        "reads at the slot",
        changed(write_kernel, ("token * stride_new", "slot * stride_new")),
        "says where to write, not what to read",
    ),
    Wrong(
        "the stride of slots for new",
        changed(write_kernel, ("token * stride_new", "token * stride_slot")),
        "would load element 17 of `new`",
    ),
    Wrong(
        "BLOCK for the stride of slots",
        changed(write_kernel, ("slot * stride_slot", "slot * BLOCK")),
        "BLOCK is the length of the tile",
    ),
    Wrong(
        "slots from 1",
        changed(write_kernel, ("slot * stride_slot", "(slot - 1) * stride_slot")),
        "That's a neighboring slot",
    ),
    Wrong(
        "32-bit slots",
        changed(write_kernel, ("(slot_mapping + token)", "(slot_mapping + token).to(tl.int32)")),
        "32-bit integer goes up to",
    ),
    Wrong(
        "slot 0 skipped",
        changed(write_kernel, ("values, mask=mask", "values, mask=mask & (slot > 0)")),
        "Slot 0 is a slot like any other",
    ),
    Wrong(
        "adds to the cache",
        changed(
            write_kernel,
            (
                "offsets, values, mask",
                "offsets, values + tl.load(cache + slot * stride_slot + offsets, mask=mask), mask",
            ),
        ),
        "also loads from the cache",
    ),
    Wrong("the first token for all", changed(write_kernel, ("token * stride_new", "0")), "elements of token 0"),
    Wrong(
        "program id forgotten", changed(write_kernel, ("tl.program_id(0)", "0")), "Every program stores the same token"
    ),
    Wrong(
        "no mask on the load",
        changed(
            write_kernel,
            (
                "values = tl.load(new + token * stride_new + offsets, mask=mask)",
                "values = tl.load(new + token * stride_new + offsets)",
            ),
        ),
        "Give `tl.load` the mask",
    ),
    Wrong("no mask on the store", changed(write_kernel, ("values, mask=mask", "values")), "belongs to the next slot"),
    Wrong(
        "every program writes all tokens",
        changed(
            write_kernel,
            ("    slot = ", "    for token in range(tl.num_programs(0)):\n      slot = "),
            ("    values = ", "      values = "),
            ("    tl.store", "      tl.store"),
        ),
        "One program writes all tokens",
    ),
    Wrong(
        "one head only", changed(write_kernel, ("offsets < n_elements", "offsets < 4")), "Part of the token is missing"
    ),
    Wrong(
        "stores to new",
        changed(write_kernel, ("tl.store(cache + slot * stride_slot", "tl.store(new + token * stride_new")),
        "stores to `new`",
    ),
]


@triton.jit
def write_by_moved_pointers(new, cache, slot_mapping, n_elements, stride_new, stride_slot, BLOCK: tl.constexpr):
    new += tl.program_id(0) * stride_new
    cache += tl.load(slot_mapping + tl.program_id(0)) * stride_slot
    offsets = tl.arange(0, BLOCK)
    tl.store(cache + offsets, tl.load(new + offsets, offsets < n_elements, 0.0), offsets < n_elements)


@triton.jit
def write_one_by_one(new, cache, slot_mapping, n_elements, stride_new, stride_slot, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    for i in range(n_elements):
        tl.store(cache + tl.load(slot_mapping + token) * stride_slot + i, tl.load(new + token * stride_new + i))


# 07.3 attend_blocks

KEYS = "tl.load(keys + offsets, mask=is_key[:, None], other=0.0)"
VALUES = "tl.load(values + offsets, mask=is_key[:, None], other=0.0)"
WHERE = 'scores = tl.where(is_key, scores, float("-inf"))'
NEW_MAX = "new_max = tl.maximum(row_max, tl.max(scores, axis=0))"


def attending(*pairs):
    return changed(attend_blocks, *pairs)


def plain_attend(query, keys, values, table, num_tokens, scale, stride_block, stride_slot, HEAD_DIM, BLOCK_SIZE):
    return query


ATTEND = [
    Wrong(
        "blocks that follow the first one",
        attending(("tl.load(table + first // BLOCK_SIZE)", "(tl.load(table) + first // BLOCK_SIZE)")),
        "That would be in block 4 of the pool. Is the block of each iteration an entry of the table, its own",
    ),
    Wrong(
        "keys loaded without a mask",
        attending(
            (
                "block_keys = tl.load(keys + offsets, mask=is_key[:, None], other=0.0)",
                "block_keys = tl.load(keys + offsets)",
            )
        ),
        "the result is right, but `keys` is loaded from slot 1 of block 2",
    ),
    Wrong(
        "the position as the slot",
        attending(("slot[:, None] * stride_slot", "(first + slot[:, None]) * stride_slot")),
        "You use the position in the sequence as the slot",
    ),
    Wrong("own scale", attending(("* scale", "* (HEAD_DIM**-0.5)")), "multiplied by 1 / sqrt(HEAD_DIM)"),
    Wrong(
        "values without weights",
        attending(("weights[:, None] * block_values", "block_values")),
        "The values are added without their weights",
    ),
    Wrong(
        "no stride of blocks for the values",
        attending((VALUES, VALUES.replace("offsets", "offsets + block * (BLOCK_SIZE * stride_slot - stride_block)"))),
        "All keys were read, but the value in slot 0 of block 2 wasn't",
    ),
    Wrong(
        "index of the loop for the table",
        attending(("tl.load(table + first // BLOCK_SIZE)", "(first // BLOCK_SIZE)")),
        "The variable of a loop is a plain integer",
    ),
    Wrong(
        "factor upside down, and 0 for the first block",
        attending(("tl.exp(row_max - new_max)", 'tl.where(row_max == float("-inf"), 0.0, tl.exp(new_max - row_max))')),
        "The factor is upside down",
    ),
    Wrong(
        "one entry too many",
        attending(
            ("range(0, num_tokens, BLOCK_SIZE)", "range(0, num_tokens // BLOCK_SIZE * BLOCK_SIZE + 1, BLOCK_SIZE)")
        ),
        "no block follows a full one",
    ),
    Wrong(
        "query in the cache's dtype",
        attending(("query[None, :] * block_keys", "query.to(block_keys.dtype)[None, :] * block_keys")),
        "With a float32 cache the result is right",
    ),
    Wrong(
        "weights in the cache's dtype",
        attending(("weights[:, None] *", "weights.to(block_values.dtype)[:, None] *")),
        "convert none of them to the dtype of the cache",
    ),
    Wrong(
        "result in the cache's dtype",
        attending(("acc / row_sum", "(acc / row_sum).to(keys.dtype.element_ty)")),
        "a float16 cache and a float32 query",
    ),
    Wrong("query loaded again", attending(("query[None, :]", "tl.load(query + dim)[None, :]")), "use it as it is"),
    Wrong(
        "no mask on the last block",
        attending((KEYS, "tl.load(keys + offsets)"), (VALUES, "tl.load(values + offsets)"), (WHERE, "")),
        "Slots past the last token were included",
    ),
    Wrong(
        "loads without a mask, scores with one",
        attending((KEYS, "tl.load(keys + offsets)"), (VALUES, "tl.load(values + offsets)")),
        "0 × NaN is NaN",
    ),
    Wrong(
        "no other for the values",
        attending((VALUES, "tl.load(values + offsets, mask=is_key[:, None])")),
        "Without `other`",
    ),
    Wrong("masked scores stay 0", attending((WHERE, "")), "Slots without a token have a score of 0"),
    Wrong(
        "logical block for the physical one",
        attending(("tl.load(table + first // BLOCK_SIZE).to(tl.int64)", "first // BLOCK_SIZE")),
        "Those are the sequence's logical blocks",
    ),
    Wrong("the same entry each iteration", attending(("table + first // BLOCK_SIZE", "table")), "the same table entry"),
    Wrong(
        "the position for the entry",
        attending(("table + first // BLOCK_SIZE", "table + first")),
        "position p is in entry",
    ),
    Wrong("powers of 2", attending(("tl.exp(", "tl.exp2(")), "These are powers of 2"),
    Wrong(
        "an iteration per token",
        attending(("range(0, num_tokens, BLOCK_SIZE)", "range(num_tokens)")),
        "in steps of BLOCK_SIZE?",
    ),
    Wrong(
        "the address of the table entry",
        attending(("tl.load(table + first // BLOCK_SIZE).to", "(table + first // BLOCK_SIZE).to")),
        "an address used where a value belongs",
    ),
    Wrong("scale forgotten", attending(("axis=1) * scale", "axis=1)")), "not multiplied by `scale`"),
    Wrong("scale applied twice", attending(("axis=1) * scale", "axis=1) * scale * scale")), "`scale` twice"),
    Wrong("divided by scale", attending(("axis=1) * scale", "axis=1) / scale")), "You divided by `scale`"),
    Wrong(
        "-10,000 for minus infinity", attending((WHERE, "scores = tl.where(is_key, scores, -1e4)")), "below every score"
    ),
    Wrong(
        "scale on the result",
        attending(("axis=1) * scale", "axis=1)"), ("acc / row_sum", "acc / row_sum * scale")),
        "multiplied the result by `scale`",
    ),
    Wrong(
        "scale in the factor too",
        attending(("tl.exp(row_max - new_max)", "tl.exp((row_max - new_max) * scale)")),
        "in the factor exp(row_max − new_max) once more",
    ),
    Wrong(
        "scale in the weights only",
        attending(("axis=1) * scale", "axis=1)"), ("tl.exp(scores - new_max)", "tl.exp((scores - new_max) * scale)")),
        "in the weights, but not in the factor",
    ),
    Wrong(
        "each block divided by its own sum",
        attending(
            ("block_values, axis=0)", "block_values, axis=0) / tl.sum(weights, axis=0)"),
            ("return acc / row_sum", "return acc"),
        ),
        "a block with low scores counts as much",
    ),
    Wrong(
        "acc in float16",
        attending(
            ("tl.zeros([HEAD_DIM], tl.float32)", "tl.zeros([HEAD_DIM], tl.float16)"),
            (
                "acc = acc * rescale + tl.sum(weights[:, None] * block_values, axis=0)",
                "acc = (acc * rescale + tl.sum(weights[:, None] * block_values, axis=0)).to(tl.float16)",
            ),
        ),
        "something was rounded on the way",
    ),
    Wrong("one sum for all keys", attending(("block_keys, axis=1)", "block_keys)")), "all weights are equal"),
    Wrong(
        "keys of the remainder only",
        attending(("first + slot < num_tokens", "slot < num_tokens % BLOCK_SIZE")),
        "A full block has no remainder",
    ),
    Wrong("maximum not carried", attending(("        row_max = new_max\n", "")), "isn't carried"),
    Wrong(
        "maximum of this block only", attending((NEW_MAX, "new_max = tl.max(scores, axis=0)")), "The factor overflows"
    ),
    Wrong(
        "no maximum at all",
        attending((NEW_MAX, "new_max = 0.0"), ("rescale = tl.exp(row_max - new_max)", "rescale = 1.0")),
        "exp(200) overflows",
    ),
    Wrong(
        "maximum begins at 0",
        attending(('row_max, row_sum = float("-inf"), 0.0', "row_max, row_sum = 0.0, 0.0")),
        "not at 0",
    ),
    Wrong("accumulator not rescaled", attending(("acc = acc * rescale +", "acc = acc +")), "`acc` is not rescaled"),
    Wrong(
        "sum not rescaled",
        attending(("row_sum = row_sum * rescale +", "row_sum = row_sum +")),
        "`row_sum` is not rescaled",
    ),
    Wrong(
        "neither rescaled",
        attending(("acc * rescale +", "acc +"), ("row_sum * rescale +", "row_sum +")),
        "Neither `row_sum` nor `acc`",
    ),
    Wrong(
        "each block by its own maximum",
        attending(
            (NEW_MAX, "new_max = tl.max(scores, axis=0)"), ("rescale = tl.exp(row_max - new_max)", "rescale = 1.0")
        ),
        "relative to its own maximum",
    ),
    Wrong(
        "factor the wrong way round",
        attending(("tl.exp(row_max - new_max)", "tl.exp(new_max - row_max)")),
        "in this order",
    ),
    Wrong("not divided", attending(("return acc / row_sum", "return acc")), "not divided by `row_sum`"),
    Wrong(
        "divided in every iteration",
        attending(
            ("        row_max = new_max", "        acc = acc / row_sum\n        row_max = new_max"),
            ("return acc / row_sum", "return acc"),
        ),
        "Divide once",
    ),
    Wrong("32-bit offset", attending((".to(tl.int64)", "")), "32-bit integer goes up to"),
    Wrong(
        "context one too long",
        attending(("first + slot < num_tokens", "first + slot <= num_tokens")),
        "One key too many",
    ),
    Wrong(
        "context one too short",
        attending(("first + slot < num_tokens", "first + slot < num_tokens - 1")),
        "The newest token is left out",
    ),
    Wrong(
        "only full blocks",
        attending(("range(0, num_tokens, BLOCK_SIZE)", "range(0, num_tokens // BLOCK_SIZE * BLOCK_SIZE, BLOCK_SIZE)")),
        "the loop is never entered",
    ),
    Wrong(
        "one block too many",
        attending(
            ("range(0, num_tokens, BLOCK_SIZE)", "range(0, num_tokens + 1, BLOCK_SIZE)"),
            ("mask=is_key[:, None], other=0.0", "mask=is_key[:, None] | (slot[:, None] < 0), other=0.0"),
            (WHERE, "scores = tl.where(is_key | (first >= num_tokens), scores, float('-inf'))"),
        ),
        "Compare line by line",
    ),
    Wrong(
        "the first block only",
        attending(("range(0, num_tokens, BLOCK_SIZE)", "range(0, BLOCK_SIZE, BLOCK_SIZE)")),
        "until all `num_tokens`",
    ),
    Wrong(
        "block stride from slot stride",
        attending(("block * stride_block", "block * BLOCK_SIZE * stride_slot")),
        "one doesn't follow from the other",
    ),
    Wrong(
        "slots as if dense",
        attending(("slot[:, None] * stride_slot", "slot[:, None] * HEAD_DIM")),
        "slots are `stride_slot` apart",
    ),
    Wrong(
        "stride of blocks multiplied again",
        attending(("block * stride_block", "block * BLOCK_SIZE * stride_block")),
        "already includes the slots of a block",
    ),
    Wrong(
        "values read as keys",
        attending(("tl.load(values + offsets", "tl.load(keys + offsets")),
        "used the keys as values",
    ),
    Wrong(
        "keys read as values",
        attending(("tl.load(keys + offsets", "tl.load(values + offsets")),
        "You read values, but no keys",
    ),
    Wrong(
        "keys transposed",
        attending(("slot[:, None] * stride_slot + dim[None, :]", "slot[None, :] * stride_slot + dim[:, None]")),
        "at index 0: 8 and 4",
    ),
    Wrong(
        "summed along the wrong axis", attending(("block_keys, axis=1)", "block_keys, axis=0)")), "at index 0: 4 and 8"
    ),
    Wrong("fraction as entry", attending(("first // BLOCK_SIZE", "first / BLOCK_SIZE")), "use `//`"),
    Wrong(
        "row_sum starts as an integer",
        attending(('float("-inf"), 0.0', 'float("-inf"), 0')),
        "row_sum has initial type int32",
    ),
    Wrong(
        "acc starts as a scalar",
        attending(("acc = tl.zeros([HEAD_DIM], tl.float32)", "acc = 0.0")),
        "acc has initial type fp32",
    ),
    Wrong(
        "maximum of masked scores",
        attending(
            (WHERE, ""),
            ("weights = tl.exp(scores - new_max)", "weights = tl.where(is_key, tl.exp(scores - new_max), 0.0)"),
        ),
        "so it becomes the maximum",
    ),
    Wrong("zeros without brackets", attending(("tl.zeros([HEAD_DIM]", "tl.zeros(HEAD_DIM")), "with the brackets"),
    Wrong(
        "zeros without a dtype",
        attending(("tl.zeros([HEAD_DIM], tl.float32)", "tl.zeros([HEAD_DIM])")),
        "takes the shape and the dtype",
    ),
    Wrong(
        "returns inside the loop",
        attending(("    return acc / row_sum", "        return acc / row_sum")),
        "`return` is inside the loop",
    ),
    Wrong(
        "breaks out of the loop",
        attending(
            (
                "        row_max = new_max",
                "        row_max = new_max\n        if first + BLOCK_SIZE >= num_tokens:\n            break",
            )
        ),
        "has no `break`",
    ),
    Wrong("nothing returned", attending(("    return acc / row_sum", "")), "must return its result"),
    Wrong(
        "matrix product of Python",
        attending(("tl.sum(query[None, :] * block_keys, axis=1)", "query @ block_keys")),
        "`@` isn't a matrix product here",
    ),
    Wrong("not a kernel", plain_attend, "@triton.jit"),
]


@triton.jit
def attend_by_count(
    query,
    keys,
    values,
    table,
    num_tokens,
    scale,
    stride_block,
    stride_slot,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    query = query * scale
    offsets = tl.arange(0, BLOCK_SIZE)[:, None] * stride_slot + tl.arange(0, HEAD_DIM)[None, :]
    m = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for number in range(tl.cdiv(num_tokens, BLOCK_SIZE)):
        begin = tl.load(table + number).to(tl.int64) * stride_block
        valid = number * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE) < num_tokens
        k = tl.load(keys + begin + offsets, mask=valid[:, None], other=0.0)
        s = tl.where(valid, tl.sum(k * query[None, :], 1), -1e30)
        best = tl.maximum(m, tl.max(s, 0))
        p = tl.where(valid, tl.exp(s - best), 0.0)
        alpha = tl.exp(m - best)
        v = tl.load(values + begin + offsets, mask=valid[:, None], other=0.0)
        acc = acc * alpha + tl.sum(p[:, None] * v, 0)
        total = total * alpha + tl.sum(p, 0)
        m = best
    return acc / total


@triton.jit
def attend_twice_over(
    query,
    keys,
    values,
    table,
    num_tokens,
    scale,
    stride_block,
    stride_slot,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """First the maximum, token by token; then the sums."""
    dim = tl.arange(0, HEAD_DIM)
    stride_block = tl.full([], 1, tl.int64) * stride_block
    highest = float("-inf")
    for token in range(num_tokens):
        offsets = tl.load(table + token // BLOCK_SIZE) * stride_block + token % BLOCK_SIZE * stride_slot + dim
        highest = tl.maximum(highest, tl.sum(query * tl.load(keys + offsets), axis=0) * scale)
    total = 0.0
    result = tl.zeros([HEAD_DIM], tl.float32)
    for token in range(num_tokens):
        offsets = tl.load(table + token // BLOCK_SIZE) * stride_block + token % BLOCK_SIZE * stride_slot + dim
        weight = tl.exp(tl.sum(query * tl.load(keys + offsets), axis=0) * scale - highest)
        total += weight
        result += weight * tl.load(values + offsets)
    return result / total


@triton.jit
def attend_newest_first(
    query, keys, values, table, num_tokens, scale, stride_block, stride_slot,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    slot, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    best, total = float("-inf"), 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    last = (num_tokens - 1) // BLOCK_SIZE
    for back in range(0, last + 1):
        number = last - back
        here = slot[None, :] < num_tokens - number * BLOCK_SIZE
        place = tl.load(table + number).to(tl.int64) * stride_block + slot[None, :] * stride_slot + dim[:, None]
        found = tl.sum(tl.load(keys + place, mask=here, other=0.0) * query[:, None], axis=0) * scale
        found = tl.where(slot < num_tokens - number * BLOCK_SIZE, found, float("-inf"))
        higher = tl.maximum(best, tl.max(found, axis=0))
        shrink = tl.exp(best - higher)
        weights = tl.exp(found - higher)
        total = total * shrink + tl.sum(weights, axis=0)
        acc = acc * shrink + tl.sum(weights[None, :] * tl.load(values + place, mask=here, other=0.0), axis=1)
        best = higher
    return acc / total


@triton.jit
def attend_as_a_running_mean(
    query, keys, values, table, num_tokens, scale, stride_block, stride_slot,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """The output is divided in every iteration, rightly; the sum is kept as its logarithm."""
    slot, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    lse = float("-inf")
    mean = tl.zeros([HEAD_DIM], tl.float32)
    first = 0
    while first < num_tokens:
        is_key = slot < num_tokens - first
        start = tl.load(table + first // BLOCK_SIZE).to(tl.int64) * stride_block
        offsets = start + slot[:, None] * stride_slot + dim[None, :]
        scores = tl.sum(tl.load(keys + offsets, is_key[:, None], other=0.0) * (query * scale)[None, :], axis=1)
        scores = tl.where(is_key, scores, float("-inf"))
        highest = tl.max(scores, axis=0)
        own = tl.log(tl.sum(tl.exp(scores - highest), axis=0)) + highest
        top = tl.maximum(lse, own)
        both = top + tl.log(tl.exp(lse - top) + tl.exp(own - top))
        weights = tl.exp(scores - both)
        block_values = tl.load(values + offsets, is_key[:, None], other=0.0)
        mean = mean * tl.exp(lse - both) + tl.sum(weights[:, None] * block_values, axis=0)
        lse = both
        first += BLOCK_SIZE
    return mean


# 07.4 decode_heads_kernel


def decoding(*pairs):
    return changed(decode_heads_kernel, *pairs)


@triton.jit
def decode_whole_groups(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    seq, kv_head, dim = tl.program_id(0), tl.program_id(1) // GROUP, tl.arange(0, HEAD_DIM)
    keys, values = k_cache + kv_head * stride_head, v_cache + kv_head * stride_head
    table, num_tokens = block_tables + seq * stride_table, tl.load(context_lens + seq)
    for member in range(GROUP):
        offsets = seq * stride_seq + (kv_head * GROUP + member) * stride_q_head + dim
        query = tl.load(q + offsets).to(tl.float32)
        result = attend_blocks(
            query, keys, values, table, num_tokens, scale, stride_block, stride_slot, HEAD_DIM, BLOCK_SIZE
        )
        tl.store(out + offsets, result)


DECODE = [
    Wrong(
        "clears the next head's output",
        decoding(
            (
                "    query = tl.load",
                "    tl.store(out + offsets + stride_q_head, 0.0, mask=(dim >= 0) & (head + 1 < tl.num_programs(1)))\n"
                "    query = tl.load",
            ),
        ),
        "should store out[0, 0]; yours stores out[0, 1], out[0, 0]",
    ),
    Wrong(
        "copies its output from front to back, and back",
        decoding(
            (
                "tl.store(out + offsets, result)",
                "tl.store(out + offsets - dim + (HEAD_DIM - 1 - dim), result)\n"
                "    result = tl.load(out + offsets - dim + (HEAD_DIM - 1 - dim))\n"
                "    tl.store(out + offsets, result)",
            ),
        ),
        "stores element 0 of `out` in one place of a tile and stores it in another",
    ),
    Wrong(
        "q and out by KV head",
        decoding(("head * stride_q_head", "kv_head * stride_q_head")),
        "q and out have a row for each query head",
    ),
    Wrong(
        "a stride of sequences in the cache",
        decoding(("kv_head * stride_head", "kv_head * stride_head + seq * stride_seq")),
        "The pointers move by kv_head × stride_head only",
    ),
    Wrong(
        "the number of blocks as the number of tokens",
        decoding(("tl.load(context_lens + seq)", "tl.cdiv(tl.load(context_lens + seq), BLOCK_SIZE)")),
        "Only the first 1 of 3 keys were read",
    ),
    Wrong(
        "pointers to a whole row",
        decoding(("k_cache + kv_head * stride_head", "k_cache + kv_head * stride_head + dim")),
        "takes pointers to one element",
    ),
    Wrong(
        "query rounded to float16",
        decoding((".to(tl.float32)", ".to(tl.float16).to(tl.float32)")),
        "as small as rounding to 16 bits",
    ),
    Wrong(
        "only the first head of a group",
        decoding(("    kv_head =", "    if head % GROUP != 0:\n        return\n    kv_head =")),
        "Each query head has a program of its own",
    ),
    Wrong("a whole group per program", decode_whole_groups, "No loop over heads or sequences is needed"),
    Wrong(
        "strides in the wrong order",
        decoding(("scale, stride_block, stride_slot, HEAD_DIM", "scale, stride_slot, stride_block, HEAD_DIM")),
        "stride_block comes before stride_slot",
    ),
    Wrong(
        "constants in the wrong order",
        decoding(("stride_slot, HEAD_DIM, BLOCK_SIZE", "stride_slot, BLOCK_SIZE, HEAD_DIM")),
        "look at the order of its arguments",
    ),
    Wrong(
        "KV head = head % KV heads",
        decoding(("kv_head = head // GROUP", "kv_head = head % (tl.num_programs(1) // GROUP)")),
        "assigns heads round-robin",
    ),
    Wrong("KV head = head % GROUP", decoding(("head // GROUP", "head % GROUP")), "is the index inside the group"),
    Wrong("KV head = head", decoding(("head // GROUP", "head")), "its own is head // GROUP"),
    Wrong("always KV head 0", decoding(("head // GROUP", "0")), "KV head h starts"),
    Wrong(
        "KV head of the keys only",
        decoding(("v_cache + kv_head * stride_head", "v_cache")),
        "used the values of KV head",
    ),
    Wrong(
        "KV head times HEAD_DIM",
        decoding(
            (
                "k_cache + kv_head * stride_head, v_cache + kv_head * stride_head",
                "k_cache + kv_head * HEAD_DIM, v_cache + kv_head * HEAD_DIM",
            )
        ),
        "HEAD_DIM is neither",
    ),
    Wrong(
        "slot and head strides exchanged",
        decoding(
            ("kv_head * stride_head", "kv_head * stride_slot"),
            ("stride_block, stride_slot, HEAD_DIM", "stride_block, stride_head, HEAD_DIM"),
        ),
        "aren't part of this head's keys",
    ),
    Wrong(
        "block stride from slot stride",
        decoding(("scale, stride_block, stride_slot", "scale, BLOCK_SIZE * stride_slot, stride_slot")),
        "one doesn't follow from the other",
    ),
    Wrong(
        "multiplied before it is divided",
        decoding(("kv_head * stride_head", "head * stride_head // GROUP")),
        "Divide first, then multiply",
    ),
    Wrong(
        "one element of the query",
        decoding(("tl.load(q + offsets)", "tl.load(q + seq * stride_seq + head * stride_q_head)")),
        "A query has 16 elements; you loaded 1",
    ),
    Wrong(
        "the query as a pointer",
        decoding(("tl.load(q + offsets).to(tl.float32)", "q + offsets")),
        "Load the values first",
    ),
    Wrong("query in float16", decoding((".to(tl.float32)", "")), "keeps only three digits"),
    Wrong(
        "the table loaded",
        decoding(("table = block_tables + seq * stride_table", "table = tl.load(block_tables + seq * stride_table)")),
        "one that was loaded already",
    ),
    Wrong(
        "no constants handed on",
        decoding((", HEAD_DIM, BLOCK_SIZE)\n    tl.store", ")\n    tl.store")),
        "Pass all arguments",
    ),
    Wrong(
        "the first table for all",
        decoding(("block_tables + seq * stride_table", "block_tables")),
        "block table of sequence 0",
    ),
    Wrong(
        "table not multiplied by its stride",
        decoding(("seq * stride_table", "seq")),
        "an entry of the block table that is not in use",
    ),
    Wrong("table of the head", decoding(("seq * stride_table", "head * stride_table")), "Row i of block_tables starts"),
    Wrong(
        "the first length for all",
        decoding(("tl.load(context_lens + seq)", "tl.load(context_lens)")),
        "context length of sequence 0",
    ),
    Wrong(
        "length of the head",
        decoding(("tl.load(context_lens + seq)", "tl.load(context_lens + head)")),
        "has one entry per sequence",
    ),
    Wrong(
        "length not loaded",
        decoding(("tl.load(context_lens + seq)", "context_lens + seq")),
        "can't compute with the address itself",
    ),
    Wrong(
        "context one too long",
        decoding(("tl.load(context_lens + seq)", "tl.load(context_lens + seq) + 1")),
        "You read slot 3 of block 2",
    ),
    Wrong(
        "context one too short",
        decoding(("tl.load(context_lens + seq)", "tl.load(context_lens + seq) - 1")),
        "pass the length to `attend_blocks` unchanged",
    ),
    Wrong("scale forgotten", decoding(("num_tokens, scale,", "num_tokens, 1.0,")), "not multiplied by `scale`"),
    Wrong("scale applied twice", decoding((".to(tl.float32)", ".to(tl.float32) * scale")), "`scale` twice"),
    Wrong(
        "stores a part of a head",
        decoding(("tl.store(out + offsets, result)", "tl.store(out + offsets, result, mask=dim < GROUP * BLOCK_SIZE)")),
        "store the whole tile",
    ),
    Wrong(
        "program ids exchanged",
        decoding(("tl.program_id(0), tl.program_id(1)", "tl.program_id(1), tl.program_id(0)")),
        "Axis 0 of the grid counts sequences",
    ),
    Wrong(
        "the first query for all",
        decoding(("tl.load(q + offsets)", "tl.load(q + dim)")),
        "used the query of sequence 0, head 0",
    ),
    Wrong(
        "query heads as if dense", decoding(("head * stride_q_head", "head * HEAD_DIM")), "are `stride_q_head` apart"
    ),
    Wrong(
        "sequences as far apart as heads",
        decoding(("seq * stride_seq", "seq * stride_q_head")),
        "Two sequences are `stride_seq` apart",
    ),
    Wrong(
        "one result for all heads",
        decoding(("tl.store(out + offsets", "tl.store(out + seq * stride_seq + dim")),
        "head * stride_q_head + dim`, as for q",
    ),
    Wrong("keys and values exchanged", decoding(("query, keys, values,", "query, values, keys,")), "swapped"),
    Wrong("nothing stored", decoding(("    tl.store(out + offsets, result)", "")), "nothing was stored"),
    Wrong("stores over the queries", decoding(("tl.store(out", "tl.store(q")), "stores to `q`"),
]


@triton.jit
def decode_by_moved_pointers(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    h = tl.program_id(1)
    own = i * stride_seq + h * stride_q_head + tl.arange(0, HEAD_DIM)
    k_cache += (h // GROUP) * stride_head
    v_cache += (h // GROUP) * stride_head
    result = attend_blocks(
        tl.load(q + own).to(tl.float32) * scale, k_cache, v_cache, block_tables + i * stride_table, tl.load(context_lens + i), 1.0,
        stride_block, stride_slot, HEAD_DIM, BLOCK_SIZE,
    )  # fmt: skip
    tl.store(out + own, result.to(out.dtype.element_ty))


@triton.jit
def decode_by_element(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    seq, head = tl.program_id(axis=0), tl.program_id(axis=1)
    kv_head = (head - head % GROUP) // GROUP
    q += seq * stride_seq + head * stride_q_head
    out += seq * stride_seq + head * stride_q_head
    query = tl.load(q + tl.arange(0, HEAD_DIM)) * 1.0
    got = attend_blocks(
        query.to(tl.float32), k_cache + kv_head * stride_head, v_cache + kv_head * stride_head,
        table=block_tables + seq * stride_table, num_tokens=tl.load(context_lens + seq), scale=scale,
        stride_block=stride_block, stride_slot=stride_slot, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE,
    )  # fmt: skip
    tl.store(out + tl.arange(0, HEAD_DIM), got, mask=tl.arange(0, HEAD_DIM) < HEAD_DIM)


@triton.jit
def decode_without_a_function(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    seq, head, dim = tl.program_id(0), tl.program_id(1), tl.arange(0, HEAD_DIM)
    query = tl.load(q + seq * stride_seq + head * stride_q_head + dim).to(tl.float32)
    base = head // GROUP * stride_head + dim
    best, total = float("-inf"), 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for token in range(tl.load(context_lens + seq)):
        block = tl.load(block_tables + seq * stride_table + token // BLOCK_SIZE).to(tl.int64)
        offsets = block * stride_block + token % BLOCK_SIZE * stride_slot + base
        score = tl.sum(query * tl.load(k_cache + offsets).to(tl.float32), axis=0) * scale
        higher = tl.maximum(best, score)
        weight = tl.exp(score - higher)
        total = total * tl.exp(best - higher) + weight
        acc = acc * tl.exp(best - higher) + weight * tl.load(v_cache + offsets).to(tl.float32)
        best = higher
    tl.store(out + seq * stride_seq + head * stride_q_head + dim, acc / total)


for _attempt in (
    add_by_pointers, add_one_by_one, one_block_by_library, one_block_transposed, one_block_token_by_token, one_block_with_a_low_number,
    write_by_moved_pointers, write_one_by_one, attend_by_count, attend_twice_over, decode_by_moved_pointers, decode_without_a_function,
):  # fmt: skip
    assert hasattr(_attempt, "fn")

WRONG = {"07.1": ADD, "07.2": ONE_BLOCK, "07.3": ATTEND, "07.4": DECODE, "07.5": WRITE}

RIGHT = {
    "07.1": [
        *(add_by_pointers, add_one_by_one, add_with_clamped_loads, add_moved_pointers),
        *(add_in_two_stores, add_across_barriers),
    ],
    "07.2": [one_block_by_library, one_block_transposed, one_block_token_by_token, one_block_with_a_low_number],
    "07.3": [attend_by_count, attend_twice_over, attend_newest_first, attend_as_a_running_mean],
    "07.4": [decode_by_moved_pointers, decode_without_a_function, decode_by_element],
    "07.5": [write_by_moved_pointers, write_one_by_one],
}
