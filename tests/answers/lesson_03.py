"""Answers to the exercises of lesson 03: other ways to be right, and what rules cost."""

import math
from collections import deque

import numpy as np
import torch

from answers import Wrong
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.kv_cache.block_serving import may_admit, step_in_blocks

# 03.5 BlockPool


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
        self.free_queue.extend(removed)


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


# 03.6 blocks_for


def rounds_down(num_tokens, block_size):
    return num_tokens // block_size


def by_negative_floor(num_tokens, block_size):
    return -(-num_tokens // block_size)


def by_divmod(num_tokens, block_size):
    full, rest = divmod(num_tokens, block_size)
    return full + 1 if rest else full


def by_numpy(num_tokens, block_size):
    return np.int64(num_tokens) // block_size + (np.int64(num_tokens) % block_size != 0).astype(np.int64)


# 03.1 BlockTable


class TableByRoom(BlockTable):
    """Counts the room in the last block."""

    def append(self, count=1):
        if count < 0:
            raise ValueError(count)
        room = len(self.blocks) * self.pool.block_size - self.num_tokens
        missing = math.ceil(max(0, count - room) / self.pool.block_size)
        if missing:
            self.blocks.extend(self.pool.allocate(missing))
        self.num_tokens = self.num_tokens + count

    def release(self):
        blocks, self.blocks, self.num_tokens = self.blocks, [], 0
        self.pool.free(blocks)


class TableOfTuples:
    """Written from scratch, and asks the pool itself."""

    def __init__(self, pool):
        self.pool, self.blocks, self.num_tokens = pool, (), 0

    def append(self, count=1):
        if count < 0:
            raise ValueError
        needed = -(-(self.num_tokens + count) // self.pool.block_size)
        if needed - len(self.blocks) > len(self.pool.free_queue):
            raise OutOfBlocks("too few")
        self.blocks += tuple(self.pool.allocate(needed - len(self.blocks)))
        self.num_tokens += count

    def release(self):
        if self.blocks:
            self.pool.free(self.blocks)
        self.blocks, self.num_tokens = (), 0


# 03.2 slot_mapping


def refuse(blocks, block_size, start, end):
    if start < 0 or end < start or end > len(blocks) * block_size:
        raise IndexError(start, end)


def piece_by_piece(blocks, block_size, start, end):
    refuse(blocks, block_size, start, end)
    pieces = [torch.empty(0, dtype=torch.int64)]
    for index, block in enumerate(blocks):
        first, behind = max(start, index * block_size), min(end, (index + 1) * block_size)
        if first < behind:
            pieces.append(torch.arange(first, behind) + (block - index) * block_size)
    return torch.cat(pieces)


def by_grid(blocks, block_size, start, end):
    refuse(blocks, block_size, start, end)
    slots = torch.tensor(blocks, dtype=torch.int64)[:, None] * block_size + torch.arange(block_size)
    return slots.flatten()[start:end]


def by_numpy_arrays(blocks, block_size, start, end):
    refuse(blocks, block_size, start, end)
    which, offset = np.divmod(np.arange(start, end), block_size)
    return torch.from_numpy(np.array(blocks, dtype=np.int64)[which] * block_size + offset)


# 03.3 step_in_blocks


def leave(waiting, running, pool):
    for request in list(running):
        if request.finished:
            request.table.release()
            running.remove(request)


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


def serving_with_the_reference(waiting, running, pool):
    return running, step_in_blocks(waiting, running, pool)


# 03.4 may_admit


def fits(request, running, num_free, block_size):
    return blocks_for(request.prompt_tokens, block_size) <= num_free


def room_to_its_limit(request, block_size):
    return blocks_for(request.prompt_tokens + request.max_new_tokens - 1, block_size)


def admits_up_to_limits(request, running, num_free, block_size):
    most = sum(room_to_its_limit(each, block_size) for each in [*running, request])
    return most <= num_free + sum(each.num_blocks for each in running)


def admits_with_a_small_reserve(request, running, num_free, block_size):
    return fits(request, running, num_free - 3 * bool(running), block_size)


def admits_with_a_large_reserve(request, running, num_free, block_size):
    return fits(request, running, num_free - 16 * bool(running), block_size)


def keeps_slots_for_blocks(request, running, num_free, block_size):
    return fits(request, running, num_free - 2 * block_size * len(running), block_size)


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


WRONG = {  # what a rule costs, which isn't compared with the reference; the other mistakes are in the exercise
    "03.4": [
        Wrong("the rule of the step", fits, says="That is the bold rule"),
        Wrong("the safe rule", admits_up_to_limits, says="That is the safe rule"),
        Wrong("a small reserve", admits_with_a_small_reserve, says="keep more of them free"),
        Wrong("a large reserve", admits_with_a_large_reserve, says="Keep fewer"),
        Wrong(
            "slots for blocks", keeps_slots_for_blocks, says="30 free blocks of 16; one runs with 32 tokens in 2 blocks"
        ),
        Wrong("changes the list", admits_and_sorts, says="changed its argument `running`"),
    ],
}

RIGHT = {
    "03.1": [TableByRoom, TableOfTuples],
    "03.2": [by_grid, by_numpy_arrays, piece_by_piece],
    "03.3": [serving_by_trying, serving_by_counting, serving_in_new_lists, serving_with_the_reference],
    "03.4": [keeps_eight_blocks, keeps_one_for_each, keeps_half_of_what_is_left, looks_ahead, gives_numpy],
    "03.5": [PoolThatRollsBack, PoolWithAList],
    "03.6": [by_divmod, by_negative_floor, by_numpy],
}
