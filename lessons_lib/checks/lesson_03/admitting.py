"""Judges 03.7, `may_admit`: what any rule must do, and then what it costs."""

from dataclasses import replace
from numbers import Number

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.checks.lesson_03.scoreboard import (
    BLOCK_SIZE,
    GOAL,
    NUM_BLOCKS,
    PRICE,
    limits_fit,
    prompt_fits,
    steps_and_restarts,
)
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.block_serving import AdmissionView


def check_may_admit(attempt) -> None:
    _check_nothing_runs(attempt)
    _check_it_fits(attempt)
    _check_cost(attempt)


def _answer(attempt, request: AdmissionView, running: list[AdmissionView], num_free: int, block_size: int, case: str):
    """What the rule returns: anything that counts as True or False."""
    got = call(attempt, request, running, num_free, block_size, case=case)
    if got is None:
        raise Mistake(
            "your rule should return True or False; it returned None.",
            case=case,
            idea="Every way through the function needs a `return`.",
        )
    return got


def _wrong(got, what: str, case: str, idea: str) -> Mistake:
    """A wrong answer of the rule. If it is a number, that is said before any other idea."""
    if not isinstance(got, Number) or isinstance(got, bool):
        return Mistake(f"{what} your rule {'admits' if got else 'refuses'} it.", case=case, idea=idea)
    return Mistake(
        f"{what} yours returned {got}, which counts as {bool(got)}.",
        case=case,
        idea="0 counts as False, and every other number as True, a negative one too. Return True or False: a "
        "comparison, such as `... >= 0`.",
    )


def _admits(attempt, request: AdmissionView, running: list[AdmissionView], num_free: int, block_size: int):
    """Whether a rule that is known to be wrong admits the request; None if it raises."""
    try:
        return bool(attempt(request, list(running), num_free, block_size))
    except Exception:  # noqa: BLE001 - a wrong rule may raise anything
        return None


def _told(request: AdmissionView, running: list[AdmissionView], num_free: int, block_size: int) -> str:
    runs = "nothing runs"
    if running:
        runs = "; ".join(
            f"one runs with {each.num_tokens} tokens in {counted(each.num_blocks, 'block')}" for each in running
        )
    return (
        f"{counted(num_free, 'free block')} of {block_size}; {runs}; the first in the queue has a prompt of "
        f"{request.prompt_tokens} and a limit of {request.max_new_tokens}."
    )


def _check_nothing_runs(attempt) -> None:
    for prompt, limit, num_free, size in (
        (1, 1, 1, 4), (13, 4, 4, 4), (4, 9, 3, 4), (2, 40, NUM_BLOCKS, 16), (60, 160, NUM_BLOCKS, 16),
    ):  # fmt: skip
        request = AdmissionView(prompt, limit, 0, 0)
        case = _told(request, [], num_free, size)
        got = _answer_alone(attempt, request, num_free, size, case)
        if not got:
            free = f"{num_free} {'is' if num_free == 1 else 'are'} free"
            what = f"the prompt needs {counted(blocks_for(prompt, size), 'block')}, and {free}: it fits, but"
            raise _wrong(got, what, case, _why_refused(attempt, request, num_free, size))


def _answer_alone(attempt, request: AdmissionView, num_free: int, size: int, case: str):
    try:
        return _answer(attempt, request, [], num_free, size, case)
    except (ArithmeticError, ValueError, LookupError) as error:
        if _admits(attempt, request, [AdmissionView(2, 40, 2, 1)], num_free, size) is None:
            raise  # whether or not something runs
        raise Mistake(
            f"your code raised {type(error).__name__}: {str(error)[:120]}",
            case=case,
            idea="Nothing runs, so `running` is empty: it has no first or largest element, and nothing can be divided "
            "by its length or its sums. Treat this case first: then a prompt that fits is admitted.",
        ) from None


def _why_refused(attempt, request: AdmissionView, num_free: int, size: int) -> str:
    """Why a rule refuses a prompt that fits although nothing runs."""
    if _admits(attempt, replace(request, max_new_tokens=1), [], num_free, size):
        return (
            "With a limit of 1, your rule admits it. Do you ask for room up to the limit? If nothing runs, it is "
            "enough that the prompt fits: most answers end before their limit."
        )
    if num_free == blocks_for(request.prompt_tokens, size) and _admits(attempt, request, [], num_free + 1, size):
        return (
            "With one more free block, your rule admits it. Do you compare with `<`, or keep a block free although "
            "nothing runs? A prompt that needs exactly the free blocks fits."
        )
    return (
        "Nothing runs, so no block will ever become free: the server stands still for good. Whatever you keep free, "
        "keep it for requests that run."
    )


