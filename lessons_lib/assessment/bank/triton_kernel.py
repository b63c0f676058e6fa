"""Questions on lesson 07: a Triton paged-attention kernel."""

import random
from typing import Any

import torch

from lessons_lib.assessment.question import Asked, asked, bug, design, item
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.cache_slots import slot_mapping

# A few lines that stand in for Triton, so that the code of a question can be run anywhere, one program at a time.
TRITON = """
import torch
class Pointer:
    def __init__(self, data, at=0):
        self.data, self.at = data.flatten(), at
    def __add__(self, more):
        return Pointer(self.data, self.at + more)
class tl:
    ids = (0, 0)
    program_id = staticmethod(lambda axis: tl.ids[axis])
    arange, exp, log, where = torch.arange, torch.exp, torch.log, torch.where
    sum = staticmethod(lambda tile, axis: tile.sum(axis))
    max = staticmethod(lambda tile, axis: tile.max(axis).values)
    def load(pointer, mask=None, other=0.0):
        at = torch.as_tensor(pointer.at)
        keep = torch.ones_like(at, dtype=bool) if mask is None else mask.expand(at.shape)
        return torch.where(keep, pointer.data[torch.where(keep, at, 0)], other)
    def store(pointer, tile, mask=None):
        at = torch.as_tensor(pointer.at)
        keep = torch.ones_like(at, dtype=bool) if mask is None else mask
        pointer.data[at[keep]] = tile[keep]
"""


@item("07", "picture", "Build 1: addition")
def program_in_picture(draw: random.Random) -> Asked:
    size, programs = 4, draw.randint(3, 5)
    count = size * (programs - 1) + draw.randint(2, 3)
    end = min(4 * size, count) - 1

    def picture() -> Any:
        from lessons_lib.kernels.basics import add_kernel
        from lessons_lib.recording import record_kernel
        from lessons_lib.viz.programs import draw_program

        x = torch.arange(24.0)
        return draw_program(record_kernel(add_kernel, (programs,), x, x, torch.zeros(24), count, BLOCK=size), 1)

    return asked(
        f"The picture shows program 1 of {programs} of a kernel that adds two vectors. `n_elements` is {count}. "
        f"Someone launches it with a BLOCK of {2 * size}, and leaves the grid as it is. Which elements do program 1 "
        f"and program {programs - 1} store then?",
        (f"{2 * size} to {end}, and none", f"Program i has the tile from {2 * size} × i. The tile of program "
         f"{programs - 1} begins beyond `n_elements`, so its mask is all False. A large grid does no harm."),
        [
            (f"{size} to {3 * size - 1}, and {count - 2} to {count - 1}", "Where a tile begins depends on BLOCK, too: "
             "it is the program's id times BLOCK. Tiles don't overlap."),
            (f"{2 * size} to {end}, and {count - 2 * size} to {count - 1}", "A tile isn't moved so that it fits. The "
             "mask leaves out what is beyond `n_elements`."),
            (f"{size} to {2 * size - 1}, and {size * (programs - 1)} to {count - 1}", "That is with the BLOCK of the "
             "picture. The offsets of a program are its id times BLOCK, and on."),
        ],
        picture,
    )  # fmt: skip


@item("07", "compute", "Build 3: all sequences, all heads")
def programs_and_iterations(draw: random.Random) -> Asked:
    heads, kv_heads = draw.choice(((8, 2), (16, 4), (32, 8)))
    lengths = draw.sample(range(20, 300), 3)
    most = blocks_for(max(lengths), 16)
    return asked(
        f"Lesson 07's `decode_heads_kernel` attends for 3 "
        f"sequences of {', '.join(map(str, lengths))} tokens, with {heads} query heads, {kv_heads} KV heads and blocks "
        "of 16. How many programs run, and how many iterations does the longest one take?",
        (f"{3 * heads} and {most}", "One program for each sequence and query head; one iteration for each block."),
        [
            (f"{3 * kv_heads} and {most}", "This kernel has a program for each query head. Those of a group read the "
             "same KV head, each on its own."),
            (f"{3 * heads} and {max(lengths)}", "An iteration takes a whole block, not one token."),
            (f"{heads} and {most}", "The sequences are an axis of the grid, too."),
            (f"{3 * heads} and {sum(blocks_for(length, 16) for length in lengths)}", "A program reads the blocks of "
             "its own sequence only."),
        ],
    )  # fmt: skip


@item("07", "compute", "Build 2: attention over a block table")
def offset_of_a_key(draw: random.Random) -> Asked:
    heads, dim, size = draw.choice((2, 4, 8)), draw.choice((32, 64)), 16
    blocks = draw.sample(range(1, 20), 3)
    position, head = draw.randrange(size, 3 * size), draw.randrange(1, heads)
    strides = torch.empty(20, 2, size, heads, dim, device="meta")[:, 1].stride()
    bare = torch.empty(20, size, heads, dim, device="meta").stride()
    slot = int(slot_mapping(blocks, size, position, position + 1)[0])
    block, offset = divmod(slot, size)
    right = block * strides[0] + offset * strides[1] + head * strides[2]
    return asked(
        f"A layer keeps keys and values in one contiguous tensor [20 blocks, 2, 16, {heads} KV heads, {dim}], and "
        f"`v_cache = both[:, 1]`. A sequence has the block table {blocks}. How many elements behind the first one of "
        f"`v_cache` does the value of position {position}, KV head {head}, begin?",
        (right, "Block × stride of a block + slot in the block × stride of a slot + head × stride of a head. The keys "
         "of a block lie between the values of two blocks, so a block's stride is twice its values."),
        [
            (slot * bare[1] + head * bare[2], "That is for values in a tensor of their own. Here a block's stride "
             "includes its keys."),
            (right + size * bare[1], "That counts from the first key: `v_cache` begins behind the keys of block 0."),
            (position // size * strides[0] + offset * strides[1] + head * strides[2], "That takes the place in the "
             "table for the block."),
            (block * strides[0] + offset * strides[1] + head, "One KV head further is as many elements as a head has."),
        ],
    )  # fmt: skip


