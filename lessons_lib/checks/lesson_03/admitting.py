"""03.4, `may_admit`: what any rule must do, and then what it costs."""

from collections.abc import Iterator
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Mistake, current_case
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

Case = tuple[int, int, int, int, int]  # prompt, limit, how many run, free blocks, block size


def cases() -> Iterator[Case]:
    """If nothing runs, a prompt that fits is admitted; one that doesn't fit never is. The rest is up to the rule."""
    for prompt, limit, num_free, size in (
        (1, 1, 1, 4), (13, 4, 4, 4), (4, 9, 3, 4), (4, 4, 2, 4), (2, 40, 32, 16), (60, 160, 32, 16), (4, 160, 1, 4),
    ):  # fmt: skip
        yield prompt, limit, 0, num_free, size
    for num_running in (1, 0):
        for prompt, num_free, size in ((33, 2, 16), (16, 0, 16), (30, 29, 1), (60, 14, 4), (40, 39, 1), (48, 2, 16)):
            yield prompt, 40, num_running, num_free, size


def run(rule: Any, case: Case, watch: Watch) -> None:
    plain = lambda got: bool(got) if type(got).__name__ in ("bool", "bool_") else got  # noqa: E731
    watch("the rule", rule, *scene(case), returns=plain)


def scene(case: Case) -> tuple[AdmissionView, list[AdmissionView], int, int]:
    prompt, limit, num_running, num_free, size = case
    return AdmissionView(prompt, limit, 0, 0), [AdmissionView(5, 40, 2 * size, 2)] * num_running, num_free, size


def tell(case: Case) -> str:
    request, running, num_free, size = scene(case)
    runs = [f"one runs with {each.num_tokens} tokens in {counted(each.num_blocks, 'block')}" for each in running]
    return (
        f"{counted(num_free, 'free block')} of {size}; {'; '.join(runs) or 'nothing runs'}; the first in the queue has "
        f"a prompt of {request.prompt_tokens} and a limit of {request.max_new_tokens}."
    )


def about(mine: dict, want: dict) -> str:
    prompt, _, _, num_free, size = want["case"]
    needs = f"The prompt needs {counted(blocks_for(prompt, size), 'block')} of {size}, and `num_free` is {num_free}."
    if want["returned"]:
        return f"{needs} {EMPTY}, whatever its limit. Keep blocks free only for requests that run."
    return (
        f"{needs} It must fit, whatever else you ask: round up as `blocks_for` does, and compare blocks with blocks. A "
        "waiting request's `num_tokens` is 0: the length of its prompt is `prompt_tokens`."
    )


EMPTY = "Nothing runs, so no block will ever become free: a prompt that fits is admitted"

TASK = Task(
    reference="lessons_lib.kv_cache.block_serving:may_admit",
    cases=cases,
    run=run,
    tell=tell,
    clear=0.8,
    known=mistakes("""
        `block_size` is an argument: it isn't always 16.
        = return request.prompt_tokens <= 16 * (num_free - soon)
        or = return blocks_for(request.prompt_tokens, 16) + soon <= num_free
        """),
    about={
        **dict.fromkeys(
            ("raised ZeroDivisionError", "raised ValueError", "raised IndexError"),
            f"`running` is empty: treat this case first. {EMPTY}.",
        ),
        "raised AttributeError": "A request has `prompt_tokens` and `max_new_tokens`, and one that runs also "
        "`num_tokens` and `num_blocks`.",
        "raised NameError": "Use the four arguments, and `blocks_for`: the rule sees nothing else.",
        "returned": about,
    },
    probes=(lambda attempt: check_cost(attempt),),
)

EXERCISE = TASK.exercise(
    id="03.4",
    title="when to admit",
    hints=(
        "Each running request needs a new block once in 16 steps, and a short one ends before that. With n of "
        "them, how many blocks will be asked for in the next 16 steps, at most?",
        "Ask for more free blocks than the prompt needs. How many more? A fixed number, or one that grows with "
        "`running`: one or two blocks for each request, say. If nothing runs, ask only for the prompt.",
        "`blocks_for(request.prompt_tokens, block_size) + soon <= num_free`. Begin with `soon = len(running)`, "
        "look at steps and restarts, and try others.",
    ),
    time_limit=20.0,
)


def check_cost(attempt: Any) -> None:
    """What the rule costs, on requests that the learner hasn't seen: any good rule will do."""
    case = "the 300 requests of the scoreboard."

    current_case.text = case

    def rule(request: AdmissionView, running: list[AdmissionView], num_free: int, block_size: int) -> bool:
        return bool(attempt(request, running, num_free, block_size))

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


def _refuse_one_at_a_time(attempt: Any, what: str) -> None:
    """The rule costs more than the safe one. Raise if it refuses the smallest prompt beside the smallest request."""
    case = (2, 40, 1, NUM_BLOCKS - 2, BLOCK_SIZE)
    if not attempt(*scene(case)):
        raise Mistake(
            what,
            case=f"{tell(case)} The prompt needs 1 block, and your rule refuses it.",
            idea="So your requests run almost one at a time. Do you admit only if nothing runs? Or what "
            "do you compare? `num_free` counts blocks, not slots.",
        )


def _why(steps: int, restarts: int) -> str:
    if (steps, restarts) == steps_and_restarts(prompt_fits):
        return (
            "That is the bold rule of your step. The blocks that are free now are the ones that running requests need "
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
