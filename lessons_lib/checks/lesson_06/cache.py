"""06.1, `PagedKVCache.write`: new tokens are written to their slots, and nothing else changes."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.lesson_06.operators import Operators
from lessons_lib.models.configuration import KVShape
from lessons_lib.models.tiny_models import tiny_model

EMPTY = -1.0
SIZE = 4  # of a block
THREES, FINE = "blocks of 3", "fractions"
TRANSPOSED, OTHER_HEADS, HALF, MANY = "not contiguous", "1 KV head in layer 1", "float16", "a pool of 500 blocks"
READ = "then read"
TENSORS = "each tensor of the cache"
# Each write's layer and slots, and what is special.
Case = tuple[tuple[tuple[int, list[int]], ...], str]


def cases() -> Iterator[Case]:
    for layer in (0, 1):
        for slots in ([5], [1, 2, 9, 10], [8, 9, 10, 11, 4], [6, 7, 0, 9], [11, 10, 1], [0, 4, 8, 1]):
            yield ((layer, slots),), ""
    yield from ((((0, [5]), second), "") for second in ((0, [6]), (1, [6])))
    yield from ((((0, slots),), THREES) for slots in ([5], [3, 4, 8]))
    yield ((0, [5, 6]),), FINE
    yield ((0, [5, 6]),), TRANSPOSED
    yield from ((((1, slots),), OTHER_HEADS) for slots in ([5], [5, 6]))
    yield ((0, [5, 6]),), HALF
    yield ((0, list(range(100, 104))),), MANY
    yield from ((((layer, [8, 9, 10, 11, 4, 5, 6, 7, 2]),), READ) for layer in (0, 1))


def run(attempt: Any, case: Case, watch: Watch) -> None:
    writes, special = case
    dtype = torch.float16 if special == HALF else torch.float32
    shapes = [KVShape(2, 8, 8), KVShape(1 if special == OTHER_HEADS else 2, 8, 8)]
    num_blocks = 500 if special == MANY else 3
    cache = attempt(
        tiny_model("qwen2").config, num_blocks, 3 if special == THREES else SIZE, dtype=dtype, layer_shapes=shapes
    )
    before = [*cache.keys, *cache.values]
    for tensor in before:
        tensor.fill_(EMPTY)
    names: dict[tuple, str] = {}

    def look() -> dict[str, Any]:
        pairs = zip(before, [*cache.keys, *cache.values])
        if not all(old.data_ptr() == new.data_ptr() and old.shape == new.shape for old, new in pairs):
            return {TENSORS: Shown("replaced")}
        held = contents(cache, names, EMPTY) if special != MANY else {}
        return {TENSORS: Shown("the same as before")} | {f"what `{name}` holds": Shown(held[name]) for name in held}

    for number, (layer, slots) in enumerate(writes):
        keys, values = rows(len(slots), shapes[layer].kv_heads, dtype, number)
        if special == FINE:
            keys, values = keys / 3, values / 3
        names |= names_of(keys, values)
        if special == TRANSPOSED:
            keys, values = (each.transpose(0, 1).contiguous().transpose(0, 1) for each in (keys, values))
        call = f"`write({layer}, keys, values, {slots})`"
        watch(call, cache.write, layer, keys, values, torch.tensor(slots), returns=lambda _: None, look=look)
    if special == READ:
        for blocks, num_tokens in (([2, 1], 5), ([2, 1], 8), ([1], 3), ([0], 3), ([1, 0], 3)):
            call = f"`read({layer}, {blocks}, {num_tokens})`"
            watch(call, cache.read, layer, blocks, num_tokens, returns=list)
    if special == MANY:
        watch("writing 40 tokens", partial(cost, cache), subject="what it takes", returns=Shown)


def rows(count: int, kv_heads: int, dtype: torch.dtype, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, every element different."""
    keys = torch.arange(1, count * kv_heads * 8 + 1).reshape(count, kv_heads, 8) + 200 * number
    return keys.to(dtype), (keys + 500).to(dtype)


def names_of(keys: torch.Tensor, values: torch.Tensor) -> dict[tuple, str]:
    """From the elements of each new row, [T, kv_heads, head_dim], to its name."""
    new = {"key": keys, "value": values}
    return {tuple(row.flatten().tolist()): f"{kind} {t}" for kind, rows in new.items() for t, row in enumerate(rows)}


def contents(cache: Any, names: dict[tuple, str], empty: float) -> dict[str, str]:
    """What is in which slots of each tensor, in words."""
    found = {}
    for kind in ("keys", "values"):
        for layer, tensor in enumerate(getattr(cache, kind)):
            rows = enumerate(map(tuple, tensor.flatten(0, 1).flatten(1).tolist()))
            told = [f"{names.get(row, 'something else')} in slot {slot}" for slot, row in rows if {*row} != {empty}]
            found[f"{kind}[{layer}]"] = ", ".join(told) or "nothing"
    return found


