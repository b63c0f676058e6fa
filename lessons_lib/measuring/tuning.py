"""Lesson 13: choose two sizes of an engine: the largest batch that fits in memory, and the block size."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.measuring.memory_limit import memory_limit


def largest_that_fits(fits, most):
    """Find the largest size that fits, with few tries.

    A try takes seconds, so don't try every size. If a size fits, all smaller ones do.

    Args:
        fits: function (size) -> bool.
        most: the largest size worth trying, 1 or more.

    Returns:
        int: the largest size from 1 to `most` that fits, or 0 if not even 1 does.
    """
    fitting, too_large = 0, most + 1
    while too_large - fitting > 1:
        # One try in the middle rules out half of the range.
        middle = (fitting + too_large) // 2
        if fits(middle):
            fitting = middle
        else:
            too_large = middle
    return fitting


def engine_fits(model, tokenizer, num_seqs: int, context: int, limit: float, max_num_batched_tokens: int = 512) -> bool:
    """Test if an engine for `num_seqs` sequences of `context` tokens runs within a memory limit, in the worst case.

    This can't be computed from the model's shape: no formula includes library workspaces and fragmentation.

    Args:
        limit: bytes on top of the weights. On a GPU, its memory is a limit as well.
    """
    blocks = num_seqs * blocks_for(context, 16)
    config = EngineConfig(
        max_num_seqs=num_seqs, max_num_batched_tokens=max(num_seqs, max_num_batched_tokens), num_blocks=blocks
    )
    try:
        with memory_limit(limit):
            engine = LLMEngine(model, tokenizer, config)
            worst = SamplingParams(max_tokens=2, temperature=1.0, seed=0, ignore_eos=True)
            for _ in range(num_seqs):
                engine.add_request([1] * (context - 1), worst)
            while engine.has_unfinished():
                for output in engine.step():
                    if output.error:
                        raise output.error
    except (MemoryError, torch.OutOfMemoryError):
        return False
    return True


@dataclass(frozen=True)
class BlockSizeCost:
    """Cost of a block size on one workload.

    Attributes:
        blocks: blocks of all sequences at full length, without sharing.
        empty_share: share of their cache slots that hold no token, 0 to 1.
        table_entries: length of the longest block table.
        shareable_tokens: prompt tokens found in the prefix cache if the prompts arrive one by one in a large pool.
    """

    block_size: int
    blocks: int
    empty_share: float
    table_entries: int
    shareable_tokens: int


def block_size_costs(
    prompts: Sequence[Sequence[int]], answer_lengths: Sequence[int], block_sizes: Iterable[int]
) -> list[BlockSizeCost]:
    """Count the cost of each block size on a workload: prompts as token ids, and the new tokens of each request."""
    lengths = [len(prompt) + answer - 1 for prompt, answer in zip(prompts, answer_lengths)]
    costs = []
    for size in block_sizes:
        blocks = sum(blocks_for(length, size) for length in lengths)
        empty_share = 1 - sum(lengths) / (blocks * size) if blocks else 0.0
        entries = max((blocks_for(length, size) for length in lengths), default=0)
        costs.append(BlockSizeCost(size, blocks, empty_share, entries, _shareable(prompts, size)))
    return costs


def _shareable(prompts: Sequence[Sequence[int]], size: int) -> int:
    seen: set[tuple[int, ...]] = set()
    found = 0
    for prompt in prompts:
        prefixes = [tuple(prompt[:end]) for end in range(size, len(prompt) + 1, size)]
        known = next((count for count, prefix in enumerate(prefixes) if prefix not in seen), len(prefixes))
        # The last token is always computed, and with it its block.
        found += min(known, (len(prompt) - 1) // size) * size
        seen.update(prefixes)
    return found
