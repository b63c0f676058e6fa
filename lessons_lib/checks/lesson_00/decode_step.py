"""Checks 00.2, one decode step: one token goes in, one comes out, and the cache grows by one."""

import copy
import operator

import torch
from transformers import Cache

from lessons_lib.batching.greedy import prefill
from lessons_lib.checks.exercise import Mistake, call, reached, short
from lessons_lib.checks.lesson_00.greedy import PROMPT, Case, number_of_tokens, watched
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model


def test_decode_step(attempt) -> None:
    long = tuple(i * 7 % 97 for i in range(150))  # longer than any window that a step may keep
    for prompt, family in (((2,), "qwen2"), (PROMPT, "qwen2"), (PROMPT, "gpt2"), (PROMPT, "llama"), (long, "qwen2")):
        model = tiny_model(family)
        answer = Case(prompt, 5, family=family).expected()
        token, cache = prefill(model, list(prompt))
        for step, expected in enumerate(answer[1:], start=1):
            held = len(prompt) + step - 1
            case = (
                f"the cache holds {number_of_tokens(held)}, {short([*prompt, *answer][:held])}; last_token={token}, "
                f"on a tiny {family} model."
            )
            before, keys = copy.deepcopy(cache), cache.layers[0].keys
            with watched(model, case) as passes:
                try:
                    got = call(attempt, model, token, cache, case=case)
                except ValueError as error:
                    if "`crop`" not in str(error):
                        raise
                    if not passes:
                        raise _crops_before_the_pass(held, token, case) from error
                    with reached(
                        "There is nothing to crop: the step leaves `last_token` in the cache, because the next step "
                        "needs its key and value."
                    ):
                        raise
            got = _as_token(got, case)
            touched = cache.layers[0].keys is not keys
            _name_wrong_step(got, expected, token, before, cache, touched, passes, model, case)
            token = expected


def _crops_before_the_pass(held: int, token: int, case: str) -> Mistake:
    return Mistake(
        "your code crops the cache before the pass.",
        case=case,
        idea=f"There is nothing to crop: the cache holds only the {number_of_tokens(held)} before `last_token`, and "
        f"each is needed. The key and value of `last_token`, {token}, aren't in it: the pass adds them.",
    )


def _name_wrong_step(got, expected, token, before, cache, touched, passes, model, case) -> None:
    held, now = before.get_seq_length(), cache.get_seq_length()
    if len(passes) > 1:
        raise Mistake(
            f"a decode step is one forward pass; yours made {len(passes)}.",
            case=case,
            idea="Call the model once, with `last_token` alone.",
        )
    fed = passes[0].input_ids if passes else [[token]]
    if len(fed) == 1 and len(fed[0]) > 1:
        raise Mistake(
            f"your step fed {len(fed[0])} tokens, {short(fed[0])}; it should feed only `last_token`, {token}.",
            case=case,
            idea="The cache already holds the keys and values of all tokens before it. Feeding a token again stores it "
            "twice.",
        )
    if fed != [[token]]:
        raise Mistake(
            f"your step fed {short(fed)}; it should feed [[{token}]], `last_token` as one row of one token.",
            case=case,
            idea="The input of a decode step is the token produced by the step before.",
        )
    if now <= held and not torch.equal(cache.layers[0].keys[:, :, :held], before.layers[0].keys):
        raise Mistake(
            f"after the step, the cache should hold {number_of_tokens(held + 1)}; it holds {now}, and not those from "
            "before the step.",
            case=case,
            idea="Does your step remove or change anything in the cache? A decode step adds the key and value of "
            "`last_token` and leaves the others as they are.",
        )
    if now == held:
        if touched:
            idea = "You seem to remove the token again. Leave it in the cache: the next step needs its key and value."
        elif passes and passes[0].cached == held:
            idea = (
                "You seem to pass a copy of the cache. Pass the cache itself: the next step needs what this one adds "
                "to it."
            )
        else:
            idea = (
                "You seem to call the model without this cache. Pass `past_key_values=cache`: the model reads the old "
                "keys and values from it and adds those of `last_token`."
            )
        raise Mistake(
            f"after the step, the cache should hold {number_of_tokens(held + 1)}; it still holds {held}.",
            case=case,
            idea=idea,
        )
    if now != held + 1:
        raise Mistake(
            f"after the step, the cache should hold {number_of_tokens(held + 1)}; it holds {now}.",
            case=case,
            idea="A decode step adds the key and value of `last_token` and removes nothing.",
        )
    if got == expected:
        return
    if got == token:
        raise Mistake(
            f"your step returned {got}, its own input; it should return {expected}.",
            case=case,
            idea="The last token goes in, and logits for the token *after* it come out. Take the argmax of those.",
        )
    for position in (0, held - 1, held + 1):
        shifted = model(
            torch.tensor([[token]]), past_key_values=copy.deepcopy(before), position_ids=torch.tensor([[position]])
        ).logits[0, -1]
        if got == int(shifted.argmax()):
            raise Mistake(
                f"the token should be {expected}; yours is {got}, the result for `last_token` at position {position}.",
                case=case,
                idea=f"Its position is {held}, the number of tokens in the cache before the step. Leave `position_ids` "
                "out: the model "
                "derives the position from the cache.",
            )
    logits = model(torch.tensor([[token]]), past_key_values=copy.deepcopy(before)).logits[0, -1]
    rank = int((logits > logits[got]).sum())
    if rank == VOCAB_SIZE - 1:
        raise Mistake(
            f"the token should be {expected}; yours is {got}, the one with the *smallest* logit.",
            case=case,
            idea="Greedy decoding takes the largest.",
        )
    if idea := _why_wrong_choice(got, token, logits, before, model):
        raise Mistake(f"the token should be {expected}; yours is {got}.", case=case, idea=idea)
    raise Mistake(
        f"the token should be {expected}; yours is {got}, whose logit has rank {rank + 1} of {VOCAB_SIZE}.",
        case=case,
        idea="Pass `last_token` and the cache to the model, nothing else, and take the token with the largest logit.",
    )


