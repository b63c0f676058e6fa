"""The oracle: Hugging Face `generate`, greedy, one request at a time, in float32."""

import functools
import random
from types import SimpleNamespace

import torch

from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

# Tiny models have no tokenizer; the loops need only these two ids of one.
END = 12
TINY_TOKENIZER = SimpleNamespace(pad_token_id=0, eos_token_id=END)


@torch.inference_mode()
def generate_alone(model, prompt_ids, max_tokens, eos_token_id):
    input_ids = torch.tensor([prompt_ids])
    output = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=eos_token_id,
        pad_token_id=0,
    )
    return output[0, len(prompt_ids) :].tolist()


def ragged_requests(
    count, seed, vocab_size=VOCAB_SIZE, prompt_lengths=(1, 2, 3, 7, 16, 17, 40), max_tokens_each=(1, 2, 5, 16, 30)
):
    """`count` prompts of unequal length, and a token limit for each."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(vocab_size) for _ in range(rng.choice(prompt_lengths))] for _ in range(count)]
    return prompts, [rng.choice(max_tokens_each) for _ in prompts]


@functools.cache
def answered_requests(family, count=18):
    """Ragged requests, prompts of one token and of whole blocks among them: (prompts, token limits, the answers of
    `generate` to each alone by `tiny_model(family, seed=3)`)."""
    prompts, max_tokens_each = ragged_requests(
        count, seed=11, prompt_lengths=(1, 2, 3, 15, 16, 17, 33), max_tokens_each=(1, 2, 5, 16, 24)
    )
    model = tiny_model(family, seed=3)
    answers = [generate_alone(model, ids, limit, END) for ids, limit in zip(prompts, max_tokens_each)]
    return prompts, max_tokens_each, answers
