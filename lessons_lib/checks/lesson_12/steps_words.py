"""What a learner is told if a step of theirs does something else than one of the reference."""

from itertools import zip_longest
from typing import Any

from lessons_lib.viz.words import marked


def why_different(case: Any, got: Any, want: Any) -> tuple[str, str]:
    """What was expected and what came, and the idea behind it.

    Args:
        got, want: `Seen` after the first step in which they differ.
    """
    for explain in (
        _about_raising,
        _about_failure,
        _about_tokens,
        _about_hearing,
        _about_ends,
        _about_blocks,
        _about_records,
    ):
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
    if case.where not in ("forward", "copies"):
        return (
            f"`{case.where}` raised an error, and your step caught it.",
            "If a part of the engine has a bug, the requests aren't to blame, and nothing is known about its state. "
            "Keep only `copy_blocks` and `compute` in the `try`.",
        )
    if got.requests == want.requests and not got.used_blocks:
        return (
            "your step ended the right requests, and then raised the error.",
            "The outputs of these requests have the error already. The caller of `step` may wait for other requests.",
        )
    what = "copying blocks" if case.where == "copies" else "the model"
    return (
        f"the error of {what} came out of your step.",
        "The caller of one request must not get the error of another, and the engine must go on. Catch it, whatever "
        "`Exception` it is, end the requests in doubt with it, and return. The call of `copy_blocks` can fail, too.",
    )


def _about_failure(case: Any, got: Any, want: Any) -> tuple[str, str] | None:
    """The step failed, and the wrong requests ended, or in another way."""
    failed = [name for name, _, error in want.outputs if error == "Broken"]
    if not failed or case.fails_for:
        return None
    found = {name: (reason, error) for name, reason, error in got.outputs}
    if spared := [name for name in found if name not in failed]:
        return (
            f"the step failed, and {_listed(spared)} ended with it; only {_listed(failed)} should have.",
            _why_spared(case),
        )
    for name in failed:
        if name not in found:
            return _not_ended(name, got, case)
        if found[name][1] not in ("Broken", "NoneType"):
            return (
                f"request {name} ended with another error, of type {found[name][1]}; the step failed with one of type "
                "Broken.",
                "Its caller must get the error itself, not a new one with its text: `engine.fail(sequences, error)`.",
            )
        if found[name][1] != "Broken":
            return (
                f"request {name} ended with the reason {found[name][0]!r} and without the error.",
                "Its caller must learn what went wrong: `engine.fail(sequences, error)` passes the error on.",
            )
        if found[name][0] != "error":
            return (
                f"request {name} ended with the reason {found[name][0]!r}; expected 'error'.",
                "The second argument of `engine.end` is the reason.",
            )
    if got.steps != want.steps:
        return (
            "a step that failed was recorded.",
            "It has produced no token, so it must not count in the metrics. Return before `record_step`.",
        )
    return None


def _why_spared(case: Any) -> str:
    if case.left_out and case.where == "copies":
        return (
            "The copies of a step write only into blocks of the sequences that it schedules, and into the swap space; "
            "a block that is copied from keeps its contents. What the step doesn't touch loses nothing."
        )
    if case.config.get("num_swap_blocks") and case.where == "forward":
        return "The copies were complete when the model failed, so the cache of what was swapped out is whole."
    if case.config.get("num_swap_blocks"):
        return "What was swapped out in an earlier step isn't touched by the copies of this one."
    if case.where == "copies":
        return "A sequence that will be computed again needs nothing but its tokens, and it has them."
    return "Requests that the step doesn't touch lose nothing: they go on in the next step."


def _not_ended(name: str, got: Any, case: Any) -> tuple[str, str]:
    if name not in got.requests:
        return (
            f"request {name} was taken out, but `step` didn't return its output.",
            "`engine.fail(sequences, error)` does both. `engine.abort` returns the output to your step, not to the "
            "caller of `step`.",
        )
    if name not in (each.partition("/")[0] for each in (*got.running, *got.waiting)):
        return (
            f"the step failed, and request {name} is neither running nor waiting nor ended.",
            "Taking its sequences out of the scheduler isn't enough: nothing would ever answer the request. "
            "`engine.fail(sequences, error)` takes it out and ends it.",
        )
    if case.where == "copies" and name in got.waiting:
        return (
            f"copying failed, but request {name} goes on, although its cache was being swapped out.",
            "Its blocks have gone to other sequences, and what has reached the swap space is unknown. It isn't "
            "scheduled in this step; where else in the scheduler output is it?",
        )
    if case.where == "copies":
        return (
            f"copying failed, but request {name}, which was scheduled, goes on.",
            "`copy_blocks` doesn't tell which copies it made before it failed, so every scheduled sequence counts as "
            "in doubt.",
        )
    return (
        f"the step failed, but request {name} goes on, and still has its blocks.",
        "Blocks were allocated for this step, and what was written to them is unknown. End the request with the error; "
        "its blocks become free.",
    )


