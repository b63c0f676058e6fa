"""Judges 10.3, `swap_if_cheaper`, on machines that are made up: each has only those costs that one mistake would
change, so that a wrong choice has one cause.
"""

from dataclasses import dataclass
from types import SimpleNamespace

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.sequence import Sequence

BYTES = 12_000  # per token
LENGTHS = (128, 512, 2048, 8192)
US = 1e-6


@dataclass(frozen=True)
class Machine:
    """Times that lie on straight lines: microseconds per token, and those that come on top."""

    out: float = 0.0
    into: float = 0.0
    out_base: float = 0.0
    in_base: float = 0.0
    recompute: float = 0.0
    recompute_base: float = 0.0

    def recorded(self, lengths: tuple[int, ...] = LENGTHS) -> list[dict[str, float]]:
        return [
            {
                "tokens": tokens,
                "bytes": tokens * BYTES,
                "swap_out_s": (self.out_base + self.out * tokens) * US,
                "swap_in_s": (self.in_base + self.into * tokens) * US,
                "recompute_s": (self.recompute_base + self.recompute * tokens) * US,
            }
            for tokens in lengths
        ]

    def swap(self, tokens: int) -> float:
        return self.out_base + self.in_base + (self.out + self.into) * tokens

    def __str__(self) -> str:
        swap_base, base = self.out_base + self.in_base, self.recompute_base
        told = f"swapping out takes {self.out:g} µs per token, swapping in {self.into:g} µs"
        told += f", and both together {swap_base / 1000:g} ms on top" if swap_base else ""
        told += f"; each recomputed token takes {self.recompute:g} µs"
        return told + (f", and a step {base / 1000:g} ms on top" if base else "")


def check_swap_if_cheaper(attempt) -> None:
    _check_directions(attempt)
    _check_step_that_runs_anyway(attempt)
    _check_cost_of_a_swap(attempt)
    _check_counts(attempt)
    _check_blocks(attempt)
    _check_break_even(attempt)


def _judge(
    attempt,
    machine: Machine,
    computed: int,
    idea: str,
    *,
    size: int = 16,
    known: int | None = None,
    extra_blocks: int = 0,
    lengths: tuple[int, ...] = LENGTHS,
) -> None:
    known = computed + 1 if known is None else known
    case = f"{machine}; blocks of {size}; {computed:,} tokens of the victim are computed, of {known:,} known ones"
    blocks = blocks_for(computed, size)
    case += f", and it has {blocks + extra_blocks} blocks." if extra_blocks else "."
    if lengths != LENGTHS:
        case += f" The recorded lengths are {' and '.join(map(str, lengths))}."
    swap, recompute = machine.swap(blocks * size) / 1000, machine.recompute * computed / 1000
    want = swap < recompute
    should_swap = call(attempt, machine.recorded(lengths), case=case)
    if not callable(should_swap):
        raise Mistake(
            f"`swap_if_cheaper` should return a function; yours returned {short(should_swap)}.",
            case=case,
            idea="Define `should_swap(scheduler, victim)` inside, and return it without calling it.",
        )
    victim = Sequence("A", range(known), 10, num_computed_tokens=computed, blocks=list(range(blocks + extra_blocks)))
    scheduler = SimpleNamespace(pool=BlockPool(1000, size))
    got = call(lambda: should_swap(scheduler, victim), case=case)
    if not isinstance(got, bool) and type(got).__name__ not in ("bool", "bool_"):
        raise Mistake(
            f"the function that you return should return True or False; yours returned {short(got)}.",
            case=case,
            idea="Compare the two times with `<` and return the result.",
        )
    if got != want:
        raise Mistake(
            f"swapping adds {swap:.3g} ms and recomputing {recompute:.3g} ms, so the function should return {want}; "
            f"yours returned {bool(got)}.",
            case=case,
            idea=idea,
        )


