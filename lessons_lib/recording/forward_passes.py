"""Record every forward pass of a model: its shape and its time."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward


@dataclass(frozen=True)
class Forward:
    """One forward pass over `rows` sequences, each of `tokens` tokens with padding, after `cached` ones in the cache.

    `keeps_cache`: whether it had a cache to append to; `input_ids`: one list per row.
    """

    rows: int
    tokens: int
    cached: int
    keeps_cache: bool
    seconds: float
    input_ids: list[list[int]] = field(repr=False)


class watch_forwards:
    """Context manager that records the forward passes of a model.

    >>> with watch_forwards(model) as passes:
    ...     greedy_with_cache(model, prompt_ids, 20)
    >>> len(passes), sum(p.rows * p.tokens for p in passes)
    """

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.passes: list[Forward] = []

    def __enter__(self) -> list[Forward]:
        self.hooks = [
            self.model.register_forward_pre_hook(self._before, with_kwargs=True),
            self.model.register_forward_hook(self._after, with_kwargs=True),
        ]
        return self.passes

    def __exit__(self, *error: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        cache = kwargs.get("past_key_values")
        self.cached = 0 if cache is None else int(cache.get_seq_length())
        self.started = _now(module)

    def _after(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        seconds = _now(module) - self.started
        input_ids = args[0] if args else kwargs["input_ids"]
        rows, tokens = input_ids.shape
        keeps_cache = kwargs.get("past_key_values") is not None
        self.passes.append(Forward(rows, tokens, self.cached, keeps_cache, seconds, input_ids.tolist()))


@torch.inference_mode()
def attention_inputs(model: Any, token_ids: list[int]) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]]:
    """Record the inputs of each layer's attention in a pass over one prompt.

    Returns:
        (query [q_heads, T, head_dim], key and value [kv_heads, T, head_dim], scale) for each layer.
    """
    inputs = []

    def recording(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
        inputs.append((query[0], key[0], value[0], kwargs["scaling"]))
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    before = model.config._attn_implementation
    AttentionInterface.register("recording", recording)
    model.set_attn_implementation("recording")
    try:
        model(input_ids=torch.tensor([token_ids], device=model.device))
    finally:
        model.set_attn_implementation(before)
    return inputs


def _now(module: torch.nn.Module) -> float:
    # GPU work is asynchronous: without synchronizing, this would time only the launch.
    if next(module.parameters()).is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()
