"""Why an answer to 03.3 is wrong: a refusal that was not due, or a wrong number of blocks."""

from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.kv_cache.block_pool import OutOfBlocks, TableFull, blocks_for

WHY_REFUSED = {
    TableFull: "The table may hold `max_blocks` blocks, that many too. Refuse when *more* are needed; None means that there is no limit.",
    OutOfBlocks: "Only the missing blocks must be free: those that all tokens need, less those that the table has. Exactly as many as are free will do.",
    ValueError: "Refuse a negative `count`, nothing else. `append(0)` is allowed, and changes nothing.",
}


def why_count(got: int, want: int, tokens: int, size: int, was_enough: bool) -> str:
    last = tokens - 1
    if size != 16 and got == blocks_for(tokens, 16):
        return f"That is right for blocks of 16. The pool says how large they are: `self.pool.block_size`, here {size}."
    if got < want and last % size == 0:
        return (
            f"Position {last} is the first cell of block {last} // {size} = {last // size} of this table. You seem to grow when a "
            f"block is over-full; "
            "grow when the next position *starts* a block."
        )
    if got < want:
        return (
            f"{counted(got, 'block')} of {size} {'has' if got == 1 else 'have'} {got * size} cells, and {tokens} tokens are in. "
            "How many blocks `tokens + count` tokens need, `blocks_for` says."
        )
    if tokens % size == 0 and not was_enough:
        return (
            f"Position {last} is the last cell of a block: all blocks are exactly full, and no token is without a place. "
            "Grow when the next token comes, not before."
        )
    return (
        "The last block has cells left. Fill it first: take only as many new blocks as `blocks_for` of *all* tokens says, "
        "less those that the table has."
    )
