"""Judges 10.3, `swap_if_cheaper`, on machines that are made up: each has only those costs that one mistake would
change, so that a wrong choice has one cause. If the attempt chooses like a known mistake in every case, the message
names that mistake.
"""

from collections.abc import Callable, Iterator

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_10.machines import Case, Machine
from lessons_lib.kv_cache.block_pool import blocks_for


def check_swap_if_cheaper(attempt) -> None:
    for case in CASES:
        _judge(attempt, case)


def _judge(attempt, judged: Case) -> None:
    case, swap, recompute = str(judged), judged.swap / 1000, judged.recompute / 1000
    want = swap < recompute
    should_swap = call(attempt, judged.machine.recorded(judged.lengths), case=case)
    if not callable(should_swap):
        raise Mistake(
            f"`swap_if_cheaper` should return a function; yours returned {short(should_swap)}.",
            case=case,
            idea="Define `should_swap(scheduler, victim)` inside, and return it without calling it.",
        )
    got = call(lambda: judged.asked(should_swap), case=case)
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
            idea=_known_mistake(attempt) or judged.idea,
        )


def _rule(
    swap: Callable = lambda first, last, tokens, size: _swap_line(first, last)(tokens),
    recompute: Callable = lambda first, last, tokens, size: _recompute_per_token(first, last) * tokens,
) -> Callable:
    """The right choice, with a part replaced: `swap` gets the tokens of all copied blocks, and the block size."""

    def swap_if_cheaper(recorded):
        first, last = recorded[0], recorded[-1]

        def should_swap(scheduler, victim) -> bool:
            size, computed = scheduler.pool.block_size, victim.num_computed_tokens
            return swap(first, last, size * blocks_for(computed, size), size) < recompute(first, last, computed, size)

        return should_swap

    return swap_if_cheaper


def _both_ways(row) -> float:
    return row["swap_out_s"] + row["swap_in_s"]


def _swap_line(first, last, tokens: float | None = None, base: Callable | None = None) -> Callable[[float], float]:
    """Seconds of a swap; `tokens` is what the difference of two measurements is divided by."""
    slope = (_both_ways(last) - _both_ways(first)) / (tokens or last["tokens"] - first["tokens"])
    right = _both_ways(first) - slope * first["tokens"]
    return lambda copied: (base(first, right) if base else right) + slope * copied


def _recompute_per_token(first, last, tokens: float | None = None) -> float:
    return (last["recompute_s"] - first["recompute_s"]) / (tokens or last["tokens"] - first["tokens"])


def _within(first, last, tokens: float) -> float:
    return min(max(tokens, first["tokens"]), last["tokens"])


def _above_break_even(recorded):
    first, last = recorded[0], recorded[-1]
    line = _swap_line(first, last)
    gain = _recompute_per_token(first, last) - (line(1) - line(0))

    def should_swap(scheduler, victim) -> bool:
        return victim.num_computed_tokens > line(0) / gain

    return should_swap


def _nearest_measurement(recorded):
    def should_swap(scheduler, victim) -> bool:
        row = min(recorded, key=lambda row: abs(row["tokens"] - victim.num_computed_tokens))
        return _both_ways(row) < row["recompute_s"]

    return should_swap


