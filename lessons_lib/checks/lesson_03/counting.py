"""03.6, `blocks_for`: as many blocks as are needed, and not one more."""

from collections.abc import Iterator
from random import Random
from typing import Any

import lessons_lib.kv_cache.block_pool as pool
from lessons_lib.checks.diagnosis import Task, calls, mistakes
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_03.books import is_tensor, is_whole


def cases() -> Iterator[tuple[int, int]]:
    """(tokens, block size). The boundary from the lesson's example comes first: that's what this exercise is about."""
    yield from ((tokens, 16) for tokens in (128, 129, 127, 0, 1, 15, 16, 17, 13, 62, 3, 130, 143))
    yield from ((5, 1), (7, 4), (8, 4), (9, 4), (0, 1), (128, 128), (129, 128), (1, 256), (1001, 1000))
    draw = Random(1)
    yield from ((draw.randrange(3000), draw.choice((1, 2, 3, 8, 16, 32, 100))) for _ in range(100))


def facts(case: tuple[int, int]) -> dict[str, Any]:
    tokens, size = case
    full, want = tokens // size, pool.blocks_for(tokens, size)
    return {"tokens": tokens, "size": size, "full": full, "want": want, "room": want * size, "last": tokens - 1}


MISTAKES = """
{tokens} tokens fill {full} blocks of {size} exactly: position {last} is the last slot of the last one. You count a
block for a token that isn't there yet; add one only if there is a remainder.
= return num_tokens // block_size + 1
`//` rounds down and drops the block that isn't full: round up. Position {last} needs a slot, too.
= return num_tokens // block_size
{want} blocks hold {room} tokens, enough for {tokens}. Is your formula made for powers of two, as 16 is?
= return (num_tokens + block_size - 1) >> (block_size.bit_length() - 1)
`round` goes to the nearest integer, down as well as up: always round up.
= return round(num_tokens / block_size)
`/` gives a fraction, but a request holds whole blocks: a partly filled block counts. Round up, in integers.
= return num_tokens / block_size
or
= return (num_tokens + block_size - 1) / block_size
A count is an int: the pool can't loop over `range(8.0)`. Use `//`, or convert the result with `int(...)`.
= return float((num_tokens + block_size - 1) // block_size)
Without tokens there is nothing to store, so no block is needed. A waiting request takes no memory.
= return max(1, (num_tokens + block_size - 1) // block_size)
That is the answer for blocks of 16. Use `block_size`.
= return (num_tokens + 15) // 16
or
= return (num_tokens + 15) // block_size
You add the remainder itself: it is a number of tokens, and they need one block together.
= return num_tokens // block_size + num_tokens % block_size
That is the remainder, `%`: the tokens in the last block. How many blocks are there?
= return num_tokens % block_size
You add slightly too little: a remainder of one token must reach the next block, too, however large the block is.
~ block_size - 1) => block_size - 2)
or
= return int(num_tokens / block_size + 0.99)
{want} blocks hold {room} tokens, enough for {tokens}. Do you round up twice, or add too much before you divide?
= return (num_tokens + block_size - 1) // block_size + (num_tokens % block_size == block_size - 1)
or
= return (num_tokens + block_size - 1) // block_size + (num_tokens % block_size > 0)
The two arguments are swapped: divide the tokens by `block_size`.
= return -(-block_size // num_tokens) if num_tokens else 0
or
= return (block_size + num_tokens - 1) // num_tokens
That is the number of cache slots in {want} blocks. How many blocks are there?
= return (num_tokens + block_size - 1) // block_size * block_size
Do you divide by one less than the block size? A block of {size} holds {size} tokens; no slot is kept free.
= return -(-num_tokens // max(1, block_size - 1))
Return the number of blocks: a `return` is missing.
- return
A count is a plain int, not a text.
= return str((num_tokens + block_size - 1) // block_size)
A count is a plain int, not True or False.
= return num_tokens > 0
"""

TASK = Task(
    reference="lessons_lib.kv_cache.block_pool:blocks_for",
    cases=cases,
    **calls("blocks_for", returns=lambda got: int(got) if is_whole(got) and not is_tensor(got) else got),
    known=mistakes(MISTAKES),
    facts=facts,
    about={"returned": "Count one block for every `block_size` tokens, and one more if there is a remainder."},
)

EXERCISE = Exercise(
    id="03.6",
    title="how many blocks (optional)",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Divide, and round up: a partly filled block is a block, too. If there is no remainder, there is nothing "
        "to round.",
        "`//` rounds down. It rounds up if you first add something to the number of tokens: enough that any "
        "remainder, even of one token, reaches the next block, but an exact multiple doesn't.",
        "Add `block_size - 1` to the tokens, then divide with `//`.",
    ),
    points=1,
)
