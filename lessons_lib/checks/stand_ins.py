"""What the engine calls in place of its own, so that it runs exercises which it doesn't call as they are.

They return the same as the functions of these names in the engine, and take longer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from lessons_lib.attention.hf_backend import PAGED, ForwardBatch, attention_of_layer
from lessons_lib.attention.paged_attention import plan_torch as plan_in_groups
from lessons_lib.attention.plain_attention import attention_in_place
from lessons_lib.engine.input_batch import BlockTables
from lessons_lib.engine.input_batch import forward_batch as forward_batch_of_arrays
from lessons_lib.engine.plain_sampling import draw_on_device, token_probabilities
from lessons_lib.engine.sampling import times
from lessons_lib.engine.stateless_random import random_numbers
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.shared_blocks import CopyOnWriteScheduler as LessonScheduler
from lessons_lib.scheduling.stalling import Scheduler


class CopyOnWriteScheduler(LessonScheduler, Scheduler):
    """Lesson 11's scheduler, which admits sequences as lesson 09's does."""

    def __init__(self, pool: Any, **limits: Any):
        Scheduler.__init__(self, pool)  # an attempt may set attributes of its own, which no dataclass calls
        super().__init__(pool, **limits)
        admission = self.admission
        self.admission = lambda _, sequence: self.has_blocks_for(sequence) and admission(self, sequence)

    schedule_waiting = Scheduler.schedule_waiting


def forward_batch(
    scheduler_output: SchedulerOutput, tables: BlockTables, block_size: int, *previous_and_padding: Any
) -> ForwardBatch:
    """`input_batch.forward_batch`, with the cache slots of each sequence from `slot_mapping`."""
    batch = forward_batch_of_arrays(scheduler_output, tables, block_size, *previous_and_padding)
    slots = [
        slot_mapping(sequence.blocks, block_size, sequence.num_computed_tokens, sequence.num_computed_tokens + count)
        for sequence, count in scheduler_output.num_scheduled_tokens.items()
    ]
    own, padding = torch.cat(slots).long(), batch.slot_mapping[scheduler_output.num_tokens :]
    return replace(batch, slot_mapping=torch.cat([own, padding]))


def plan_torch(batch: Any, block_tables: torch.Tensor, block_size: int) -> Callable[..., torch.Tensor]:
    """`paged_attention.plan_torch`, with `attention_in_place` for one sequence after another.

    Layers whose scores have terms of their own, or whose values have another head size than keys, are computed as
    before: `attention_in_place` isn't made for them.
    """
    attend_in_groups = plan_in_groups(batch, block_tables, block_size)

    def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, terms: Any = None) -> Any:
        if terms is not None or values.shape[-1] != keys.shape[-1]:
            return attend_in_groups(query, keys, values, scale, terms)
        out = torch.empty_like(query)
        for row, (start, end) in enumerate(pairwise(batch.cu_seqlens_q.tolist())):
            blocks, num_tokens = block_tables[row].tolist(), int(batch.context_lens[row])
            out[start:end] = attention_in_place(query[start:end], keys, values, blocks, num_tokens, scale)
        return out

    return attend


@contextmanager
def paged_attention_in(model: PreTrainedModel) -> Iterator[None]:
    """`hf_backend.paged_attention_in`, with a name of its own for `attention_of_layer`."""
    name = f"{PAGED}_{id(attention_of_layer)}"
    AttentionInterface.register(name, attention_of_layer)
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before


def race_on(device: torch.device) -> Callable[..., None]:
    """`sampling.race_on`, with `draw_on_device` for the rows in which nothing is cut. For the others, the race runs
    over the sorted probabilities of `token_probabilities`."""

    def race(logits: torch.Tensor, highest: torch.Tensor, table: torch.Tensor, tokens: torch.Tensor) -> None:
        rows, seed, position, top_k = table[:, :4].unbind(1)
        inverse_temperature, top_p, margin = table[:, 4:].contiguous().view(torch.float64).unbind(1)
        own, own_highest = logits[rows].float().nan_to_num(), highest[rows, None].float().nan_to_num()
        own = own.masked_fill(own < own_highest - margin[:, None].float(), float("-inf"))
        probabilities, ids = token_probabilities(own, 1 / inverse_temperature, top_k, top_p.clamp(max=1.0))
        numbers = random_numbers(seed[:, None], position[:, None], ids.long())
        winner = (probabilities / times(numbers)).argmax(dim=-1, keepdim=True)
        drawn = ids.gather(1, winner)[:, 0].long()
        is_whole = (top_k >= logits.shape[-1]) & (top_p >= 1) & (margin == float("inf"))
        whole = draw_on_device(logits[rows], (1 / inverse_temperature).float(), seed, position)
        tokens[rows] = torch.where(is_whole, whole, drawn)

    return race
