"""What the plausible mistakes in 06.3 would give, family by family."""

from collections.abc import Iterator

import torch

from lessons_lib.checks.lesson_06.in_place_cases import HEAD_DIM, Case
from lessons_lib.checks.lesson_06.in_place_dense import averaged, dense

Idea = tuple[torch.Tensor, str]  # attention with one mistake, and what to say about it


def wrong_ideas(case: Case) -> Iterator[Idea]:
    yield from _of_scores(case)
    if len(case.query) > 1:
        yield from _of_visible_keys(case)
    yield from _of_heads(case)
    yield from _of_blocks(case)
    yield from _of_sums(case)


def _of_scores(case: Case) -> Iterator[Idea]:
    """The scale; keys and values."""
    yield dense(case, scale=1.0), "The scores were not multiplied by `scale`."
    yield dense(case, scale=case.scale**2), "The scores were multiplied by `scale` twice."
    yield (
        dense(case, scale=HEAD_DIM**-0.5),
        "The scores were multiplied by 1 / sqrt(head size). Multiply by `scale`: a model may use another factor.",
    )
    for scale in (1.0, case.scale):
        yield (
            dense(case, scale=scale) * case.scale,
            "You multiplied the result by `scale`. It is a factor of the scores.",
        )
    yield dense(case, scale=1 / case.scale), "The scores were divided by `scale`. Multiply them by it."
    yield dense(case, swapped=True), "Keys and values are swapped: scores come from keys, the output from values."
    yield dense(case, keys_only=True), "The keys were used as values, too."


def _of_visible_keys(case: Case) -> Iterator[Idea]:
    """Which keys a new token attends to."""
    size, first_new = case.keys.shape[1], case.num_tokens - len(case.query)
    yield (
        dense(case, visible=lambda key, query: key + query >= 0),
        f"Every new token attended to all {case.num_tokens} keys, also to those after it. Where a key's position "
        f"is larger than the query's, the score is minus infinity. The first new token is at position {first_new} "
        "here: `num_tokens` counts the new ones too."
        + (
            " A key's position counts from the start of the sequence, not of its block."
            if case.num_tokens > size
            else ""
        ),
    )
    yield (
        dense(case, hidden_score=0.0),
        "A hidden key has a score of 0 here, and exp(0 − maximum) is a weight like any other. Its score must be "
        "minus infinity.",
    )
    last = (case.num_tokens - 1) // size * size
    yield (
        dense(case, visible=lambda key, query: (key <= query) | (key < last)),
        "Later keys are hidden in the last block only. The new tokens may be spread over several blocks.",
    )
    yield (
        dense(case, visible=lambda key, query: key <= query - first_new),
        f"The first new token attended to key 0 only. It isn't at position 0: {first_new} tokens are cached, so "
        f"it is at position {first_new}.",
    )
    yield (
        dense(case, visible=lambda key, query: (key < query) | (query == 0)),
        "A token also attends to itself: only keys at *larger* positions are hidden.",
    )
    yield (
        dense(case, visible=lambda key, query: key <= query + 1),
        "Each new token also attended to the key after it.",
    )


def _of_heads(case: Case) -> Iterator[Idea]:
    """Which KV head belongs to a query head, and where its result goes."""
    new, q_heads, _ = case.query.shape
    kv_heads = case.keys.shape[2]
    if kv_heads > 1:
        yield (
            dense(case, kv_head=lambda head: head % kv_heads),
            f"Query heads 0 and 1 share KV head 0: with {q_heads} query heads and {kv_heads} KV heads, *neighboring* "
            "query heads share one.",
        )
        yield dense(case, kv_head=lambda head: 0), "Every query head used KV head 0."
    right = dense(case)
    by_heads, by_tokens = (
        right.reshape(q_heads, new, HEAD_DIM).transpose(0, 1),
        right.transpose(0, 1).reshape(right.shape),
    )
    yield by_heads, "Tokens and heads are mixed up: `reshape` keeps the order in memory, `transpose` swaps the axes."
    yield (
        by_tokens,
        "Tokens and heads are mixed up: a tensor of yours has the heads first, and `reshape` keeps the order in "
        "memory. `transpose(0, 1)` swaps the axes.",
    )


def _of_blocks(case: Case) -> Iterator[Idea]:
    """Which slots hold the sequence."""
    size = case.keys.shape[1]
    for order, how in ((sorted(case.blocks), "in the order of their ids"), (case.blocks[::-1], "from last to first")):
        shuffled = [order[position // size] * size + position % size for position in range(case.num_tokens)]
        yield (
            dense(case, slots=shuffled),
            f"The blocks were taken {how}. `blocks` is in the order of the tokens, and ids may come in any order.",
        )
    pool = case.keys.shape[0] * size
    for start in (0, case.blocks[0] * size):
        yield (
            dense(case, slots=[(start + position) % pool for position in range(case.num_tokens)]),
            f"You read {case.num_tokens} slots in a row, from slot {start} on. Entry i of `blocks` is the block of "
            f"positions i × {size} to i × {size} + {size - 1}, and it may be anywhere.",
        )
    tail = case.num_tokens % size
    if 0 < tail < case.num_tokens:
        yield (
            dense(case, visible=lambda key, query: (key <= query) & (key % size < tail)),
            f"Only {tail} slots of *every* block were read. Only the last block is partly filled; the others "
            f"have {size} each.",
        )


def _of_sums(case: Case) -> Iterator[Idea]:
    """How the blocks are put together."""
    size = case.keys.shape[1]
    yield (
        averaged(case) * -(-case.num_tokens // size),
        "You added the attentions of the blocks, each already divided. Carry the sums of `add_block` from block to "
        "block, and divide once.",
    )
    yield (
        averaged(case),
        "You averaged the attentions of the blocks. A block with larger scores weighs more: carry the sums of "
        "`add_block` from block to block, and divide once.",
    )
