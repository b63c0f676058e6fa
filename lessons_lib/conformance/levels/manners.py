"""Refusals, aborts, streams and faults: what is left of the others, and of the engine."""

import contextlib
from itertools import product
from typing import Any

from lessons_lib.checks.sandbox import run_guarded
from lessons_lib.conformance.contract import MODEL, STEPS, STREAM, Params
from lessons_lib.conformance.driver import Run
from lessons_lib.conformance.items import Level
from lessons_lib.conformance.oracle import a_prompt, expected
from lessons_lib.conformance.served import Broken, Served
from lessons_lib.conformance.watch import ModelFault
from lessons_lib.models.tiny_models import VOCAB_SIZE

LEVEL = Level("manners", "Refusals, aborts, streams, faults")
LONGEST_WAIT = 5.0  # seconds for a stream that should end at once


@LEVEL.item("An empty prompt is refused", "Engine.add_request")
def empty_prompt(run: Run) -> None:
    run.always_refuses("a prompt without tokens", [])


@LEVEL.item("A token outside the vocabulary is refused", "Engine.add_request")
def unknown_token(run: Run) -> None:
    run.always_refuses(f"a prompt with token {VOCAB_SIZE}, of a vocabulary of {VOCAB_SIZE}", [3, VOCAB_SIZE])
    run.always_refuses("a prompt with token -1", [-1, 3])


@LEVEL.item("The vocabulary is that of the model, whatever its size", "Engine.add_request")
def another_vocabulary(run: Run) -> None:
    run.another(vocab_size=61).must_refuse("a prompt with token 61, of a model whose vocabulary has 61", [3, 61], {})


@LEVEL.item("`max_tokens` below 1 is refused", "Engine.add_request")
def no_tokens(run: Run) -> None:
    run.always_refuses("max_tokens 0", [3, 4], max_tokens=0)
    run.always_refuses("max_tokens -1", [3, 4], max_tokens=-1)


@LEVEL.item("An id that is in use is refused, and its first request goes on", "Engine.add_request")
def id_in_use(run: Run) -> None:
    name = run.add(a_prompt(5), 8, ignore_eos=True)
    run.must_refuse(f"id {name!r}, of a request that waits", [3, 4], {}, name)
    run.step()
    run.must_refuse(f"id {name!r}, of a request that runs", [3, 4], {}, name)
    run.finish()


@LEVEL.item("An id can be used again once its request was aborted", "Engine.add_request")
def id_of_the_aborted(run: Run) -> None:
    run.add(a_prompt(9), 20, name="again", ignore_eos=True)
    run.step()
    run.abort("again")
    run.run_out()
    run.add(a_prompt(6), 3, name="again")
    run.finish()


@LEVEL.item("The engine keeps no list of the caller, and gives away none of its own", "Engine.step")
def lists_are_copied(run: Run) -> None:
    prompt = a_prompt(6)
    run.engine.add_request("mine", prompt, Params(8, ignore_eos=True))
    run.requests["mine"] = Served(list(prompt), Params(8, ignore_eos=True))
    prompt[:] = [1, 2, 3]
    while run.engine.has_unfinished():
        for event in run.step():
            event.token_ids.clear()
        run.returned.clear()
    run.check_answers()


@LEVEL.item("abort ends a request wherever it is, and no other answer changes", "Engine.abort")
def abort_anywhere(run: Run) -> None:
    for after in range(9):
        run = run.another(max_num_seqs=2)
        names = [run.add(a_prompt(3 + 4 * index, index), 5, ignore_eos=True) for index in range(4)]
        for _ in range(after):
            run.step()
        run.abort(names[after % 4])
        run.finish(f"abort after {after} steps")


@LEVEL.item("A request that was aborted before its first step gets no token", "Engine.abort")
def abort_before_the_first_step(run: Run) -> None:
    only = run.add(a_prompt(5), 4)
    run.abort(only)
    for _ in range(3):
        run.step()
    if run.engine.has_unfinished():
        raise Broken("the only request was aborted, and has_unfinished() is still True after three steps.")
    run.check_all_free("after the abort")


