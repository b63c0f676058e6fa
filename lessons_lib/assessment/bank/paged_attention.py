"""Questions on lesson 06: paged attention in PyTorch."""

import math
import random

import torch

from lessons_lib.assessment.question import Asked, asked, bug, design, item
from lessons_lib.attention.online_softmax import add_block, nothing_seen
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.recording import record_blocks
from lessons_lib.viz.softmax import draw_softmax_step


@item("06", "picture", "Build 2: softmax, one block at a time")
def rescale_in_picture(draw: random.Random) -> Asked:
    scores = torch.tensor([[float(draw.randint(-3, 3)) for _ in range(8)]])
    scores[0, 5] = scores[0, :4].max() + draw.randint(1, 3)
    torch.manual_seed(draw.randrange(1000))
    steps = record_blocks(scores, torch.randn(8, 3), 4, add_block)
    old, new = float(scores[0, :4].max()), float(scores.max())
    return asked(
        "The picture shows an online softmax after its first block. By what is the total multiplied when the second "
        "block is added?",
        (f"exp({old - new:g})", "The old maximum minus the new one: the old weights were taken relative to the old "
         "maximum."),
        [
            (f"exp({new - old:g})", "That is above 1. A larger maximum makes the old weights smaller."),
            ("1", "The second block has a larger score, so the old total refers to another maximum."),
            (f"exp({-new:g})", "The old total had the old maximum subtracted already."),
            ("0", "The keys of the first block keep their share; it only gets smaller."),
        ],
        lambda: draw_softmax_step(steps, 1, [f"t{index}" for index in range(8)]),
    )  # fmt: skip


@item("06", "compute", "Build 2: softmax, one block at a time")
def running_total(draw: random.Random) -> Asked:
    first, second = [draw.randint(-2, 3) for _ in range(2)], [draw.randint(-2, 6) for _ in range(2)]
    values = torch.zeros(2, 1)
    seen = nothing_seen(1, 1, torch.float32)
    for block in (first, second):
        seen = add_block(seen, torch.tensor([block], dtype=torch.float32), values)
    right, most = float(seen.total), max(first + second)
    bare = sum(math.exp(score) for score in first + second)
    unscaled = sum(math.exp(s - max(first)) for s in first) + sum(math.exp(s - most) for s in second)
    return asked(
        f"An online softmax sees scores {first[0]} and {first[1]}, then a block with {second[0]} and {second[1]}. What "
        "is its running total afterwards?",
        (f"{right:.3f}", "All four exponentials, relative to the largest score so far."),
        [
            (f"{bare:.3f}", "These are bare exponentials, without the maximum. They overflow for large scores."),
            (f"{unscaled:.3f}", "The old total has to be rescaled to the new maximum before the new weights are "
             "added."),
            (f"{sum(math.exp(s - max(second)) for s in second):.3f}", "That is the second block alone."),
            (f"{sum(math.exp(s - max(first)) for s in first):.3f}", "That is the first block alone."),
            ("1.000", "Weights add up to 1 only after the division by the total, at the end."),
        ],
    )  # fmt: skip


@item("06", "compute", "Build 1: a cache in blocks")
def written_slots(draw: random.Random) -> Asked:
    size, tokens = draw.choice((4, 8)), draw.randint(9, 20)
    blocks = draw.sample(range(20), blocks_for(tokens + 3, size))
    right = slot_mapping(blocks, size, tokens, tokens + 3).tolist()
    return asked(
        f"A sequence with the block table {blocks} (blocks of {size}) has {tokens} tokens in the cache and computes 3 "
        "more. To which cache slots are their keys written?",
        (right, f"Positions {tokens} to {tokens + 2}, through the table."),
        [
            (slot_mapping(blocks, size, tokens - 1, tokens + 2).tolist(), "Positions count from 0, so the first new "
             "one is the number of tokens in the cache."),
            (list(range(tokens, tokens + 3)), "These are positions; the table says in which blocks they are."),
            ([blocks[-1] * size + offset for offset in range(3)], "The new tokens go on where the old ones end, "
             "which needn't be the start of the last block."),
            ([blocks[0] * size + tokens + offset for offset in range(3)], "The blocks needn't be neighbors."),
        ],
    )  # fmt: skip


@item("06", "compute", "The problem: everything is copied, almost nothing is new")
def blocks_read(draw: random.Random) -> Asked:
    size, lengths = 16, [draw.randint(20, 200) for _ in range(3)]
    pool = BlockPool(64, size)
    blocks = sum(len(pool.allocate(blocks_for(length, size))) for length in lengths)
    return asked(
        f"Three sequences of {lengths[0]}, {lengths[1]} and {lengths[2]} tokens, the newest included, decode with "
        "paged attention and blocks of 16. How many blocks does a layer look at, and how many keys does it write?",
        (f"{blocks} and 3", "Each sequence reads the blocks of its own table, and writes its one new key."),
        [
            (f"{blocks} and {sum(lengths)}", "Old keys stay where they are. Only the new tokens' keys are written."),
            ("64 and 3", "Blocks of no sequence in the batch are never looked at."),
            (f"{blocks_for(sum(lengths), size)} and 3", "Sequences don't share these blocks: each one rounds up."),
            (f"{3 * blocks_for(max(lengths), size)} and 3", "Each sequence reads as many blocks as it has."),
        ],
    )


