"""Questions on lesson 06: paged attention in PyTorch."""

import math
import random

import torch

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.attention.online_softmax import add_block, nothing_seen
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.recording import record_blocks
from lessons_lib.viz.softmax import draw_softmax_step


@item("06", "picture", "Build 2: softmax, one block at a time")
def rescale_in_picture(draw: random.Random) -> Asked:
    scores = torch.tensor([[float(draw.randint(-4, 4)) for _ in range(12)]])
    torch.manual_seed(draw.randrange(1000))
    steps = record_blocks(scores, torch.randn(12, 3), 4, add_block)
    first, second, third = (float(scores[0, at : at + 4].max()) for at in (0, 4, 8))
    right = math.log(steps[2].factor * steps[3].factor)
    if round(right) not in (0, -1, -2, -3, -4) or second >= third or second == first:
        raise Redraw

    def told(exponent: float) -> str:
        return f"exp({round(exponent)})" if round(exponent) else "1"

    return asked(
        "The picture shows an online softmax after its first block. By what is the total of this block multiplied "
        "until the third block has been added?",
        (told(right), f"The largest score goes from {first:g} to {max(first, second):g} and "
         f"{max(first, second, third):g}. A block whose scores are all smaller changes nothing: the factor is 1."),
        [
            (told(second - third), "That compares the maxima of two blocks. The running maximum is that of all scores "
             "so far."),
            (told(first - third), "A maximum never falls: smaller scores leave the old total as it is."),
            (told(first - second), "The largest score so far counts, of all blocks."),
            (told(-max(first, second, third)), "The total had a maximum subtracted already."),
            (told(-right), "A larger maximum makes the old weights smaller."),
            (told(right - 1), "The difference of the maxima is another one."),
            ("0", "The keys of the first block keep their share; it only gets smaller."),
        ],
        lambda: draw_softmax_step(steps, 1, [f"t{index}" for index in range(12)]),
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
    size, full = draw.choice((4, 8)), draw.randint(2, 3)
    tokens = size * full - draw.randint(1, 2)
    ids = draw.sample(range(1, 20), full + 3)
    blocks, queue = ids[:full], ids[full:]
    right = slot_mapping([*blocks, queue[0]], size, tokens, tokens + 3).tolist()
    beyond = blocks[-1] * size + tokens % size
    return asked(
        f"A sequence has {tokens} tokens in the cache and the block table {blocks}; blocks have {size} slots. The free "
        f"queue is {queue}, front first. The sequence computes 3 more tokens. To which cache slots are their keys "
        "written?",
        (right, f"The rest of block {blocks[-1]} is filled first. The other tokens are in a new block, the front of "
         "the queue."),
        [
            (list(range(beyond, beyond + 3)), f"Block {blocks[-1]} ends before that. The slots behind it belong to "
             "another block."),
            ([queue[0] * size + offset for offset in range(3)], "The last block has room, and new tokens fill it "
             "first."),
            (slot_mapping([*blocks, queue[0]], size, tokens - 1, tokens + 2).tolist(), "Positions count from 0, so the "
             "first new one is the number of tokens in the cache."),
        ],
    )  # fmt: skip


@item("06", "compute", "The problem: everything is copied, almost nothing is new")
def blocks_read(draw: random.Random) -> Asked:
    size, lengths = 16, [draw.randint(20, 200), 16 * draw.randint(2, 12), draw.randint(20, 200)]
    draw.shuffle(lengths)
    blocks, before = (sum(blocks_for(length + more, size) for length in lengths) for more in (1, 0))
    return asked(
        f"Three sequences have {lengths[0]}, {lengths[1]} and {lengths[2]} tokens in the cache, in blocks of 16. They "
        "decode one step with paged attention. Of how many blocks does a layer read keys, and how many tokens' keys "
        "does it write?",
        (f"{blocks} and 3", "The new token's key is written first, and the token attends to it, too. One sequence "
         "needs a new block for it."),
        [
            (f"{before} and 3", "The new token attends to itself. Its key is in a block as well, and one of these is a "
             "new one."),
            (f"{blocks} and {sum(lengths) + 3}", "Old keys stay where they are. Only new tokens' keys are written."),
            (f"{before + 3} and 3", "A last block that isn't full has room for the new key."),
            (f"{blocks_for(sum(lengths) + 3, size)} and 3", "Sequences don't share these blocks: each one rounds up."),
        ],
    )  # fmt: skip


ITEMS = [
    rescale_in_picture,
    running_total,
    written_slots,
    blocks_read,
    bug(
        "06", "Build 2: softmax, one block at a time", "online_softmax_of_floats",
        task="`attention` computes softmax(scores) @ values for one query, block by block, for scores of any size.",
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
        line=5, wrong="new = max(own)",
        why="The maximum must be that of all scores so far. With a block's own, `exp(highest - new)` overflows as soon "
        "as a block has much smaller scores than the one before it.",
        innocent={
            6: "In the first block this is exp(-inf), 0, and there is nothing to rescale.",
            10: "The output so far refers to the old maximum, as the total does, and both refer to the new one now.",
            11: "One division at the end makes the weights add up to 1.",
        },
        setup="import math",
        trial="""
scores, values = [1.0, 3.0, 2.0, 5.0, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0]
weights = [math.exp(score) for score in scores]
expected = sum(w * v for w, v in zip(weights, values)) / sum(weights)
assert abs(attention(scores, values, 2) - expected) < 1e-9
assert attention([1000.0, 1000.0, 0.0], [1.0, 2.0, 3.0], 2) == 1.5
""",
    ),
    bug(
        "06", "Build 3: paged attention", "blocks_of_a_query",
        task="`scores_of` returns the scores of one query head with all keys of a sequence. `query` is [query heads, "
        "head size], and `keys` is [blocks, slots, KV heads, head size].",
        code="""
def scores_of(query, keys, table, num_tokens, head):
    size, kv_heads = keys.shape[1], keys.shape[2]
    kv_head = head * kv_heads // len(query)
    scores = []
    for index, block in enumerate(table):
        filled = min(size, num_tokens - index * size)
        own = keys[block, :filled, kv_head]
        scores.append(own @ query[head])
    return torch.cat(scores)
""",
        line=3, wrong="kv_head = head % kv_heads",
        why="Neighbors share a KV head: with 4 query heads and 2 KV heads, query heads 0 and 1 use KV head 0, and 2 "
        "and 3 use KV head 1. That is `head // (query heads / KV heads)`.",
        innocent={
            6: "Only the last block may have fewer tokens than slots. What lies behind them isn't this sequence's.",
            7: "An entry of the table is a block's index in the cache, so keys are read where they are.",
            9: "Blocks in the order of the table are positions in order.",
        },
        setup="import torch",
        trial="""
torch.manual_seed(0)
keys, query = torch.randn(4, 2, 2, 3), torch.randn(4, 3)
got = scores_of(query, keys, [3, 1], 3, 1)
assert torch.allclose(got, torch.stack([keys[3, 0, 0], keys[3, 1, 0], keys[1, 0, 0]]) @ query[1])
""",
    ),
    design(
        "06", "Plugging it into a real model", "where_to_hook",
        "A colleague puts the block tables into a subclass of the Hugging Face cache: in each layer, `update` writes "
        "the new keys to their slots and returns all keys of the sequence as one tensor. All answers are right, for "
        "every model family. Which cost of lesson 05 is still there?",
        ("The copies: each step copies all cached keys", "`update` can only return one tensor of keys, so it gathers "
         "them from the blocks in each layer and step. An attention function also gets the queries."),
        ("The reserved room: memory for answers to come", "Blocks are allocated when tokens need them, in any case. "
         "And lesson 05 reserved no room, either."),
        ("The recomputation: old tokens are fed again", "Their keys are in the cache. It hands them out, and nothing "
         "is computed again."),
        ("The padding: short requests are made longer", "The row of new tokens has no padding, and a table lists the "
         "blocks of one request."),
    ),
    design(
        "06", "Prove it", "oracle_for_paging",
        "In a new engine with paged attention, blocks of 16 and greedy decoding, every answer is right if the engine "
        "has just started and serves one request. With several at once, most answers go wrong after their sequence "
        "has passed a block's border. Which mistake fits?",
        ("The slots are the first block's first slot plus the position", "In a new pool, one request gets neighboring "
         "blocks, so this is right. With several at once, the next block of a request lies elsewhere."),
        ("The table of a request doesn't get the new block at a border", "Then a request alone would go wrong at its "
         "first border, too."),
        ("The context length doesn't count the token that is computed", "Then every token of every request would miss "
         "its own key, also alone and before a border."),
        ("The blocks of a finished request are freed in the wrong order", "The order decides which block is reused "
         "next. Each slot that is read has been written by its own request."),
    ),
]  # fmt: skip