@LEVEL.item("abort frees the batch slot", "Engine.abort", max_num_seqs=1)
def abort_frees_the_slot(run: Run) -> None:
    first = run.add(a_prompt(5), 50, ignore_eos=True)
    second = run.add(a_prompt(5, 1), 3, ignore_eos=True)
    run.step()
    run.abort(first)
    run.finish()
    if "steps" in run.features and run.first_step(second) > 10:
        raise Broken(
            f"one slot: its request was aborted after a step, and the next one got its first token in step "
            f"{run.first_step(second)}."
        )


@LEVEL.item("abort of an unknown, an ended or an aborted request changes nothing", "Engine.abort")
def abort_of_nothing(run: Run) -> None:
    names = [run.add(a_prompt(4, index), 3 + 4 * index, ignore_eos=True) for index in range(3)]
    for each in ("never", ""):
        run.engine.abort(each)
    run.step()
    run.abort(names[2])
    run.abort(names[2])
    while not run.requests[names[0]].finish_reason:
        run.step()
    run.abort(names[0])
    run.finish("at the end")


@LEVEL.item("All can be aborted at once, and the engine serves on", "Engine.abort", max_num_seqs=3)
def abort_all(run: Run) -> None:
    names = run.add_many(6, 7, 30)
    for _ in range(4):
        run.step()
    for name in names:
        run.abort(name)
    run.run_out()
    run.check_all_free("after all were aborted")
    run.add(a_prompt(12), 6)
    run.finish()


def _check_gone(run: Run, what: str, when: str) -> None:
    """Nothing is left of the only request, after one more step."""
    run.step()
    if run.engine.has_unfinished():
        raise Broken(what)
    run.check_all_free(when)


def _stream(run: Run, name: str, prompt: list[int], max_tokens: int) -> Any:
    run.needs(STREAM)
    run.requests[name] = Served(prompt, Params(max_tokens, ignore_eos=True))
    return run.engine.stream(name, list(prompt), Params(max_tokens, ignore_eos=True))


@LEVEL.item("A stream yields the answer, token by token", "Engine.stream", STREAM)
def stream(run: Run) -> None:
    for index, max_tokens in enumerate((1, 7)):
        tokens = list(_stream(run, f"s{index}", a_prompt(6, index), max_tokens))
        right = expected("qwen2", a_prompt(6, index), max_tokens, ignore_eos=True)
        if tokens != right:
            raise Broken(f"the stream of a prompt of 6 tokens yields {tokens}; `generate` gives {right}.")
    if run.engine.has_unfinished():
        raise Broken("the stream has ended, and has_unfinished() is True.")


@LEVEL.item("Streams and steps serve each other's requests, and no token is lost", "Engine.stream", STREAM)
def streams_beside_steps(run: Run) -> None:
    for index in range(3):  # with the two streams more than there are batch slots
        run.add(a_prompt(8, index), 9, ignore_eos=True)
    one, two = (_stream(run, name, a_prompt(5, 9), 6) for name in ("one", "two"))
    got: dict[str, list[int]] = {"one": [], "two": []}
    for number in range(6):
        got["one"] += [token for token in [next(one, None)] if token is not None]
        got["two"] += [token for token in [next(two, None)] if token is not None]
        if number in (1, 3):
            run.step()  # what it computes for the streams is kept for their readers
    for name in got:
        if taken := run.requests.pop(name).tokens:
            raise Broken(
                f"step() was called while stream {name!r} was being read, and returned {taken} of its tokens. They are "
                "the reader's."
            )
    right = expected("qwen2", a_prompt(5, 9), 6, ignore_eos=True)
    for name, tokens in got.items():
        if tokens != right:
            raise Broken(
                f"two streams, read in turn, beside requests of step(): stream {name!r} gave {tokens}, not {right}."
            )
    for each in (one, two):
        if (more := next(each, None)) is not None:
            raise Broken(f"a stream of 6 tokens yields a seventh, {more}.")
    run.finish()


@LEVEL.item("What a stream computed for others is unfinished until step() has returned it", "Engine.stream", STREAM)
def tokens_kept_for_step(run: Run) -> None:
    run.add(a_prompt(4), 3, ignore_eos=True)
    list(_stream(run, "read", a_prompt(6), 8))  # longer than the other answer, all of which is computed meanwhile
    del run.requests["read"]
    run.finish()


