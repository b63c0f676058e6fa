"""The exercises and the quiz of lesson 03: the pool, the boundary, the block table, the slot mapping, the
budget, the step, the rule of admission."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_03 import pool, table
from lessons_lib.checks.lesson_03.admitting import check_may_admit
from lessons_lib.checks.lesson_03.budget import check_blocks_in_budget
from lessons_lib.checks.lesson_03.counting import check_blocks_for
from lessons_lib.checks.lesson_03.mapping import check_slot_mapping
from lessons_lib.checks.lesson_03.quiz import QUIZ
from lessons_lib.checks.lesson_03.serving import check_step_in_blocks

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    pool.EXERCISE,
    Exercise(
        id="03.2",
        title="how many blocks (optional)",
        reference="lessons_lib.kv_cache.block_pool:blocks_for",
        test=check_blocks_for,
        hints=(
            "Divide, and round up: a partly filled block is a block, too. If there is no remainder, there is nothing "
            "to round.",
            "`//` rounds down. It rounds up if you first add something to the number of tokens: enough that any "
            "remainder, even of one token, reaches the next block, but an exact multiple doesn't.",
            "Add `block_size - 1` to the tokens, then divide with `//`.",
        ),
        points=1,
    ),
    table.EXERCISE,
    Exercise(
        id="03.4",
        title="the slot mapping",
        reference="lessons_lib.kv_cache.cache_slots:slot_mapping",
        test=check_slot_mapping,
        hints=(
            "What would you write for one position, a plain int? Each operation of that formula also works on a whole "
            "tensor of positions, elementwise. The last one to think of: you can index one tensor with another.",
            "Refuse `start` below 0, and `end` beyond the last slot of the table. Make two tensors: the positions, "
            "with `torch.arange`, and the table, from `blocks`. Index the table with position // block size, multiply "
            "by the block size, add the offsets.",
            "`table = torch.tensor(blocks, dtype=torch.int64)` and `positions = torch.arange(start, end)`; "
            "`table[positions // block_size] * block_size + positions % block_size`.",
        ),
    ),
    Exercise(
        id="03.5",
        title="blocks in a budget (optional)",
        reference="lessons_lib.kv_cache.block_memory:blocks_in_budget",
        test=check_blocks_in_budget,
        hints=(
            "How many times does one whole block fit in the budget?",
            "Refuse a block size below 1 and a budget below 0. `block_bytes` returns the size of one block; pass "
            "`bytes_per_element` on to it. Divide, and round down.",
            "`int(budget_bytes // block_bytes(config, block_size, bytes_per_element))`.",
        ),
        points=1,
    ),
    Exercise(
        id="03.6",
        title="the step, in blocks (optional)",
        reference="lessons_lib.kv_cache.block_serving:step_in_blocks",
        test=check_step_in_blocks,
        hints=(
            "Write three loops, one for each point, and test each with the table in the text. The second is the hard "
            "one: the list gets shorter while you go over it, so a `for` loop over `running` won't do.",
            "Go over `running` by index, in a `while` loop that compares the index with `len(running)`. Try to append; "
            "only if that succeeds, go on to the next index. On `OutOfBlocks`, take the last request out of `running`, "
            "release its table, and put it at the front of the queue; the loop then tries the same index again. If "
            "that request was the one at this index, the index is now past the end, and the loop ends by itself.",
            "The second loop: `try: running[index].table.append(); index += 1`, `except OutOfBlocks: last = "
            "running.pop(); last.table.release(); waiting.appendleft(last)`. The third: `while waiting and "
            "blocks_for(waiting[0].prompt_tokens, pool.block_size) <= len(pool.free_queue):`. The first goes over a "
            "copy: `for request in [each for each in running if each.finished]`.",
        ),
        time_limit=10.0,
    ),
    Exercise(
        id="03.7",
        title="when to admit",
        reference="lessons_lib.kv_cache.block_serving:may_admit",
        test=check_may_admit,
        hints=(
            "Each running request needs a new block once in 16 steps, and a short one ends before that. With n of "
            "them, how many blocks will be asked for in the next 16 steps, at most?",
            "Ask for more free blocks than the prompt needs. How many more? A fixed number, or one that grows with "
            "`running`: one or two blocks for each request, say. If nothing runs, ask only for the prompt.",
            "`blocks_for(request.prompt_tokens, block_size) + soon <= num_free`. Begin with `soon = len(running)`, "
            "look at steps and restarts, and try others.",
        ),
        time_limit=20.0,
    ),
]