DIFFERENCE = (
    "Is your slope the difference of two times over the difference of their tokens? Then it gives seconds per token: "
    "check that it leads from the first measurement to the last."
)
MISTAKES = (
    (_rule(swap=lambda a, b, tokens, size: _swap_line(a, b)(tokens / size)), (
        "Your line counts tokens, but seems to get a number of blocks. A block copies `block_size` tokens."
    )),
    (_rule(swap=lambda a, b, tokens, size: _swap_line(a, b, base=lambda row, _: _both_ways(row))(tokens)), (
        "You seem to add the whole time of the first measurement to every swap. It contains that measurement's own "
        "tokens: at 0 tokens, the line is lower by slope × tokens."
    )),
    (_rule(swap=lambda a, b, tokens, size: _swap_line(a, b, base=lambda _, base: 2 * base)(tokens)), (
        "You seem to count what a swap takes on top twice. The sum of the two times contains it for both directions."
    )),
    (
        _rule(
            swap=lambda a, b, tokens, size: _swap_line(a, b, b["tokens"])(tokens),
            recompute=lambda a, b, tokens, size: _recompute_per_token(a, b, b["tokens"]) * tokens,
        ),
        DIFFERENCE,
    ),
    (
        _rule(
            swap=lambda a, b, tokens, size: _swap_line(a, b, 3)(tokens),
            recompute=lambda a, b, tokens, size: _recompute_per_token(a, b, 3) * tokens,
        ),
        DIFFERENCE,
    ),
    (lambda recorded: _rule()(recorded[:2]), (
        "You seem to use the first two measurements. Take the first and the last: the farther apart two points are, "
        "the less an error in one of them tilts the line."
    )),
    (lambda recorded: _rule()(recorded[-2:]), (
        "You seem to use the last two measurements. Take the first and the last: the farther apart two points are, "
        "the less an error in one of them tilts the line."
    )),
    (
        _rule(
            swap=lambda a, b, tokens, size: _swap_line(a, b)(_within(a, b, tokens)),
            recompute=lambda a, b, tokens, size: _recompute_per_token(a, b) * _within(a, b, tokens),
        ),
        "You seem to take a victim that is shorter than the first measurement, or longer than the last, for one of "
        "that length, as `np.interp` does. The line goes on at both ends.",
    ),
    (_above_break_even, (
        "You seem to compare the victim's tokens with one break-even length. If a token takes longer to swap than to "
        "recompute, there is none; and a swap copies whole blocks. Compute the two times for each victim, and compare "
        "them."
    )),
    (_nearest_measurement, (
        "You seem to compare the two times of the measurement that is nearest in length. A victim's own times are on "
        "the lines, between two measurements. And a recorded step contains what any step takes."
    )),
)  # fmt: skip


def _known_mistake(attempt) -> str:
    """The idea of the known mistake that chooses like the attempt in every case, or ""."""
    outcomes = _choices(attempt)
    return next((idea for rule, idea in MISTAKES if outcomes and _choices(rule) == outcomes), "")


def _choices(attempt) -> list[bool]:
    """What an attempt chooses in each case; [] if it raises."""
    try:
        return [bool(case.asked(attempt(case.machine.recorded(case.lengths)))) for case in CASES]
    except Exception:  # noqa: BLE001 - a mistake was found already; this only looks for a better message
        return []


def _directions() -> Iterator[Case]:
    never = (
        "Here each token takes longer to swap than to recompute, so swapping is never cheaper. How long does swapping "
        "1,600 tokens take, according to your function? Or is the comparison the wrong way round? True means: swap."
    )
    yield Case(Machine(out=30, into=30, recompute=20), 1600, never)
    always = (
        "Here each token takes longer to recompute than to swap, and nothing comes on top. Are both times in the same "
        "unit, and are both of the same tokens?"
    )
    yield Case(Machine(out=5, into=5, recompute=30), 1600, always)
    both = "A victim is copied twice: out of the pool now, and back in when it is admitted again."
    yield Case(Machine(out=10, into=10, recompute=15), 1600, both)
    once = "The record has a time for the copies out and one for those in. Count each of them once."
    yield Case(Machine(out=5, into=5, recompute=15), 1600, once)
    each = "Out and in may take different times. Here one of them is much slower than the other: add both."
    yield Case(Machine(out=5, into=20, recompute=15), 1600, each)
    yield Case(Machine(out=20, into=5, recompute=15), 1600, each)
    yield Case(Machine(out=5, into=20, recompute=33), 1600, each)


def _step_that_runs_anyway() -> Iterator[Case]:
    base = (
        "Each recorded step computed nothing else, so its time contains what any step takes. The step that brings the "
        "victim back runs anyway, for the other sequences. How much longer do the victim's tokens make it?"
    )
    yield Case(Machine(out=15, into=15, recompute=18, recompute_base=50_000), 96, base)
    rate = (
        "Here, part of a step's time has nothing to do with the number of tokens. A recorded time over its tokens "
        "contains a share of that. How much longer does one more token make a step? Compare two measurements. "
        "And does the answer depend on the victim?"
    )
    machine = Machine(out=10, into=10, recompute=18, recompute_base=50_000)
    yield Case(machine, 96, rate)
    yield Case(machine, 4800, rate)
    yield Case(machine, 9600, "A victim may be longer than any that was measured. The line goes on.")


