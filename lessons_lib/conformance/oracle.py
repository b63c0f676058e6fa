"""The models that engines are judged with, and the answers that Hugging Face `generate` gives: the oracle."""

import copy
import random
from functools import cache

import torch
from transformers import PreTrainedModel

from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

FAMILIES = ("qwen2", "llama", "gpt2")
END = 12
LONGEST = 63


def a_model(family: str, vocab_size: int = VOCAB_SIZE) -> PreTrainedModel:
    """A model of its own for an engine, which may change it."""
    model = copy.deepcopy(tiny_model(family, seed=3))
    if vocab_size != VOCAB_SIZE:
        model.resize_token_embeddings(vocab_size)
    return model


def a_prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(f"{length}:{seed}")
    return [rng.randrange(VOCAB_SIZE) for _ in range(length)]


@cache
@torch.inference_mode()
def _generated(family: str, prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    options = dict(max_new_tokens=max_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    output = tiny_model(family, seed=3).generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), **options
    )
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer


def expected(
    family: str, prompt: list[int], max_tokens: int, ignore_eos: bool = False, stop_token_ids: tuple[int, ...] = (),
    end: int = END,
) -> list[int]:  # fmt: skip
    """The greedy answer of a prompt that is alone, up to the end token, which is part of it."""
    rounded = next((each for each in (8, 16, 32) if max_tokens <= each), LONGEST + 1)  # so that items share answers
    answer = _generated(family, tuple(prompt), min(rounded, LONGEST + 1 - len(prompt)))[:max_tokens]
    ends = {*stop_token_ids, *(() if ignore_eos else (end,))}
    for index, token in enumerate(answer):
        if token in ends:
            return answer[: index + 1]
    return answer


# Found by trying: the answer to PROMPTS_THAT_END[family][n - 1] has the end token as its n-th token.
PROMPTS_THAT_END = {
    "qwen2": ([9, 59, 36, 69], [6, 96, 72], [85]),
    "llama": ([2, 18, 84, 75, 81], [55, 88], [17, 20, 61, 68]),
    "gpt2": ([95, 93, 69, 69, 18], [17, 20, 61, 68], [85]),
}


def prompt_that_ends(family: str, after: int) -> list[int]:
    """A prompt whose answer has the end token as its token number `after`, 1 to 3."""
    prompt = PROMPTS_THAT_END[family][after - 1]
    answer = _generated(family, tuple(prompt), 8)
    if answer[:after].index(END) != after - 1:
        raise LookupError(f"{prompt} doesn't end after {after} tokens with this torch; find another.")
    return prompt


@cache
@torch.inference_mode()
def next_token_probabilities(family: str, prompt: tuple[int, ...]) -> torch.Tensor:
    """[vocabulary], at temperature 1."""
    logits = tiny_model(family, seed=3)(torch.tensor([prompt]), use_cache=False).logits
    probabilities: torch.Tensor = logits[0, -1].double().softmax(-1)
    return probabilities
