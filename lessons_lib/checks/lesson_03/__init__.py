"""The exercises and the quiz of lesson 03: the pool, the boundary, the block table, the slot mapping, the budget."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_03.budget import check_blocks_in_budget
from lessons_lib.checks.lesson_03.counting import check_blocks_for
from lessons_lib.checks.lesson_03.mapping import check_slot_mapping
from lessons_lib.checks.lesson_03.pool import check_block_pool
from lessons_lib.checks.lesson_03.quiz import QUIZ
from lessons_lib.checks.lesson_03.table import check_block_table

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="03.1",
        title="the block pool",
        reference="lessons_lib.kv_cache.block_pool:BlockPool",
        test=check_block_pool,
        hints=(
            "Every block is in one of two places: in `free_queue` or in `used`. Both methods move blocks from one to the other, and only after "
            "everything that could be wrong has been asked.",
            "`allocate`: refuse a negative count, refuse more than `len(self.free_queue)`; then take that many from the front, "
            "note them in `used`, return "
            "the list. `free`: refuse a block that is not in `used`, refuse a list that names one twice; then take them out of "
            "`used`, and put them at "
            "the end of the queue, the last one first.",
            "`blocks = [self.free_queue.popleft() for _ in range(count)]`, `self.used.update(blocks)`. The way back: "
            "`self.used.difference_update(blocks)`, `self.free_queue.extend(reversed(blocks))`. A block is named twice when "
            "`len(set(blocks)) < len(blocks)`.",
        ),
    ),
    Exercise(
        id="03.2",
        title="how many blocks",
        reference="lessons_lib.kv_cache.block_pool:blocks_for",
        test=check_blocks_for,
        hints=(
            "Divide, and round up: a block that is begun is a block. When nothing is left over, there is nothing to round.",
            "`//` rounds down. It would round up if the number of tokens were a little larger first: so much larger that every rest, even of one "
            "token, reaches the next block, but an exact multiple does not.",
            "Add `block_size - 1` to the tokens, then divide with `//`.",
        ),
        points=1,
    ),
    Exercise(
        id="03.3",
        title="the block table",
        reference="lessons_lib.kv_cache.block_pool:BlockTable",
        test=check_block_table,
        hints=(
            "Do not think about when a block gets full. Ask how many blocks *all* the tokens need, those stored and the new ones, and take "
            "what is missing.",
            "`append`: refuse a negative count. Compute the new number of tokens, and with `blocks_for` the blocks needed. "
            "Refuse with `TableFull` if there is "
            "a limit and they are more. Ask the pool for those that are missing, in one call; only then change `num_tokens`. `release`: give "
            "`self.blocks` to `pool.free`, then start with an empty list and 0 tokens.",
            "`needed = blocks_for(num_tokens, self.pool.block_size)`; `self.blocks += self.pool.allocate(needed - len(self.blocks))`; "
            "`self.num_tokens = num_tokens`. `allocate` raises `OutOfBlocks` by itself, before anything has changed. The limit: "
            "`if self.max_blocks is not None and needed > self.max_blocks`.",
        ),
    ),
    Exercise(
        id="03.4",
        title="the slot mapping",
        reference="lessons_lib.kv_cache.block_pool:slot_mapping",
        test=check_slot_mapping,
        hints=(
            "It is the formula of `slot_of`, with a tensor of positions in place of one position. `//`, `%`, `*` and `+` work on all elements, and "
            "a tensor can be indexed with a tensor.",
            "Refuse `start` below 0, and `end` beyond the last cell. Make two tensors: the positions, with `torch.arange`, and "
            "the table, from `blocks`. "
            "Index the table with the numbers of the blocks, multiply by the block size, add the offsets.",
            "`table = torch.tensor(blocks, dtype=torch.int64)` and `positions = torch.arange(start, end)`; "
            "`table[positions // block_size] * block_size + positions % block_size`.",
        ),
    ),
    Exercise(
        id="03.5",
        title="blocks in a budget",
        reference="lessons_lib.kv_cache.block_pool:blocks_in_budget",
        test=check_blocks_in_budget,
        hints=(
            "How often does one block fit in the budget, whole?",
            "Refuse a block size below 1 and a budget below 0. `block_bytes` says what one block takes; hand the number of bytes "
            "on to it. Divide and round down.",
            "`int(budget_bytes // block_bytes(config, block_size, bytes_per_element))`.",
        ),
        points=1,
    ),
]
