"""One request alone gets the tokens of `generate`."""

from typing import Any

from lessons_lib.conformance.contract import MODEL, STEPS, Params
from lessons_lib.conformance.driver import Run
from lessons_lib.conformance.items import Level
from lessons_lib.conformance.oracle import END, FAMILIES, a_prompt, expected, prompt_that_ends
from lessons_lib.conformance.served import Broken, Served

LEVEL = Level("answers", "One request at a time")


def _alone(run: Run, prompt: list[int], max_tokens: int, **params: Any) -> None:
    name = run.add(prompt, max_tokens, **params)
    run.run_out()
    run.check_answer(name)


def _in_all_families(run: Run, *cases: tuple[list[int], int]) -> None:
    for family in FAMILIES:
        run = run.another(family)
        for prompt, max_tokens in cases:
            _alone(run, prompt, max_tokens, ignore_eos=True)


@LEVEL.item("A request gets the tokens of `generate`: GPT-2, Llama and Qwen2", "00")
def one_request(run: Run) -> None:
    first, second = run, run.another()
    first.add(a_prompt(7), 8, ignore_eos=True)
    first.finish()
    first.add(a_prompt(7), 8, ignore_eos=True)
    if second.engine.has_unfinished():
        raise Broken(
            "two engines were made, and one request was added to the first; has_unfinished() of the second is True. "
            "They share the place where they keep requests. Make it in each engine, not in the class or the module."
        )
    first.finish()
    _in_all_families(run, (a_prompt(7), 8), (a_prompt(16), 5), (a_prompt(17), 12))


@LEVEL.item("A prompt of one token", "00")
def one_token_prompt(run: Run) -> None:
    _in_all_families(run, ([5], 6), ([0], 6), ([96], 6))


@LEVEL.item("An answer of one token", "00")
def one_token_answer(run: Run) -> None:
    _in_all_families(run, (a_prompt(9), 1), ([7], 1))


@LEVEL.item("The end token ends the answer and is part of it; the reason is `stop`", "NewTokens")
def end_token(run: Run) -> None:
    for family in FAMILIES:
        run = run.another(family)
        for after in (1, 3):
            _alone(run, prompt_that_ends(family, after), 10)
    other = run.another("qwen2", eos_token_id=expected("qwen2", a_prompt(9), 8, ignore_eos=True)[3])
    _alone(other, a_prompt(9), 8)
    _alone(other, prompt_that_ends("qwen2", 2), 8)


@LEVEL.item("An end token that is also the last allowed token: the reason is `stop`", "NewTokens")
def end_token_at_the_limit(run: Run) -> None:
    _alone(run, prompt_that_ends("qwen2", 3), 3)


@LEVEL.item("`ignore_eos` goes on after the end token", "Params")
def ignore_eos(run: Run) -> None:
    _alone(run, prompt_that_ends("qwen2", 2), 8, ignore_eos=True)


@LEVEL.item("An end token inside the prompt ends nothing", "NewTokens")
def end_token_in_the_prompt(run: Run) -> None:
    _alone(run, [3, END, 5, END], 6, ignore_eos=True)
    _alone(run, [8, 9, END], 6)


@LEVEL.item("A stop token of the request ends its answer and is part of it; the reason is `stop`", "Params")
def stop_token(run: Run) -> None:
    answer = expected("qwen2", a_prompt(9), 8, ignore_eos=True)
    _alone(run, a_prompt(9), 8, stop_token_ids=(answer[3],))
    _alone(run, a_prompt(9), 8, stop_token_ids=(answer[3],), ignore_eos=True)
    other = next(token for token in range(END) if token not in answer)
    for both in ((other, answer[3]), (answer[3], other)):
        _alone(run, a_prompt(9), 8, stop_token_ids=both, ignore_eos=True)
    _alone(run, prompt_that_ends("qwen2", 2), 8, stop_token_ids=(END,), ignore_eos=True)
    _alone(run, prompt_that_ends("qwen2", 2), 8, stop_token_ids=(other,))


