"""Recognizes a wrong attention of 06.3 by what it equals."""

import torch

from lessons_lib.checks.lesson_06.in_place_cases import FAR, Case
from lessons_lib.checks.lesson_06.in_place_dense import dense, same, totals
from lessons_lib.checks.lesson_06.in_place_wrong_ideas import wrong_ideas


def why_wrong(got: torch.Tensor, want: torch.Tensor, case: Case) -> str:
    """What to say about a wrong attention."""
    if float(case.query.abs().max()) > FAR:
        return (
            "The scores of visible keys are far below zero here. The score of a hidden key has to be lower than any of "
            "them, however low: minus infinity."
        )
    if not bool(got.any()):
        return (
            "It is 0 everywhere. Is the result of each query head written, and may each token see a key? A key's "
            "position counts from the start of the sequence; the ids of the blocks have nothing to do with it."
        )
    if same(got, want * totals(case)):
        return "The output was not divided by the total: `attention_of(seen)` does that, after the last block."
    for guess, idea in wrong_ideas(case):
        if same(got, guess):
            return idea
    for first in range(case.num_tokens):
        for end in range(first + 1, case.num_tokens + 1):
            if same(got, dense(case, visible=lambda key, query: (key <= query) & (key >= first) & (key < end))):
                return _only_some(first, end, case)
    return _which_are_wrong(got, want)


def _only_some(first: int, end: int, case: Case) -> str:
    """Attention over consecutive keys, but not all: it may have several causes, so name it and ask."""
    size = case.keys.shape[1]
    what = f"What you computed is the attention over keys {first} to {end - 1}; the sequence has keys 0 to "
    what += f"{case.num_tokens - 1}, in blocks of {size}. "
    if first % size:
        return what + "That isn't where a block starts: does your code hide earlier keys instead of later ones?"
    if first:
        return what + "Does your loop start with the first block, and does each block add to the same state?"
    if end % size == 0:
        return what + "Does your loop end too early, with a `return` inside it or before a partly filled block?"
    if end == len(case.query) < case.num_tokens - 1:
        return what + (
            f"The new tokens are the last ones: the first of them is at position {case.num_tokens - end}. Does your "
            "code put it at 0, or does a loop end too early?"
        )
    return what + "Which keys may the last token see, and how many of the last block's slots hold a token?"


def _which_are_wrong(got: torch.Tensor, want: torch.Tensor) -> str:
    if torch.allclose(got, want, rtol=1e-2, atol=2e-3):
        return (
            "Nearly right: the difference is as small as rounding to 16 bits, and everything is float32 here. Is "
            "something converted to another dtype?"
        )
    right = torch.isclose(got, want, rtol=1e-3, atol=1e-4).all(dim=-1)
    heads, tokens = right.all(dim=0).tolist(), right.all(dim=1).tolist()
    if any(heads) and not all(heads):
        which = f"Query head {heads.index(True)} is right, and query head {heads.index(False)} is wrong. "
        return which + "Does each head start with an empty state, and use its own query and its KV head?"
    if any(tokens) and not all(tokens):
        which = f"New token {tokens.index(True)} is right, and new token {tokens.index(False)} is wrong. "
        return (
            which + "Is a result written for each of them, from its own query and from the positions that it may see?"
        )
    return (
        "It is not a mistake that this check knows. Try one token first, then two blocks: which keys and values does "
        "each iteration of your loop use, and at which positions are they?"
    )
