"""Judges 03.7, `may_admit`: what any rule must do, and then what it costs."""

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.checks.lesson_03.scoreboard import (
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
    got = call(attempt, request, running, num_free, block_size, case=case)
    if got is None:
        raise Mistake(
            "your rule should return True or False; it returned None.",
            case=case,
            idea="Every way through the function needs a `return`.",
        )
    return bool(got)


def _told(request: AdmissionView, running: list[AdmissionView], num_free: int, block_size: int) -> str:
    runs = "nothing runs"
    if running:
        runs = "; ".join(f"one runs with {each.num_tokens} tokens in {each.num_blocks} blocks" for each in running)
    return (
        f"{counted(num_free, 'free block')} of {block_size}; {runs}; the first in the queue has a prompt of "
        f"{request.prompt_tokens} and a limit of {request.max_new_tokens}."
    )


def _check_nothing_runs(attempt) -> None:
    for prompt, limit, num_free, size in (
        (60, 160, NUM_BLOCKS, 16), (2, 40, NUM_BLOCKS, 16), (13, 4, 4, 4), (4, 9, 3, 4), (1, 1, 1, 4),
    ):  # fmt: skip
        request = AdmissionView(prompt, limit, 0, 0)
        case = _told(request, [], num_free, size)
        if not _answer(attempt, request, [], num_free, size, case):
            raise Mistake(
                "the request should be admitted; your rule refuses it.",
                case=case,
                idea="Nothing runs, so no block will ever become free: the server stands still for good. Whatever you "
                "keep free, keep it for requests that run.",
            )


def _check_it_fits(attempt) -> None:
    cases = ((33, 2, 16), (16, 0, 16), (30, 29, 1), (60, 14, 4), (40, 39, 1))
    if_alone = ((48, 2, 16), (33, 2, 16), (40, 39, 1))
    for prompt, num_free, size, num_running in [*((*case, 1) for case in cases), *((*case, 0) for case in if_alone)]:
        request, running = AdmissionView(prompt, 40, 0, 0), [AdmissionView(5, 40, 2 * size, 2)] * num_running
        case = _told(request, running, num_free, size)
        if _answer(attempt, request, running, num_free, size, case):
            needed = blocks_for(prompt, size)
            raise Mistake(
                f"the prompt needs {counted(needed, 'block')}, and {num_free} are free; your rule admits it.",
                case=case,
                idea="Whatever else you ask, the prompt must fit: compare blocks of `block_size` with `num_free`.",
            )


def _check_cost(attempt) -> None:
    case = "the 300 requests of the scoreboard."

    def rule(request, running, num_free, block_size) -> bool:
        return _answer(attempt, request, running, num_free, block_size, case)

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
        raise Mistake(f"{what}, and {counted(restarts, 'restart')}.", case=case, idea=_why(steps, restarts))


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
