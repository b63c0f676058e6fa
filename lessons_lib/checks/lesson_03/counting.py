"""Judges 03.2, `blocks_for`: as many blocks as are needed, and not one more."""

from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_03.books import counted, is_tensor, is_whole

# (tokens, block size). The boundary from the lesson's example comes first: that's what this exercise is about.
CASES = [
    *((tokens, 16) for tokens in (128, 129, 127, 0, 1, 15, 16, 17, 13, 62, 3)),
    *((5, 1), (7, 4), (8, 4), (9, 4), (0, 1)),
    *((128, 128), (129, 128), (1, 256), (1001, 1000)),
]


def check_blocks_for(attempt) -> None:
    rng = Random(1)
    further = [(rng.randrange(3000), rng.choice((1, 2, 3, 8, 16, 32, 100))) for _ in range(300)]
    for num_tokens, block_size in CASES + further:
        case = f"`blocks_for({num_tokens}, {block_size})`."
        got = call(attempt, num_tokens, block_size, case=case)
        want = sum(1 for _ in range(0, num_tokens, block_size))
        _check_kind(attempt, got, want, case)
        if int(got) != want:
            raise _name_wrong_count(attempt, int(got), want, num_tokens, block_size, case)


def _gives(attempt, num_tokens: int, block_size: int = 16) -> object:
    """What the attempt returns for another number of tokens, to tell one mistake from another."""
    try:
        return attempt(num_tokens, block_size)
    except Exception:  # noqa: BLE001 - the attempt is already known to be wrong
        return None


def _check_kind(attempt, got, want: int, case: str) -> None:
    if got is None:
        raise Mistake(f"the answer should be {want}; yours is None.", case=case, idea="Return the number of blocks.")
    if isinstance(got, float) or type(got).__name__ in ("float64", "float32"):
        further = _gives(attempt, 129)
        if got == int(got) and isinstance(further, float) and further != int(further):
            got, want, case = further, 9, "`blocks_for(129, 16)`."
        if got == int(got):
            idea = (
                "A count is an int: the pool can't loop over `range(8.0)`. Use `//`, or convert the result with "
                "`int(...)`."
            )
        else:
            idea = (
                "`/` gives a fraction, but a request holds whole blocks: a partly filled block counts. Round up, in "
                "integers."
            )
        shown = f"{float(got):.1f}" if got == int(got) else f"{float(got):g}"
        raise Mistake(f"the answer should be the int {want}; yours is the float {shown}.", case=case, idea=idea)
    if is_tensor(got):
        raise Mistake(
            f"the answer should be the int {want}; yours is a tensor, {short(got)}.",
            case=case,
            idea="A count is a plain int. Use `//` on the two ints, or convert the result with `int(...)`.",
        )
    if not is_whole(got):
        raise Mistake(f"the answer should be the int {want}; yours is {type(got).__name__} {short(got)}.", case=case)


def _name_wrong_count(attempt, got: int, want: int, num_tokens: int, block_size: int, case: str) -> Mistake:
    needs = "needs" if num_tokens == 1 else "need"
    what = (
        f"{counted(num_tokens, 'token')} at {block_size} per block {needs} {counted(want, 'block')}; yours returns "
        f"{got}."
    )
    full, rest = divmod(num_tokens, block_size)
    last = num_tokens - 1
    if num_tokens == 0:
        idea = "Without tokens there is nothing to store, so no block is needed. A waiting request takes no memory."
    elif got == want * block_size and _gives(attempt, 129) == 144:
        idea = f"That is the number of cache slots in {counted(want, 'block')}. How many blocks are there?"
    elif _gives(attempt, 16, 128) == 8 and _gives(attempt, 128, 16) == 1:
        idea = "The two arguments are swapped: divide the tokens by `block_size`."
    elif rest == 0 and got == want + 1 and _gives(attempt, 480) == 32:
        idea = "Do you divide by one less than the block size? A block of 16 holds 16 tokens; no slot is kept free."
    elif rest == 0 and got == want + 1:
        idea = (
            f"{num_tokens} is {full} × {block_size}: the blocks are exactly full. The last token is at position "
            f"{last}, the last slot of block {last} // {block_size} = {last // block_size}. You count a block for a "
            "token that isn't there yet; add one only if there is a remainder."
        )
    elif rest == 1 and got == want - 1:
        idea = (
            f"Position {last} is the first slot of block {last} // {block_size} = {full}, the {_nth(full + 1)}. "
            f"{_why_down(attempt)}"
        )
    elif rest and got == want - 1:
        idea = (
            f"{counted(full, 'full block')} {'holds' if full == 1 else 'hold'} {full * block_size} tokens. The "
            "remaining tokens need a block too, even if they don't fill it."
        )
    elif rest and got == want + 1 and block_size & (block_size - 1):
        idea = (
            f"{counted(want, 'block')} can hold {want * block_size} tokens, which is enough. {block_size} is no power "
            "of two, as 16 is: does your formula need one? Or do you round up twice?"
        )
    elif rest and got == want + 1:
        idea = f"{counted(want, 'block')} can hold {want * block_size} tokens, which is enough. Do you round up twice?"
    elif got == rest and _gives(attempt, 130) == 2:
        idea = "That is the remainder, `%`: the tokens in the last block. How many blocks are there?"
    elif got == -(-num_tokens // 16):
        idea = "That is the answer for blocks of 16. Use `block_size`."
    else:
        idea = "Count one block for every `block_size` tokens, and one more if there is a remainder."
    return Mistake(what, case=case, idea=idea)


def _why_down(attempt) -> str:
    if _gives(attempt, 130) == 9:
        return (
            "You seem to add slightly too little: a remainder of one token must reach the next block too, however "
            "large the block is."
        )
    if _gives(attempt, 143) == 9:
        return "`round` goes to the nearest integer, down as well as up: always round up."
    return "`//` rounds down and drops the block that isn't full: round up."


def _nth(number: int) -> str:
    words = {1: "first", 2: "second", 3: "third", 9: "ninth"}
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return words.get(number, f"{number}{suffix}")