def _check_directions(attempt) -> None:
    never = (
        "Here each token takes longer to swap than to recompute, so swapping is never cheaper. How long does swapping "
        "1,600 tokens take, according to your function? Or is the comparison the wrong way round? True means: swap."
    )
    _judge(attempt, Machine(out=30, into=30, recompute=20), 1600, never)
    always = (
        "Here each token takes longer to recompute than to swap, and nothing comes on top. Are both times in the same "
        "unit, and are both of the same tokens?"
    )
    _judge(attempt, Machine(out=5, into=5, recompute=30), 1600, always)
    both = "A victim is copied twice: out of the pool now, and back in when it is admitted again."
    _judge(attempt, Machine(out=10, into=10, recompute=15), 1600, both)
    once = "The record has a time for the copies out and one for those in. Count each of them once."
    _judge(attempt, Machine(out=5, into=5, recompute=15), 1600, once)
    each = "Out and in may take different times. Here one of them is much slower than the other: add both."
    _judge(attempt, Machine(out=5, into=20, recompute=15), 1600, each)
    _judge(attempt, Machine(out=20, into=5, recompute=15), 1600, each)


def _check_step_that_runs_anyway(attempt) -> None:
    base = (
        "Each recorded step computed nothing else, so its time contains what any step takes. The step that brings the "
        "victim back runs anyway, for the other sequences. How much longer do the victim's tokens make it?"
    )
    _judge(attempt, Machine(out=15, into=15, recompute=18, recompute_base=50_000), 96, base)
    rate = (
        "Here, part of a step's time has nothing to do with the number of tokens. A recorded time over its tokens "
        "contains a share of that. How much longer does one more token make a step? Compare two measurements."
    )
    machine = Machine(out=10, into=10, recompute=18, recompute_base=50_000)
    _judge(attempt, machine, 96, rate)
    _judge(attempt, machine, 4800, rate)
    _judge(attempt, machine, 9600, "A victim may be longer than any that was measured. The line goes on.")


def _check_cost_of_a_swap(attempt) -> None:
    base = (
        "Here a swap takes time even if it copies next to nothing, and that has to be paid for every victim. What "
        "would your function say that a swap of 0 tokens takes?"
    )
    _judge(attempt, Machine(out=5, into=5, out_base=4000, in_base=6000, recompute=10.5), 480, base)
    rate = (
        "Every swap takes 10 ms here, however short the victim is. If the seconds per token (or the bandwidth) come "
        "from a single measurement, these 10 ms are spread over its tokens."
    )
    machine = Machine(out=5, into=5, out_base=4000, in_base=6000, recompute=20)
    _judge(attempt, machine, 480, rate)
    _judge(attempt, Machine(out=5, into=5, in_base=10_000, recompute=20), 480, rate)
    long = "For a long victim, the 10 ms on top hardly matter: per token, swapping is cheaper. Do you count them once?"
    _judge(attempt, machine, 4800, long)


def _check_counts(attempt) -> None:
    machine = Machine(out=5, into=5, out_base=4000, in_base=6000, recompute=20)
    lost = (
        "The victim loses what has been computed. The rest of its prompt has to be computed either way, so it is no "
        "reason to swap."
    )
    _judge(attempt, machine, 480, lost, known=800)
    _judge(attempt, machine, 480, "Only computed tokens have keys and values that can be copied or lost.", known=4000)


def _check_blocks(attempt) -> None:
    machine = Machine(out=10, into=10, recompute=30)
    whole = "A block is copied whole, even if it isn't full: 17 tokens are in two blocks of 16."
    _judge(attempt, machine, 17, whole)
    _judge(
        attempt,
        machine,
        17,
        "17 tokens are in five blocks of 4, so 20 tokens' worth is copied: `scheduler.pool.block_size`.",
        size=4,
    )
    _judge(attempt, machine, 16, "16 tokens fill exactly one block of 16. Is one block too many copied?")
    empty = (
        "Only blocks with computed tokens are copied. `victim.blocks` may have more: the step has just allocated them "
        "for its next tokens."
    )
    _judge(attempt, machine, 16, empty, extra_blocks=1)


def _check_break_even(attempt) -> None:
    lines = Machine(out=3, into=4, out_base=600, in_base=900, recompute=12, recompute_base=9000)
    idea = "Close to the break-even, both lines must be right: what a swap takes in all, and what each token adds."
    for lengths in ((128, 512, 2048, 8192), (64, 1024), (1000, 2000)):
        for computed in (64, 256, 288, 304, 320, 400, 6400):
            _judge(attempt, lines, computed, idea, lengths=lengths)
