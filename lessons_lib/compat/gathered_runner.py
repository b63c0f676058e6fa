"""Lesson 12: models whose layers compute attention themselves. Each sequence is computed alone, over copied blocks.

The runner gathers a sequence's blocks into an ordinary cache, runs the model's forward pass on the new tokens, and
writes their keys and values back to the blocks. Scheduling, prefix sharing and preemption see no difference. It is
slow: it copies the whole context in every step, and no two sequences share a pass.
"""

import inspect
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from lessons_lib.engine.input_batch import next_tokens
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import UnsupportedModel
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


class GatheredRunner(ModelRunner):
    """A ModelRunner that only needs a forward pass with a Hugging Face cache."""

    can_verify = False

    @torch.inference_mode()
    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """See `ModelRunner.forward`."""
        scheduled = scheduler_output.num_scheduled_tokens.items()
        return torch.stack([self.forward_alone(sequence, count) for sequence, count in scheduled])

    def forward_alone(self, sequence: Sequence, count: int) -> torch.Tensor:
        """Compute the next `count` tokens of one sequence. Return the logits after the last, [vocabulary]."""
        start = sequence.num_computed_tokens
        gathered = gather(self.cache, sequence.blocks, start)
        logits = forward_with_cache(self.model, next_tokens(SchedulerOutput({sequence: count}), {}), start, gathered)
        slots = slot_mapping(sequence.blocks, self.cache.block_size, start, start + count).to(self.model.device)
        if (held := gathered.get_seq_length()) != start + count:
            raise UnsupportedModel(f"its cache has {held} entries for {start + count} tokens")
        for index, layer in enumerate(gathered.layers):
            keys, values = (tensor[0, :, start:].transpose(0, 1) for tensor in (layer.keys, layer.values))
            self.cache.write(index, keys, values, slots)
        return logits[-1]


def gather(paged: PagedKVCache, blocks: list[int], num_tokens: int) -> Any:
    """Copy the contents of a sequence's blocks to a DynamicCache of its own.

    Every layer gets all keys and values, also those before a sliding window: the model's mask hides them.
    """
    own = DynamicCache()
    if num_tokens:
        for layer in range(len(paged.keys)):
            keys, values = paged.read(layer, blocks, num_tokens)
            own.update(keys.transpose(0, 1)[None], values.transpose(0, 1)[None], layer)
    return own


def forward_with_cache(
    model: PreTrainedModel, token_ids: list[int], start: int, cache: Any, logits_to_keep: int = 1
) -> torch.Tensor:
    """Run one forward pass of one sequence, with the arguments of `generate`.

    Args:
        token_ids: the new tokens.
        start: number of tokens in the cache.
        cache: a Hugging Face cache, which the pass appends to; None for a pass without one.
        logits_to_keep: number of rows of logits, from the end; 0 for all.

    Returns:
        tensor [logits_to_keep or more, vocabulary]; some models return all rows.
    """
    end = start + len(token_ids)
    arguments = dict(
        input_ids=torch.tensor([token_ids], device=model.device),
        position_ids=torch.arange(start, end, device=model.device)[None],
        attention_mask=torch.ones((1, end), dtype=torch.int64, device=model.device),
        past_key_values=cache,
        use_cache=cache is not None,
        logits_to_keep=logits_to_keep,
    )
    accepted = inspect.signature(type(model).forward).parameters
    logits: torch.Tensor = model(**{name: value for name, value in arguments.items() if name in accepted}).logits[0]
    return logits
