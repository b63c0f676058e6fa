"""Checks 06.1, `PagedKVCache`: new tokens are written to their slots, a sequence is read back from its blocks."""

from random import Random

import torch

from lessons_lib.checks.exercise import Mistake, call, current_case, short
from lessons_lib.checks.lesson_06.cache_uses import check_uses
from lessons_lib.checks.lesson_06.operators import CountOperators
from lessons_lib.models.configuration import kv_head_size
from lessons_lib.models.tiny_models import tiny_model

BLOCK_SIZE, NUM_BLOCKS = 4, 3
EMPTY = -1.0

# The slots of one write each, smallest first.
WRITES = ([5], [1, 2, 9, 10], [8, 9, 10, 11, 4], [6, 7, 0, 9], [11, 10, 1], [0, 4, 8, 1])
# The blocks and the token count of one read each.
READS = (([1], 3), ([0, 2], 6), ([2, 0], 5), ([2], 4), ([1, 0], 8), ([2, 0, 1], 9), ([0, 2], 1))


def check_paged_cache(attempt) -> None:
    for layer in (0, 1):
        for slots in WRITES:
            _check_write(attempt, slots, layer)
    _check_no_loop(attempt)
    check_uses(attempt)
    for layer in (0, 1):
        for blocks, num_tokens in READS:
            _check_read(attempt, blocks, num_tokens, layer)
    _check_random(attempt)


def _config():
    return tiny_model("qwen2").config


