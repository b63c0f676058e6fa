"""The engine of `slow_engine.py` with a cache: still one request at a time, but each token is computed only once."""

from typing import Any

import torch
from transformers import DynamicCache

from lessons_lib.conformance.contract import Limits
from lessons_lib.conformance.examples.slow_engine import SlowEngine


class CachedEngine(SlowEngine):
    """The keys and values are those of the request that runs: each begins with an empty cache."""

    def next_token(self, prompt: list[int], answer: list[int]) -> int:
        if not answer:
            self.cache = DynamicCache(config=self.model.config)
        new = answer[-1:] or prompt
        return int(self.model(input_ids=torch.tensor([new]), past_key_values=self.cache).logits[0, -1].argmax())


def make_cached_engine(model: Any, limits: Limits, tokenizer: Any) -> Any:
    """A new engine that computes each token once. It has the model to itself."""
    return CachedEngine(model, limits)
