"""Time forward passes of different shapes, and measure the machine's limits."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from lessons_lib.measuring.timing import times_in_rounds


@dataclass(frozen=True)
class PassShape:
    """The shape of a forward pass: `rows` sequences, `new` tokens of each, after `cached` tokens in the cache."""

    new: int
    cached: int = 0
    rows: int = 1


def pass_seconds(model: PreTrainedModel, shapes: Sequence[PassShape], repeat: int = 5) -> list[float]:
    """Median seconds of a forward pass of each shape, timed in rounds: background load affects all alike."""
    passes = [_prepare(model, shape) for shape in shapes]
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


def larger_model(like: PreTrainedModel) -> PreTrainedModel:
    """Build a Qwen2 model of a few hundred million equal weights, with the vocabulary, context, device and dtype of
    another. Its text is useless, but its timing is realistic.
    """
    hidden_size = 1536
    config = Qwen2Config(
        vocab_size=like.config.vocab_size,
        max_position_embeddings=like.config.max_position_embeddings,
        hidden_size=hidden_size,
        intermediate_size=8 * hidden_size // 3,
        num_hidden_layers=4,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=hidden_size // 256,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):  # without drawing random weights
        model: Any = Qwen2ForCausalLM(config)
        model = model.to(like.dtype)
    model = model.to_empty(device=like.device).eval().requires_grad_(False)
    model.tie_weights()
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.fill_(0.01)
    return model


@torch.inference_mode()
def _prepare(model: PreTrainedModel, shape: PassShape) -> Callable[[], None]:
    """Return a function that runs one pass of this shape and restores the cache."""
    ids = torch.arange(shape.rows * (shape.cached + shape.new), device=model.device) % model.config.vocab_size
    old, new = ids.view(shape.rows, -1).split([shape.cached, shape.new], dim=1)
    if not shape.cached:
        return lambda: model(input_ids=new, past_key_values=DynamicCache(config=model.config), logits_to_keep=1)
    cache = DynamicCache(config=model.config)
    model(input_ids=old, past_key_values=cache, logits_to_keep=1)

    def run() -> None:
        model(input_ids=new, past_key_values=cache, logits_to_keep=1)
        cache.crop(-shape.new)

    return run
