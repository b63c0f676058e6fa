"""03.6, `blocks_for`: as many blocks as are needed, and not one more."""

from collections.abc import Iterator
from random import Random

from lessons_lib.checks.diagnosis import Task, calls, mistakes
from lessons_lib.checks.lesson_03.books import is_tensor, is_whole


def cases() -> Iterator[tuple[int, int]]:
    """(tokens, block size). The boundary from the lesson's example comes first: that's what this exercise is about."""
    yield from ((tokens, 16) for tokens in (128, 129, 127, 0, 1, 15, 16, 17, 13, 62, 3, 130, 143))
    yield from ((5, 1), (7, 4), (8, 4), (9, 4), (0, 1), (128, 128), (129, 128), (1, 256), (1001, 1000))
    draw = Random(1)
    yield from ((draw.randrange(3000), draw.choice((1, 2, 3, 8, 16, 32, 100))) for _ in range(100))


def about(mine: dict, want: dict) -> str:
    (tokens, size), right, got = want["case"], want["returned"], mine["returned"]
    if size != 16 and got == -(-tokens // 16):
        return "That is right for blocks of 16. Use `block_size`."
    if not tokens:
        return "Without tokens there is nothing to store, so no block is needed."
    holds = f"{right} blocks of {size} hold {right * size} tokens"
    if type(got) is not int:
        return "A count is a plain int."
    if abs(got - right) > 1:
        return f"How many *blocks* are there? {holds}."
    if got < right:
        return f"Round up: a block that isn't full is a block, too. {holds}, and one fewer is too few for {tokens}."
    if tokens % size == 0:
        return f"{holds}, so all of them are exactly full: add one only if there is a remainder."
    return f"{holds}, enough for {tokens}: a remainder needs one block, however many tokens it has."


TASK = Task(
    reference="lessons_lib.kv_cache.block_pool:blocks_for",
    cases=cases,
    **calls("blocks_for", returns=lambda got: int(got) if is_whole(got) and not is_tensor(got) else got),
    known=mistakes("""
        The two arguments are swapped: divide the tokens by `block_size`.
        = return -(-block_size // num_tokens) if num_tokens else 0
        or = return (block_size + num_tokens - 1) // num_tokens
        """),
    clear=0.8,
    about={"returned": about},
)

EXERCISE = TASK.exercise(
    id="03.6",
    title="how many blocks (optional)",
    hints=(
        "Divide, and round up: a partly filled block is a block, too. If there is no remainder, there is nothing "
        "to round.",
        "`//` rounds down. It rounds up if you first add something to the number of tokens: enough that any "
        "remainder, even of one token, reaches the next block, but an exact multiple doesn't.",
        "Add `block_size - 1` to the tokens, then divide with `//`.",
    ),
    points=1,
)
