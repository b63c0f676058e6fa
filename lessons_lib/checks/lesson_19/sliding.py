"""19.2, `slide`: which blocks layers with a window need in a step, which they give up, and which are new."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Task, Watch, mistakes

PARTS = {
    "needed": "`needed` has the blocks from the first token that the step's first token sees to the step's last token. "
    "The token at position p sees p - window + 1 to p.",
    "behind": "`behind` has the held blocks before the first needed one.",
    "new": "`new` has the needed blocks after the held ones.",
}


class Case(NamedTuple):
    """Steps of one sequence, the first with `computed` tokens before it."""

    window: int
    block_size: int
    computed: int
    counts: tuple[int, ...]


# Window, tokens of a block, computed tokens, tokens of each step
CASES = """
6 4 0 1
6 4 0 5
6 4 0 20
6 4 8 1
6 4 9 1
6 4 100 1
6 4 0 4 1
6 4 8 1 1 1 1 1
6 4 12 1 1 1 1 1 1 1 1
6 4 0 20 1 1
6 4 0 3 17 4 1
6 4 0 16 16 16 1
4 4 0 4 4 1 1 1 1
1 4 3 1 1 1 1
2 1 0 3 1 1
3 2 9 1 2 1
16 4 0 8 8 8 1 1
6 4 20 40 1 30
"""


def cases() -> Iterator[Case]:
    draw = Random(19)
    for line in CASES.strip().split("\n"):
        window, size, computed, *counts = map(int, line.split())
        yield Case(window, size, computed, tuple(counts))
    for _ in range(30):
        counts = tuple(draw.choice((1, 1, 2, 7, 16)) for _ in range(draw.randint(1, 5)))
        yield Case(draw.randint(1, 12), draw.randint(1, 5), draw.choice((0, draw.randint(0, 40))), counts)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    held, computed = range(0), case.computed
    for count in case.counts:
        call = f"`slide({held}, {computed}, {count}, {case.window}, {case.block_size})`"
        found = watch(call, attempt, held, computed, count, case.window, case.block_size, returns=parts,
                      subject="the result")  # fmt: skip
        held, computed = found[0], computed + count


def parts(found: Any) -> Any:
    """The three parts as lists, whatever sequences they are."""
    if isinstance(found, tuple | list) and len(found) == len(PARTS):
        return {name: [int(index) for index in part] for name, part in zip(PARTS, found)}
    return found


def tell(case: Case) -> str:
    return f"window {case.window}, blocks of {case.block_size}, {case.computed} computed tokens, steps {case.counts}."


def smaller(case: Case) -> Iterator[Case]:
    for end in range(1, len(case.counts)):
        yield case._replace(counts=case.counts[:end])


def broken(seen: dict[str, Any], want: dict[str, Any]) -> str:
    """The first part that differs."""
    if not isinstance(seen.get("returned"), dict):
        return "Return three ranges: needed, behind, new."
    return next(PARTS[name] for name, part in want["returned"].items() if seen["returned"][name] != part)


MISTAKES = """
The window of the token at position p has W tokens with itself: it begins at p - W + 1.
~ num_computed_tokens - window + 1) => num_computed_tokens - window)
It sees W tokens with itself, so it begins at p - W + 1, not one later.
~ num_computed_tokens - window + 1) => num_computed_tokens - window + 2)
The window begins at the *first* token of the step, which sees the furthest back. You begin with the last.
~ num_computed_tokens - window + 1) => num_computed_tokens + count - window)
A window that reaches behind the beginning begins at block 0.
~ max(0, num_computed_tokens - window + 1) => (num_computed_tokens - window + 1)
A block is needed as long as one of its tokens is in the window: round down.
= first = blocks_for(max(0, num_computed_tokens - window + 1), block_size)
The step writes its own tokens, too: the last needed block is that of its last token.
~ blocks_for(num_computed_tokens + count, block_size) => blocks_for(num_computed_tokens, block_size)
The last block may not be full: round up.
~ blocks_for(num_computed_tokens + count, block_size) => (num_computed_tokens + count) // block_size
The step's last token has position {total} - 1: it doesn't begin a new block yet.
~ blocks_for(num_computed_tokens + count, block_size) => (num_computed_tokens + count) // block_size + 1
The window moves on by tokens, not by blocks: the first needed block is that of the first token that is seen.
= first = max(0, num_computed_tokens // block_size - window // block_size)
A sequence gives up only blocks that it holds. In its first step, `held` is empty, so nothing is behind.
= behind = range(held.start, first)
or = behind = range(0, first)
It gave up the first blocks long ago. `behind` has only held blocks.
= behind = range(0, min(first, held.stop))
All held blocks that are still needed stay. Only those before the first needed one are behind.
= behind = held
New are only the blocks that `held` doesn't have.
= new = needed
New blocks begin after the held ones, but not before the first needed one: what is behind the window isn't allocated.
= new = range(held.stop, needed.stop)
Return `needed` as a range: the next step gets it as `held`.
= return [*needed], behind, new
The order is: needed, behind, new.
~ return needed, behind, new => return needed, new, behind
"""


TASK = Task(
    reference="lessons_lib.hybrid.window_blocks:slide",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    facts=lambda case: {"total": case.computed + case.counts[0]},
    known=mistakes(MISTAKES),
    about={"returned": broken},
)

EXERCISE = TASK.exercise(
    id="19.2",
    title="the blocks of a window",
    hints=(
        "Which tokens does the first token of the step see? Which block has the first of them? And which block has the "
        "last token of the step?",
        "The first token has position `num_computed_tokens`, and its window begins `window - 1` tokens before it, or "
        "at 0. Divide by the block size, rounding down. The last block: `blocks_for` of all tokens. Then compare both "
        "ends with `held`.",
        "`first = max(0, num_computed_tokens - window + 1) // block_size`; `needed = range(first, "
        "blocks_for(num_computed_tokens + count, block_size))`; `behind = range(held.start, min(first, held.stop))`; "
        "`new = range(max(first, held.stop), needed.stop)`.",
    ),
)
