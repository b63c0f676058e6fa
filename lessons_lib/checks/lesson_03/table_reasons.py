"""Why an answer to 03.3 is wrong: a refusal without a reason, or a wrong number of blocks."""

from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.kv_cache.block_pool import OutOfBlocks, blocks_for
from lessons_lib.kv_cache.block_table import TableFull

WHY_REFUSED = {
    TableFull: "The table may hold up to `max_blocks` blocks, whatever the number of tokens. Refuse only if *more* are "
    "needed; None means no limit.",
    OutOfBlocks: "Only the missing blocks have to be free: those that all tokens need, minus those that the table has. "
    "It's fine to take the last free block.",
    ValueError: "Refuse a negative `count`, nothing else. `append(0)` is allowed, and changes nothing.",
}


def why_count(got: int, want: int, tokens: int, size: int, was_enough: bool) -> str:
    last = tokens - 1
    if tokens == 0:
        return "Without tokens there is nothing to store, so no block is needed."
    if size != 16 and got == blocks_for(tokens, 16):
        return f"That would be right for blocks of 16. The block size is in `self.pool.block_size`, here {size}."
    if got < want and last % size == 0:
        return (
            f"Position {last} is the first slot of block {last} // {size} = {last // size} of this table. Your table "
            "grows too late: it must grow when the next position *starts* a block. Do you count on room in a last "
            "block that is exactly full, or that isn't there yet?"
        )
    if got < want:
        return (
            f"{counted(got, 'block')} of {size} {'has' if got == 1 else 'have'} {got * size} slots, too few for "
            f"{counted(tokens, 'token')}. "
            "`blocks_for` tells you how many blocks `num_tokens + count` tokens need."
        )
    if tokens % size == 0 and not was_enough:
        return (
            f"Position {last} is the last slot of a block: all blocks are exactly full, and every token has a slot. "
            "Grow when the next token comes, not before."
        )
    return (
        "The last block has room left. Fill it first: allocate only `blocks_for` of *all* tokens, minus the blocks "
        "that the table has."
    )