ITEMS = [
    rescale_in_picture,
    running_total,
    written_slots,
    blocks_read,
    bug(
        "06", "Build 2: softmax, one block at a time", "online_softmax_of_floats",
        task="`attention` computes softmax(scores) @ values for one query, one block at a time.",
        code="""
def attention(scores, values, size):
    highest, total, output = float("-inf"), 0.0, 0.0
    for start in range(0, len(scores), size):
        own = scores[start : start + size]
        new = max(highest, max(own))
        rescale = math.exp(highest - new)
        weights = [math.exp(score - new) for score in own]
        total = total * rescale + sum(weights)
        mixed = sum(w * v for w, v in zip(weights, values[start : start + size]))
        output, highest = output * rescale + mixed, new
    return output / total
""",
        line=10, wrong="output, highest = output + mixed, new",
        why="The output so far has weights relative to the old maximum. It needs the same rescaling as the total.",
        innocent={
            5: "The maximum never falls: it is that of all scores so far.",
            6: "In the first block this is exp(-inf), 0, and there is nothing to rescale.",
            11: "One division at the end makes the weights add up to 1.",
        },
        setup="import math",
        trial="""
scores, values = [1.0, 3.0, 2.0, 5.0, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0]
weights = [math.exp(score) for score in scores]
expected = sum(w * v for w, v in zip(weights, values)) / sum(weights)
assert abs(attention(scores, values, 2) - expected) < 1e-9
""",
    ),
    bug(
        "06", "Build 3: paged attention", "blocks_of_a_query",
        task="`scores_of` returns the scores of one query head with all keys of a sequence. `keys` is [blocks, slots, "
        "KV heads, head size].",
        code="""
def scores_of(query, keys, table, num_tokens, head, q_heads):
    size, kv_heads = keys.shape[1], keys.shape[2]
    group = q_heads // kv_heads
    kv_head = head // group
    scores = []
    for index, block in enumerate(table):
        filled = min(size, num_tokens - index * size)
        own = keys[block, :filled, kv_head]
        scores.append(own @ query)
    return torch.cat(scores)
""",
        line=4, wrong="kv_head = head % group",
        why="Neighbors share a KV head: with 4 query heads and 2 KV heads, query heads 0 and 1 use KV head 0, and 2 "
        "and 3 use KV head 1. That is `head // group`.",
        innocent={
            3: "So many query heads share one KV head.",
            7: "Only the last block may have fewer tokens than slots.",
            10: "Blocks in the order of the table are positions in order.",
        },
        setup="import torch",
        trial="""
torch.manual_seed(0)
keys, query = torch.randn(4, 2, 2, 3), torch.randn(3)
got = scores_of(query, keys, [3, 1], 3, 2, 4)
assert torch.allclose(got, torch.stack([keys[3, 0, 1], keys[3, 1, 1], keys[1, 0, 1]]) @ query)
""",
    ),
    design(
        "06", "Plugging it into a real model", "where_to_hook",
        "You want paged attention in five Hugging Face model families, and in those that come next year. Where do you "
        "put your code?",
        ("In one registered attention function that the models call by name", "It gets queries, keys and values after "
         "each family's own projections and rotary embedding."),
        ("In a copy of each family's modeling file, with the attention rewritten", "Five copies to keep up with, and a "
         "sixth for each family to come."),
        ("In a subclass of the cache that returns gathered keys and values", "It works, but gathers all keys into "
         "a new tensor in each layer: the copies that paging was to end."),
        ("In a forward hook on every attention layer, which replaces its output", "The hook runs when the layer's "
         "own attention is done, over a dense cache, and it gets neither queries nor keys."),
    ),
    design(
        "06", "Prove it", "oracle_for_paging",
        "Paged attention agrees with dense attention to six digits on random tensors, and the served texts differ from "
        "`generate` after 40 tokens (greedy, float32). Where do you look first?",
        ("At what each layer gets: positions, slot mapping, block tables", "The arithmetic is right on given tensors, "
         "so the mistake is likely in what it is given as a sequence grows past a block."),
        ("At the rescaling: a new maximum may come in a later block", "Random scores have later maxima in most "
         "sequences, so the agreement on tensors covers that."),
        ("At the pool: reused blocks still hold the keys of others", "The context length hides what lies behind it, "
         "and each key before it has been written by this sequence."),
        ("At the precision: rounding grows from one token to the next", "Keys are computed once from the same "
         "weights. Float32 rounding changes a greedy choice only at a tie."),
    ),
]  # fmt: skip
