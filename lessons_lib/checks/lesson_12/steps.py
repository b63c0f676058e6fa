"""Judges 12.3, `run_step`: an engine with the attempt's steps must do what the reference engine does, also if the model
fails.
"""

from collections.abc import Callable
from typing import Any

from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.checks.lesson_12.step_cases import CASES, Broken, Case
from lessons_lib.checks.lesson_12.steps_words import why_different
from lessons_lib.checks.lesson_12.watched_engine import Seen, Watched
from lessons_lib.engine.core import run_step
from lessons_lib.engine.sampling_params import SamplingParams

MOST_STEPS = 60


def check_run_step(attempt: Callable[[Any, Any], Any]) -> None:
    for case in CASES:
        current_case.text = case.told
        wanted, found = serve(case, run_step), serve(case, attempt)
        for number, (want, got) in enumerate(zip(wanted, found), 1):
            scripted = isinstance(got.error, (Broken, KeyboardInterrupt))
            if got.error and got.raised != want.raised and not scripted:
                if "failed" in got.events and isinstance(got.error, UnboundLocalError):
                    raise Mistake(
                        f"your step went on after it had failed, and raised UnboundLocalError: {got.error}.",
                        case=case.told,
                        idea="A failed step has no tokens: `raise StepFailed(requests) from error`.",
                    )
                raise got.error  # a mistake of the attempt's own, with its traceback
            if got != want:
                what, idea = why_different(case, got, want)
                raise Mistake(what, case=f"{case.told}; step {number}", idea=idea)


def serve(case: Case, attempt: Callable[[Any, Any], Any]) -> list[Seen]:
    """Serve the requests of a case to the end. Returns what is seen after each step."""
    engine, seen = Watched(case, attempt), []
    for name, (length, max_tokens, settings) in case.requests.items():
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **settings)
        engine.add_request([(7 * place + ord(name)) % 90 for place in range(length)], params, request_id=name)
    while not seen or (engine.has_unfinished() and len(seen) < MOST_STEPS):
        seen.append(engine.watched_step())
        if seen[-1].raised and seen[-1].raised != "KeyboardInterrupt":
            break
    return seen
