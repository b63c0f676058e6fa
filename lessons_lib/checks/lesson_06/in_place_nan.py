"""Where NaN in an answer to 06.3 may come from."""

from collections.abc import Callable
from dataclasses import replace

import torch

from lessons_lib.checks.lesson_06.in_place_call import run_case, too_many_blocks
from lessons_lib.checks.lesson_06.in_place_cases import LARGE, Case, tokens_text
from lessons_lib.checks.lesson_06.in_place_dense import dense, same
from lessons_lib.checks.lesson_06.in_place_wrong_ideas import wrong_ideas


def why_if_not_nan(attempt: Callable, case: Case) -> str:
    """What is wrong apart from the NaN, seen with other values in the slots without a token; "" if it isn't known."""
    generator = torch.Generator().manual_seed(1)
    keys, values = (
        torch.where(cache.isnan(), torch.randn(cache.shape, generator=generator).to(cache.dtype), cache)
        for cache in (case.keys, case.values)
    )
    case = replace(case, keys=keys, values=values)
    got = run_case(attempt, case).double()
    if same(got, dense(case)):
        return ""
    if bool(got.isnan().all()) and float(case.query.abs().max()) <= LARGE and case.num_tokens % case.keys.shape[1]:
        return (
            "It is NaN whatever the slots without a token hold, so they aren't the reason. Did the queries get any "
            "key? Without one, the total is 0, and 0 / 0 is NaN. `num_tokens` counts the new tokens too: does your "
            "loop reach the last of them, in a block that is only partly filled? And are keys hidden by their "
            "positions in the sequence, which have nothing to do with the ids of the blocks?"
        )
    return next((idea for guess, idea in wrong_ideas(case) if same(got, guess)), "")


def why_nan(case: Case, got: torch.Tensor) -> str:
    size = case.keys.shape[1]
    if float(case.query.abs().max()) > LARGE:
        return "With scores this large, bare exponentials overflow. `add_block` subtracts the largest score first."
    if idea := too_many_blocks(case):
        return idea
    if case.num_tokens == len(got) and bool(got[0].isnan().all()) and not bool(got[1:].isnan().any()):
        return (
            "Only the first token has NaN. Which keys may it attend to? It must see itself, or it sees none. And does "
            "your loop reach it? `num_tokens` counts the new tokens too."
        )
    if case.num_tokens % size:
        return (
            f"The last block contains {tokens_text(case.num_tokens % size)}, and `num_tokens` counts the new ones too. "
            "Its other slots may hold anything, here NaN. "
            "Hiding them isn't enough, because weight 0 × NaN is NaN: read only the filled slots."
        )
    return (
        "Every slot of these blocks holds a token, and the others are NaN. Do you read other blocks? Or too few keys: "
        f"{case.num_tokens} % {size} is 0, and the last block is full? Without a key, the total is 0, and 0 / 0 is NaN."
    )
