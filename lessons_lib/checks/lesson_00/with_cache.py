"""Checks 00.3, greedy decoding with a cache: one prefill, then one token per pass."""

from dataclasses import replace

from transformers import Cache

from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_00.greedy import (
    GREEDY_CASES,
    Case,
    as_token_list,
    first_difference,
    name_wrong_ends,
    number_of_tokens,
    refuse_extra_passes,
    refuse_memory,
)
from lessons_lib.viz.words import marked


def test_greedy_with_cache(attempt) -> None:
    for case in GREEDY_CASES:
        got, passes = _run(attempt, case)
        got = as_token_list(got, str(case))
        if got != case.expected():
            refuse_memory(case, attempt)
            _name_cut_prompt(passes, case)
            _name_wrong_input_with_cache(passes, case)
            _name_wrong_first_token(got, case, attempt)
            too_few = " The token of `prefill` is the first one, and each decode step gives one more."
            too_many = " Does it count the token that `prefill` gives? n tokens need n - 1 decode steps."
            name_wrong_ends(got, case, attempt, too_few, too_many)
            raise first_difference(got, case)
        _name_too_much_work(passes, case)


def _run(attempt, case: Case):
    """The result of `case.run`; raises a `Mistake` if a cache is used where a token belongs."""
    try:
        got, passes = case.run(attempt)
    except (AttributeError, RuntimeError, TypeError) as error:
        if "DynamicCache" not in str(error):
            raise
        raise Mistake(
            f"your code uses the cache where a token belongs ({error}).",
            case=str(case),
            idea="Look at the order: `first_token, cache = prefill(model, prompt_ids)`, and `decode_step(model, "
            "last_token, cache)`.",
        ) from error
    if isinstance(got, list) and any(isinstance(token, Cache) for token in got):
        raise Mistake(
            "your answer contains a cache where a token should be.",
            case=str(case),
            idea="`prefill` returns `(first_token, cache)`, in this order.",
        )
    return got, passes


def _name_cut_prompt(passes, case: Case) -> None:
    """Raise if the first pass computed only one end of the prompt, and the second doesn't go on with the prompt."""
    if not passes or passes[0].cached:
        return
    prompt, fed = list(case.prompt), passes[0].input_ids[0]
    if not len(fed) < len(prompt) or fed not in (prompt[-len(fed) :], prompt[: len(fed)]):
        return
    if fed == prompt[: len(fed)] and len(passes) > 1 and passes[1].input_ids[0][0] == prompt[len(fed)]:
        return  # a prompt in chunks
    which = "last" if fed == prompt[-len(fed) :] else "first"
    raise Mistake(
        f"the first pass computed only the {which} {number_of_tokens(len(fed))} of the prompt, which has "
        f"{len(prompt)}.",
        case=str(case),
        idea="A token that isn't computed isn't in the cache, so no later token can attend to it. Give `prefill` the "
        "whole prompt, however long.",
    )


def _name_wrong_input_with_cache(passes, case: Case) -> None:
    """Raise for the first decode step whose input is not the newest token."""
    sequence = [*case.prompt, *case.expected()]
    held = passes[1].cached if len(passes) > 1 else 0
    if held == len(case.prompt) > 1 and passes[1].input_ids == [[case.prompt[0]]]:
        raise Mistake(
            f"decode step 1 fed [{case.prompt[0]}], the first token of the prompt.",
            case=str(case),
            idea="`prefill` has computed the whole prompt, and its keys and values are cached. Feed only new tokens.",
        )
    for step, forward in enumerate(passes[: len(case.expected())]):
        fed = forward.input_ids[0]
        if step == 0 or fed == [sequence[len(case.prompt) + step - 1]]:
            continue
        newest = sequence[len(case.prompt) + step - 1]
        many = "" if len(fed) == 1 else f"{number_of_tokens(len(fed))}, "
        what = f"decode step {step} fed {many}{short(fed)}; it should feed [{newest}], the newest token."
        if len(fed) > 1 and forward.cached:
            idea = (
                f"The cache already holds {forward.cached} tokens. Tokens fed again are stored, and attended to, twice."
            )
        elif len(fed) > 1:
            idea = (
                "You seem to recompute the whole sequence. Keep the cache that `prefill` returns and pass it to every "
                "`decode_step`."
            )
        elif fed[0] == case.prompt[-1] and step == 1:
            idea = (
                "That is the last token of the prompt, which is already in the cache. Feed the token that `prefill` "
                "returned."
            )
        elif step > 1 and fed == passes[step - 1].input_ids[0]:
            idea = (
                f"Decode step {step - 1} fed the same token. Does your variable for the newest token change in every "
                "step? Feed the token that the step before *returned*."
            )
        else:
            idea = "The input of a decode step is the token produced by the step before."
        raise Mistake(what, case=str(case), idea=idea)


