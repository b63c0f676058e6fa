"""Answers to the exercises of lesson 03: a wrong one for each sentence that a check makes, and other ways to be right."""

import numpy as np
import torch

from answers import rights, slips
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.kv_cache.block_serving import may_admit, step_in_blocks
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.kv_cache.cache_slots import slot_mapping

# 03.1 BlockTable


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
        self.pool.free(self.blocks)
        self.blocks, self.num_tokens = (), 0


RIGHT_TABLE = """
By the room in the last block.
- needed = blocks_for
- self.blocks += self.pool
+ room = len(self.blocks) * self.pool.block_size - self.num_tokens
+ self.blocks.extend(self.pool.allocate(-(-max(0, count - room) // self.pool.block_size)))
"""
TABLES = """
All or nothing: a refused call changes nothing
- self.blocks += self.pool => while len(self.blocks) < needed: self.blocks += self.pool.allocate(1)
`self.blocks.append(...)` nests it
- self.blocks += self.pool
+ if needed > len(self.blocks): self.blocks.append(self.pool.allocate(needed - len(self.blocks)))
That is right for blocks of 16
~ self.pool.block_size) => 16)
Keep the existing blocks, and add the new ones after them
- self.blocks += self.pool => self.blocks = self.pool.allocate(needed - len(self.blocks)) + self.blocks
or - self.blocks += self.pool
+ if needed > len(self.blocks): self.blocks = self.pool.allocate(needed - len(self.blocks))
For 17 tokens, the table needs 2 blocks of 16: keep
~ needed - len(self.blocks) => min(1, needed - len(self.blocks))
For 2 tokens, the table needs 1 block of 16: fill the last block first
~ needed - len(self.blocks) => blocks_for(count, self.pool.block_size)
add `count` last
- self.num_tokens += count => self.num_tokens = count
"""

# 03.2 slot_mapping


def by_grid(blocks, block_size, start, end):
    if start < 0 or end < start or end > len(blocks) * block_size:
        raise IndexError(start, end)
    slots = torch.tensor(blocks, dtype=torch.int64)[:, None] * block_size + torch.arange(block_size)
    return slots.flatten()[start:end]


RIGHT_MAPPING = """
With numpy.
- positions =
- table =
- return
+ which, offset = np.divmod(np.arange(start, end), block_size)
+ return torch.from_numpy(np.array(blocks, dtype=np.int64)[which] * block_size + offset)
"""
MAPPINGS = """
Position 4 is in entry 4 // 4 = 1 of the table, block 2, offset 4 % 4 = 0: its slot is 2 × 4 + 0 = 8
= return blocks[start // block_size] * block_size + positions % block_size
smaller integers overflow
= return (table.float()[positions // block_size] * block_size + positions % block_size).long()
That is right for blocks of 16
= return table[positions // 16] * 16 + positions % 16
`start` to `end - 1`: 4 of them
= positions = torch.arange(len(blocks) * block_size)
one look-up for all
- return
+ slots = [block * block_size + offset for block in list(blocks) for offset in range(block_size)]
+ return torch.tensor(slots[start:end], dtype=torch.int64)
or - return
+ slots = [blocks[p // block_size] * block_size + p % block_size for p in range(start, end)]
+ return torch.tensor(slots, dtype=torch.int64)
These positions have slots
~ end <= len => end < len
Test `start` and `end` before you compute
~ 0 <= start <= end => start <= end
or ~ start <= end <= => start and end <=
"""