@LEVEL.item("Prompt and answer may fill the context to the last token; a stop token there says `stop`", "NewTokens")
def full_context(run: Run) -> None:
    limit = run.limits.max_model_len
    _in_all_families(run, (a_prompt(limit - 1), 1), (a_prompt(40), limit - 40), ([3], limit - 1))
    last = expected("qwen2", a_prompt(limit - 1), 1, ignore_eos=True)[0]
    _alone(run, a_prompt(limit - 1), 1, ignore_eos=True, stop_token_ids=(last,))


@LEVEL.item("What does not fit in the context is refused, or ends there with `length`", "Engine.add_request")
def beyond_the_context(run: Run) -> None:
    for limit in (64, 40):
        _beyond(run.another(max_model_len=limit), limit)


def _beyond(run: Run, limit: int) -> None:
    prompt = a_prompt(limit - 14)
    try:
        run.engine.add_request("long", list(prompt), Params(limit, ignore_eos=True))
    except (ValueError, TypeError):
        if run.engine.has_unfinished():
            raise Broken("a request that was refused is still there: has_unfinished() is True.") from None
        return
    run.requests["long"] = served = Served(prompt, Params(limit, ignore_eos=True))
    run.run_out()
    right = expected("qwen2", prompt, limit - len(prompt), ignore_eos=True)
    if served.tokens != right or served.finish_reason != "length":
        raise Broken(
            f"a prompt of {len(prompt)} tokens with max_tokens {limit} and a context of {limit}: {len(right)} tokens "
            f"fit, then the reason is 'length'; the engine gave {len(served.tokens)} tokens and "
            f"{served.finish_reason!r}. "
            "Past the context the model's positions mean nothing. Refuse such a request, or end it in time."
        )


@LEVEL.item("Requests that wait together get the tokens that each gets alone", "Engine.step")
def three_at_once(run: Run) -> None:
    run.add_many(3, 5, 8)
    run.add(a_prompt(5), 8, ignore_eos=True)
    run.finish()


@LEVEL.item("A step makes one pass of the model at most, and `add_request` none", "Engine.step", MODEL, STEPS)
def one_pass_a_step(run: Run) -> None:
    run.add_many(3, 5, 8)
    if passes := run.watch.passes:
        raise Broken(
            f"add_request ran the model: {sum(passes)} tokens were computed before the first step. It only notes the "
            "request, and `step` computes."
        )
    run.run_out(lambda: _check_passes(run))


def _check_passes(run: Run) -> None:
    if (count := len(run.watch.passes)) > run.steps + 3:  # one may launch ahead, and try out a graph
        raise Broken(
            f"after {run.steps} step{'s' * (run.steps > 1)} the model has made {count} passes. The contract allows one "
            "a step, so that requests can be added and aborted between tokens."
        )


@LEVEL.item("An id can be used again once its request has ended", "Engine.add_request")
def id_again(run: Run) -> None:
    for length in (4, 5, 6):
        run.add(a_prompt(length), 3, name="again", ignore_eos=True)
        run.finish()


@LEVEL.item("Without requests, step() returns [], and the engine can be used again", "Engine.step")
def idle(run: Run) -> None:
    for prompt in (a_prompt(4), prompt_that_ends("qwen2", 2)):
        run.add(prompt, 3)
        run.run_out(lambda: _check_left(run))
    for each in (run, run.another()):
        if each.engine.has_unfinished():
            raise Broken("has_unfinished() is True, and there is no request.")
        try:
            returned = each.step()
        except (IndexError, KeyError, ValueError, StopIteration) as error:
            raise Broken(f"step() without a request raised {type(error).__name__}; it must return [].") from error
        if returned != []:
            raise Broken(f"step() without a request returned {returned}; it must be [].")
        _alone(each, a_prompt(4), 3)


def _check_left(run: Run) -> None:
    has_ended = all(each.finish_reason for each in run.requests.values())
    if STEPS in run.features and has_ended and run.engine.has_unfinished():
        raise Broken(f"step {run.steps} told the end of the only request, and has_unfinished() is still True after it.")


@LEVEL.item("A prompt that fills the context, so that no answer fits, is refused", "Engine.add_request")
def too_long_a_prompt(run: Run) -> None:
    _alone(run, a_prompt(4), 3)
    for limit, length in ((64, 64), (64, 69), (40, 40)):
        what = f"a prompt of {length} tokens, with a context of {limit}"
        run.another(max_model_len=limit).always_refuses(what, a_prompt(length), max_tokens=1)