def _name_wrong_first_token(got: list[int], case: Case, attempt) -> None:
    expected = case.expected()
    further = replace(case, max_new_tokens=case.max_new_tokens + 1, eos=None).expected()
    probe = replace(case, max_new_tokens=4, eos=None)  # an empty answer may also be one that is too short
    loses_first = not got and probe.run(attempt)[0] == probe.expected()[1:]
    if loses_first or (got and got == further[1 : len(got) + 1]):
        raise Mistake(
            f"the answer should be {short(expected)}; yours is {marked(expected, got)}: the first token is missing.",
            case=str(case),
            idea="`prefill` returns the cache *and* the first new token. That token belongs to the answer.",
        )
    if got[:2] == expected[:1] * 2 and got[1:3] == expected[:2][: len(got) - 1]:
        raise Mistake(
            f"the answer should be {short(expected)}; yours is {marked(expected, got)}: the first token appears twice.",
            case=str(case),
            idea="Append each token once: the one from `prefill` before the loop, the one from `decode_step` inside "
            "it.",
        )


def _name_too_much_work(passes, case: Case) -> None:
    """The tokens are right. Raise if they took more than one prefill and one decode step per further token."""
    if not passes:  # the attempt calls only parts of the model, so there is nothing to count
        return
    if len(passes) > 1 and passes[1].cached == len(case.prompt) and passes[1].input_ids == [[case.prompt[-1]]]:
        raise Mistake(
            f"decode step 1 fed [{case.prompt[-1]}], the last token of the prompt.",
            case=str(case),
            idea="`prefill` has computed it already, and returned the token after it. Feed that one, if another token "
            "is needed at all.",
        )
    again = [n for n, forward in enumerate(passes[1:], start=2) if forward.tokens > 1 and forward.cached == 0]
    if again:
        number = again[0]
        for_every = "for every token, each time" if number == 2 else "after some of the tokens,"
        raise Mistake(
            f"the tokens are right, but pass {number} computed {passes[number - 1].tokens} tokens; with a cache it "
            "computes 1.",
            case=str(case),
            idea=f"You seem to prefill again {for_every} into a new cache. Prefill once, then feed one token per step."
            if passes[number - 1].keeps_cache
            else "You seem to recompute the whole sequence in every pass, without a cache. Prefill once, then feed one "
            "token per step.",
        )
    if passes[0].cached:
        raise Mistake(
            f"the first pass was given a cache of {number_of_tokens(passes[0].cached)}; it should be a prefill.",
            case=str(case),
            idea="Something is kept from an earlier call, for example in a default argument or a global variable. "
            "Every call begins with its own `prefill`.",
        )
    if passes[0].tokens < len(case.prompt):
        raise Mistake(
            f"the tokens are right, but the first pass computed {passes[0].tokens} of the prompt's {len(case.prompt)} "
            "tokens.",
            case=str(case),
            idea="The whole prompt is known in advance, so `prefill` can compute it in one pass.",
        )
    refuse_extra_passes(
        case.expected(),
        passes,
        case,
        "`prefill` gives the first token, so n tokens need n - 1 decode steps: decide whether to stop *before* the "
        "next step.",
    )