def _codes(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of `count` tokens, every element different: [count, kv_heads, head_dim] each."""
    kv_heads, head_dim = kv_head_size(_config())
    elements = torch.arange(kv_heads * head_dim, dtype=torch.float32).reshape(kv_heads, head_dim)
    keys = 1000.0 * torch.arange(1, count + 1)[:, None, None] + elements
    return keys, keys + 0.5


def _new_cache(attempt, fill: bool):
    """A cache in which every slot is marked: as empty, or with its own index."""
    current_case.text = f"a new cache: PagedKVCache(config, {NUM_BLOCKS}, {BLOCK_SIZE})."
    cache = attempt(_config(), NUM_BLOCKS, BLOCK_SIZE)
    for keys, values in zip(cache.keys, cache.values):
        keys.fill_(EMPTY), values.fill_(EMPTY)
        if fill:
            all_keys, all_values = _codes(NUM_BLOCKS * BLOCK_SIZE)
            keys.copy_(all_keys.reshape(keys.shape)), values.copy_(all_values.reshape(values.shape))
    return cache


def _check_write(attempt, slots: list[int], layer: int) -> None:
    case = f"3 blocks of 4; write to layer {layer} of 2 with slot_mapping {slots}."
    cache = _new_cache(attempt, fill=False)
    before = [*cache.keys, *cache.values]
    keys, values = _codes(len(slots))
    try:
        call(cache.write, layer, keys, values, torch.tensor(slots), case=case)
    except IndexError as error:
        idea = (
            "`tensor[blocks][offsets]` is two steps: the first copies a whole block for each token, and the "
            "second writes into these copies. "
            "Index once, with `tensor[blocks, offsets] = rows`, or with slots in the flattened view, "
            "`tensor.flatten(0, 1)[slot_mapping] = rows`."
        )
        if f"dimension 0 with size {NUM_BLOCKS}" in str(error) and len(slots) != NUM_BLOCKS:
            idea = (
                f"The first axis of `self.keys[layer]` has {NUM_BLOCKS} entries, one per block, and the second one "
                f"{BLOCK_SIZE}, one per offset. A slot is an index into the flattened view, `flatten(0, 1)`; without "
                "it, index with `[slot_mapping // block_size, slot_mapping % block_size]`."
            )
        raise Mistake(f"writing raised IndexError: {str(error)[:120]}.", case=case, idea=idea) from None
    now = [*cache.keys, *cache.values]
    if any(old is not new and old.data_ptr() != new.data_ptr() for old, new in zip(before, now)):
        idea = (
            "Other code that keeps a reference to `cache.keys[layer]` would still use the old tensor, and a new "
            "one means copying the whole pool. Write into the existing tensor."
        )
        raise Mistake("the write replaced a tensor of the cache with a new one.", case=case, idea=idea)
    for name, tensors, rows in (("key", cache.keys, keys), ("value", cache.values, values)):
        pool = [NUM_BLOCKS, BLOCK_SIZE, *rows.shape[1:]]
        if any(list(tensor.shape) != pool for tensor in tensors):
            other = next(index for index, tensor in enumerate(tensors) if list(tensor.shape) != pool)
            raise Mistake(
                f"`self.{name}s[{other}]` now has the shape {list(tensors[other].shape)} instead of {pool}.",
                case=case,
                idea="`flatten` and `view` return another view of the same memory. Write through it, and leave "
                f"`self.{name}s[layer]` itself as it is.",
            )
        for other, tensor in enumerate(tensors):
            if other != layer and bool((tensor != EMPTY).any()):
                also = "too" if bool((tensors[layer] != EMPTY).any()) else f"instead of layer {layer}"
                raise Mistake(
                    f"layer {other} was changed {also}.",
                    case=case,
                    idea=f"Each layer has its own tensor: `self.{name}s[layer]`.",
                )
        _check_written(name, tensors[layer], rows, values if name == "key" else keys, slots, case)


def _check_written(name: str, tensor: torch.Tensor, rows, of_the_other, slots: list[int], case: str) -> None:
    stored = tensor.flatten(0, 1)
    for token, slot in enumerate(slots):
        if torch.equal(stored[slot], rows[token]):
            continue
        block, offset = divmod(slot, BLOCK_SIZE)
        what = f"the {name} of token {token} should be in slot {slot}, which is offset {offset} of block {block}; "
        if torch.equal(stored[slot], of_the_other[token]):
            raise Mistake(
                what + f"that slot contains its {'value' if name == 'key' else 'key'}.",
                case=case,
                idea="Keys go to `self.keys[layer]`, values to `self.values[layer]`.",
            )
        found = [index for index, row in enumerate(stored) if torch.equal(row, rows[token])]
        if not bool((stored != EMPTY).any()):
            idea = (
                "Did you write into a copy? "
                if name == "key"
                else "The keys were written. Write the values in the same way. "
            )
            idea += (
                f"`self.{name}s[layer].flatten(0, 1)` is a view, and `view[slot_mapping] = rows` writes to the cache. "
                "But the expression `view[slot_mapping]` makes a copy, and so does any `tensor[...]` that is indexed "
                "with a tensor or list."
            )
            raise Mistake(what + "nothing was written.", case=case, idea=idea)
        others = [index for index, row in enumerate(rows) if torch.equal(stored[slot], row)]
        if others:
            idea = "Entry t of `slot_mapping` is the slot of token t. The slots may come in any order."
            if int((stored != EMPTY).flatten(1).any(dim=1).sum()) < len(slots):
                idea = (
                    "Several tokens went to one slot, and the last one stays. Slot = block × block_size + offset, so "
                    f"slot {slot} is block {slot} // {BLOCK_SIZE}, offset {slot} % {BLOCK_SIZE}, and row {slot} of "
                    "`flatten(0, 1)`."
                )
            raise Mistake(what + f"that slot contains the {name} of token {others[0]}.", case=case, idea=idea)
        if found:
            idea = (
                f"Slot = block × block_size + offset. So slot {slot} is block {slot} // {BLOCK_SIZE}, offset "
                f"{slot} % {BLOCK_SIZE}, and row {slot} of `flatten(0, 1)`."
            )
            if found == [(slots[0] + token) % len(stored)]:
                idea = (
                    "You wrote the tokens to consecutive slots, starting at the first. Every token has its own "
                    "slot in `slot_mapping`."
                )
                if slots == WRITES[-1]:  # other writes to consecutive slots have failed earlier
                    idea = (
                        f"You filled a whole block, as {len(slots)} tokens came and the first one has a block's first "
                        "slot. The others may be anywhere: every token has its own slot in `slot_mapping`."
                    )
            elif found == [offset * BLOCK_SIZE + block]:
                idea = (
                    "Block and offset are swapped: the first axis of the tensor counts blocks, the second one offsets."
                )
            raise Mistake(what + f"it is in slot {found[0]}.", case=case, idea=idea)
        if not bool((stored[slot] != EMPTY).any()):
            idea = (
                "Something was written, but not this row to this slot. A row is what `flatten(0, 1)` has at the index "
                "of a slot: all KV heads of one token. Does your index count other things, such as heads?"
            )
            raise Mistake(what + "nothing was written there.", case=case, idea=idea)
        raise Mistake(
            what + f"that slot contains {short(stored[slot].flatten()[:4])}.",
            case=case,
            idea="Copy each row unchanged, with all its heads, to its slot: assign, don't add.",
        )
    stray = [slot for slot in range(len(stored)) if slot not in slots and bool((stored[slot] != EMPTY).any())]
    if stray:
        idea = (
            "Other slots belong to other tokens, perhaps of other requests. A write changes the slots of the new "
            "tokens and nothing else."
        )
        if {slot // BLOCK_SIZE for slot in stray} == {slot // BLOCK_SIZE for slot in slots} and len(slots) == 1:
            idea += f" Here every slot of block {slots[0] // BLOCK_SIZE} has changed."
        raise Mistake(f"slot {stray[0]} is not in the slot mapping, but was changed.", case=case, idea=idea)


def _check_no_loop(attempt) -> None:
    """Writing 40 tokens takes as many operators as writing 4."""
    counts = []
    for tokens in (4, 40):
        case = f"10 blocks of {BLOCK_SIZE}; write {tokens} tokens to layer 0."
        cache, (keys, values) = attempt(_config(), 10, BLOCK_SIZE), _codes(tokens)
        with CountOperators() as operators:
            call(cache.write, 0, keys, values, torch.arange(tokens), case=case)
        counts.append(len(operators.names))
    few, many = counts
    if many >= few + 36:
        what = (
            f"writing 4 tokens took {few} PyTorch operators, and writing 40 tokens took {many}: they "
            "shouldn't grow with the tokens."
        )
        raise Mistake(
            what,
            case=case,
            idea="Is there a loop over the tokens, or over their blocks? Every layer of every pass "
            "calls this method. Write all rows at once: an index with many slots may also stand on the left of `=`.",
        )


def _check_read(attempt, blocks: list[int], num_tokens: int, layer: int) -> None:
    case = f"blocks of 4, layer {layer} of 2: read blocks {blocks}, {num_tokens} tokens."
    cache = _new_cache(attempt, fill=True)
    for other, tensor in enumerate([*cache.keys, *cache.values]):
        if other % 2 != layer:
            tensor.add_(50_000)
    got = call(cache.read, layer, list(blocks), num_tokens, case=case)
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Mistake(
            f"`read` should return a pair, (keys, values); yours returned {_kind(got)}.",
            case=case,
            idea="Attention needs both: keys for the scores, values for the output.",
        )
    slots = [block * BLOCK_SIZE + offset for block in blocks for offset in range(BLOCK_SIZE)][:num_tokens]
    all_keys, all_values = _codes(NUM_BLOCKS * BLOCK_SIZE)
    for name, found, every in (("keys", got[0], all_keys), ("values", got[1], all_values)):
        want = every[slots]
        if not isinstance(found, torch.Tensor):
            raise Mistake(
                f"the {name} should be a tensor; yours are {type(found).__name__}.",
                case=case,
                idea="`tensor[blocks]` is a tensor with the blocks in this order.",
            )
        if found.shape != want.shape or not torch.equal(found, want):
            idea = _read_idea(found, want, blocks, num_tokens, all_keys, all_values)
            raise Mistake(_wrong_read(name, found, want, slots, every), case=case, idea=idea)


def _kind(got) -> str:
    return f"{type(got).__name__} of {len(got)}" if isinstance(got, (tuple, list)) else type(got).__name__


def _slots_in(found: torch.Tensor, every: torch.Tensor) -> list:
    """The slots that the rows of a result come from; "?" for a row that is in no slot."""
    return [
        int(row.flatten()[0] // 1000) - 1 if bool((every == row).flatten(1).all(dim=1).any()) else "?" for row in found
    ]


def _wrong_read(name: str, found: torch.Tensor, want: torch.Tensor, slots: list[int], every: torch.Tensor) -> str:
    if found.shape[1:] != want.shape[1:] or found.dim() != want.dim():
        return (
            f"the {name} should have the shape {list(want.shape)}, [tokens, KV heads, head size]; yours have "
            f"{list(found.shape)}."
        )
    yours = _slots_in(found, every)
    described = "yours come from none of the slots" if set(yours) == {"?"} else f"yours come from slots {short(yours)}"
    return f"the {name} should come from slots {slots}; {described}."


def _read_idea(found, want, blocks, num_tokens, all_keys, all_values) -> str:
    if found.dim() == 4:
        return "`tensor[blocks]` still has an axis for the blocks. `.flatten(0, 1)` merges it with the offsets."
    if found.shape[1:] != want.shape[1:]:
        return "Return one entry per token, with all KV heads."
    for every, other in ((all_keys, all_values), (all_values, all_keys)):
        if (
            found.shape == want.shape
            and torch.equal(found, every[_in_order(blocks)[:num_tokens]])
            and torch.equal(want, other[_in_order(blocks)[:num_tokens]])
        ):
            if every is all_keys:
                return "These are the keys. The values of this layer are in `self.values[layer]`."
            return "Yours starts with the values. The pair is (keys, values)."
    if any(_slots_in(found, every) == list(blocks) for every in (all_keys, all_values)):
        return "`blocks` contains block ids, not slots. Block b is `tensor[b]`, with block_size slots."
    if len(blocks) > -(-num_tokens // BLOCK_SIZE):
        return (
            f"Block {blocks[-1]} isn't in use yet: the tokens end before it. Take as many tokens as `num_tokens` says, "
            "not as many as the number of blocks suggests."
        )
    start = blocks[0] * BLOCK_SIZE
    if len(blocks) > 1 and any(
        torch.equal(found, every[start : start + num_tokens]) for every in (all_keys, all_values)
    ):
        return (
            f"You read on after block {blocks[0]}, in slots {start} to {start + num_tokens - 1}. The sequence goes on "
            f"in block {blocks[1]}, the next entry of `blocks`; it may be anywhere in the pool."
        )
    if len(found) > len(want):
        return (
            "The last block may not be full. The rest of its slots don't belong to this sequence: keep the first "
            "`num_tokens`."
        )
    if len(found) == len(want) - 1:
        return (
            "One token is missing. The positions are 0 to num_tokens - 1, and a slice excludes its end: "
            "`[:num_tokens]`."
        )
    if len(found) < len(want) and num_tokens % BLOCK_SIZE == 0:
        return (
            f"Tokens are missing. Here every block is full, the last one too: {num_tokens} % {BLOCK_SIZE} is 0, and "
            f"{num_tokens} // {BLOCK_SIZE} is {num_tokens // BLOCK_SIZE}."
        )
    if len(found) < len(want):
        return "Tokens are missing. Don't drop the partly filled last block: its first slots belong to the sequence."
    if torch.equal(found, want + 50_000):
        return "You read another layer. Each layer has its own tensor."
    in_order = _in_order(blocks)
    yours = min((_slots_in(found, every) for every in (all_keys, all_values)), key=lambda slots: slots.count("?"))
    if set(yours) <= set(in_order) and yours[0] // BLOCK_SIZE != blocks[0]:
        return (
            "You read the right blocks in another order. `blocks` is in the order of the tokens, and ids may come in "
            "any order. Don't sort them: the first block in the list holds the first tokens."
        )
    if yours == list(range(num_tokens)) and blocks[0]:
        return (
            f"You read the first {num_tokens} slots of the pool. The sequence starts in block {blocks[0]}, at slot "
            f"{start}: `blocks` contains the ids of its blocks."
        )
    if set(yours) <= set(in_order):
        return "The blocks are right. Tokens fill a block from its first slot on: keep the *first* `num_tokens`."
    if set(yours) == {"?"}:
        return (
            "No row is one of the cache: each row of the cache has all KV heads of one token. Does your code reorder "
            "or mix the axes before it takes the rows?"
        )
    return "`blocks` contains block ids, not slots. Block b is `tensor[b]`, with block_size slots."


def _in_order(blocks: list[int]) -> list[int]:
    return [block * BLOCK_SIZE + offset for block in blocks for offset in range(BLOCK_SIZE)]


def _check_random(attempt) -> None:
    rng = Random(6)
    config = _config()
    for block_size in (1, 5, 16):
        cache = attempt(config, 12, block_size)
        order = rng.sample(range(12), 12)
        tables = {"A": order[:5], "B": order[5:8], "C": order[8:]}
        lengths = {
            name: rng.randint((len(blocks) - 1) * block_size + 1, len(blocks) * block_size)
            for name, blocks in tables.items()
        }
        case = (
            f"blocks of {block_size}: A, B and C with {list(lengths.values())} tokens, written in one call, then read."
        )
        slots = [
            blocks[p // block_size] * block_size + p % block_size
            for name, blocks in tables.items()
            for p in range(lengths[name])
        ]
        keys, values = _codes(len(slots))
        call(cache.write, 1, keys, values, torch.tensor(slots), case=case)
        start = 0
        for name, blocks in tables.items():
            own = slice(start, start + lengths[name])
            start += lengths[name]
            got = call(cache.read, 1, list(blocks), lengths[name], case=case)
            if not torch.equal(got[0], keys[own]) or not torch.equal(got[1], values[own]):
                raise Mistake(
                    f"reading {name} back should return what was written; yours is different.",
                    case=case,
                    idea="The block size may be any positive integer; take it from the cache.",
                )
