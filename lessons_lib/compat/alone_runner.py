"""Lesson 19: computes each sequence alone over a Hugging Face cache of its own, for models whose layers can't share a
packed row. Slow, but a model needs no more than what its `generate` needs."""

import inspect
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from lessons_lib.engine.input_batch import num_extra_logits
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.models.configuration import UnsupportedModel
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

CACHE_NAMES = ("past_key_values", "cache_params", "state")  # what a model calls its cache, as an argument and a result


class AloneRunner(ModelRunner):
    """A ModelRunner that keeps one Hugging Face cache for each sequence that has blocks, or is swapped out.

    The scheduler counts blocks as always, but no key is in them. Sequences can't share a prefix.

    Attributes:
        caches: sequence -> its cache.
        keeps_caches: False for a model that has no cache, or can't continue a prompt over it: each step computes all
            tokens of a sequence again.
    """

    can_verify = False

    def __init__(self, model: PreTrainedModel, num_blocks: int, block_size: int, keeps_caches: bool = True):
        super().__init__(model, num_blocks, block_size, layer_shapes=[])
        self.keeps_caches, self.caches = keeps_caches, dict[Sequence, Any]()

    @torch.inference_mode()
    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """See `ModelRunner.forward`."""
        self.caches = {each: cache for each, cache in self.caches.items() if each.blocks or each.swapped}
        rows, further = [], []
        for sequence, count in scheduler_output.num_scheduled_tokens.items():
            start = sequence.num_computed_tokens
            wanted = num_extra_logits(scheduler_output, sequence, start, count)
            logits = self.compute(sequence, start, start + count, count if wanted else 1)
            rows.append(logits[-1])
            further.append(logits[-count : len(logits) - count + wanted])
        return torch.cat([torch.stack(rows), *further])

    def compute(self, sequence: Sequence, start: int, end: int, logits_to_keep: int) -> torch.Tensor:
        """Compute the tokens of one sequence from `start` to `end`; see `forward_alone`."""
        if not self.keeps_caches:
            return forward_alone(self.model, sequence.token_ids[:end], 0, None, logits_to_keep, use_cache=False)[0]
        cache = self.caches[sequence] if start else None
        token_ids = sequence.token_ids[start:end]
        logits, self.caches[sequence] = forward_alone(self.model, token_ids, start, cache, logits_to_keep)
        return logits

    def reset(self) -> None:
        """See `ModelRunner.reset`. A pass that was interrupted may have changed a cache."""
        super().reset()
        self.caches.clear()


def forward_alone(
    model: PreTrainedModel, token_ids: list[int], start: int, cache: Any, logits_to_keep: int = 1,
    use_cache: bool = True,
) -> tuple[torch.Tensor, Any]:  # fmt: skip
    """Run one forward pass of one sequence, with the arguments of `generate`.

    Args:
        token_ids: the new tokens.
        start: number of tokens before them.
        cache: what the pass before returned; None for the first.
        logits_to_keep: number of rows of logits, from the end; 0 for all.
        use_cache: False for a pass without one; the result has None in its place.

    Returns:
        (logits [logits_to_keep or more, vocabulary], the cache). Some models return all rows.

    Raises:
        UnsupportedModel: the model returns no cache, or one that doesn't hold all tokens.
    """
    accepted = inspect.signature(type(model).forward).parameters
    name = next((name for name in CACHE_NAMES if name in accepted), None)
    if use_cache and name is None:
        raise UnsupportedModel("it takes no cache")
    end = start + len(token_ids)
    if use_cache and cache is None and name == "past_key_values":
        cache = DynamicCache(config=model.config)
    arguments = {
        "input_ids": torch.tensor([token_ids], device=model.device),
        "position_ids": torch.arange(start, end, device=model.device)[None],
        "attention_mask": torch.ones((1, end), dtype=torch.int64, device=model.device),
        "use_cache": use_cache,
        "logits_to_keep": logits_to_keep,
        name or "": cache,
    }
    result = model(**{name: value for name, value in arguments.items() if name in accepted})
    cache = getattr(result, name or "", None) if use_cache else None
    if use_cache and cache is None:
        raise UnsupportedModel("it returns no cache")
    logits: torch.Tensor = result.logits[0]
    return logits, cache
