"""Checks 00.1, greedy decoding without a cache: every pass feeds the whole sequence."""

import torch

from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_00.greedy import (
    GREEDY_CASES,
    Case,
    as_token_list,
    count_rows,
    first_difference,
    first_wrong_index,
    name_wrong_ends,
    number_of_tokens,
    prompt_tokens_kept,
    refuse_extra_passes,
    refuse_memory,
)
from lessons_lib.models.tiny_models import VOCAB_SIZE


def test_greedy_without_cache(attempt) -> None:
    for case in GREEDY_CASES:
        got, passes = case.run(attempt)
        got = as_token_list(got, str(case))
        if got != case.expected():
            refuse_memory(case, attempt)
            if not passes or passes[0].input_ids == [list(case.prompt)]:
                _name_wrong_position(got, case)
            name_wrong_ends(got, case, attempt, " Each pass gives one token.")
            _name_wrong_input_without_cache(got, passes, case)
            _name_wrong_choice(got, case)
            raise first_difference(got, case)
        if any(forward.cached for forward in passes):
            raise Mistake(
                f"the tokens are right, but pass 2 was given a cache of {passes[1].cached} tokens.",
                case=str(case),
                idea="This exercise recomputes the whole sequence in every pass, to see what that costs. The cache "
                "comes in 00.2 and 00.3.",
            )
        refuse_extra_passes(
            got, passes, case, "Each pass gives one token, so check whether to stop right after appending it."
        )
        _refuse_further_positions(passes, case)
    _refuse_unread_caches(attempt)


def _refuse_further_positions(passes, case: Case) -> None:
    """The tokens are right. Raise if a pass computed more than the sequence so far, in one row."""
    text = [*case.prompt, *case.expected()]
    for number, forward in enumerate(passes, start=1):
        size = len(case.prompt) + number - 1
        if forward.rows * forward.tokens > size and forward.input_ids[0][:size] == text[:size]:
            raise Mistake(
                f"the tokens are right, but pass {number} fed {count_rows(forward.rows)} of "
                f"{number_of_tokens(forward.tokens)}; the sequence so far is one row of {number_of_tokens(size)}.",
                case=str(case),
                idea="The model computes every position that you feed, whether or not it is part of the text. Feed the "
                "prompt and the new tokens so far, nothing else.",
            )


def _refuse_unread_caches(attempt) -> None:
    """The tokens are right. Raise if the passes filled caches, which Hugging Face models do unless told not to."""
    case, filled = GREEDY_CASES[1], []
    model = case.model
    hook = model.register_forward_hook(lambda module, args, output: filled.append(output.past_key_values is not None))
    try:
        case.run(attempt)
    finally:
        hook.remove()
    if any(filled):
        raise Mistake(
            "the tokens are right, but every pass also fills a cache that no pass reads.",
            case=str(case),
            idea="Models of Hugging Face keep a cache unless they are told not to. Pass `use_cache=False`.",
        )


def _name_wrong_choice(got: list[int], case: Case) -> None:
    """The inputs were right up to the first wrong token, so the choice from the logits was wrong."""
    index, expected = first_wrong_index(got, case), case.expected()
    if index >= min(len(got), len(expected)) or got[index] >= VOCAB_SIZE:
        return
    ids = torch.tensor([[*case.prompt, *expected[:index]]])
    logits = case.model(input_ids=ids).logits[0]
    rank = int((logits[-1] > logits[-1, got[index]]).sum()) + 1
    idea = (
        f"The input of that pass was right, but the logit of {got[index]} only has rank {rank} of {VOCAB_SIZE}. Greedy "
        "decoding takes the token with the largest logit at the last position, every time, without sampling."
    )
    earlier = logits[:-1].argmax(dim=-1).tolist()
    if got[index] in earlier:
        position = len(earlier) - 1 - earlier[::-1].index(got[index])
        idea = (
            f"The input of that pass was right. {got[index]} has the largest logit at position {position}, but the "
            f"last position is {len(earlier)} in that pass. Which position do you read? It moves with every new token."
        )
    raise Mistake(
        f"new token {index + 1} should be {expected[index]}; yours is {got[index]}.", case=str(case), idea=idea
    )