def _why_wrong_choice(got, token, logits, before, model) -> str:
    """Why a step with the right input and cache returns another token; "" if the reason isn't known."""
    one_column = torch.ones(1, 1, dtype=torch.int64)
    hidden = model(torch.tensor([[token]]), past_key_values=copy.deepcopy(before), attention_mask=one_column).logits
    if got == int(hidden[0, -1].argmax()):
        return (
            "That is the result if the mask hides `last_token` from itself, as a mask of only one column does. A mask "
            "covers the tokens in the cache and the new one. Here nothing is hidden, so leave the mask out."
        )
    if got == int(logits.max()):
        return (
            f"The largest logit is {float(logits.max()):.2f}. You seem to return the logit itself; return its index: "
            "`argmax` instead of `max`."
        )
    if got == 0:
        return (
            "Along a dimension of size 1, `argmax` is always 0. Does yours run along the positions? The logits have "
            "shape [1, 1, vocabulary]: take it along the last dimension."
        )
    return ""


def _as_token(got, case: str) -> int:
    if got is None:
        raise Mistake(
            "your step returned None; it should return the next token, an int.",
            case=case,
            idea="Does it end with a `return`?",
        )
    if isinstance(got, (tuple, list)):
        raise Mistake(
            f"your step returned a {type(got).__name__} of {len(got)}; it should return only the next token, an int.",
            case=case,
            idea="There's no need to return the cache: the model updates it in place."
            if any(isinstance(value, Cache) for value in got)
            else "Return the int itself, not a list or tuple of it.",
        )
    if isinstance(got, torch.Tensor) and got.numel() == 1:
        raise Mistake(
            f"your step returned a tensor that contains {got.item()}; it should return an int.",
            case=case,
            idea="`int(...)` converts it.",
        )
    if isinstance(got, torch.Tensor):
        raise Mistake(
            f"your step returned a tensor of shape {list(got.shape)}; it should return the next token, an int.",
            case=case,
            idea="Logits are scores, one per token of the vocabulary. The next token is the index of the largest: "
            "`argmax`.",
        )
    if not hasattr(got, "__index__"):
        raise Mistake(
            f"your step returned {type(got).__name__} {short(got)}; it should return the next token, an int.", case=case
        )
    return operator.index(got)
