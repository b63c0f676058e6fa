"""Questions on lesson 08: making the kernel fast."""

import random

from lessons_lib.assessment.question import Asked, asked, bug, item
from lessons_lib.measuring import attention_work


@item("08", "compute", "Count first")
def lower_bound(draw: random.Random) -> Asked:
    sequences, context, kv_heads = draw.choice((16, 32, 64)), draw.choice((1000, 2000, 4000)), draw.choice((4, 8))
    queries, bandwidth = kv_heads * 4, draw.choice((2, 3, 4))
    work = attention_work([1] * sequences, [context] * sequences, queries, kv_heads, 128)
    micros = work.bytes / (bandwidth * 1e12) * 1e6
    return asked(
        f"{sequences} sequences of {context:,} tokens decode; the layer has {queries} query heads, {kv_heads} KV heads "
        f"of size 128, in bfloat16. The GPU reads {bandwidth} TB/s. About how many microseconds does attention take at "
        "least?",
        (f"{micros:.0f}", "Each key and each value is read once: 2 × tokens × KV heads × 128 × 2 bytes, divided by the "
         "bandwidth."),
        [
            (f"{micros * 4:.0f}", "That reads keys and values once for each query head. A group can share them."),
            (f"{micros / 2:.0f}", "That is the keys alone, or one byte per element."),
            (f"{micros / sequences:.1f}", "That is one of the sequences."),
        ],
    )  # fmt: skip


@item("08", "compute", "Count first")
def answers_of_a_larger_batch(draw: random.Random) -> Asked:
    weights, cached = draw.choice((8, 12, 16)), draw.choice((0.1, 0.2, 0.25))
    small, large = draw.choice((1, 2, 4)), draw.choice((16, 32, 40))
    gain = large * (weights + small * cached) / (small * (weights + large * cached))
    return asked(
        f"A model's weights take {weights} GB. Each conversation has {cached:g} GB of keys and values. The GPU "
        f"reads 3 TB/s and does 900 TFLOP/s. About how many times as many tokens per second does a batch of {large} "
        f"conversations get at best as a batch of {small}?",
        (f"{gain:.1f}", f"A step reads the weights once and each cache: {weights + small * cached:g} GB for {small}, "
         f"{weights + large * cached:g} GB for {large}. At some operations per byte, the reading takes the time."),
        [
            (f"{large / small:.1f}", "That would be so if the caches took no time. They grow with the batch."),
            ("1.0", "Twice as many conversations don't read twice as much: the weights are read once for all."),
            (f"{(weights + large * cached) / (weights + small * cached):.1f}", "That is how much longer a step takes."),
            (f"{weights / cached / large:.1f}", "That is where the caches weigh as much as the weights."),
        ],
    )  # fmt: skip


@item("08", "compute", "Idea 1: read each key once")
def intensity_of_decode(draw: random.Random) -> Asked:
    kv_heads, group, context = draw.choice((2, 4, 8)), draw.choice((2, 4, 8)), draw.choice((4096, 8192))
    work = attention_work([1], [context], kv_heads * group, kv_heads, 128)
    return asked(
        f"A decode attends to {context:,} cached tokens, with {kv_heads * group} query heads and {kv_heads} KV "
        f"heads, in "
        "bfloat16. About how many operations does it do for each byte that it must read?",
        (f"{work.intensity:.0f}", "A key element of 2 bytes takes a multiplication and an addition for each query head "
         "of its group."),
        [
            (f"{work.intensity * kv_heads:.0f}" if kv_heads != 1 else "1,000", "A query head uses one KV head only."),
            (f"{work.intensity * context / 64:.0f}", "Operations and bytes both grow with the context."),
            (f"{2 * work.intensity:.0f}", "Two operations for 2 bytes and each head of the group: one for each byte."),
            (f"{work.intensity * 16:.0f}", "That would be a tile of 16 queries for each head."),
        ],
    )  # fmt: skip


ITEMS = [
    lower_bound,
    answers_of_a_larger_batch,
    intensity_of_decode,
    bug(
        "08", "Build 1: the softmax of a tile", "softmax_of_a_tile",
        task="`online_softmax` adds a tile of scores [rows, keys] to the running maximum, sum and output of each row. "
        "A row that has seen no key must not become NaN. Weights are powers of two.",
        code="""
def online_softmax(scores, row_max, row_sum, acc):
    tile_max = scores.max(dim=1).values
    new_max = torch.maximum(row_max, tile_max)
    nothing = new_max == float("-inf")
    reference = torch.where(nothing, 0.0, new_max)
    weights = torch.exp2(scores - reference[:, None])
    rescale = torch.exp2(row_max - reference)
    row_sum = row_sum * rescale + weights.sum(dim=1)
    acc = acc * rescale[:, None]
    return weights, new_max, row_sum, acc
""",
        line=5, wrong="reference = torch.where(nothing, 0.0, tile_max)",
        why="The sums would refer to this tile's maximum, while the maximum that is kept is that of all tiles: the "
        "next tile would rescale them by the wrong factor. And a tile that is all hidden gives NaN.",
        innocent={
            2: "Each row of scores has its own maximum: along the keys.",
            4: "Minus infinity minus minus infinity is NaN, so a row without keys so far needs another reference.",
            9: "The output is rescaled like the sum; the caller adds weights @ values.",
        },
        setup="import torch",
        trial="""
scores = torch.tensor([[3.0, 1.0], [-1.0, 2.0]])
first = online_softmax(scores, torch.full((2,), float("-inf")), torch.zeros(2), torch.zeros(2, 1))
second = online_softmax(scores - 2, *first[1:])
both = torch.cat([scores, scores - 2], dim=1)
assert torch.allclose(second[2], torch.exp2(both - both.max(1).values[:, None]).sum(1))
""",
    ),
    bug(
        "08", "Idea 2: a tile of several blocks", "keys_of_a_tile",
        task="`offsets` returns where the keys of one tile of BLOCK_N positions begin in the cache, and which of them "
        "are keys.",
        code="""
def offsets(table, first, context, size, BLOCK_N, stride_block, stride_slot):
    position = first + torch.arange(BLOCK_N)
    is_key = position < context
    known = torch.where(is_key, position, 0)
    block = table[known // size]
    slot = known % size
    start = block * stride_block
    return start + slot * stride_slot, is_key
""",
        line=5, wrong="block = table[first // size]",
        why="A tile may have more positions than a block has slots, and blocks needn't be neighbors. So each position "
        "looks up a block of its own.",
        innocent={
            3: "The context may end within the tile.",
            4: "Positions beyond the context may have no entry in the table. Any other one will do: they are masked.",
            6: "A position has the same place in its block wherever the tile begins.",
        },
        setup="import torch",
        trial="""
got, is_key = offsets(torch.tensor([5, 2, 7]), 4, 10, 4, 8, 400, 100)
assert got[is_key].tolist() == [800, 900, 1000, 1100, 2800, 2900]
""",
    ),
]  # fmt: skip
