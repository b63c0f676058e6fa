"""Shared by the checks of lesson 05: small requests, their answers alone, and a batch of them."""

from functools import cache
from random import Random

from lessons_lib.batching.greedy import greedy_with_cache
from lessons_lib.batching.ragged_batching import RaggedBatch
from lessons_lib.batching.request import Request
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model


def a_request(name: str, prompt_length: int, max_tokens: int = 3, eos_token_id: int | None = None) -> Request:
    rng = Random(ord(name))
    return Request(name, [rng.randrange(VOCAB_SIZE) for _ in range(prompt_length)], max_tokens, eos_token_id)


def make_batch(requests, max_num_seqs: int = 1) -> RaggedBatch:
    """A batch on a tiny model, with these requests submitted in order."""
    batch = RaggedBatch(tiny_model("qwen2"), max_num_seqs)
    for request in requests:
        batch.submit(request)
    return batch


def ragged_requests(count: int, seed: int) -> tuple[list[list[int]], list[int]]:
    """Prompts of unequal length, and `max_tokens` for each."""
    rng = Random(seed)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 3, 8, 9)))] for _ in range(count)]
    return prompts, [rng.choice((1, 2, 5, 9)) for _ in prompts]


@cache
def answer_alone(prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    return greedy_with_cache(tiny_model("qwen2"), list(prompt), max_tokens)
