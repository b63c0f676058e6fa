"""10.3, `swap_if_cheaper`, on machines that are made up: each has only those costs that one mistake would change."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.sequence import Sequence

LENGTHS = (128, 512, 2048, 8192)


class Case(NamedTuple):
    """A machine, whose times are on straight lines, and a victim.

    Attributes:
        out, into, recompute: microseconds per token.
        on_top: microseconds of a copy out, a copy in, and a step, however few tokens.
        computed, known, answered: the victim's tokens; `known` 0 is one more than `computed`.
        extra: blocks that it has for tokens that aren't computed yet.
        bends: microseconds that the measurements between the first and the last took longer: a copy out, a step.
        again: whether the function is asked a second time, for blocks of 4.
    """

    out: float
    into: float
    recompute: float
    computed: int
    on_top: tuple[float, float, float] = (0, 0, 0)
    size: int = 16
    known: int = 0
    answered: int = 0
    extra: int = 0
    bends: tuple[float, float] = (0, 0)
    lengths: tuple[int, ...] = LENGTHS
    again: bool = False

    def recorded(self) -> list[dict[str, float]]:
        rows = []
        for row, tokens in enumerate(self.lengths):
            bends = [bend * (0 < row < len(self.lengths) - 1) for bend in self.bends]
            out = self.on_top[0] + self.out * tokens + bends[0]
            step = self.on_top[2] + self.recompute * tokens + bends[1]
            into = self.on_top[1] + self.into * tokens
            seconds = {"swap_out_s": out / 1e6, "swap_in_s": into / 1e6, "recompute_s": step / 1e6}
            rows.append({"tokens": tokens, "bytes": 12_000 * tokens} | seconds)
        return rows


def cases() -> Iterator[Case]:
    """Directions, the base of a step, that of a swap, which tokens count, whole blocks, the break-even, bends."""
    swap_base = (4000, 6000, 0)
    yield Case(30, 30, 20, 1600)
    yield Case(5, 5, 30, 1600)
    yield Case(10, 10, 15, 1600)
    for out, into, recompute in ((5, 5, 15), (5, 20, 15), (20, 5, 15), (5, 20, 33), (20, 5, 33)):
        yield Case(out, into, recompute, 1600)
    yield Case(15, 15, 18, 96, (0, 0, 50_000))
    for computed in (96, 480, 4800, 9600):
        yield Case(10, 10, 18, computed, (0, 0, 50_000))
        yield Case(10, 10, 25, computed, (0, 0, 50_000))
    yield Case(5, 5, 10.5, 480, swap_base)
    for computed in (480, 960, 1040, 4800):
        yield Case(5, 5, 20, computed, swap_base)
        yield Case(5, 5, 20, computed, (0, 10_000, 0))
    for known in (800, 4000):
        yield Case(5, 5, 20, 480, swap_base, known=known)
    yield Case(5, 5, 20, 4800, swap_base, answered=4700)
    yield Case(10, 10, 15, 1600, answered=1500)
    yield Case(10, 10, 40, 40)
    yield Case(10, 10, 24.5, 17, (100, 0, 0))
    for size in (16, 4):
        yield Case(10, 10, 30, 17, size=size)
        yield Case(10, 10, 23, 17, size=size)
    yield Case(10, 10, 30, 16)
    yield Case(10, 10, 20.5, 16)
    yield Case(10, 10, 30, 16, extra=1)
    for lengths in (LENGTHS, (64, 1024), (1000, 2000)):
        for computed in (64, 256, 288, 304, 320, 400, 6400):
            yield Case(3, 4, 12, computed, (600, 900, 9000), lengths=lengths)
    yield Case(5, 5, 15, 1600, bends=(20_000, 0))
    yield Case(5, 5, 10.5, 1600, bends=(0, 20_000))
    yield Case(5, 5, 10.2, 8192, bends=(20_000, 0))
    yield Case(10, 10, 30, 17, again=True)


class Asked:
    """The scheduler that a choice is made for: only its pool matters."""

    def __init__(self, size: int):
        self.pool = BlockPool(1000, size)

    @property
    def swap_space(self) -> Any:
        idea = "The scheduler itself checks whether the swap space has room. Here only the two times count."
        raise Mistake("your function looks at `scheduler.swap_space`.", idea=idea)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    should_swap = watch("`swap_if_cheaper`", attempt, case.recorded(), returns=function_of)
    known = case.known or case.computed + 1
    victim = Sequence(
        "A",
        range(known - case.answered),
        case.answered + 10,
        output_ids=[5] * case.answered,
        num_computed_tokens=case.computed,
        blocks=list(range(blocks_for(case.computed, case.size) + case.extra)),
    )
    watch("the function that it returned", should_swap, Asked(case.size), victim, returns=decision_of)
    if case.again:
        done = "asked again, about the same victim, but in blocks of 4"
        watch(done, should_swap, Asked(4), victim, returns=decision_of)


def function_of(got: Any) -> Any:
    if callable(got):
        return Shown("a function")
    idea = "Define `should_swap(scheduler, victim)` inside `swap_if_cheaper`, and return it without calling it."
    raise Mistake(f"the result should be a function; yours is {short(got)}.", idea=idea)


def decision_of(got: Any) -> Any:
    return bool(got) if type(got).__name__ in ("bool", "bool_") else got  # one of numpy, too


def tell(case: Case) -> str:
    told = f"swapping out takes {case.out:g} µs per token, swapping in {case.into:g} µs"
    told += f", and both together {sum(case.on_top[:2]) / 1000:g} ms on top" if sum(case.on_top[:2]) else ""
    told += f"; each recomputed token takes {case.recompute:g} µs"
    told += f", and a step {case.on_top[2] / 1000:g} ms on top" if case.on_top[2] else ""
    told += "; the measurements between the first and the last took longer" if any(case.bends) else ""
    told += f"; measured: {' and '.join(map(str, case.lengths))} tokens" if len(case.lengths) < 4 else ""
    told += f"; blocks of {case.size}; {case.computed:,} tokens of the victim are computed"
    told += f", of {case.known:,} known ones" if case.known else ""
    told += f", {case.answered:,} of them of its answer" if case.answered else ""
    told += f", and it has {counted(case.extra, 'block')} more" if case.extra else ""
    swap = (sum(case.on_top[:2]) + (case.out + case.into) * copied_by(case)) / 1000
    return f"{told}: swapping adds {swap:.3g} ms, and recomputing {case.recompute * case.computed / 1000:.3g} ms."


def copied_by(case: Case) -> int:
    return case.size * blocks_for(case.computed, case.size)


def facts(case: Case) -> dict[str, Any]:
    blocks = counted(copied_by(case) // case.size, "block")
    return {"blocks": f"{case.computed:,} computed tokens are in {blocks} of {case.size}"}


MISTAKES = """
True means: swap, because that adds *less*. A swap takes its base, and time for the whole blocks of the computed tokens.
Recomputing takes time for the computed tokens, without the base of a step.
~ < recompute_per_token => > recompute_per_token
A victim is copied twice: out of the pool now, and back in when it is admitted again.
~ row["swap_out_s"] + row["swap_in_s"] => row["swap_out_s"]
or ~ row["swap_out_s"] + row["swap_in_s"] => row["swap_in_s"]
Out and in may take different times: add both, each once.
~ row["swap_out_s"] + row["swap_in_s"] => 2 * row["swap_out_s"]
or ~ row["swap_out_s"] + row["swap_in_s"] => 2 * row["swap_in_s"]
or ~ row["swap_out_s"] + row["swap_in_s"] => 2 * (row["swap_out_s"] + row["swap_in_s"])
The step that brings the victim back runs anyway, for the other sequences. Count only how much longer its tokens make
it.
~ recompute_per_token * computed => recompute_per_token * (computed - first["tokens"]) + first["recompute_s"]
or ~ recompute_per_token * computed => recompute_per_token * computed + first["recompute_s"]
A swap takes time even if it copies next to nothing: what is left at 0 tokens, on the line.
= swap_base = 0
You seem to add the whole time of the first measurement to every swap. At 0 tokens, the line is lower by slope × tokens.
= swap_base = swap_first
The line goes on at both ends, below the first measurement and beyond the last.
~ swap_per_token * copied => swap_per_token * max(first["tokens"], min(last["tokens"], copied))
A block is copied whole, even if it isn't full: {blocks}.
= copied = computed
or = copied = size * (computed // size)
The blocks aren't always of 16: {blocks}.
= size, computed = 16, victim.num_computed_tokens
Is one block too many copied? {blocks}, and tokens that aren't computed yet need none.
= copied = size * (computed // size + 1)
or ~ blocks_for(computed, size) => blocks_for(victim.num_tokens, size)
Only blocks with computed tokens are copied. `victim.blocks` may have more, for its next tokens.
= copied = size * len(victim.blocks)
Your line counts tokens, but gets a number of blocks. A block copies `block_size` tokens.
= copied = blocks_for(computed, size)
Only *computed* tokens have keys and values that can be copied or lost. The others are computed either way.
= size, computed = scheduler.pool.block_size, victim.num_tokens
or = size, computed = scheduler.pool.block_size, victim.num_tokens
= copied = computed
or ~ recompute_per_token * computed => recompute_per_token * victim.num_tokens
Whole blocks are copied, but only the computed tokens are recomputed.
~ recompute_per_token * computed => recompute_per_token * copied
All computed tokens are lost, those before the first measurement, too.
~ recompute_per_token * computed => recompute_per_token * (computed - first["tokens"])
Keys and values are copied or lost for all computed tokens, of the prompt and of the answer.
= size, computed = scheduler.pool.block_size, len(victim.prompt_ids)
or ~ recompute_per_token * computed => recompute_per_token * min(computed, len(victim.prompt_ids))
Take the first and the last measurement. The farther apart two points are, the less an error in one of them tilts the
line.
= first, last = recorded[0], recorded[1]
or = first, last = recorded[-2], recorded[-1]
or - first, last =
+ import numpy
+ rows = [[row["tokens"], row["swap_out_s"] + row["swap_in_s"], row["recompute_s"]] for row in recorded]
+ lines = [numpy.polyfit([row[0] for row in rows], [row[i] for row in rows], 1) for i in (1, 2)]
+ at = [{"tokens": n, "swap_out_s": lines[0][1] + lines[0][0] * n, "swap_in_s": 0.0,
+       "recompute_s": lines[1][1] + lines[1][0] * n} for n in (100, 9000)]
+ first, last = at
A time over its tokens contains a share of what any step or any swap takes. Divide the difference of two times by the
difference of their tokens: that gives seconds per token.
= recompute_per_token = last["recompute_s"] / last["tokens"]
or = recompute_per_token = first["recompute_s"] / first["tokens"]
or - swap_base => swap_per_token, swap_base = swap_last / last["tokens"], 0
or - swap_base => swap_per_token, swap_base = swap_last / last["tokens"], 0
= recompute_per_token = last["recompute_s"] / last["tokens"]
or ~ tokens = last["tokens"] - first["tokens"] => tokens = last["tokens"]
or ~ - first["recompute_s"]) / tokens => - first["recompute_s"]) / last["tokens"]
Your function answers the same for every victim. Does it ask for the computed tokens? Are both times in seconds?
- return swap_base => return True
or - return swap_base => return False
A single break-even length doesn't do: if a token takes longer to swap than to recompute, there is none; and a swap
copies whole blocks.
- return swap_base => return computed > swap_base / (recompute_per_token - swap_per_token)
or - return swap_base => return computed >= 75
A victim's own times are on the lines, between two measurements. You compare those of the nearest one.
- return swap_base
+ row = min(recorded, key=lambda row: abs(row["tokens"] - computed))
+ return row["swap_out_s"] + row["swap_in_s"] < row["recompute_s"]
Ask the victim that your function gets, and its scheduler, each time.
< def should_swap => kept = []
- return swap_base
+ kept.append(swap_base + swap_per_token * copied < recompute_per_token * computed)
+ return kept[0]
"""

KNOWN = mistakes(MISTAKES)
TASK = Task(
    reference="lessons_lib.scheduling.swap_cost:swap_if_cheaper",
    cases=cases,
    run=run,
    tell=tell,
    facts=facts,
    clear=0.7,
    known=KNOWN,
    about={"returned": KNOWN[0].why},
)

EXERCISE = TASK.exercise(
    id="10.3",
    title="swap or recompute",
    hints=(
        "Draw time against tokens: one line for swapping, one for recomputing. Which of the two lines starts at 0, "
        "if the step runs anyway?",
        "Two points make a line: take the first and the last measurement. Swapping is out plus in; it has a slope "
        "(seconds per token) and a base (what is left at 0 tokens). For recomputing you need the slope only. "
        "Inside `should_swap`, the tokens to recompute are `victim.num_computed_tokens`, and the tokens to copy "
        "are those rounded up to whole blocks.",
        '`swap_per_token = (swap_last - swap_first) / (last["tokens"] - first["tokens"])`, where `swap_first = '
        'first["swap_out_s"] + first["swap_in_s"]`, and `swap_last` likewise; `swap_base = swap_first - '
        'swap_per_token * first["tokens"]`; `recompute_per_token` is the same slope for `recompute_s`. In '
        "`should_swap`: `copied = size * blocks_for(computed, size)`; `return swap_base + swap_per_token * copied "
        "< recompute_per_token * computed`.",
    ),
)