# 03.3 step_in_blocks


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
            waiting.appendleft(running.pop())
            waiting[0].table.release()
    while waiting and -(-waiting[0].prompt_tokens // pool.block_size) <= pool.num_blocks - len(pool.used):
        request = waiting.popleft()
        running.append(request)
        request.table.append(request.prompt_tokens)


RIGHT_STEPS = """
Admit by trying, and return something.
- while waiting and ... running.append(request)
+ while waiting:
+     try: waiting[0].table.append(waiting[0].prompt_tokens)
+     except OutOfBlocks: break
+     running.append(waiting.popleft())
+ return running
A copy of the list, and a request that has left it is passed over.
- grown = 0 ... waiting.appendleft(last)
+ for request in list(running):
+     while request in running:
+         try: request.table.append()
+         except OutOfBlocks:
+             waiting.appendleft(running.pop())
+             waiting[0].table.release()
+         else: break
"""
STEPS = """
B has all its tokens, so it leaves before anything else
~ if request.finished] => if request.finished][:1]
B gives up its blocks. Then its prompt fits, so it is admitted again
- last = running.pop()
+ last = running.pop(-2 if grown == len(running) - 1 > 0 else -1)
+ grown = min(grown, len(running) - 1)
C was admitted last: it releases its table
~ running.pop() => running.pop(0)
B runs on: it stores one token more
~ waiting.appendleft(last) => waiting.appendleft(last); grown += 1
A runs on: it leaves in the step after its last token
~ if request.finished] => ]
it goes to the front, `appendleft`
~ waiting.appendleft(last) => waiting.append(last)
that is the order of admission
~ waiting.popleft() => waiting.pop()
A is admitted, and stores its whole prompt, and no more
~ append(request.prompt_tokens) => append()
A's prompt fits in the free blocks when its turn comes
~ blocks_for(waiting[0].prompt_tokens, pool.block_size) <= => waiting[0].prompt_tokens <=
or ~ waiting.popleft() => waiting[0]
C stays in `waiting`: B comes first, and doesn't fit
- while waiting and ... running.append(request)
+ for request in list(waiting):
+     if blocks_for(request.prompt_tokens, pool.block_size) <= len(pool.free_queue):
+         waiting.remove(request)
+         request.table.append(request.prompt_tokens)
+         running.append(request)
C stays in `waiting`: the first that doesn't fit ends the step
- while waiting and => while waiting:
- request = waiting.popleft()
+ request = waiting.popleft()
+ if blocks_for(request.prompt_tokens, pool.block_size) > len(pool.free_queue): continue
"""

# 03.4 may_admit


def room_to_its_limit(request, block_size):
    return blocks_for(request.prompt_tokens + request.max_new_tokens - 1, block_size)


def keeps_eight_blocks(request, running, num_free, block_size):
    return blocks_for(request.prompt_tokens, block_size) <= num_free - (8 if running else 0)


def keeps_half_of_what_is_left(request, running, num_free, block_size):
    left = sum(room_to_its_limit(each, block_size) - each.num_blocks for each in running)
    return blocks_for(request.prompt_tokens, block_size) <= num_free - left // 2


def looks_ahead(request, running, num_free, block_size):
    """Never starts over: at each later step, those that haven't reached their limits fit."""
    if not running:
        return blocks_for(request.prompt_tokens, block_size) <= num_free
    pool = num_free + sum(each.num_blocks for each in running)
    ends = [(each.num_tokens, each.prompt_tokens + each.max_new_tokens - 1) for each in running]
    ends.append((request.prompt_tokens, request.prompt_tokens + request.max_new_tokens - 1))
    steps = max(end - now for now, end in ends)
    return all(
        sum(blocks_for(now + step, block_size) for now, end in ends if now + step <= end) <= pool
        for step in range(steps + 1)
    )


RIGHT_RULES = """
One for each, and numpy's True.
= return np.bool_(blocks_for(request.prompt_tokens, block_size) + len(running) <= num_free)
"""
RULES = """
The prompt needs 3 blocks of 16, and `num_free` is 2. It must fit
= return request.prompt_tokens // block_size + soon <= num_free
Nothing runs, so no block will ever become free
= soon = 8
or ~ blocks_for(request.prompt_tokens, => blocks_for(request.prompt_tokens + request.max_new_tokens // 2,
`running` is empty: treat this case first
= return max(each.num_blocks for each in running) + blocks_for(request.prompt_tokens, block_size) <= num_free
changed its argument `running`
= return running.append(request) or blocks_for(request.prompt_tokens, block_size) + soon <= num_free
That is the bold rule
= soon = 0
That is the safe rule
= soon = sum(room(each, block_size) - each.num_blocks for each in running)
~ blocks_for(request.prompt_tokens, block_size) => (room if running else blocks)(request, block_size)
keep more of them free
= soon = 3 * bool(running)
Keep fewer
= soon = 16 * bool(running)
30 free blocks of 16; one runs with 32 tokens in 2 blocks
= soon = 2 * block_size * len(running)
"""

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


POOLS = """
Take the blocks from the front
~ self.free_queue.popleft() => self.free_queue.pop()
`used` contains exactly the blocks that are allocated now
- self.used.update(blocks)
A block is either in `free_queue` or in `used`
~ self.free_queue.extend(reversed(blocks)) => self.free_queue.append(list(reversed(blocks)))
Freed blocks go to the end of the queue, the last one listed first
~ reversed(blocks) => sorted(blocks, reverse=True)
refused call changes nothing
- for block in blocks
+ for block in blocks:
+     if block in self.used: self.used.remove(block)
+     else: raise ValueError
+ self.free_queue.extend(reversed(blocks))
+ return
+ ...
`popleft()` takes the first block without looking at the rest
- blocks = [
+ blocks = list(self.free_queue)[:count]
+ self.free_queue = deque(list(self.free_queue)[count:])
`in self.used` finds a block without a search
< for block in blocks => if any(block in self.free_queue for block in blocks): raise ValueError
"""

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


COUNTS = """
That is right for blocks of 16
= return (num_tokens + 15) // 16
there is nothing to store
= return max(1, (num_tokens + block_size - 1) // block_size)
A count is a plain int
= return str((num_tokens + block_size - 1) // block_size)
How many *blocks* are there? 8 blocks of 16 hold 128 tokens
= return (num_tokens + block_size - 1) // block_size * block_size
Round up: a block that isn't full is a block, too
= return round(num_tokens / block_size)
all of them are exactly full
= return num_tokens // block_size + 1
a remainder needs one block
= return (num_tokens + block_size - 1) // block_size + (num_tokens % block_size > 0)
"""

WRONG = {
    "03.1": slips(BlockTable, TABLES),
    "03.2": slips(slot_mapping, MAPPINGS),
    "03.3": slips(step_in_blocks, STEPS),
    "03.4": slips(
        may_admit, RULES, room=room_to_its_limit, blocks=lambda each, size: blocks_for(each.prompt_tokens, size)
    ),
    "03.5": slips(BlockPool, POOLS),
    "03.6": slips(blocks_for, COUNTS),
}

RIGHT = {
    "03.1": [TableOfTuples, *rights(BlockTable, RIGHT_TABLE)],
    "03.2": [by_grid, *rights(slot_mapping, RIGHT_MAPPING, np=np)],
    "03.3": [serving_by_counting, *rights(step_in_blocks, RIGHT_STEPS)],
    "03.4": [keeps_eight_blocks, keeps_half_of_what_is_left, looks_ahead, *rights(may_admit, RIGHT_RULES, np=np)],
    "03.5": [PoolThatRollsBack, PoolWithAList],
    "03.6": [by_divmod, by_negative_floor, by_numpy],
}