def _check_it_fits(attempt) -> None:
    cases = ((33, 2, 16), (16, 0, 16), (30, 29, 1), (60, 14, 4), (40, 39, 1))
    if_alone = ((48, 2, 16), (33, 2, 16), (40, 39, 1))
    for prompt, num_free, size, num_running in [*((*case, 1) for case in cases), *((*case, 0) for case in if_alone)]:
        request, running = AdmissionView(prompt, 40, 0, 0), [AdmissionView(5, 40, 2 * size, 2)] * num_running
        case = _told(request, running, num_free, size)
        got = _answer(attempt, request, running, num_free, size, case)
        if got:
            what = f"the prompt needs {counted(blocks_for(prompt, size), 'block')}, and {num_free} are free;"
            raise _wrong(got, what, case, _why_admitted(attempt, request, running, num_free, size))


def _why_admitted(attempt, request: AdmissionView, running: list[AdmissionView], num_free: int, size: int) -> str:
    """Why a rule admits a prompt that doesn't fit."""
    prompt = request.prompt_tokens
    by_prompt = not _admits(attempt, replace(request, prompt_tokens=1000 * prompt), running, num_free, size)
    if not by_prompt and not _admits(attempt, replace(request, num_tokens=prompt), running, num_free, size):
        return (
            "Do you read `request.num_tokens`? A waiting request holds no tokens yet, so that is 0. The length of its "
            f"prompt is `prompt_tokens`, here {prompt}."
        )
    return "Whatever else you ask, the prompt must fit: compare blocks of `block_size` with `num_free`."


def _check_cost(attempt) -> None:
    case = "the 300 requests of the scoreboard."

    def rule(request, running, num_free, block_size) -> bool:
        return bool(_answer(attempt, request, running, num_free, block_size, case))

    try:
        steps, restarts = steps_and_restarts(rule)
    except RuntimeError as error:
        if "it admitted" not in str(error):
            raise
        idea = "The prompt must fit. And if nothing runs, the first request is admitted."
        raise Mistake(f"your rule was stopped: {error}", case=case, idea=idea) from None
    cost = steps + PRICE * restarts
    if cost >= GOAL:
        what = f"your rule should cost less than {GOAL:,}; it costs {cost:,}: {steps:,} steps"
        what = f"{what}, and {counted(restarts, 'restart')}."
        if steps > steps_and_restarts(limits_fit)[0]:
            _refuse_one_at_a_time(attempt, what)
        raise Mistake(what, case=case, idea=_why(steps, restarts))


def _refuse_one_at_a_time(attempt, what: str) -> None:
    """The rule costs more than the safe one. Raise if it refuses the smallest prompt beside the smallest request."""
    request, running = AdmissionView(2, 40, 0, 0), [AdmissionView(2, 40, 2, 1)]
    scene = request, running, NUM_BLOCKS - 1, BLOCK_SIZE
    if _admits(attempt, *scene) is False:
        raise Mistake(
            what,
            case=f"{_told(*scene)} The prompt needs 1 block, and your rule refuses it.",
            idea="So your requests run almost one at a time. What do you compare? `num_free` counts blocks, not slots.",
        )


def _why(steps: int, restarts: int) -> str:
    if (steps, restarts) == steps_and_restarts(prompt_fits):
        return (
            "That is the rule of the given step. The blocks that are free now are the ones that running requests need "
            "next. How many of them would you leave free?"
        )
    if (steps, restarts) == steps_and_restarts(limits_fit):
        return "That is the safe rule: it keeps room for answers that mostly end early. Keep less, and risk a restart."
    fewest = steps_and_restarts(prompt_fits)[0]
    if PRICE * restarts > steps - fewest:
        return (
            f"The restarts cost {PRICE * restarts:,}. Your rule admits requests into blocks that running ones need "
            "soon: keep more of them free, the more requests run."
        )
    return (
        f"The restarts cost only {PRICE * restarts:,}: your rule is too careful. Requests wait next to blocks that "
        "stay free. Keep fewer."
    )
