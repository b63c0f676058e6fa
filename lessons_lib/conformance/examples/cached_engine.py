"""The engine of `slow_engine.py` with a cache: still one request at a time, but each token is computed only once."""

from typing import Any

import torch
from transformers import DynamicCache

from lessons_lib.conformance.contract import Limits
from lessons_lib.conformance.examples.slow_engine import SlowEngine


class CachedEngine(SlowEngine):
    """The keys and values are those of the request that runs: each begins with an empty cache. So does a pass that is
    tried again after it has failed, since some of its layers may have stored their keys already.
    """

    cache: DynamicCache | None = None

    def next_token(self, prompt: list[int], answer: list[int]) -> int:
        cache = self.cache if answer else None
        new = [*prompt, *answer] if cache is None else answer[-1:]
        cache = DynamicCache(config=self.model.config) if cache is None else cache
        self.cache = None  # until the pass has succeeded
        logits = self.model(input_ids=torch.tensor([new]), past_key_values=cache).logits
        self.cache = cache
        return int(logits[0, -1].argmax())


def make_cached_engine(model: Any, limits: Limits, tokenizer: Any) -> Any:
    """A new engine that computes each token once. It has the model to itself."""
    return CachedEngine(model, limits)
