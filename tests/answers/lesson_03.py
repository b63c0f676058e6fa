"""Answers to the exercises of lesson 03: what learners get wrong, and other ways to be right."""

import math
from collections import deque
from types import SimpleNamespace

import numpy as np
import torch
from transformers import LlamaConfig

from answers import Wrong
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.kv_cache.block_memory import block_bytes
from lessons_lib.kv_cache.block_table import BlockTable, TableFull, slot_of
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.kv_cache.block_serving import may_admit, step_in_blocks
from lessons_lib.models.configuration import cache_bytes_per_token, kv_head_size

# 03.1 BlockPool: each mistake is the reference with one method of its own


class TakesFromTheEnd(BlockPool):
    def allocate(self, count):
        if not 0 <= count <= len(self.free_queue):
            return super().allocate(count)
        blocks = [self.free_queue.pop() for _ in range(count)]
        self.used.update(blocks)
        return blocks


class SlicesTheQueue(BlockPool):
    def allocate(self, count):
        if count > len(self.free_queue):
            raise OutOfBlocks(f"{count} needed")
        blocks = list(self.free_queue)[:count]
        for block in blocks:
            self.free_queue.remove(block)
            self.used.add(block)
        return blocks


class ReturnsNothing(BlockPool):
    def allocate(self, count):
        super().allocate(count)


class ReturnsOneNumber(BlockPool):
    def allocate(self, count):
        blocks = super().allocate(count)
        return blocks[0] if count == 1 else blocks


class ReturnsASet(BlockPool):
    def allocate(self, count):
        return set(super().allocate(count))


class ReturnsATuple(BlockPool):
    def allocate(self, count):
        return tuple(super().allocate(count))


class SortsWhatItAllocates(BlockPool):
    def allocate(self, count):
        return sorted(super().allocate(count))


class ForgetsWhatIsUsed(BlockPool):
    def allocate(self, count):
        blocks = super().allocate(count)
        self.used.clear()
        return blocks


class LooksWithoutTaking(BlockPool):
    def allocate(self, count):
        if not 0 <= count <= len(self.free_queue):
            return super().allocate(count)
        blocks = list(self.free_queue)[:count]
        self.used.update(blocks)
        return blocks


class KeepsOneInReserve(BlockPool):
    def allocate(self, count):
        if count >= len(self.free_queue):
            raise OutOfBlocks("no")
        return super().allocate(count)


class AllocatesWhatThereIs(BlockPool):
    def allocate(self, count):
        return super().allocate(min(count, len(self.free_queue)))


class IndexErrorWhenEmpty(BlockPool):
    def allocate(self, count):
        if count < 0:
            raise ValueError("no")
        blocks = []
        for _ in range(count):
            blocks.append(self.free_queue.popleft())
            self.used.add(blocks[-1])
        return blocks


class ChangesBeforeRefusing(BlockPool):
    def allocate(self, count):
        if count < 0:
            raise ValueError("no")
        blocks = []
        while len(blocks) < count:
            if not self.free_queue:
                raise OutOfBlocks("no")
            blocks.append(self.free_queue.popleft())
            self.used.add(blocks[-1])
        return blocks


class SortsAfterRefusing(BlockPool):
    def allocate(self, count):
        if count < 0:
            raise ValueError("no")
        blocks = []
        while len(blocks) < count:
            if not self.free_queue:
                self.free_queue = deque(sorted(blocks))
                self.used -= set(blocks)
                raise OutOfBlocks("no")
            blocks.append(self.free_queue.popleft())
            self.used.add(blocks[-1])
        return blocks


class TakesNegativeCounts(BlockPool):
    def allocate(self, count):
        return super().allocate(max(count, 0))


class ValueErrorWhenEmpty(BlockPool):
    def allocate(self, count):
        if count > len(self.free_queue):
            raise ValueError("not enough")
        return super().allocate(count)


class CountsDown(BlockPool):
    def allocate(self, count):
        return super().allocate(count)[::-1]


class CopiesTheQueue(BlockPool):
    def allocate(self, count):
        if not 0 <= count <= len(self.free_queue):
            return super().allocate(count)
        queue = list(self.free_queue)
        self.free_queue = deque(queue[count:])
        self.used.update(queue[:count])
        return queue[:count]


def free_checked(pool, blocks):
    """The refusals of `free`, for classes that only differ behind them."""
    if len(set(blocks)) < len(blocks) or not set(blocks) <= pool.used:
        raise ValueError("no")


class KeepsTheOrder(BlockPool):
    def free(self, blocks):
        free_checked(self, blocks)
        self.used -= set(blocks)
        self.free_queue.extend(blocks)


class PutsThemInFront(BlockPool):
    def free(self, blocks):
        free_checked(self, blocks)
        self.used -= set(blocks)
        self.free_queue.extendleft(blocks)


class SortsTheQueue(BlockPool):
    def free(self, blocks):
        free_checked(self, blocks)
        self.used -= set(blocks)
        self.free_queue = deque(sorted([*self.free_queue, *blocks]))


class SortsTheFreed(BlockPool):
    def free(self, blocks):
        free_checked(self, blocks)
        self.used.difference_update(blocks)
        self.free_queue.extend(sorted(blocks, reverse=True))


class ReversesInPlace(BlockPool):
    def free(self, blocks):
        free_checked(self, blocks)
        self.used -= set(blocks)
        if isinstance(blocks, list):
            blocks.reverse()
        self.free_queue.extend(blocks)


class StaysUsed(BlockPool):
    def free(self, blocks):
        free_checked(self, blocks)
        self.free_queue.extend(reversed(blocks))


class LosesBlocks(BlockPool):
    def free(self, blocks):
        free_checked(self, blocks)
        self.used -= set(blocks)


class AcceptsDoubleFree(BlockPool):
    def free(self, blocks):
        self.used -= set(blocks)
        self.free_queue.extend(reversed(blocks))


class AcceptsTheSameBlockTwice(BlockPool):
    def free(self, blocks):
        if not set(blocks) <= self.used:
            raise ValueError("no")
        self.used -= set(blocks)
        self.free_queue.extend(reversed(blocks))


class PoolComparing(BlockPool):
    """`same(blocks)` is how it finds a block that is listed twice."""

    def free(self, blocks):
        if self.same(blocks) or not set(blocks) <= self.used:
            raise ValueError("no")
        self.used -= set(blocks)
        self.free_queue.extend(reversed(blocks))


class ComparesNeighbors(PoolComparing):
    def same(self, blocks):
        return any(one == other for one, other in zip(blocks, blocks[1:]))


class ComparesTheEnds(PoolComparing):
    def same(self, blocks):
        return len(blocks) > 1 and blocks[0] == blocks[-1]


class ComparesWithTheFirst(PoolComparing):
    def same(self, blocks):
        return any(block == blocks[0] for block in blocks[1:])


class MakesASetOfAllIds(BlockPool):
    def free(self, blocks):
        if not set(blocks) <= set(range(self.num_blocks)):
            raise ValueError("no such block")
        super().free(blocks)


class CountsTheFreeIds(BlockPool):
    def allocate(self, count):
        if count > sum(block not in self.used for block in range(self.num_blocks)):
            raise OutOfBlocks("too few")
        return super().allocate(count)


class KeyErrorOnDoubleFree(BlockPool):
    def free(self, blocks):
        for block in reversed(blocks):
            self.used.remove(block)
            self.free_queue.append(block)


class FreesHalfBeforeRefusing(BlockPool):
    def free(self, blocks):
        for block in blocks:
            if block not in self.used:
                raise ValueError("no")
            self.used.remove(block)
        self.free_queue.extend(reversed(blocks))


class ChecksWhileItFrees(BlockPool):
    def free(self, blocks):
        if len(set(blocks)) < len(blocks):
            raise ValueError("listed twice")
        for block in reversed(blocks):
            if block not in self.used:
                raise ValueError(block)
            self.used.remove(block)
            self.free_queue.append(block)


class AcceptsForeignBlocks(BlockPool):
    def free(self, blocks):
        if len(set(blocks)) < len(blocks) or set(blocks) & set(self.free_queue):
            raise ValueError("no")
        self.used -= set(blocks)
        self.free_queue.extend(reversed(blocks))


class SearchesTheQueue(BlockPool):
    def free(self, blocks):
        if any(block in self.free_queue for block in blocks):
            raise ValueError("already free")
        super().free(blocks)


class RebuildsTheQueue(BlockPool):
    def free(self, blocks):
        free_checked(self, blocks)
        self.used.difference_update(blocks)
        self.free_queue = deque([*self.free_queue, *reversed(blocks)])


class SearchesAList(BlockPool):
    def free(self, blocks):
        if any(block not in list(self.used) for block in blocks):
            raise ValueError("not handed out")
        super().free(blocks)


class SortsTheUsed(BlockPool):
    def allocate(self, count):
        blocks = super().allocate(count)
        self.used = set(sorted(self.used))
        return blocks


class SubtractsTheUsed(BlockPool):
    def free(self, blocks):
        free_checked(self, blocks)
        self.used = self.used - set(blocks)
        self.free_queue.extend(reversed(blocks))


class PoolOfSets(BlockPool):
    """Every set operation whose time depends on the blocks that are moved."""

    def allocate(self, count):
        if count < 0:
            raise ValueError(count)
        if count > len(self.free_queue):
            raise OutOfBlocks(count)
        blocks = [self.free_queue.popleft() for _ in range(count)]
        self.used |= set(blocks)
        return blocks

    def free(self, blocks):
        given = set(blocks)
        if len(given) < len(blocks) or given - self.used or not given.issubset(self.used) or self.used & given != given:
            raise ValueError(blocks)
        self.used -= given
        for block in blocks[::-1]:
            self.free_queue.append(block)