def _cost_of_a_swap() -> Iterator[Case]:
    base = (
        "Here a swap takes time even if it copies next to nothing, and that has to be paid for every victim. What "
        "would your function say that a swap of 0 tokens takes?"
    )
    yield Case(Machine(out=5, into=5, out_base=4000, in_base=6000, recompute=10.5), 480, base)
    rate = (
        "Every swap takes 10 ms here, out and in together, however short the victim is. If the seconds per token (or "
        "the bandwidth) come from a single measurement, these 10 ms are spread over its tokens."
    )
    machine = Machine(out=5, into=5, out_base=4000, in_base=6000, recompute=20)
    yield Case(machine, 480, rate)
    yield Case(Machine(out=5, into=5, in_base=10_000, recompute=20), 480, rate)
    long = "For a long victim, the 10 ms on top hardly matter: per token, swapping is cheaper. Do you count them once?"
    yield Case(machine, 4800, long)


def _counts() -> Iterator[Case]:
    machine = Machine(out=5, into=5, out_base=4000, in_base=6000, recompute=20)
    lost = (
        "The victim loses what has been computed. The rest of its prompt has to be computed either way, so it is no "
        "reason to swap."
    )
    yield Case(machine, 480, lost, known=800)
    yield Case(machine, 480, "Only computed tokens have keys and values that can be copied or lost.", known=4000)
    answer = (
        "Most of what is computed belongs to the answer. Keys and values are copied or lost for all computed tokens, "
        "of the prompt and of the answer."
    )
    yield Case(machine, 4800, answer, answered=4700)
    yield Case(Machine(out=10, into=10, recompute=15), 1600, answer, answered=1500)


def _blocks() -> Iterator[Case]:
    first = (
        "Here nothing comes on top of what each token takes. Are your lines right for a short victim? How long would "
        "your function say that 0 tokens take, to swap and to recompute?"
    )
    yield Case(Machine(out=10, into=10, recompute=40), 40, first)
    only = "Whole blocks are copied, so 32 tokens' worth. But only the 17 computed tokens are recomputed."
    yield Case(Machine(out=10, into=10, out_base=100, recompute=24.5), 17, only)
    machine = Machine(out=10, into=10, recompute=30)
    whole = "A block is copied whole, even if it isn't full: 17 tokens are in two blocks of 16."
    yield Case(machine, 17, whole)
    yield Case(
        machine,
        17,
        "17 tokens are in five blocks of 4, so 20 tokens' worth is copied: `scheduler.pool.block_size`.",
        size=4,
    )
    yield Case(machine, 16, "16 tokens fill exactly one block of 16. Is one block too many copied?")
    one_less = "16 tokens are computed, and all 16 are computed again. Does your function count one fewer?"
    yield Case(Machine(out=10, into=10, recompute=20.5), 16, one_less)
    empty = (
        "Only blocks with computed tokens are copied. `victim.blocks` may have more: the step has just allocated them "
        "for its next tokens."
    )
    yield Case(machine, 16, empty, extra_blocks=1)


def _break_even() -> Iterator[Case]:
    lines = Machine(out=3, into=4, out_base=600, in_base=900, recompute=12, recompute_base=9000)
    idea = "Close to the break-even, both lines must be right: what a swap takes in all, and what each token adds."
    for lengths in ((128, 512, 2048, 8192), (64, 1024), (1000, 2000)):
        for computed in (64, 256, 288, 304, 320, 400, 6400):
            yield Case(lines, computed, idea, lengths=lengths)


def _first_and_last() -> Iterator[Case]:
    bend = "Here the measurements between the first and the last aren't on the line. Use the first and the last."
    yield Case(Machine(out=5, into=5, recompute=15, swap_bend=20_000), 1600, bend)
    yield Case(Machine(out=5, into=5, recompute=10.5, recompute_bend=20_000), 1600, bend)
    yield Case(Machine(out=5, into=5, recompute=10.2, swap_bend=20_000), 8192, bend)


CASES = (
    *_directions(),
    *_step_that_runs_anyway(),
    *_cost_of_a_swap(),
    *_counts(),
    *_blocks(),
    *_break_even(),
    *_first_and_last(),
)