@LEVEL.item("Tokens kept for step() go with their request when it is aborted", "Engine.abort", STREAM)
def nothing_kept_after_abort(run: Run) -> None:
    other = run.add(a_prompt(4), 20, ignore_eos=True)
    reader = _stream(run, "read", a_prompt(6), 8)
    for _ in range(3):
        next(reader)  # computes tokens of the other one, which wait for step()
    run.abort(other)
    run.requests["read"].is_aborted = True
    reader.close()
    run.run_out()
    run.check_all_free("after the abort")


def _close_early(run: Run, num_read: int, what: str) -> None:
    reader = _stream(run, "left", a_prompt(6), 40)
    for _ in range(num_read):
        next(reader)
    run.requests["left"].is_aborted = True
    reader.close()
    _check_gone(run, f"a stream was closed {what}", "after the stream was closed")


@LEVEL.item("A stream that is closed before its first token leaves no request behind", "Engine.stream", STREAM)
def stream_never_read(run: Run) -> None:
    what = (
        "before its first token, and its request still runs. A generator that was never begun doesn't reach its "
        "`finally`: add the request at the first `next`, or return an object with `close`."
    )
    _close_early(run, 0, what)


@LEVEL.item("A reader that leaves its stream early ends the request", "Engine.stream", STREAM)
def stream_left_early(run: Run) -> None:
    what = (
        "after two of 40 tokens, and its request still runs: it is served for no one and keeps its slot and cache. "
        "Abort it in the generator's `finally`."
    )
    _close_early(run, 2, what)
    _closed_late(run.another())


def _closed_late(run: Run) -> None:
    reader = _stream(run, "same", a_prompt(6), 3)
    for _ in range(3):
        next(reader)
    del run.requests["same"]
    request = Served(a_prompt(9), Params(3, ignore_eos=True))
    try:
        run.engine.add_request("same", list(request.prompt), request.params)
    except (ValueError, TypeError):
        return  # this engine's id is in use until the iterator has ended
    run.requests["same"] = request
    reader.close()
    if not run.engine.has_unfinished():
        raise Broken(
            "a stream had given its last token, a new request got its id, and then the stream was closed: the new "
            "request is gone. Abort the stream's own request in its `finally`, and only if it hasn't ended."
        )
    run.finish()


def _rest(reader: Any, when: str, may_raise: bool = False) -> list[int]:
    """What a stream still yields until it ends, or raises, if it may."""
    rest: list[int] = []
    outcome = run_guarded(lambda: rest.extend(reader), LONGEST_WAIT)
    if outcome.timed_out:
        raise Broken(
            f"{when}: it yielded {len(rest)} tokens, and the next `next` was still waiting after {LONGEST_WAIT:g} "
            "seconds. No token will come; end the iterator, or raise if a pass failed."
        )
    if outcome.error and not may_raise:
        raise outcome.error
    return rest


@LEVEL.item("A stream ends when its request is aborted", "Engine.stream", STREAM)
def stream_aborted(run: Run) -> None:
    for steps in (0, 2):
        run = run.another()
        reader = _stream(run, "gone", a_prompt(6), 40)
        next(reader)
        for _ in range(steps):
            run.step()  # serves the stream, too, and keeps the token for its reader
        run.abort("gone")
        when = f"a stream gave one of 40 tokens, {steps} calls of step() followed, and abort() ended its request"
        if rest := _rest(reader, when):
            raise Broken(
                f"{when}: the stream still gave {len(rest)}, such as {rest[0]}. Nothing follows an abort, so forget "
                "what is unread."
            )
        _check_gone(run, f"{when}: has_unfinished() is still True.", "after the stream's request was aborted")


@LEVEL.item("A stream of a request that makes no sense is refused", "Engine.stream", STREAM)
def stream_refused(run: Run) -> None:
    with contextlib.suppress(ValueError, TypeError):
        list(run.engine.stream("wrong", [], Params(4)))
        raise Broken("stream() of an empty prompt ended without an error; it must raise ValueError.")
    if run.engine.has_unfinished():
        raise Broken("stream() refused a request, and has_unfinished() is True.")


def _fail_once(run: Run, at_pass: int, is_late: bool = False) -> None:
    """Step until nothing is unfinished, while the model fails in one pass, before its layers or after them."""
    run.watch.fail_at, run.watch.fails_late = len(run.watch.passes) + at_pass, is_late
    steps = 0
    while run.engine.has_unfinished() and steps < 400:
        steps += 1
        with contextlib.suppress(ModelFault, RuntimeError):
            run.step()
    run.watch.fail_at = None
    if run.engine.has_unfinished():
        raise Broken(
            f"the model raised in one pass (the {at_pass}. of this run), and 400 steps later has_unfinished() is still "
            "True."
        )