class DropsTheQueue(BlockPool):
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        del self.free_queue


class PoolOneByOne(BlockPool):
    """As above, block by block."""

    def allocate(self, count):
        if count < 0:
            raise ValueError(f"{count} is negative")
        if len(self.free_queue) < count:
            raise OutOfBlocks(f"{count} needed, {len(self.free_queue)} free")
        blocks = ()
        while len(blocks) < count:
            block = self.free_queue.popleft()
            self.used.add(block)
            blocks += (block,)
        return list(blocks)

    def free(self, blocks):
        seen = set()
        for block in blocks:
            if block in seen or block not in self.used:
                raise ValueError(f"{block} can't be freed")
            seen.add(block)
        for block in blocks[::-1]:
            self.used.discard(block)
            self.free_queue.append(block)


class PoolThatRollsBack(BlockPool):
    """Tries, and takes everything back when it fails."""

    def allocate(self, count):
        if count < 0:
            raise ValueError(count)
        blocks = []
        try:
            for _ in range(count):
                blocks.append(self.free_queue.popleft())
        except IndexError:
            self.free_queue.extendleft(reversed(blocks))
            raise OutOfBlocks(count) from None
        self.used |= set(blocks)
        return blocks

    def free(self, blocks):
        removed = []
        try:
            for block in reversed(blocks):
                self.used.remove(block)
                removed.append(block)
        except KeyError:
            self.used.update(removed)
            raise ValueError(blocks) from None
        self.free_queue += removed


class PoolWithAList:
    """Other containers, and numbers of numpy."""

    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free_queue, self.used = [np.int64(block) for block in range(num_blocks)], {}

    def allocate(self, count):
        if count < 0:
            raise ValueError(count)
        if count > len(self.free_queue):
            raise OutOfBlocks(count)
        blocks, self.free_queue = self.free_queue[:count], self.free_queue[count:]
        self.used |= dict.fromkeys(blocks, True)
        return blocks

    def free(self, blocks):
        if len(set(blocks)) != len(list(blocks)) or any(block not in self.used for block in blocks):
            raise ValueError(blocks)
        self.free_queue += [self.used.pop(block) and block for block in reversed(blocks)]

    @property
    def utilization(self):
        return 1 - len(self.free_queue) / self.num_blocks


class PutsTheListIn(BlockPool):
    def free(self, blocks):
        queue = list(self.free_queue)
        super().free(blocks)
        if len(blocks) > 1:
            self.free_queue = deque([*queue, list(blocks)[::-1]])


class TakesTheOrderOfASet(BlockPool):
    def free(self, blocks):
        queue = list(self.free_queue)
        super().free(blocks)
        self.free_queue = deque([*queue, *reversed(list(set(blocks)))])


# 03.2 blocks_for


def plus_one(num_tokens, block_size):
    return num_tokens // block_size + 1


def rounds_down(num_tokens, block_size):
    return num_tokens // block_size


def by_shifting(num_tokens, block_size):
    return (num_tokens + block_size - 1) >> (block_size.bit_length() - 1)


def rounds(num_tokens, block_size):
    return round(num_tokens / block_size)


def fraction(num_tokens, block_size):
    return num_tokens / block_size


def numpy_ceil(num_tokens, block_size):
    return np.ceil(num_tokens / block_size)


def at_least_one(num_tokens, block_size):
    return max(1, blocks_for(num_tokens, block_size))


def always_sixteen(num_tokens, block_size):
    return blocks_for(num_tokens, 16)


def adds_the_remainder(num_tokens, block_size):
    return num_tokens // block_size + num_tokens % block_size


def only_the_remainder(num_tokens, block_size):
    return num_tokens % block_size


def adds_two_less(num_tokens, block_size):
    return (num_tokens + block_size - 2) // block_size


def adds_the_size(num_tokens, block_size):
    return (num_tokens + block_size - 1) // block_size + (num_tokens % block_size == block_size - 1)


def fraction_first(num_tokens, block_size):
    return (num_tokens + block_size - 1) / block_size


def adds_nearly_one(num_tokens, block_size):
    return int(num_tokens / block_size + 0.99)


def prints_it(num_tokens, block_size):
    blocks_for(num_tokens, block_size)


def as_text(num_tokens, block_size):
    return str(blocks_for(num_tokens, block_size))


