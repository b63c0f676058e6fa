"""Time forward passes of different lengths, and measure the machine's limits."""

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from lessons_lib.measuring.timing import times_in_rounds


@torch.inference_mode()
def pass_seconds(model: PreTrainedModel, lengths: Sequence[int], repeat: int = 5) -> list[float]:
    """Median seconds of a forward pass over each number of tokens, with an empty cache.

    The lengths are timed in rounds, so that background load affects them all alike.
    """
    ids = torch.arange(max(lengths), device=model.device)[None] % model.config.vocab_size

    def run(length: int) -> None:
        model(input_ids=ids[:, :length], past_key_values=DynamicCache(config=model.config), logits_to_keep=1)

    passes = [lambda length=length: run(length) for length in lengths]
    return [statistics.median(times) for times in times_in_rounds(passes, repeat, model.device)]


def machine_rates(model: PreTrainedModel) -> tuple[float, float]:
    """This machine's best (operations per second, bytes per second) of a few runs.

    A product of two square matrices does `2 * size**3` operations on few bytes; a copy reads and writes every byte once
    and computes nothing.
    """
    options: dict[str, Any] = dict(device=model.device, dtype=model.dtype)
    size = 2048
    left, right = torch.ones(size, size, **options), torch.ones(size, size, **options)
    source = torch.ones(2**27 // model.dtype.itemsize, **options)
    target = torch.empty_like(source)
    multiply, copy = times_in_rounds([lambda: left @ right, lambda: target.copy_(source)], 5, model.device)
    return 2 * size**3 / min(multiply), 2 * source.nbytes / min(copy)
