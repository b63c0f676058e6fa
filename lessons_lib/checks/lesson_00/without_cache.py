"""Judges 00.1, greedy decoding without a cache: every pass feeds the whole sequence."""

import torch

from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_00.greedy import GREEDY_CASES, Case, as_token_list, first_difference, name_wrong_ends
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model


def test_greedy_without_cache(attempt) -> None:
    for case in GREEDY_CASES:
        got, passes = case.run(attempt)
        got = as_token_list(got, str(case))
        if got != case.expected():
            _name_wrong_position(got, case)
            name_wrong_ends(got, case, attempt)
            _name_wrong_input_without_cache(passes, case)
            raise first_difference(got, case)
        if any(forward.cached for forward in passes):
            raise Mistake(
                f"the tokens are right, but pass 2 was given a cache of {passes[1].cached} tokens.",
                case=str(case),
                idea="This exercise computes the whole sequence in every pass, to see what that costs. The cache comes in 00.2 and 00.3.",
            )


def _name_wrong_input_without_cache(passes, case: Case) -> None:
    fed = list(case.prompt)
    for number, (forward, token) in enumerate(zip(passes, case.expected()), start=1):
        if forward.input_ids != [fed]:
            what = f"pass {number} should feed {len(fed)} tokens, {fed}; yours fed {short(forward.input_ids[0])}."
            if number > 1 and forward.input_ids == passes[0].input_ids:
                idea = "You seem to feed the prompt alone each time. Append every new token to the sequence before the next pass."
            elif number > 1 and forward.tokens == 1:
                idea = (
                    "You seem to feed only the last token. Without a cache the model remembers nothing from one call to the next: "
                    "feed the whole sequence."
                )
            elif number > 1 and fed[-1] in forward.input_ids[0] and forward.input_ids[0][-1] != fed[-1]:
                idea = "The newest token belongs at the end of the sequence: the prompt, then the new tokens in order."
            else:
                idea = "Each pass feeds the prompt and, behind it, all new tokens so far."
            raise Mistake(what, case=str(case), idea=idea)
        fed.append(token)


def _name_wrong_position(got: list[int], case: Case) -> None:
    """The first token: right, or read from another position than the last."""
    if not got or got[0] == case.expected()[0] or got[: len(case.prompt)] == list(case.prompt):
        return
    logits = tiny_model(case.family)(input_ids=torch.tensor([case.prompt])).logits[0]
    last = len(case.prompt) - 1
    by_position = logits.argmax(dim=-1).tolist()
    what = f"the first new token should be {case.expected()[0]}; yours is {got[0]}."
    if got[0] >= VOCAB_SIZE:
        idea = (
            f"The vocabulary has {VOCAB_SIZE} tokens. You seem to take the argmax over all positions at once; take it over the last "
            "position alone, `logits[0, -1]`."
        )
    elif got[0] in by_position[:last]:
        position = by_position.index(got[0])
        which = "the first" if position == 0 else "the one before the last" if position == last - 1 else "not the last"
        idea = (
            f"You seem to read the logits of position {position}, {which}. The logits of a position predict the token *after* it, "
            f"so the next token stands at the last position, {last}."
        )
    elif got[0] == int(logits[-1].argmin()):
        idea = "You seem to take the token with the smallest logit. Greedy takes the largest."
    else:
        rank = int((logits[-1] > logits[-1, got[0]]).sum()) + 1
        idea = f"By the logits of the last position this token is number {rank} of {VOCAB_SIZE}. Greedy takes number 1, every time."
    raise Mistake(what, case=str(case), idea=idea)
