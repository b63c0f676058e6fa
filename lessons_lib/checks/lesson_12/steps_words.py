"""What a learner is told if a step of theirs does something else than one of the reference."""

from typing import Any

from lessons_lib.viz.words import marked


def why_different(case: Any, got: Any, want: Any) -> tuple[str, str]:
    """What was expected and what came, and the idea behind it.

    Args:
        got, want: `Seen` after the first step in which they differ.
    """
    for explain in (_about_raising, _about_failure, _about_tokens):
        if told := explain(case, got, want):
            return told
    return (
        f"after the step, running: {got.running}, waiting: {got.waiting}; expected {want.running} and {want.waiting}.",
        "Compare your step with the picture in \"The idea\" and with the table of calls.",
    )  # fmt: skip


def _about_raising(case: Any, got: Any, want: Any) -> tuple[str, str] | None:
    if got.raised == want.raised:
        return None
    if want.raised == "KeyboardInterrupt":
        return (
            "your step caught KeyboardInterrupt; it must be passed on.",
            "`except Exception` lets interrupts through; `except BaseException` and a bare `except` don't. The engine "
            "recovers from an interrupt at its next call.",
        )
    if want.raised:
        return (
            f"`{case.where}` raised an error, and your step caught it.",
            "If a part of the engine has a bug, the requests aren't to blame. Keep only `copy_blocks`, `forward`, "
            "`sampler` and `keep_tokens` in the `try`.",
        )
    what = {"copy_blocks": "copying blocks", "forward": "the model"}.get(case.where, f"`{case.where}`")
    return (
        f"the error of {what} came out of your step.",
        "The caller of one request must not get the error of another, and the engine must go on. Catch it, whatever "
        "`Exception` it is, and `raise StepFailed(requests) from error`.",
    )


def _about_failure(case: Any, got: Any, want: Any) -> tuple[str, str] | None:
    """The step failed, and the wrong requests ended, or in another way."""
    failed = [name for name, _, error in want.outputs if error == "Broken"]
    if not failed:
        return None
    found = {name: error for name, _, error in got.outputs}
    if spared := [name for name in found if name not in failed]:
        return (
            f"the step failed, and {_listed(spared)} ended with it; only {_listed(failed)} should have.",
            "Whatever isn't scheduled begins again from its tokens. What was swapped out ends only if nothing is "
            "scheduled: then its copies are to blame.",
        )
    for name in failed:
        if name not in found and case.left_out and case.where == "copy_blocks":
            return (
                f"nothing is scheduled, copying failed, and request {name}, which was being swapped out, goes on.",
                "If no request ends, the same copies fail again in the next step, and so on forever. Where in the "
                "scheduler output is the request?",
            )
        if name not in found:
            return (
                f"the step failed, but request {name} goes on.",
                "If it is to blame, it makes the next step fail, too. End it: `raise StepFailed(requests) from error`, "
                "with all that are scheduled.",
            )
        if found[name] != "Broken":
            return (
                f"request {name} ended with {'no error' if found[name] == 'NoneType' else found[name]}; the step "
                "failed with an error of type Broken.",
                "Its caller must get the error itself: `raise StepFailed(requests) from error`.",
            )
    return None


def _about_tokens(case: Any, got: Any, want: Any) -> tuple[str, str] | None:
    for name, wanted in want.tokens.items():
        found = got.tokens.get(name, [])
        if found != wanted:
            told = " and ".join(marked(right, new) for right, new in zip(wanted, found))
            right = " and ".join(map(str, wanted))
            return (
                f"after the step, request {name} should have the tokens {right}; yours has {told}.",
                "Each scheduled request has a token of its own, in the order of `num_scheduled_tokens`.",
            )
    return None


def _listed(names: list[str]) -> str:
    return " and ".join(dict.fromkeys(names))