ITEMS = [
    program_in_picture,
    programs_and_iterations,
    offset_of_a_key,
    bug(
        "07", "Build 1: addition", "log_sum_exp_of_a_row",
        task="Program i writes the logarithm of the sum of exp(logit) over row i. A row has `n_columns` logits; BLOCK "
        "is a power of two.",
        code="""
def row_lse_kernel(logits, out, n_columns, stride, BLOCK):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    is_logit = column < n_columns
    at = row * stride + column
    own = tl.load(logits + at, mask=is_logit, other=float("-inf"))
    largest = tl.max(own, axis=0)
    total = tl.sum(tl.exp(own - largest), axis=0)
    tl.store(out + row, largest + tl.log(total))
""",
        line=6, wrong="own = tl.load(logits + at, mask=is_logit, other=0.0)",
        why="The lanes beyond the row take part in both reductions. A 0 may be the largest of them, and exp(0 - "
        "largest) isn't 0. Minus infinity is never the largest, and adds nothing to the sum.",
        innocent={
            4: "BLOCK may be larger than a row. The lanes beyond it would read what comes behind in memory.",
            8: "A sum relative to the largest logit can't overflow, and line 9 adds that logit again.",
            9: "It is a single number, and each program has one of its own, so it needs no mask.",
        },
        setup=TRITON,
        trial="""
logits, out = torch.tensor([[-3.0, -1, -2, 9], [5.0, 7, 6, 9]]), Pointer(torch.zeros(2))
for program in range(2):
    tl.ids = (program, 0)
    row_lse_kernel(Pointer(logits), out, 3, 4, 4)
assert torch.allclose(out.data, logits[:, :3].logsumexp(1))
""",
    ),
    bug(
        "07", "One block: strides, reductions, masks", "masked_keys_of_a_block",
        task="A kernel computes the attention of one query over a block that holds `num_tokens` "
        "keys. The query is scaled already.",
        code="""
def block_kernel(q, k, v, out, num_tokens, stride, DIM, SIZE):
    slot, dim = tl.arange(0, SIZE), tl.arange(0, DIM)
    is_key = slot < num_tokens
    at = slot[:, None] * stride + dim[None, :]
    query = tl.load(q + dim)
    keys = tl.load(k + at, mask=is_key[:, None], other=0.0)
    values = tl.load(v + at, mask=is_key[:, None], other=0.0)
    scores = tl.sum(query[None, :] * keys, axis=1)
    scores = tl.where(is_key, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    mixed = tl.sum(weights[:, None] * values, axis=0)
    tl.store(out + dim, mixed / tl.sum(weights, axis=0))
""",
        line=9, wrong="scores = tl.where(is_key, scores, 0.0)",
        why="exp(0 - max) isn't 0, so empty slots add to the sum of the weights. Minus infinity gives them weight 0.",
        innocent={
            4: "A column of row starts and a row of elements make a rectangle of offsets.",
            7: "A weight of 0 times what happens to be in memory could be NaN, so the values need the mask, too.",
            8: "Axis 1 goes along a key's elements and leaves one score for each key.",
        },
        setup=TRITON,
        trial="""
torch.manual_seed(0)
q, k, v, out = torch.randn(2), torch.randn(4, 2), torch.randn(4, 2), torch.zeros(2)
block_kernel(Pointer(q), Pointer(k), Pointer(v), Pointer(out), 3, 2, 2, 4)
assert torch.allclose(out, (k[:3] @ q).softmax(0) @ v[:3], atol=1e-5)
""",
    ),
    design(
        "07", "What is still wrong", "where_the_reads_go",
        "Lesson 07's kernel serves a model with 32 query heads and 8 KV heads, 10 sequences of 1,000 tokens, and "
        "blocks of 16. The recorder counts the bytes of keys and values that all programs load. How many times "
        "the bytes that the cache holds of these sequences are they?",
        ("4 times: each query head loads its keys for itself", "A grid of (sequences, query heads): the four query "
         "heads that share a KV head are four programs, and each loads the same keys."),
        ("Once: a program loads the keys of its KV head alone", "It does, but four programs have the same KV head, one "
         "for each query head."),
        ("32 times: each query head loads all keys", "A query head loads the keys of one KV head, which are an eighth "
         "of all."),
        ("10 times: every sequence loads the keys of all of them", "A program loads the blocks in its sequence's table "
         "only."),
    ),
    design(
        "07", "Prove it", "testing_a_kernel",
        "A paged-attention kernel passes with contexts of 16, 32 and 64: each time one sequence of random keys, in "
        "blocks 0, 1, 2, ... of 16 slots. Three of these mistakes may still be in it. Which one can't?",
        ("The output isn't rescaled when a larger score comes", "With random keys, the largest score of 32 or 64 is "
         "often in a later block, so these cases show it."),
        ("Empty slots at the end of a last block aren't masked", "All blocks of these cases are full, so there is no "
         "empty slot."),
        ("Program i uses sequence 0's row of the block tables", "There is one sequence, and its row is row 0."),
        ("The address is computed from positions, not by the table", "With the blocks 0, 1, 2, ... each position is "
         "its own slot."),
    ),
]  # fmt: skip