def _name_wrong_input_without_cache(got: list[int], passes, case: Case) -> None:
    """Raise for the first pass with a wrong input, among those up to the first wrong token."""
    fed = list(case.prompt)
    relevant = passes[: first_wrong_index(got, case) + 1]
    for pass_number, (forward, token) in enumerate(zip(relevant, case.expected()), start=1):
        if forward.rows > 1:
            raise _not_one_row(forward, fed, pass_number, case)
        if forward.input_ids != [fed]:
            what = (
                f"pass {pass_number} should feed {number_of_tokens(len(fed))}, {short(fed)}; yours fed "
                f"{short(forward.input_ids[0])}."
            )
            if pass_number > 1 and forward.input_ids == passes[0].input_ids:
                idea = "Pass 1 fed the same tokens. Append every new token to the sequence before the next pass."
            elif forward.tokens == 1 and forward.input_ids[0] == fed[-1:]:
                idea = (
                    "You seem to feed only the last token. Without a cache, the model remembers nothing between calls: "
                    "feed the whole "
                    "sequence."
                )
            elif 1 < forward.tokens < len(fed) and forward.input_ids[0] == fed[-forward.tokens :]:
                idea = f"You seem to feed only the last {forward.tokens} tokens. Feed the whole sequence, however long."
            elif pass_number > 1 and fed[-1] in forward.input_ids[0] and forward.input_ids[0][-1] != fed[-1]:
                idea = (
                    "The newest token belongs at the end of the sequence: first the prompt, then the new tokens in "
                    "order."
                )
            else:
                idea = "Each pass feeds the prompt followed by all new tokens so far."
            raise Mistake(what, case=str(case), idea=idea)
        fed.append(token)


def _not_one_row(forward, fed: list[int], pass_number: int, case: Case) -> Mistake:
    idea = "The sequence is one row: `torch.tensor([ids])`."
    if forward.tokens == 1:
        idea = (
            "Each token is a row of its own, and a row sees nothing of the others. The sequence is one row: "
            "`torch.tensor([ids])`."
        )
    return Mistake(
        f"pass {pass_number} should feed one row of {number_of_tokens(len(fed))}, shape [1, {len(fed)}]; yours fed "
        f"shape [{forward.rows}, {forward.tokens}].",
        case=str(case),
        idea=idea,
    )


def _name_wrong_position(got: list[int], case: Case) -> None:
    """Raise if the first token is wrong, for example because it was read at a position other than the last."""
    if not got or got[0] == case.expected()[0] or got[: len(case.prompt)] == list(case.prompt):
        return
    if prompt_tokens_kept(got, case):
        return
    logits = case.model(input_ids=torch.tensor([case.prompt])).logits[0]
    last = len(case.prompt) - 1
    by_position = logits.argmax(dim=-1).tolist()
    what = f"the first new token should be {case.expected()[0]}; yours is {got[0]}."
    if got[0] >= VOCAB_SIZE:
        idea = (
            f"The vocabulary has {VOCAB_SIZE} tokens. You seem to take the argmax over all positions at once; take it "
            "only at the "
            "last position, `logits[0, -1]`."
        )
    elif got[0] in by_position[:last]:
        position = by_position.index(got[0])
        which = "the first" if position == 0 else "the second to last" if position == last - 1 else "not the last"
        idea = (
            f"You seem to read the logits of position {position}, {which}. The logits of a position predict the token "
            "*after* it, "
            f"so read the next token at the last position, {last}."
        )
    elif got[0] == int(logits[-1].argmin()):
        idea = "You seem to take the token with the smallest logit. Greedy decoding takes the largest."
    else:
        rank = int((logits[-1] > logits[-1, got[0]]).sum()) + 1
        idea = (
            f"At the last position, the logit of this token has rank {rank} of {VOCAB_SIZE}. Do you take the largest "
            "logit, without sampling? And do you pass the model anything but the tokens, such as positions or a mask? "
            "It numbers the tokens from 0 by itself."
        )
    raise Mistake(what, case=str(case), idea=idea)
