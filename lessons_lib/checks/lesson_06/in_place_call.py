"""Calls an answer to 06.3, and explains the errors, shapes and dtypes that it may come back with."""

from collections.abc import Callable

import torch

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_06.in_place_cases import Case, tokens_text


def run_case(attempt: Callable, case: Case):
    before = case.keys.clone(), case.values.clone()

    def over_the_cache(query: torch.Tensor, blocks: list[int]):
        # `call` compares its arguments before and after, and the NaN in the cache is not equal to itself.
        return attempt(query, case.keys, case.values, blocks, case.num_tokens, case.scale)

    try:
        got = call(over_the_cache, case.query, list(case.blocks), case=case.words)
    except (IndexError, RuntimeError) as error:
        size = case.keys.shape[1]
        if not (idea := too_many_blocks(case)) and size != 4 and str(error) == "list index out of range":
            idea = (
                f"`blocks` has one entry per block, and a block has {size} slots here: position p is in "
                f"`blocks[p // {size}]`. The shape of `keys` tells how many."
            )
        if not idea and str(error) == "list index out of range":
            filled = f" They fill it: {case.num_tokens} % {size} is 0." if case.num_tokens % size == 0 else ""
            idea = (
                f"The sequence has {tokens_text(case.num_tokens)}, in blocks of {size}, so the last index in `blocks` "
                f"is {len(case.blocks) - 1}.{filled}"
            )
        if "non-zero size" in str(error) and case.num_tokens % size == 0:
            idea = (
                f"An iteration of your loop has no keys. Every block is full here, the last one too: {case.num_tokens} "
                f"% {size} is 0."
            )
        if not idea:
            raise
        raise Mistake(
            f"your code raised {type(error).__name__}: {str(error)[:120]}", case=case.words, idea=idea
        ) from None
    if any(not torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(before, (case.keys, case.values))):
        idea = "Only read the cache. `keys[block]` is a view: an operation in place, such as `*=`, changes the cache."
        raise Mistake("your code changed the cache.", case=case.words, idea=idea)
    return got


def check_shape(got, case: Case) -> None:
    if not isinstance(got, torch.Tensor):
        idea = (
            "`attention_of(seen)` divides the sums of one query head at the end."
            if hasattr(got, "total")
            else "Return one tensor for all new tokens and all query heads."
        )
        raise Mistake(f"expected a tensor; your function returned {type(got).__name__}.", case=case.words, idea=idea)
    if got.shape != case.query.shape:
        idea = "The result has the shape of the query, [Q, query heads, head size]."
        if got.shape == case.query.transpose(0, 1).shape:
            idea += " Tokens come before heads."
        elif got.shape == case.query[:, 0].shape or got.shape == case.query[0].shape:
            idea += " Is there an entry for every query head of every new token?"
        elif got.shape == case.query.flatten(1).shape:
            idea += " Keep the heads separate."
        raise Mistake(
            f"the attention should have the shape {list(case.query.shape)}; yours has {list(got.shape)}.",
            case=case.words,
            idea=idea,
        )
    if got.dtype != case.query.dtype:
        want, found = (str(tensor.dtype).removeprefix("torch.") for tensor in (case.query, got))
        raise Mistake(
            f"the attention should be {want}, like the query; yours is {found}.",
            case=case.words,
            idea="`torch.empty_like(query)` has the query's dtype, and so does `nothing_seen(..., query.dtype)`.",
        )


def too_many_blocks(case: Case) -> str:
    """What to say if `blocks` is longer than the sequence needs; "" if it isn't."""
    in_use = -(-case.num_tokens // case.keys.shape[1])
    if len(case.blocks) <= in_use:
        return ""
    tokens = tokens_text(case.num_tokens)
    return (
        f"{tokens} need only {in_use} of these {len(case.blocks)} blocks. Does your loop end after {tokens}, or does "
        "it take every entry of `blocks`?"
    )