@LEVEL.item("After a pass of the model that fails, each request is right or ends with `error`", "Engine.step", MODEL)
def a_pass_fails(run: Run) -> None:
    for at_pass, is_late in product((1, 2, 5), (False, True)):
        run = run.another()
        for index in range(3):
            run.add(a_prompt(4 + 5 * index, index), 8, ignore_eos=True)
        _fail_once(run, at_pass, is_late)
        for name, each in run.requests.items():
            if each.finish_reason is None:
                raise Broken(
                    f"the model failed in its pass {at_pass}: request {name!r} ({each}) never ended, neither with its "
                    "answer nor with 'error'. Its reader waits for ever."
                )
        try:
            run.check_answers(may_fail=True)
        except Broken as error:
            hint = " Its layers had stored their keys: was the pass tried again with the same cache?" if is_late else ""
            raise Broken(f"{error} The model had failed in its pass {at_pass}.{hint}") from error
        run.check_all_free(f"after a failed pass (the {at_pass}.)")


# In a thread of its own, more would have run by then.
@LEVEL.item("A pass that fails ends no request that wasn't in it", "Engine.step", MODEL, STEPS, max_num_seqs=2)
def waiting_survive_a_fault(run: Run) -> None:
    names = run.add_many(5, 5, 6)
    _fail_once(run, at_pass=2)
    for name in names[2:]:
        if run.requests[name].finish_reason == "error":
            raise Broken(
                f"two batch slots, five requests, and the model fails in its second pass: request {name!r}, which was "
                "waiting, ended with 'error'. It has lost nothing; keep it in the queue."
            )
    run.check_answers(may_fail=True)
    if STREAM in run.features:
        _kept_through_a_fault(run.another())


def _kept_through_a_fault(run: Run) -> None:
    """A request has ended during a stream, and its tokens wait for `step`. Then a pass fails."""
    done = run.add(a_prompt(4), 3, ignore_eos=True)
    list(_stream(run, "read", a_prompt(6), 8))  # longer than the other answer, all of which is computed meanwhile
    del run.requests["read"]
    run.add(a_prompt(5, 1), 6, ignore_eos=True)
    _fail_once(run, at_pass=1)
    if run.requests[done].finish_reason is None:
        raise Broken(
            f"a stream had computed the answer of request {done!r}, which waited for step(). The next pass failed, and "
            "the answer never came. Does `step` let go of what is kept before it knows that the pass succeeds?"
        )
    run.check_answers(may_fail=True)


@LEVEL.item("After a pass of the model that fails, the engine serves new requests", "Engine.step", MODEL)
def serves_on_after_a_fault(run: Run) -> None:
    for at_pass in (1, 3):
        run = run.another()
        old = tuple(run.add_many(5, 6, 8))
        _fail_once(run, at_pass)
        for name in old:
            run.requests[name].finish_reason = run.requests[name].finish_reason or "error"
        for index in range(5):
            run.add(a_prompt(6, index), 6, name=f"new{index}", ignore_eos=True)
        run.run_out()
        run.check_answers(but=old)


@LEVEL.item("A stream in a pass that fails goes on rightly, ends, or raises", "Engine.stream", MODEL, STREAM)
def stream_in_a_failed_pass(run: Run) -> None:
    for at_pass in (1, 3):
        run = run.another()
        reader = _stream(run, "read", a_prompt(6), 8)
        run.watch.fail_at = len(run.watch.passes) + at_pass
        when = f"the model failed in pass {at_pass} of a stream of 8 tokens"
        got = _rest(reader, when, may_raise=True)
        run.watch.fail_at = None
        right = expected("qwen2", a_prompt(6), 8, ignore_eos=True)
        if got != right[: len(got)]:
            raise Broken(
                f"{when}, which yielded {got}; `generate` gives {right}. A stream may end early then, and what it has "
                "yielded must be right."
            )
        run.requests["read"].is_aborted = True
        _check_gone(run, f"{when}, it is over, and has_unfinished() is True.", "after the stream was over")