def cost(cache: Any) -> str:
    """Compare writing 40 tokens with writing 4."""
    found = []
    for count in (4, 40):
        keys, values = rows(count, 2, torch.float32, 0)
        with Operators(*cache.keys, *cache.values) as operators:
            cache.write(0, keys, values, torch.arange(count))
        found.append(operators)
    if found[1].count >= found[0].count + 9:
        return "more operators than writing 4"
    return "a copy of the whole pool" if found[1].size >= cache.keys[0].numel() else "as many operators as writing 4"


def tell(case: Case) -> str:
    writes, special = case
    told = ", then ".join(f"layer {layer}, slots {slots}" for layer, slots in writes)
    size, special = (3, "") if special == THREES else (SIZE, special)
    return (
        f"{'' if special == MANY else '3 '}blocks of {size}, 2 layers; write to {told}{f'; {special}' * bool(special)}."
    )


MISTAKES = """
Did you write into a copy? `view[slot_mapping] = rows` writes to the cache, but the expression `view[slot_mapping]`
alone makes a copy, as any index that is a tensor or a list.
- cache.flatten => cache.flatten(0, 1)[slot_mapping].copy_(new)
`tensor[blocks][offsets]` is two steps: the first one copies a whole block for each token. Index once: `tensor[blocks,
offsets] = rows`, or with slots, `tensor.flatten(0, 1)[slot_mapping] = rows`.
- cache.flatten => cache[slot_mapping // self.block_size][slot_mapping % self.block_size] = new
The first axis of `self.keys[layer]` counts blocks. A slot is an index in the flattened view, `flatten(0, 1)`.
- cache.flatten => cache[slot_mapping] = new
or - cache.flatten => cache[slot_mapping, 0] = new
You wrote to consecutive slots. They come in any order: token t has its own, `slot_mapping[t]`.
- cache.flatten
+ first = int(slot_mapping[0])
+ cache.flatten(0, 1)[torch.arange(first, first + len(new)) % (self.num_blocks * self.block_size)] = new
or - cache.flatten => cache.flatten(0, 1)[slot_mapping.min() : slot_mapping.max() + 1] = new
The tokens stay in the order of `slot_mapping`. Don't sort it.
- cache.flatten => cache.flatten(0, 1)[slot_mapping.sort().values] = new
Block and offset are swapped. The first axis counts blocks, slot // block_size, the second one offsets, slot %
block_size.
- cache.flatten => cache[slot_mapping % self.block_size, slot_mapping // self.block_size] = new
Divide by the block size, not by the number of blocks.
- cache.flatten => cache[slot_mapping // self.num_blocks, slot_mapping % self.num_blocks] = new
The block size is `self.block_size`, not always 4.
- cache.flatten => cache[slot_mapping // 4, slot_mapping % 4] = new
That fills every slot of the block. A token has one slot in it, at offset slot % block_size.
- cache.flatten => cache[slot_mapping // self.block_size] = new[:, None]
Each layer has its own tensors: `self.keys[layer]` and `self.values[layer]`.
~ (self.keys[layer], keys), (self.values[layer], values) => (self.keys[0], keys), (self.values[0], values)
Write the rows as they are, with their heads in order: assign, don't add.
- cache.flatten => cache.flatten(0, 1)[slot_mapping] += new
A layer may have another number of KV heads: take the shape from this layer's tensor.
- cache.flatten => cache.view(-1, *self.keys[0].shape[2:])[slot_mapping] = new
The cache may have any dtype: don't convert the rows, neither to float32 nor to less.
- cache.flatten => cache.flatten(0, 1)[slot_mapping] = new.half().to(cache.dtype)
A loop over tokens or blocks runs in every layer of every pass. An index with many slots may also stand on the left of
`=`: write all rows at once.
- cache.flatten => for row, slot in zip(new, slot_mapping): cache.flatten(0, 1)[slot] = row
Your code copies the whole pool to write a few tokens. Assign to the view itself: `view[slot_mapping] = rows`.
- cache.flatten
+ rows = cache.flatten(0, 1).clone()
+ rows[slot_mapping] = new
+ cache.copy_(rows.view_as(cache))
"""

TASK = Task(
    reference="lessons_lib.kv_cache.paged_kv_cache:PagedKVCache",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about=dict.fromkeys(
        (f"what `{kind}[{layer}]` holds" for kind in ("keys", "values") for layer in (0, 1)),
        "Token t has slot `slot_mapping[t]`, block × block_size + offset: its key in `keys[layer]`, its value in "
        "`values[layer]`. Nothing else changes.",
    )
    | {
        "returned": "`read` is given: it needs no change.",
        TENSORS: "Write into the existing tensor. A new one is a copy of the whole pool, and other code still uses "
        "the old one.",
    },
)

EXERCISE = TASK.exercise(
    id="06.1",
    title="a cache in blocks",
    hints=(
        "`read` indexes a tensor with a whole list, on the right of `=`. What does such an index do on the left of "
        "`=`? (You need no division: flatten first.)",
        "Take this layer's tensor of keys, flatten its first two axes (a view), and assign to "
        "the rows `slot_mapping`; then do the same for the values.",
        "`self.keys[layer].flatten(0, 1)[slot_mapping] = keys`, and the same for the values.",
    ),
)