def _about_tokens(case: Any, got: Any, want: Any) -> tuple[str, str] | None:
    for name, wanted in want.tokens.items():
        found = got.tokens.get(name, [])
        if found == wanted:
            continue
        what = f"after the step, request {name} should have the tokens {_of(wanted)}; yours has {_of(found, wanted)}."
        if len(found) < len(wanted):
            return (
                what,
                "Its other answers begin when its prompt is computed: `completions_with_token` needs the logits.",
            )
        for new, right in zip(found, wanted):
            if len(new) < len(right):
                return what, "Its tokens are all computed, so it gets one. `update` appends it."
            if len(new) > len(right):
                return what, "It got more than one token from one step. `update` has appended one already."
        return what, "Each scheduled sequence has a token of its own, in the order of `num_scheduled_tokens`."
    return None


def _about_hearing(case: Any, got: Any, want: Any) -> tuple[str, str] | None:
    if got.heard == want.heard:
        return None
    what = (
        f"`on_token` should be called with {_heard(want.heard)} (request, token); yours called it with "
        f"{_heard(got.heard, want.heard)}."
    )
    if not got.heard:
        return what, "Readers wait for their tokens: call `engine.pass_on` with the completions that got one."
    if sorted(got.heard) == sorted(want.heard):
        return what, "Pass them on in the order that `completions_with_token` returns."
    if len(got.heard) < len(want.heard):
        return what, "Pass on all completions that `completions_with_token` returns, the other answers included."
    return what, "Pass on exactly the completions that `completions_with_token` returns."


def _about_ends(case: Any, got: Any, want: Any) -> tuple[str, str] | None:
    if got.outputs == want.outputs and got.requests == want.requests:
        return None
    missing = [name for name, *_ in want.outputs if name not in {one for one, *_ in got.outputs}]
    if missing:
        return (
            f"request {missing[0]} has finished in this step, but `step` didn't return its output.",
            "`pass_on` ends a request once its last answer has finished.",
        )
    return (
        f"`step` returned {_ends(got.outputs)}; expected {_ends(want.outputs)}.",
        "`pass_on` ends the requests that have finished; the others go on.",
    )


def _about_blocks(case: Any, got: Any, want: Any) -> tuple[str, str] | None:
    if got.lost != want.lost:
        return f"the pool and the sequences don't agree. {got.lost}", "`update` and `fail` return blocks; nothing else."
    if got.used_blocks == want.used_blocks:
        return None
    return (
        f"blocks in use after the step: {got.used_blocks}; expected {want.used_blocks}.",
        "A sequence that ends returns its blocks: `update` does that for those that finish, `fail` for the others.",
    )


def _about_records(case: Any, got: Any, want: Any) -> tuple[str, str] | None:
    if got.steps != want.steps:
        if not want.heard and got.steps > want.steps and not case.broken:
            return (
                "a step that computed nothing was recorded.",
                "If nothing is scheduled, make the block copies, if there are any, and return.",
            )
        what = f"steps recorded so far: {got.steps}; expected {want.steps}."
        return what, "Record each step that has computed something, once, with `engine.record_step`."
    if got.last_step == want.last_step:
        return None
    (tokens, prefill, new), (_, want_prefill, want_new) = got.last_step, want.last_step
    sampled, want_sampled = tokens - prefill, tokens - want_prefill
    if (sampled, new) == (want_new, want_sampled):
        return (
            f"the step was recorded with `num_sampled` {sampled} and `new_tokens` {new}; expected {want_sampled} and "
            f"{want_new}.",
            "The number of sequences that get a token comes first, then the number of completions that do.",
        )
    if new != want_new:
        return (
            f"the step was recorded with {new} new tokens; expected {want_new}.",
            "One for each completion that got a token, forks included: the length of what `completions_with_token` "
            "returned.",
        )
    return (
        f"the step was recorded with `num_sampled` {sampled}; expected {want_sampled}.",
        "`num_sampled` counts the scheduled sequences that got a token, without forks.",
    )


def _listed(names: list[str]) -> str:
    return " and ".join(dict.fromkeys(names))


def _of(tokens: list[list[int]], right: list[list[int]] | None = None) -> str:
    """The tokens of each answer; marked where they differ from the right ones."""
    pairs = zip_longest(tokens, (right or tokens)[: len(tokens)])
    return " and ".join(str(new) if want is None else marked(want, new) for new, want in pairs) or "none"


def _heard(heard: list[tuple[str, int, int]], right: list[tuple[str, int, int]] | None = None) -> str:
    """Requests and tokens; marked where they differ from the right ones."""
    pairs, wanted = ([(name, token) for name, _, token in each] for each in (heard, heard if right is None else right))
    return marked(wanted, pairs) if pairs else "nothing"


def _ends(outputs: list[tuple[str, str | None, str]]) -> str:
    return ", ".join(f"{name} ({reason})" for name, reason, _ in outputs) or "nothing"
