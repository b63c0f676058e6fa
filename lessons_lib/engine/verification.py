"""Lesson 18: what the logits of a pass say about its guesses. `speculation` does the same for the whole engine."""

from collections.abc import Callable
from itertools import islice

import torch

from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


def verify(drafts: dict[Sequence, list[int]], logits: torch.Tensor, draw: Callable[..., int], pool: BlockPool) -> None:
    """Append the tokens that a pass brings, and forget what it computed for nothing.

    The pass computed one packed row: of each sequence the last token, and its guesses after it. A sequence gets the
    model's own tokens, up to the first that isn't the guess in its place, or that ends the sequence.

    Args:
        drafts: sequence -> its guesses, perhaps none, in the order of the row. They aren't in `output_ids`.
        logits: [tokens of the row, vocabulary], after each token of the row.
        draw: function (logits of one token, sequence, place in its completion, from 0) -> the model's own token.
        pool: the blocks that held only wrong guesses become free.
    """
    rows = iter(logits)
    for sequence, draft in drafts.items():
        first = len(sequence.output_ids)
        own = [draw(next(rows), sequence, first + place) for place in range(len(draft) + 1)]
        for place, token in enumerate(own):
            sequence.append_token(token)
            if sequence.finish_reason or draft[place : place + 1] != [token]:
                break
        sequence.num_computed_tokens = sequence.num_tokens - 1
        needed = blocks_for(sequence.num_computed_tokens, pool.block_size)
        pool.free(sequence.blocks[needed:])
        sequence.blocks = sequence.blocks[:needed]


def logits_of_row(runner: ModelRunner, drafts: dict[Sequence, list[int]]) -> torch.Tensor:
    """Compute what isn't computed of each sequence, and its guesses after that: the logits that `verify` reads."""
    counts = {each: each.num_tokens - each.num_computed_tokens + len(draft) for each, draft in drafts.items()}
    guessed = {each: draft for each, draft in drafts.items() if draft}
    logits = runner.forward(SchedulerOutput(counts, drafts=guessed))
    last, others = iter(logits[: len(drafts)]), iter(logits[len(drafts) :])  # a runner's order
    return torch.stack([row for draft in drafts.values() for row in (*islice(others, len(draft)), next(last))])
