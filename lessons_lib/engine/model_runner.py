"""Lesson 09: carries out a SchedulerOutput: one row of all its tokens, one forward pass, logits for every sequence."""

from collections.abc import Callable

import torch

from lessons_lib.attention.hf_backend import paged_forward
from lessons_lib.attention.packing import PackedBatch, pack
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.scheduling.scheduler import Scheduler, SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


class ModelRunner:
    """A model and its paged cache.

    Attributes:
        cache: as many blocks as the scheduler's pool, of the same size.
        backend: see `paged_model.plan_attention`.
    """

    def __init__(self, model, num_blocks: int, block_size: int, backend: str | Callable | None = None):
        self.model = model
        self.cache = PagedKVCache(model.config, num_blocks, block_size, model.dtype, model.device)
        self.backend = backend

    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """Compute the tokens of a plan.

        Returns:
            tensor [sequences of the plan, vocabulary]: the logits after the last token that was computed of each.
        """
        packed, tables = packed_plan(scheduler_output)
        return paged_forward(
            self.model, packed, self.cache, slots_of(packed, tables, self.cache.block_size), tables, self.backend
        )


def packed_plan(scheduler_output: SchedulerOutput) -> tuple[PackedBatch, torch.Tensor]:
    """The row of a plan, and the block tables of its sequences."""
    packed = pack(
        [tokens_of(*item) for item in scheduler_output.num_scheduled_tokens.items()],
        [sequence.num_computed_tokens for sequence in scheduler_output.num_scheduled_tokens],
    )
    return packed, block_tables(scheduler_output.num_scheduled_tokens)


def tokens_of(sequence: Sequence, count: int) -> list[int]:
    """The next `count` tokens that are known and not computed."""
    start = sequence.num_computed_tokens
    prompt = sequence.prompt_ids
    if start >= len(prompt):
        return sequence.output_ids[start - len(prompt) : start - len(prompt) + count]
    return (list(prompt[start : start + count]) + sequence.output_ids)[:count]


def block_tables(sequences) -> torch.Tensor:
    """The blocks of several sequences as one tensor [B, most blocks of any], filled up with 0."""
    tables = [sequence.blocks for sequence in sequences]
    longest = max(map(len, tables), default=0)
    return torch.tensor([table + [0] * (longest - len(table)) for table in tables], dtype=torch.int32).reshape(
        len(tables), longest
    )


def slots_of(packed: PackedBatch, tables: torch.Tensor, block_size: int) -> torch.Tensor:
    """The slot mapping of a whole row, int64 [T]: what `block_pool.slot_mapping` says of each sequence, for all at once."""
    blocks = tables[packed.seq_ids, packed.positions // block_size].long()
    return blocks * block_size + packed.positions % block_size


def serve_greedily(runner: ModelRunner, scheduler: Scheduler, sequences: list[Sequence]) -> list[list[int]]:
    """Answer all sequences, each step with the likeliest tokens.

    Returns:
        list of lists of int: the answers, in the order of the sequences.
    """
    for sequence in sequences:
        scheduler.add(sequence)
    while scheduler.has_unfinished():
        scheduler_output = scheduler.schedule()
        scheduler.update(scheduler_output, runner.forward(scheduler_output).argmax(dim=-1).tolist())
    return [sequence.output_ids for sequence in sequences]