def arguments_swapped(num_tokens, block_size):
    return -(-block_size // num_tokens) if num_tokens else 0


def slots_of_the_blocks(num_tokens, block_size):
    return -(-num_tokens // block_size) * block_size


def one_slot_kept_free(num_tokens, block_size):
    return -(-num_tokens // max(1, block_size - 1))


def as_tensor(num_tokens, block_size):
    return torch.tensor(num_tokens / block_size).ceil().int()


def by_ceil(num_tokens, block_size):
    return math.ceil(num_tokens / block_size)


def by_negative_floor(num_tokens, block_size):
    return -(-num_tokens // block_size)


def by_divmod(num_tokens, block_size):
    full, rest = divmod(num_tokens, block_size)
    return full + 1 if rest else full


def by_counting(num_tokens, block_size):
    return torch.arange(0, num_tokens, block_size).numel()


def by_numpy(num_tokens, block_size):
    return np.int64(num_tokens) // block_size + (np.int64(num_tokens) % block_size != 0).astype(np.int64)


# 03.3 BlockTable: each mistake is the reference with one method of its own


def table_with(append=None, release=None):
    """A table with this method in place of the reference's."""
    methods = {name: method for name, method in (("append", append), ("release", release)) if method}
    return type("Table", (BlockTable,), methods)


def refuse_wrong(table, count):
    """The refusals of `append` that come before the pool is asked."""
    if count < 0:
        raise ValueError("no")
    if table.max_blocks is not None and blocks_for(table.num_tokens + count, table.pool.block_size) > table.max_blocks:
        raise TableFull("no")


def grows_when_over_full(self, count=1):
    refuse_wrong(self, count)
    missing = blocks_for(self.num_tokens + count - 1, self.pool.block_size) - len(self.blocks)
    self.blocks += self.pool.allocate(max(missing, 1 if not self.blocks and count else 0))
    self.num_tokens += count


def grows_too_early(self, count=1):
    refuse_wrong(self, count)
    needed = (self.num_tokens + count) // self.pool.block_size + 1 if self.num_tokens + count else 0
    self.blocks += self.pool.allocate(needed - len(self.blocks))
    self.num_tokens += count


def a_block_every_time(self, count=1):
    refuse_wrong(self, count)
    self.blocks += self.pool.allocate(blocks_for(count, self.pool.block_size))
    self.num_tokens += count


def only_one_block_a_call(self, count=1):
    refuse_wrong(self, count)
    if self.num_tokens + count > len(self.blocks) * self.pool.block_size:
        self.blocks += self.pool.allocate(1)
    self.num_tokens += count


def forgets_the_tokens(self, count=1):
    refuse_wrong(self, count)
    self.blocks += self.pool.allocate(blocks_for(self.num_tokens + count, self.pool.block_size) - len(self.blocks))


def replaces_the_old_blocks(self, count=1):
    refuse_wrong(self, count)
    self.num_tokens += count
    missing = blocks_for(self.num_tokens, self.pool.block_size) - len(self.blocks)
    if missing:
        self.blocks = self.pool.allocate(missing)


def new_blocks_in_front(self, count=1):
    refuse_wrong(self, count)
    self.num_tokens += count
    new = self.pool.allocate(blocks_for(self.num_tokens, self.pool.block_size) - len(self.blocks))
    self.blocks = new + self.blocks


def a_list_in_the_list(self, count=1):
    refuse_wrong(self, count)
    missing = blocks_for(self.num_tokens + count, self.pool.block_size) - len(self.blocks)
    if missing:
        self.blocks.append(self.pool.allocate(missing))
    self.num_tokens += count


def past_the_pool(self, count=1):
    refuse_wrong(self, count)
    missing = blocks_for(self.num_tokens + count, self.pool.block_size) - len(self.blocks)
    if missing > len(self.pool.free_queue):
        raise OutOfBlocks("no")
    self.blocks += [self.pool.free_queue.popleft() for _ in range(missing)]
    self.num_tokens += count


def counts_before_allocating(self, count=1):
    refuse_wrong(self, count)
    self.num_tokens += count
    self.blocks += self.pool.allocate(blocks_for(self.num_tokens, self.pool.block_size) - len(self.blocks))


def token_by_token(self, count=1):
    refuse_wrong(self, count)
    for _ in range(count):
        if self.num_tokens == len(self.blocks) * self.pool.block_size:
            self.blocks += self.pool.allocate(1)
        self.num_tokens += 1


def block_by_block(self, count=1):
    refuse_wrong(self, count)
    while len(self.blocks) < blocks_for(self.num_tokens + count, self.pool.block_size):
        self.blocks += self.pool.allocate(1)
    self.num_tokens += count


def says_no_quietly(self, count=1):
    try:
        BlockTable.append(self, count)
    except OutOfBlocks:
        return False


def swallows_out_of_blocks(self, count=1):
    try:
        BlockTable.append(self, count)
    except OutOfBlocks:
        pass


def table_full_without_blocks(self, count=1):
    try:
        BlockTable.append(self, count)
    except OutOfBlocks:
        raise TableFull("no") from None


def without_limit(self, count=1):
    if count < 0:
        raise ValueError("no")
    self.blocks += self.pool.allocate(blocks_for(self.num_tokens + count, self.pool.block_size) - len(self.blocks))
    self.num_tokens += count


def limit_of_a_call(self, count=1):
    new = blocks_for(self.num_tokens + count, self.pool.block_size) - len(self.blocks)
    if self.max_blocks is not None and new > self.max_blocks:
        raise TableFull("no")
    without_limit(self, count)


def limit_below(self, count=1):
    if self.max_blocks and blocks_for(self.num_tokens + count, self.pool.block_size) >= self.max_blocks:
        raise TableFull("no")
    BlockTable.append(self, count)


def always_sixteen_a_block(self, count=1):
    refuse_wrong(self, count)
    self.blocks += self.pool.allocate(blocks_for(self.num_tokens + count, 16) - len(self.blocks))
    self.num_tokens += count


def limit_after_taking(self, count=1):
    if count < 0:
        raise ValueError("no")
    self.blocks += self.pool.allocate(blocks_for(self.num_tokens + count, self.pool.block_size) - len(self.blocks))
    if self.max_blocks is not None and len(self.blocks) > self.max_blocks:
        raise TableFull("no")
    self.num_tokens += count


def zero_is_no_limit(self, count=1):
    if self.max_blocks:
        refuse_wrong(self, count)
    without_limit(self, count)


def out_of_blocks_at_the_limit(self, count=1):
    try:
        BlockTable.append(self, count)
    except TableFull:
        raise OutOfBlocks("the table is full") from None


def shrinks(self, count=1):
    if count < 0:
        self.num_tokens += count
    else:
        BlockTable.append(self, count)


def shrinks_inside_a_block(self, count=1):
    if blocks_for(self.num_tokens + count, self.pool.block_size) < len(self.blocks):
        raise ValueError(count)
    refuse_wrong(self, max(count, 0))
    self.blocks += self.pool.allocate(blocks_for(self.num_tokens + count, self.pool.block_size) - len(self.blocks))
    self.num_tokens += count


def needs_an_argument(self, count):
    BlockTable.append(self, count)


def reversed_twice(self):
    self.pool.free(self.blocks[::-1])
    self.blocks, self.num_tokens = [], 0


def takes_and_gives_back(self, count=1):
    refuse_wrong(self, count)
    before = list(self.blocks)
    try:
        while len(self.blocks) < blocks_for(self.num_tokens + count, self.pool.block_size):
            self.blocks += self.pool.allocate(1)
    except OutOfBlocks:
        self.pool.free(self.blocks[len(before) :])
        self.blocks = before
        raise
    self.num_tokens += count


def frees_sorted(self):
    self.pool.free(sorted(self.blocks))
    self.blocks, self.num_tokens = [], 0


def starts_anew_without_its_limit(self):
    self.pool.free(self.blocks)
    self.__init__(self.pool)


def at_least_one_block(self, count=1):
    refuse_wrong(self, count)
    needed = max(1, blocks_for(self.num_tokens + count, self.pool.block_size))
    self.blocks += self.pool.allocate(needed - len(self.blocks))
    self.num_tokens += count


def full_with_room_left(self, count=1):
    if self.max_blocks is not None and len(self.blocks) >= self.max_blocks:
        raise TableFull("no")
    BlockTable.append(self, count)


def room_in_no_block(self, count=1):
    refuse_wrong(self, count)
    room = self.pool.block_size - self.num_tokens % self.pool.block_size
    self.blocks += self.pool.allocate(blocks_for(max(0, count - room), self.pool.block_size))
    self.num_tokens += count


def one_at_a_time(self):
    for block in self.blocks:
        self.pool.free([block])
    self.blocks, self.num_tokens = [], 0


def writes_the_books(self):
    self.pool.used.difference_update(self.blocks)
    self.pool.free_queue.extend(reversed(self.blocks))
    self.blocks, self.num_tokens = [], 0


def one_at_a_time_from_the_end(self):
    self.blocks.reverse()
    one_at_a_time(self)


def keeps_the_blocks(self):
    self.pool.free(self.blocks)
    self.num_tokens = 0


def keeps_the_tokens(self):
    self.pool.free(self.blocks)
    self.blocks = []


def empties_first(self):
    self.blocks, self.num_tokens = [], 0
    self.pool.free(self.blocks)


def only_the_last_block(self):
    if self.blocks:
        self.pool.free(self.blocks[-1:])
    self.blocks, self.num_tokens = [], 0


def lowers_the_limit(self):
    BlockTable.release(self)
    self.max_blocks = None if self.max_blocks is None else 0


def a_block_for_nothing(self, count=1):
    if count == 0 and self.blocks and self.num_tokens % self.pool.block_size == 0:
        self.blocks += self.pool.allocate(1)
    else:
        BlockTable.append(self, count)


def refuses_when_empty(self):
    if not self.blocks:
        raise ValueError("nothing to release")
    BlockTable.release(self)


class SharedBlocks(BlockTable):
    common = []

    def __init__(self, pool, max_blocks=None):
        super().__init__(pool, max_blocks)
        self.common.clear()
        self.blocks = self.common


class TableByRoom(BlockTable):
    """Counts the room in the last block."""

    def append(self, count=1):
        if count < 0:
            raise ValueError(count)
        room = len(self.blocks) * self.pool.block_size - self.num_tokens
        missing = math.ceil(max(0, count - room) / self.pool.block_size)
        if self.max_blocks is not None and len(self.blocks) + missing > self.max_blocks:
            raise TableFull(count)
        if missing:
            self.blocks.extend(self.pool.allocate(missing))
        self.num_tokens = self.num_tokens + count

    def release(self):
        blocks, self.blocks, self.num_tokens = self.blocks, [], 0
        self.pool.free(blocks)


class TableOfTuples:
    """Written from scratch, and asks the pool itself."""

    def __init__(self, pool, max_blocks=None):
        self.pool, self.max_blocks, self.blocks, self.num_tokens = pool, max_blocks, (), 0

    def append(self, count=1):
        if count < 0:
            raise ValueError("a table only grows")
        needed = -(-(self.num_tokens + count) // self.pool.block_size)
        if needed > (math.inf if self.max_blocks is None else self.max_blocks):
            raise TableFull("too long")
        if needed - len(self.blocks) > len(self.pool.free_queue):
            raise OutOfBlocks("too few")
        self.blocks += tuple(self.pool.allocate(needed - len(self.blocks)))
        self.num_tokens += count

    def release(self):
        if self.blocks:
            self.pool.free(self.blocks)
        self.blocks, self.num_tokens = (), 0


# 03.4 slot_mapping


def checked(blocks, block_size, start, end):
    """The refusals, and the two tensors."""
    if start < 0 or end > len(blocks) * block_size:
        raise IndexError("no")
    return torch.arange(start, end), torch.tensor(blocks, dtype=torch.int64)


def mapped(slot):
    """`slot(table, positions, block_size, start)` with the refusals of the reference."""

    def attempt(blocks, block_size, start, end):
        positions, table = checked(blocks, block_size, start, end)
        return slot(table, positions, block_size, start)

    return attempt


the_positions = mapped(lambda t, p, size, start: p)
block_plus_offset = mapped(lambda t, p, size, start: t[p // size] + p % size)
first_slots = mapped(lambda t, p, size, start: t[p // size] * size)
offset_not_restarted = mapped(lambda t, p, size, start: t[p // size] * size + p)
offset_from_start = mapped(lambda t, p, size, start: t[p // size] * size + (p - start) % size)
block_ids = mapped(lambda t, p, size, start: t[p // size])
from_the_first_block = mapped(lambda t, p, size, start: t[(p - start) // size] * size + (p - start) % size)
blocks_of_sixteen = mapped(lambda t, p, size, start: t[p // size] * 16 + p % 16)
sorted_table = mapped(lambda t, p, size, start: t.sort().values[p // size] * size + p % size)
as_floats = mapped(lambda t, p, size, start: (t[p // size] * size + p % size).float())
as_a_column = mapped(lambda t, p, size, start: (t[p // size] * size + p % size)[:, None])
as_a_list = mapped(lambda t, p, size, start: (t[p // size] * size + p % size).tolist())


as_short = mapped(lambda t, p, size, start: (t[p // size] * size + p % size).short())
overflows = mapped(lambda t, p, size, start: t.short()[p // size] * size + p % size)
short_index = mapped(lambda t, p, size, start: t[(p // size).short()] * size + p % size)


def swapped(blocks, block_size, start, end):
    positions, table = checked(blocks, block_size, start, end)
    return table[positions % block_size] * block_size + positions // block_size


def end_included(blocks, block_size, start, end):
    checked(blocks, block_size, start, end)
    return slot_mapping([*blocks, 0], block_size, start, end + 1)


def whole_table(blocks, block_size, start, end):
    checked(blocks, block_size, start, end)
    return slot_mapping(blocks, block_size, 0, len(blocks) * block_size)


def from_zero_to_end(blocks, block_size, start, end):
    checked(blocks, block_size, start, end)
    return slot_mapping(blocks, block_size, 0, end)


def refuses_the_empty_range(blocks, block_size, start, end):
    if start < 0 or not start < end <= len(blocks) * block_size:
        raise IndexError("no")
    return slot_mapping(blocks, block_size, start, end)


def smallest_and_largest_position(blocks, block_size, start, end):
    positions = torch.arange(start, end)
    if positions.min() < 0 or positions.max() >= len(blocks) * block_size:
        raise IndexError("no")
    return slot_mapping(blocks, block_size, start, end)


def refuses_the_last_position(blocks, block_size, start, end):
    if end >= len(blocks) * block_size and end:
        raise IndexError("no")
    return slot_mapping(blocks, block_size, start, end)


def lets_negative_positions_pass(blocks, block_size, start, end):
    positions, table = torch.arange(start, end), torch.tensor(blocks, dtype=torch.int64)
    return table[positions // block_size] * block_size + positions % block_size


def cuts_at_the_end(blocks, block_size, start, end):
    if start < 0:
        raise IndexError("no")
    return slot_mapping(blocks, block_size, start, min(end, len(blocks) * block_size))


def end_against_blocks(blocks, block_size, start, end):
    if end > len(blocks):
        raise IndexError("beyond the table")
    return slot_mapping(blocks, block_size, start, end)


def found_in_blocks_of_sixteen(blocks, block_size, start, end):
    checked(blocks, block_size, start, end)
    positions = torch.arange(start, end)
    return torch.tensor(blocks, dtype=torch.int64)[positions // 16] * 16 + positions % 16


def by_float32(blocks, block_size, start, end):
    checked(blocks, block_size, start, end)
    positions = torch.arange(start, end)
    table = torch.tensor(blocks, dtype=torch.float32)
    return (table[positions // block_size] * block_size + positions % block_size).long()


def value_error(blocks, block_size, start, end):
    if start < 0 or end > len(blocks) * block_size:
        raise ValueError("no")
    return slot_mapping(blocks, block_size, start, end)


def one_after_the_other(blocks, block_size, start, end):
    if start < 0:
        raise IndexError("no")
    return torch.tensor([slot_of(blocks, block_size, p) for p in range(start, end)], dtype=torch.int64)


def sorts_the_argument(blocks, block_size, start, end):
    slots = slot_mapping(blocks, block_size, start, end)
    blocks.sort()
    return slots


def entries_without_the_last(blocks, block_size, start, end):
    slot_mapping(blocks, block_size, start, end)
    table = torch.tensor(blocks[start // block_size : end // block_size], dtype=torch.int64)
    slots = (table[:, None] * block_size + torch.arange(block_size)).flatten()
    return slots[start % block_size :][: end - start]


def neighbors(blocks, block_size, start, end):
    positions, _ = checked(blocks, block_size, start, end)
    return positions - start + (slot_of(blocks, block_size, start) if start < end else 0)


def all_slots_listed(blocks, block_size, start, end):
    checked(blocks, block_size, start, end)
    slots = [block * block_size + offset for block in blocks for offset in range(block_size)]
    return torch.tensor(slots[start:end], dtype=torch.int64)


def one_tensor_entry_after_the_other(blocks, block_size, start, end):
    positions, table = checked(blocks, block_size, start, end)
    slots = torch.empty_like(positions)
    for i, position in enumerate(range(start, end)):
        slots[i] = table[position // block_size] * block_size + position % block_size
    return slots


def positions_of_sixteen_bits(blocks, block_size, start, end):
    positions, table = checked(blocks, block_size, start, end)
    positions = positions.short()
    return table[(positions // block_size).long()] * block_size + positions % block_size


def piece_by_piece(blocks, block_size, start, end):
    if start < 0 or end > len(blocks) * block_size:
        raise IndexError("outside")
    pieces = [torch.empty(0, dtype=torch.int64)]
    for index, block in enumerate(blocks):
        first, behind = max(start, index * block_size), min(end, (index + 1) * block_size)
        if first < behind:
            pieces.append(torch.arange(first, behind) + (block - index) * block_size)
    return torch.cat(pieces)


def by_grid(blocks, block_size, start, end):
    if start < 0 or end > len(blocks) * block_size:
        raise IndexError(f"{start} to {end}")
    slots = torch.tensor(blocks, dtype=torch.int64)[:, None] * block_size + torch.arange(block_size)
    return slots.flatten()[start:end]


def by_numpy_arrays(blocks, block_size, start, end):
    if start < 0 or end > block_size * len(blocks):
        raise IndexError
    which, offset = np.divmod(np.arange(start, end), block_size)
    return torch.from_numpy(np.array(blocks, dtype=np.int64)[which] * block_size + offset)


def by_ranges(blocks, block_size, start, end):
    if start < 0 or end > len(blocks) * block_size:
        raise IndexError("outside")
    pieces = [torch.arange(block * block_size, (block + 1) * block_size, dtype=torch.int32) for block in blocks]
    return torch.cat(pieces)[start:end] if pieces else torch.empty(0, dtype=torch.int32)


# 03.5 blocks_in_budget


def refuse_budget(block_size, budget_bytes):
    if block_size < 1 or budget_bytes < 0:
        raise ValueError("no")


def budget_of(bytes_of_one):
    """Divides by `bytes_of_one(config, block_size, bytes_per_element)`, rounded down."""

    def attempt(config, block_size, budget_bytes, bytes_per_element=4):
        refuse_budget(block_size, budget_bytes)
        return int(budget_bytes // bytes_of_one(config, block_size, bytes_per_element))

    return attempt


tokens_not_blocks = budget_of(lambda config, size, number: cache_bytes_per_token(config, number))
always_four_bytes = budget_of(lambda config, size, number: block_bytes(config, size))
keys_only = budget_of(lambda config, size, number: block_bytes(config, size, number) // 2)
one_layer = budget_of(lambda config, size, number: block_bytes(config, size, number) // config.num_hidden_layers)
all_query_heads = budget_of(
    lambda config, size, number: (
        block_bytes(config, size, number) // kv_head_size(config)[0] * config.num_attention_heads
    )
)


def budget_rounded(config, block_size, budget_bytes, bytes_per_element=4):
    refuse_budget(block_size, budget_bytes)
    return round(budget_bytes / block_bytes(config, block_size, bytes_per_element))


def budget_rounded_up(config, block_size, budget_bytes, bytes_per_element=4):
    refuse_budget(block_size, budget_bytes)
    return math.ceil(budget_bytes / block_bytes(config, block_size, bytes_per_element))


def budget_with_a_fraction(config, block_size, budget_bytes, bytes_per_element=4):
    refuse_budget(block_size, budget_bytes)
    return budget_bytes / block_bytes(config, block_size, bytes_per_element)


def budget_a_float(config, block_size, budget_bytes, bytes_per_element=4):
    refuse_budget(block_size, budget_bytes)
    return budget_bytes // block_bytes(config, block_size, bytes_per_element)


def budget_without_refusals(config, block_size, budget_bytes, bytes_per_element=4):
    return int(budget_bytes // block_bytes(config, block_size, bytes_per_element))


def budget_of_one_at_least(config, block_size, budget_bytes, bytes_per_element=4):
    return max(1, int(budget_bytes // block_bytes(config, block_size, bytes_per_element)))


def budget_negative_is_none(config, block_size, budget_bytes, bytes_per_element=4):
    if block_size < 1:
        raise ValueError("no")
    return int(max(0, budget_bytes) // block_bytes(config, block_size, bytes_per_element))


def budget_zero_refused(config, block_size, budget_bytes, bytes_per_element=4):
    if block_size < 1 or budget_bytes <= 0:
        raise ValueError("x")
    return int(budget_bytes // block_bytes(config, block_size, bytes_per_element))


model = SimpleNamespace(config=LlamaConfig(hidden_size=256, num_hidden_layers=8, num_attention_heads=4))


def budget_of_the_notebooks_model(config, block_size, budget_bytes, bytes_per_element=4):
    refuse_budget(block_size, budget_bytes)
    return int(budget_bytes // block_bytes(model.config, block_size, bytes_per_element))


def budget_with_one_block_left(config, block_size, budget_bytes, bytes_per_element=4):
    refuse_budget(block_size, budget_bytes)
    return max(0, int(budget_bytes // block_bytes(config, block_size, bytes_per_element)) - 1)


def budget_in_sixteens(config, block_size, budget_bytes, bytes_per_element=4):
    refuse_budget(block_size, budget_bytes)
    return int(budget_bytes // block_bytes(config, 16, bytes_per_element))


def budget_in_bits(config, block_size, budget_bytes, bytes_per_element=4):
    refuse_budget(block_size, budget_bytes)
    return int(budget_bytes // block_bytes(config, block_size, 8 * bytes_per_element))


def budget_nothing(config, block_size, budget_bytes, bytes_per_element=4):
    refuse_budget(block_size, budget_bytes)


def budget_by_tokens(config, block_size, budget_bytes, bytes_per_element=4):
    if block_size <= 0:
        raise ValueError("block size")
    if budget_bytes < 0:
        raise ValueError("budget")
    return int(budget_bytes) // cache_bytes_per_token(config, bytes_per_element) // block_size


def budget_by_hand(config, block_size, budget_bytes, bytes_per_element=4):
    refuse_budget(block_size, budget_bytes)
    heads, size = kv_head_size(config)
    return math.floor(budget_bytes / (2 * config.num_hidden_layers * heads * size * block_size * bytes_per_element))


# 03.6 step_in_blocks: three parts, of which each wrong answer replaces one


def leave(waiting, running, pool):
    for request in list(running):
        if request.finished:
            request.table.release()
            running.remove(request)


def grow(waiting, running, pool):
    place = 0
    while place < len(running):
        try:
            running[place].table.append()
            place += 1
        except OutOfBlocks:
            give_up(waiting, running, -1)


def give_up(waiting, running, index):
    request = running.pop(index)
    request.table.release()
    waiting.appendleft(request)


def prompt_fits(request, pool):
    return blocks_for(request.prompt_tokens, pool.block_size) <= len(pool.free_queue)


def admit(waiting, running, pool):
    while waiting and prompt_fits(waiting[0], pool):
        running.append(waiting.popleft())
        running[-1].table.append(running[-1].prompt_tokens)


def serving(leave=leave, grow=grow, admit=admit, order=(0, 1, 2)):
    parts = leave, grow, admit

    def attempt(waiting, running, pool):
        for index in order:
            parts[index](waiting, running, pool)

    return attempt


def leaves_while_looping(waiting, running, pool):
    for request in running:
        if request.finished:
            request.table.release()
            running.remove(request)


def leaves_with_blocks(waiting, running, pool):
    running[:] = [request for request in running if not request.finished]


def leaves_a_new_list(waiting, running, pool):
    finished = [request for request in running if request.finished]
    running = [request for request in running if request not in finished]
    for request in finished:
        request.table.release()


def grows_with_an_exception(waiting, running, pool):
    for request in running:
        request.table.append()


def first_gives_up(waiting, running, pool):
    place = 0
    while place < len(running):
        try:
            running[place].table.append()
            place += 1
        except OutOfBlocks:
            give_up(waiting, running, 0)
            place = max(place - 1, 0)


def gives_up_its_own(waiting, running, pool):
    for request in list(running):
        try:
            request.table.append()
        except OutOfBlocks:
            give_up(waiting, running, running.index(request))


def stalls(waiting, running, pool):
    for request in running:
        try:
            request.table.append()
        except OutOfBlocks:
            pass


def goes_to_the_back(waiting, running, pool):
    place = 0
    while place < len(running):
        try:
            running[place].table.append()
            place += 1
        except OutOfBlocks:
            give_up(waiting, running, -1)
            waiting.append(waiting.popleft())


def keeps_its_blocks(waiting, running, pool):
    for request in list(running):
        try:
            request.table.append()
        except OutOfBlocks:
            waiting.appendleft(running.pop())


def grows_as_a_waiting_one(waiting, running, pool):
    for request in list(running):
        while True:
            try:
                request.table.append()
                break
            except OutOfBlocks:
                give_up(waiting, running, -1)


def not_tried_again(waiting, running, pool):
    for request in list(running):
        if request in running:
            try:
                request.table.append()
            except OutOfBlocks:
                give_up(waiting, running, -1)


def copied_and_lost(waiting, running, pool):
    place = 0
    while place < len(running):
        try:
            running[place].table.append()
            place += 1
        except OutOfBlocks:
            running.pop().table.release()


def others_stop_growing(waiting, running, pool):
    for request in list(running):
        try:
            request.table.append()
        except OutOfBlocks:
            give_up(waiting, running, -1)
            if request in running:
                request.table.append()
            break


def frees_without_release(waiting, running, pool):
    place = 0
    while place < len(running):
        try:
            running[place].table.append()
            place += 1
        except OutOfBlocks:
            last = running.pop()
            pool.free(last.table.blocks)
            last.table.blocks = []
            waiting.appendleft(last)


def all_newer_ones_give_up(waiting, running, pool):
    place = 0
    while place < len(running):
        try:
            running[place].table.append()
            place += 1
        except OutOfBlocks:
            for _ in range(max(len(running) - place - 1, 1)):
                give_up(waiting, running, -1)


def goes_back_in_the_wrong_order(waiting, running, pool):
    queued = list(waiting)
    grow(waiting, running, pool)
    back = [request for request in waiting if request not in queued]
    waiting.clear()
    waiting.extend([*back[::-1], *queued])


def newest_grows_first(waiting, running, pool):
    index = 0
    while index < len(running):
        try:
            running[len(running) - 1 - index].table.append()
            index += 1
        except OutOfBlocks:
            give_up(waiting, running, -1)


def asks_for_a_free_block_always(waiting, running, pool):
    index = 0
    while index < len(running):
        if pool.free_queue:
            running[index].table.append()
            index += 1
        else:
            give_up(waiting, running, -1)


def admits_with_one_token(waiting, running, pool):
    while waiting and prompt_fits(waiting[0], pool):
        running.append(waiting.popleft())
        running[-1].table.append()


def admits_one(waiting, running, pool):
    if waiting and prompt_fits(waiting[0], pool):
        admit(type(waiting)([request := waiting.popleft()]), running, pool)
        assert request in running


def admits_at_the_front(waiting, running, pool):
    while waiting and prompt_fits(waiting[0], pool):
        running.insert(0, waiting.popleft())
        running[0].table.append(running[0].prompt_tokens)


def admits_below(waiting, running, pool):
    while waiting and blocks_for(waiting[0].prompt_tokens, pool.block_size) < len(pool.free_queue):
        running.append(waiting.popleft())
        running[-1].table.append(running[-1].prompt_tokens)


def admits_by_pool_size(waiting, running, pool):
    while waiting and blocks_for(waiting[0].prompt_tokens, pool.block_size) <= pool.num_blocks:
        running.append(waiting.popleft())
        running[-1].table.append(running[-1].prompt_tokens)


def admits_if_a_block_is_free(waiting, running, pool):
    while waiting and pool.free_queue:
        running.append(waiting.popleft())
        running[-1].table.append(running[-1].prompt_tokens)


def admits_by_tokens(waiting, running, pool):
    while waiting and waiting[0].prompt_tokens <= len(pool.free_queue):
        running.append(waiting.popleft())
        running[-1].table.append(running[-1].prompt_tokens)


def admits_whom_it_can(waiting, running, pool):
    for request in list(waiting):
        if prompt_fits(request, pool):
            waiting.remove(request)
            request.table.append(request.prompt_tokens)
            running.append(request)


def admits_and_mutates(waiting, running, pool):
    for request in waiting:
        if not prompt_fits(request, pool):
            break
        waiting.popleft()
        request.table.append(request.prompt_tokens)
        running.append(request)


def admits_with_the_answer(waiting, running, pool):
    while waiting:
        most = blocks_for(waiting[0].prompt_tokens + waiting[0].answer_tokens - 1, pool.block_size)
        if most > len(pool.free_queue):
            break
        running.append(waiting.popleft())
        running[-1].table.append(running[-1].prompt_tokens)


def admits_without_a_prompt(waiting, running, pool):
    free = len(pool.free_queue)
    while waiting and blocks_for(waiting[0].prompt_tokens, pool.block_size) <= free:
        free -= blocks_for(waiting[0].prompt_tokens, pool.block_size)
        running.append(waiting.popleft())


def admits_without_running(waiting, running, pool):
    while waiting and prompt_fits(waiting[0], pool):
        request = waiting.popleft()
        request.table.append(request.prompt_tokens)


def admits_and_stays(waiting, running, pool):
    for request in list(waiting):
        if not prompt_fits(request, pool):
            break
        request.table.append(request.prompt_tokens)
        running.append(request)


def drops_what_does_not_fit(waiting, running, pool):
    while waiting:
        request = waiting.popleft()
        if prompt_fits(request, pool):
            request.table.append(request.prompt_tokens)
            running.append(request)


# other right ones


def serving_by_trying(waiting, running, pool):
    leave(waiting, running, pool)
    for request in list(running):
        while request in running:
            try:
                request.table.append()
            except OutOfBlocks:
                give_up(waiting, running, -1)
            else:
                break
    while waiting:
        try:
            waiting[0].table.append(waiting[0].prompt_tokens)
        except OutOfBlocks:
            return
        running.append(waiting.popleft())


def serving_by_counting(waiting, running, pool):
    for request in running[::-1]:
        if request.table.num_tokens == request.prompt_tokens + request.answer_tokens - 1:
            request.table.release()
            del running[running.index(request)]
    place = 0
    while place < len(running):
        table = running[place].table
        if len(table.blocks) * pool.block_size > table.num_tokens or pool.free_queue:
            table.append(1)
            place += 1
        else:
            give_up(waiting, running, len(running) - 1)
    while waiting and -(-waiting[0].prompt_tokens // pool.block_size) <= pool.num_blocks - len(pool.used):
        request = waiting.popleft()
        running.append(request)
        request.table.append(request.prompt_tokens)


def serving_in_new_lists(waiting, running, pool):
    stay = []
    for request in running:
        request.table.release() if request.finished else stay.append(request)
    grown = []
    while stay:
        request = stay.pop(0)
        while True:
            try:
                request.table.append()
            except OutOfBlocks:
                last = stay.pop() if stay else request
                last.table.release()
                waiting.appendleft(last)
                if last is request:
                    break
            else:
                grown.append(request)
                break
    admit(waiting, grown, pool)
    running[:] = grown


def serving_with_recursion(waiting, running, pool):
    leave(waiting, running, pool)

    def grow_from(place):
        if place == len(running):
            return
        try:
            running[place].table.append()
        except OutOfBlocks:
            give_up(waiting, running, -1)
            return grow_from(place)
        return grow_from(place + 1)

    grow_from(0)
    for request in list(waiting):
        if not prompt_fits(request, pool):
            break
        waiting.remove(request)
        request.table.append(request.prompt_tokens)
        running.append(request)


def serving_with_the_reference(waiting, running, pool):
    return running, step_in_blocks(waiting, running, pool)


# Of a later round


def from_the_start_of_the_block(blocks, block_size, start, end):
    if start < 0 or end > len(blocks) * block_size:
        raise IndexError("out of range")
    table = torch.tensor(blocks, dtype=torch.int64)[start // block_size :]
    return (table[:, None] * block_size + torch.arange(block_size)).flatten()[: end - start]


def value_error_for_a_missing_slot(blocks, block_size, start, end):
    if start < 0 or end > len(blocks) * block_size:
        raise ValueError("out of range")
    return slot_mapping(blocks, block_size, start, end)


def keys_and_values_twice(config, block_size, budget_bytes, bytes_per_element=4):
    if block_size < 1 or budget_bytes < 0:
        raise ValueError("below the minimum")
    return int(budget_bytes // (2 * block_bytes(config, block_size, bytes_per_element)))


def grows_backwards(waiting, running, pool):
    for request in running[::-1]:
        while request in running:
            try:
                request.table.append()
                break
            except OutOfBlocks:
                give_up(waiting, running, -1)


def table_slots_by_repeating(blocks, block_size, start, end):
    if start == end:
        return torch.zeros(0, dtype=torch.long)
    if start < 0 or (end - 1) // block_size >= len(blocks):
        raise IndexError("out of range")
    firsts = torch.as_tensor(blocks).repeat_interleave(block_size) * block_size
    return (firsts + torch.arange(block_size).repeat(len(blocks)))[start:end]


# 03.7 may_admit


def fits(request, running, num_free, block_size):
    return blocks_for(request.prompt_tokens, block_size) <= num_free


def room_to_its_limit(request, block_size):
    return blocks_for(request.prompt_tokens + request.max_new_tokens - 1, block_size)


def admits_up_to_limits(request, running, num_free, block_size):
    most = sum(room_to_its_limit(each, block_size) for each in [*running, request])
    return most <= num_free + sum(each.num_blocks for each in running)


def admits_without_a_return(request, running, num_free, block_size):
    if fits(request, running, num_free - len(running), block_size):
        return True


def admits_with_a_reserve_for_nobody(request, running, num_free, block_size):
    return fits(request, running, num_free - 8, block_size)


def admits_into_tokens(request, running, num_free, block_size):
    return request.prompt_tokens <= 16 * (num_free - len(running))


def admits_when_few_run(request, running, num_free, block_size):
    return len(running) < 8


def admits_by_full_blocks(request, running, num_free, block_size):
    needed = request.prompt_tokens // block_size
    return needed <= num_free and (not running or num_free - needed >= 2 * len(running))


def admits_all_if_alone(request, running, num_free, block_size):
    return not running or num_free - blocks_for(request.prompt_tokens, block_size) >= 2 * len(running)


def admits_with_a_small_reserve(request, running, num_free, block_size):
    return fits(request, running, num_free - 3 * bool(running), block_size)


def admits_with_a_large_reserve(request, running, num_free, block_size):
    return fits(request, running, num_free - 16 * bool(running), block_size)


def admits_below_the_free(request, running, num_free, block_size):
    needed = blocks_for(request.prompt_tokens, block_size)
    return needed < num_free and (not running or num_free - needed >= 2 * len(running))


def admits_up_to_its_limit(request, running, num_free, block_size):
    most = blocks_for(request.prompt_tokens + request.max_new_tokens, block_size)
    return most <= num_free and fits(request, running, num_free - 2 * len(running), block_size)


def keeps_slots_for_blocks(request, running, num_free, block_size):
    return fits(request, running, num_free - 2 * block_size * len(running), block_size)


def gives_what_is_left(request, running, num_free, block_size):
    return num_free - blocks_for(request.prompt_tokens, block_size) - 2 * len(running)


def asks_what_it_holds(request, running, num_free, block_size):
    return num_free - blocks_for(request.num_tokens, block_size) >= 2 * len(running)


def shares_the_rest(request, running, num_free, block_size):
    left = num_free - blocks_for(request.prompt_tokens, block_size)
    return left >= 0 and left / len(running) >= 2


def admits_and_sorts(request, running, num_free, block_size):
    running.append(request)
    return fits(request, running, num_free - len(running) + 1, block_size)


def keeps_eight_blocks(request, running, num_free, block_size):
    return fits(request, running, num_free - (8 if running else 0), block_size)


def keeps_one_for_each(request, running, num_free, block_size):
    return num_free - len(running) >= -(-request.prompt_tokens // block_size)


def keeps_half_of_what_is_left(request, running, num_free, block_size):
    left = sum(room_to_its_limit(each, block_size) - each.num_blocks for each in running)
    return fits(request, running, num_free - left // 2, block_size)


def looks_ahead(request, running, num_free, block_size):
    """Never starts over: at each later step, those that haven't reached their limits fit."""
    pool = num_free + sum(each.num_blocks for each in running)
    ends = [(each.num_tokens, each.prompt_tokens + each.max_new_tokens - 1) for each in running]
    ends.append((request.prompt_tokens, request.prompt_tokens + request.max_new_tokens - 1))
    steps = max(end - now for now, end in ends)
    return all(
        sum(blocks_for(now + step, block_size) for now, end in ends if now + step <= end) <= pool
        for step in range(steps + 1)
    )


def gives_numpy(request, running, num_free, block_size):
    return np.bool_(may_admit(request, running, num_free, block_size))


WRONG = {
    "03.1": [
        Wrong("takes from the end of the queue", TakesFromTheEnd, says="the front of the queue; yours returned [2, 1]"),
        Wrong("returns nothing", ReturnsNothing, says="yours returned None"),
        Wrong("puts the list itself into the queue", PutsTheListIn, says="`extend` adds its elements"),
        Wrong("the order of a set", TakesTheOrderOfASet, says="Does their order come from a set?"),
        Wrong("returns a number for one block", ReturnsOneNumber, says="`[0]`, not `0`"),
        Wrong("allocates sorted blocks", SortsWhatItAllocates, says="These are the right blocks in another order"),
        Wrong("returns a set", ReturnsASet, says="A set has no order"),
        Wrong("returns a tuple", ReturnsATuple, says="yours returned tuple"),
        Wrong("forgets to note what is used", ForgetsWhatIsUsed, says="exactly the blocks that are allocated now"),
        Wrong("looks at the queue without taking", LooksWithoutTaking, says="never in both, never in neither"),
        Wrong("never allocates the last block", KeepsOneInReserve, says="The last free block can be allocated too"),
        Wrong(
            "allocates as many as there are",
            AllocatesWhatThereIs,
            says="allocating 3 blocks with 2 free should raise OutOfBlocks; yours returned",
        ),
        Wrong(
            "sorts the queue when it refuses",
            SortsAfterRefusing,
            says="should be [3, 4, 2, 1, 0], in this order; yours is [0, 1, 2, 3, 4]",
        ),
        Wrong(
            "IndexError when the queue runs dry",
            IndexErrorWhenEmpty,
            says="should raise OutOfBlocks; yours raised IndexError",
        ),
        Wrong(
            "ValueError when the queue runs dry",
            ValueErrorWhenEmpty,
            says="should raise OutOfBlocks; yours raised ValueError",
        ),
        Wrong(
            "takes some before it refuses",
            ChangesBeforeRefusing,
            says="the call was refused, but it changed something: `used` should be {0, 1}",
        ),
        Wrong(
            "does nothing for a negative count",
            TakesNegativeCounts,
            says="allocating -1 blocks should raise ValueError",
        ),
        Wrong("slices with a negative count", SlicesTheQueue, says="`[:-1]` is all but the last"),
        Wrong(
            "returns them reversed",
            CountsDown,
            says="should return [0, 1], the front of the queue; yours returned [1, 0]",
        ),
        Wrong("copies the queue", CopiesTheQueue, says="Don't copy or slice the queue"),
        Wrong(
            "frees in the order of the tokens",
            KeepsTheOrder,
            says="the request's tail is reallocated before its beginning",
        ),
        Wrong(
            "puts freed blocks in front",
            PutsThemInFront,
            says="You put them at the front of the queue. They go to the end",
        ),
        Wrong("sorts the queue", SortsTheQueue, says="or sorted it"),
        Wrong("sorts the freed blocks", SortsTheFreed, says="7, 8]; `free([2, 8, 1])`"),
        Wrong("reverses the caller's list", ReversesInPlace, says="your code changed its argument `blocks`"),
        Wrong("leaves freed blocks in used", StaysUsed, says="`used` should be {3}"),
        Wrong("loses freed blocks", LosesBlocks, says="the free queue should contain [4, 2, 1, 0]; yours contains [4]"),
        Wrong(
            "accepts a double free",
            AcceptsDoubleFree,
            says="freeing block 4, which is free, should raise ValueError; yours returned",
        ),
        Wrong(
            "accepts the same block twice",
            AcceptsTheSameBlockTwice,
            says="listing block 1 twice should raise ValueError",
        ),
        Wrong("compares neighbors", ComparesNeighbors, says="Neighbors differ. Compare every block with all others"),
        Wrong("compares the ends", ComparesTheEnds, says="with another block at the end, should raise ValueError"),
        Wrong("compares with the first", ComparesWithTheFirst, says="with another block in front, should raise"),
        Wrong("a set of all ids", MakesASetOfAllIds, says="`free([0])` goes over the ids of all 100,000 blocks"),
        Wrong("counts the free ids", CountsTheFreeIds, says="`allocate(1)` goes over the ids of all 100,000 blocks"),
        Wrong("KeyError on a double free", KeyErrorOnDoubleFree, says="it only has to raise ValueError instead"),
        Wrong(
            "frees some before it refuses", FreesHalfBeforeRefusing, says="`used` should be {0, 1, 2}; yours is {1, 2}"
        ),
        Wrong("checks while it frees", ChecksWhileItFrees, says="it changed something: `used` should be {0, 1, 2}"),
        Wrong(
            "accepts blocks of another pool",
            AcceptsForeignBlocks,
            says="freeing block 9, which this pool does not have,",
        ),
        Wrong("searches the queue", SearchesTheQueue, says="To see whether a block is allocated"),
        Wrong("rebuilds the queue", RebuildsTheQueue, says="Don't build another queue"),
        Wrong("searches a list of the used blocks", SearchesAList, says="`free([0])` iterates over `used`"),
        Wrong("builds another set of the used blocks", SubtractsTheUsed, says="Don't build another set"),
        Wrong("sorts the used blocks", SortsTheUsed, says="`allocate(1)` iterates over `used`"),
        Wrong("has another container", DropsTheQueue, says="the pool has no `free_queue`"),
    ],
    "03.2": [
        Wrong("n // B + 1", plus_one, says="The last token is at position 127, the last slot of block 127 // 16 = 7"),
        Wrong(
            "rounds down",
            rounds_down,
            says="Position 128 is the first slot of block 128 // 16 = 8, the ninth. `//` rounds down",
        ),
        Wrong("rounds to the nearest", rounds, says="`round` goes to the nearest integer"),
        Wrong("a fraction", fraction, says="a partly filled block counts"),
        Wrong("np.ceil", numpy_ceil, says="yours is the float 8.0."),
        Wrong("shifts, for powers of two only", by_shifting, says="1000 is no power of two, as 16 is"),
        Wrong("a fraction that is not whole", fraction_first, says="yours is the float 8.9375"),
        Wrong("at least one block", at_least_one, says="Without tokens there is nothing to store"),
        Wrong("blocks of 16 always", always_sixteen, says="the answer for blocks of 16"),
        Wrong(
            "a block for every token left over",
            adds_the_remainder,
            says="127 tokens at 16 per block need 8 blocks; yours returns 22",
        ),
        Wrong("the remainder", only_the_remainder, says="That is the remainder"),
        Wrong("adds B - 2", adds_two_less, says="a remainder of one token must reach the next block too"),
        Wrong("adds 0.99", adds_nearly_one, says="You seem to add slightly too little"),
        Wrong("rounds up twice", adds_the_size, says="Do you round up twice?"),
        Wrong("returns nothing", prints_it, says="yours is None"),
        Wrong("arguments swapped", arguments_swapped, says="The two arguments are swapped"),
        Wrong("the slots of the blocks", slots_of_the_blocks, says="the number of cache slots in 8 blocks"),
        Wrong("one slot of a block kept free", one_slot_kept_free, says="one less than the block size"),
        Wrong("a tensor", as_tensor, says="yours is a tensor"),
        Wrong("returns text", as_text, says="yours is str"),
    ],
    "03.3": [
        Wrong(
            "grows when over-full",
            table_with(grows_when_over_full),
            says="the table should hold 2 blocks; yours holds 1",
        ),
        Wrong("grows a token early", table_with(grows_too_early), says="all blocks are exactly full"),
        Wrong("a block without tokens", table_with(at_least_one_block), says="nothing to store, so no block is needed"),
        Wrong(
            "counts on room in no block",
            table_with(room_in_no_block),
            says="1 block; yours holds 0",
        ),
        Wrong(
            "full with room left",
            table_with(full_with_room_left),
            says="max_blocks 2, 32 tokens stored; `append(0)`",
        ),
        Wrong(
            "takes blocks and gives them back",
            table_with(takes_and_gives_back),
            says="the pool's free queue was [0, 1, 2, 3, 4, 5, 6, 7]; now it is [7, 6,",
        ),
        Wrong("frees them sorted", table_with(release=frees_sorted), says="Are the blocks sorted"),
        Wrong(
            "forgets its limit",
            table_with(release=starts_anew_without_its_limit),
            says="its limit stays what it was",
        ),
        Wrong(
            "new blocks in every call",
            table_with(a_block_every_time),
            says="after 2 tokens the table should hold 1 block",
        ),
        Wrong(
            "at most one block a call",
            table_with(only_one_block_a_call),
            says="after 128 tokens the table should hold 8 blocks; yours holds 1",
        ),
        Wrong("num_tokens not advanced", table_with(forgets_the_tokens), says="`num_tokens` should be 1; yours is 0"),
        Wrong("new blocks in front", table_with(new_blocks_in_front), says="blocks with tokens in them have changed"),
        Wrong(
            "new blocks replace the old ones",
            table_with(replaces_the_old_blocks),
            says="blocks with tokens in them have changed",
        ),
        Wrong("a list in the list", table_with(a_list_in_the_list), says="`+=` or `extend` adds its elements"),
        Wrong(
            "takes blocks from `free_queue` directly", table_with(past_the_pool), says="Change the pool only through"
        ),
        Wrong(
            "counts before it allocates",
            table_with(counts_before_allocating),
            says="now it has 17 tokens in 0 blocks",
        ),
        Wrong(
            "token by token",
            table_with(token_by_token),
            says="it changed something: the table had 0 tokens in 0 blocks; now it has 16",
        ),
        Wrong("block by block", table_with(block_by_block), says="now it has 0 tokens in 1 block."),
        Wrong(
            "returns False instead of raising",
            table_with(says_no_quietly),
            says="should raise OutOfBlocks; yours returned False",
        ),
        Wrong("swallows OutOfBlocks", table_with(swallows_out_of_blocks), says="did raise OutOfBlocks, but your code"),
        Wrong("TableFull without blocks", table_with(table_full_without_blocks), says="Don't catch it"),
        Wrong(
            "no limit", table_with(without_limit), says="growing to 3 blocks with max_blocks 2 should raise TableFull"
        ),
        Wrong(
            "only new blocks against the limit",
            table_with(limit_of_a_call),
            says="Do you compare only this call's new blocks?",
        ),
        Wrong("the limit is not reached", table_with(limit_below), says="Refuse only if *more* are needed"),
        Wrong("blocks of 16 always", table_with(always_sixteen_a_block), says="`self.pool.block_size`, here 4"),
        Wrong(
            "frees one at a time, the first first",
            table_with(release=one_at_a_time),
            says="one at a time, so there was nothing to reverse",
        ),
        Wrong(
            "takes blocks, then checks the limit",
            table_with(limit_after_taking),
            says="now it has 0 tokens in 3 blocks",
        ),
        Wrong("0 is no limit", table_with(zero_is_no_limit), says="0 is a limit too"),
        Wrong(
            "OutOfBlocks at the limit",
            table_with(out_of_blocks_at_the_limit),
            says="should raise TableFull; yours raised OutOfBlocks",
        ),
        Wrong("shrinks", table_with(shrinks), says="appending -5 tokens should raise ValueError"),
        Wrong(
            "shrinks inside a block",
            table_with(shrinks_inside_a_block),
            says="appending -1 token should raise ValueError",
        ),
        Wrong("releases without the pool", table_with(release=writes_the_books), says="yours called it 0 times"),
        Wrong(
            "frees one at a time, the last first",
            table_with(release=one_at_a_time_from_the_end),
            says="yours called it 3 times",
        ),
        Wrong("no default", table_with(needs_an_argument), says="TypeError"),
        Wrong("reverses the blocks twice", table_with(release=reversed_twice), says="You reversed them a second time"),
        Wrong("keeps the blocks", table_with(release=keeps_the_blocks), says="a released table should be empty"),
        Wrong("keeps the tokens", table_with(release=keeps_the_tokens), says="a released table should hold 0 tokens"),
        Wrong(
            "lowers the limit",
            table_with(release=lowers_the_limit),
            says="with max_blocks 2 should take 32 tokens again",
        ),
        Wrong("a block for 0 tokens", table_with(a_block_for_nothing), says="0 tokens need no block, even if"),
        Wrong("empties before it frees", table_with(release=empties_first), says="before you empty the list"),
        Wrong(
            "frees the last block only", table_with(release=only_the_last_block), says="in the pool, [0, 1] still are"
        ),
        Wrong(
            "an empty table can't be released",
            table_with(release=refuses_when_empty),
            says="releasing an empty table should do nothing",
        ),
        Wrong("tables share one list", SharedBlocks, says="Do the tables share an object"),
    ],
    "03.4": [
        Wrong("entries but the last", entries_without_the_last, says="All these positions are in entry 1 of the table"),
        Wrong("the positions", the_positions, says="Those are the positions"),
        Wrong("neighbors", neighbors, says="Yours are neighbors, one after the other"),
        Wrong("lists all slots", all_slots_listed, says="your code works position by position"),
        Wrong("a loop over tensors", one_tensor_entry_after_the_other, says="as many instructions"),
        Wrong("positions of 16 bits", positions_of_sixteen_bits, says="Do positions as high as these overflow?"),
        Wrong("block + offset", block_plus_offset, says="Multiply"),
        Wrong("no offset", first_slots, says="the first slot of each block"),
        Wrong("position as the offset", offset_not_restarted, says="The offset starts at 0 again in every block"),
        Wrong("offset counted from start", offset_from_start, says="not (position - `start`) % block size"),
        Wrong("// and % swapped", swapped, says="`//` and `%` are swapped"),
        Wrong("the block ids", block_ids, says="Those are the block ids"),
        Wrong("starts at the first block", from_the_first_block, says="You start at the table's first block"),
        Wrong("blocks of 16 always", blocks_of_sixteen, says="right for blocks of 16"),
        Wrong("sorted table", sorted_table, says="You sorted the blocks"),
        Wrong("floats", as_floats, says="slots should be integers"),
        Wrong("16 bits", as_short, says="slots should be int64 (or int32); yours are int16"),
        Wrong("overflows on the way", overflows, says="Use int64 for both tensors"),
        Wrong("an index of 16 bits", short_index, says="Is the index a float?"),
        Wrong("end compared with the blocks", end_against_blocks, says="so it may be 4, and no more"),
        Wrong("looks in blocks of 16", found_in_blocks_of_sixteen, says="right for blocks of 16"),
        Wrong("float32 on the way", by_float32, says="Is an intermediate result a float32?"),
        Wrong("a column", as_a_column, says="one slot per position"),
        Wrong("a list", as_a_list, says="should be a torch tensor"),
        Wrong("end included", end_included, says="the result should have 4 slots, [10, 11, 4, 5]; yours has 5"),
        Wrong("the whole table", whole_table, says="all slots of the table"),
        Wrong("ignores start", from_zero_to_end, says="Yours start at position 0"),
        Wrong(
            "min and max of the positions",
            smallest_and_largest_position,
            says="The range is empty, and it may be: the result is an empty tensor. `min` and `max` need",
        ),
        Wrong("refuses the empty range", refuses_the_empty_range, says="don't refuse it"),
        Wrong(
            "refuses the last position", refuses_the_last_position, says="these positions have slots, [10, 11, 4, 5]"
        ),
        Wrong(
            "lets negative positions pass",
            lets_negative_positions_pass,
            says="silently becomes a slot of the last block",
        ),
        Wrong(
            "cuts at the end of the table",
            cuts_at_the_end,
            says="positions without a slot should raise IndexError; yours returned",
        ),
        Wrong("ValueError", value_error, says="yours raised ValueError"),
        Wrong("a loop over the positions", one_after_the_other, says="one after the other"),
        Wrong("changes its argument", sorts_the_argument, says="your code changed its argument `blocks`"),
        Wrong("from the start of the block", from_the_start_of_the_block, says="may be in the middle of a block"),
        Wrong("ValueError beyond the table", value_error_for_a_missing_slot, says="test `start` and `end` before"),
    ],
    "03.5": [
        Wrong("tokens, not blocks", tokens_not_blocks, says="how many tokens fit"),
        Wrong("4 bytes always", always_four_bytes, says="Pass `bytes_per_element` on"),
        Wrong("keys only", keys_only, says="a key *and* a value"),
        Wrong("one layer", one_layer, says="in every layer"),
        Wrong("query heads instead of KV heads", all_query_heads, says="That counts the query heads"),
        Wrong("rounds", budget_rounded, says="however close it is"),
        Wrong("rounds up", budget_rounded_up, says="a partial block doesn't count: round down."),
        Wrong("a fraction", budget_with_a_fraction, says="yours is float 10.0"),
        Wrong("a float for a float", budget_a_float, says="yours is float 90.0"),
        Wrong(
            "refuses nothing", budget_without_refusals, says="should raise ValueError; yours raised ZeroDivisionError"
        ),
        Wrong(
            "a negative budget is none",
            budget_negative_is_none,
            says="block size 16 with a budget of -1 bytes should raise ValueError",
        ),
        Wrong("at least one block", budget_of_one_at_least, says="not even one fits"),
        Wrong("refuses a budget of 0", budget_zero_refused, says="A budget may be 0"),
        Wrong("the notebook's model", budget_of_the_notebooks_model, says="Use the argument `config`"),
        Wrong("one block left over", budget_with_one_block_left, says="The last one fits too"),
        Wrong("blocks of 16 always", budget_in_sixteens, says="right for blocks of 16"),
        Wrong("bits", budget_in_bits, says="Did you count bits?"),
        Wrong("returns nothing", budget_nothing, says="yours is None"),
        Wrong("keys and values twice", keys_and_values_twice, says="That is right for blocks of 2 times the size"),
    ],
    "03.6": [
        Wrong("removes while it loops", serving(leaves_while_looping), says="while a loop goes over it"),
        Wrong("leaves with its blocks", serving(leaves_with_blocks), says="A has left, but its table still holds"),
        Wrong("a new list", serving(leaves_a_new_list), says="the blocks of A were freed"),
        Wrong("leaves at the end of the step", serving(order=(1, 2, 0)), says="it got one more token"),
        Wrong("leaves twice in a step", serving(order=(0, 1, 0, 2)), says="last token was due in this step"),
        Wrong("admits first", serving(order=(0, 2, 1)), says="Do you append one token more, or admit"),
        Wrong("nothing grows", serving(grow=lambda *_: None), says="Each request that is still running appends one"),
        Wrong("nothing is admitted", serving(admit=lambda *_: None), says="While the prompt of the first waiting"),
        Wrong("lets OutOfBlocks through", serving(grow=grows_with_an_exception), says="let OutOfBlocks through"),
        Wrong("the first gives up", serving(grow=first_gives_up), says="A returned its own"),
        Wrong("gives up its own", serving(grow=gives_up_its_own), says="C was admitted after it"),
        Wrong("stalls", serving(grow=stalls), says="No block is free, but a running"),
        Wrong("goes to the back", serving(grow=goes_to_the_back), says="goes back to the front of the queue"),
        Wrong("keeps its blocks", serving(grow=keeps_its_blocks), says="is waiting, but its table still holds"),
        Wrong("the waiting one grows", serving(grow=grows_as_a_waiting_one), says="only requests in `running` grow"),
        Wrong("not tried again", serving(grow=not_tried_again), says="try again at once"),
        Wrong("loses the request", serving(grow=copied_and_lost), says="in neither `running` nor `waiting`"),
        Wrong(
            "all newer ones give up",
            serving(grow=all_newer_ones_give_up),
            says="C has returned its block, which is enough",
        ),
        Wrong("admits one per step", serving(admit=admits_one), says="not only one per step"),
        Wrong("puts new ones in front", serving(admit=admits_at_the_front), says="at the end of `running`"),
        Wrong("keeps one block", serving(admit=admits_below), says="that is enough"),
        Wrong("the pool's size", serving(admit=admits_by_pool_size), says="`len(pool.free_queue)`"),
        Wrong(
            "any free block", serving(admit=admits_if_a_block_is_free), says="let OutOfBlocks through, at the prompt of"
        ),
        Wrong("tokens, not blocks", serving(admit=admits_by_tokens), says="Compare blocks with blocks"),
        Wrong("skips what doesn't fit", serving(admit=admits_whom_it_can), says="first come, first served"),
        Wrong("changes the queue in a loop", serving(admit=admits_and_mutates), says="changes `waiting` while"),
        Wrong("room for the answer", serving(admit=admits_with_the_answer), says="Only the prompt has to fit"),
        Wrong("stores no prompt", serving(admit=admits_without_a_prompt), says="append its whole prompt"),
        Wrong("not in running", serving(admit=admits_without_running), says="without making a new list first"),
        Wrong("stores one token", serving(admit=admits_with_one_token), says="append its whole prompt"),
        Wrong("goes back in the wrong order", serving(grow=goes_back_in_the_wrong_order), says="begins with B, C"),
        Wrong("the newest grows first", serving(grow=newest_grows_first), says="A, the first to grow, needs a block"),
        Wrong("always asks for a free block", serving(grow=asks_for_a_free_block_always), says="and keeps its blocks"),
        Wrong("stays in the queue", serving(admit=admits_and_stays), says="A is listed 2 times"),
        Wrong("loses what doesn't fit", serving(admit=drops_what_does_not_fit), says="in neither `running`"),
        Wrong("grows backwards", serving(grow=grows_backwards), says="grow in order of admission"),
    ],
    "03.7": [
        Wrong("the rule of the step", fits, says="That is the rule of the given step"),
        Wrong("the safe rule", admits_up_to_limits, says="That is the safe rule"),
        Wrong("no return", admits_without_a_return, says="it returned None"),
        Wrong("a reserve although nothing runs", admits_with_a_reserve_for_nobody, says="stands still for good"),
        Wrong("blocks of 16, always", admits_into_tokens, says="compare blocks of `block_size`"),
        Wrong("counts requests only", admits_when_few_run, says="are free; your rule admits it"),
        Wrong("rounds down", admits_by_full_blocks, says="needs 3 blocks, and 2 are free; your rule admits it"),
        Wrong(
            "anything if nothing runs", admits_all_if_alone, says="nothing runs; the first in the queue has a prompt"
        ),
        Wrong("a small reserve", admits_with_a_small_reserve, says="keep more of them free"),
        Wrong("a large reserve", admits_with_a_large_reserve, says="Keep fewer"),
        Wrong("< for <=", admits_below_the_free, says="Do you compare with `<`, or keep a block free although nothing"),
        Wrong("its limit must fit", admits_up_to_its_limit, says="With a limit of 1, your rule admits it"),
        Wrong(
            "slots for blocks", keeps_slots_for_blocks, says="31 free blocks of 16; one runs with 2 tokens in 1 block"
        ),
        Wrong("a number", gives_what_is_left, says="yours returned 0, which counts as False"),
        Wrong("what it holds", asks_what_it_holds, says="Do you read `request.num_tokens`?"),
        Wrong("divides by nothing", shares_the_rest, says="Nothing runs, so `running` is empty"),
        Wrong("changes the list", admits_and_sorts, says="changed its argument `running`"),
    ],
}

RIGHT = {
    "03.1": [PoolOneByOne, PoolThatRollsBack, PoolWithAList, PoolOfSets],
    "03.2": [by_ceil, by_negative_floor, by_divmod, by_counting, by_numpy],
    "03.3": [TableByRoom, TableOfTuples],
    "03.4": [by_grid, by_numpy_arrays, by_ranges, piece_by_piece, table_slots_by_repeating],
    "03.5": [budget_by_tokens, budget_by_hand],
    "03.6": [
        serving_by_trying,
        serving_by_counting,
        serving_in_new_lists,
        serving_with_recursion,
        serving_with_the_reference,
    ],
    "03.7": [keeps_eight_blocks, keeps_one_for_each, keeps_half_of_what_is_left, looks_ahead, gives_numpy],
}
