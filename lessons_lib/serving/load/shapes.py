"""Lesson 14: what is asked: prompts and the lengths of completions. The same for the same seed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class LoadRequest:
    """One request before it is sent.

    Attributes:
        prompt: a text, or token ids.
        prompt_tokens: its length; 0 if only the server knows.
        max_tokens: the length of its completion, if the server is told to ignore the end token.
    """

    prompt: str | list[int]
    prompt_tokens: int
    max_tokens: int


def random_requests(
    count: int,
    prompt_tokens: int,
    output_tokens: int,
    *,
    range_ratio: float = 0.0,
    vocab_size: int = 256,
    first_token: int = 3,
    seed: int = 0,
) -> list[LoadRequest]:
    """Prompts of random token ids: no two share a prefix, so no cache helps.

    Args:
        prompt_tokens, output_tokens: mean lengths.
        range_ratio: lengths are uniform in [mean × (1 - range_ratio), mean × (1 + range_ratio)], as with `vllm bench
            serve --random-range-ratio`.
        vocab_size, first_token: ids are in [first_token, vocab_size); those below are usually special.

    Raises:
        ValueError: a length is below 1, the ratio is not in [0, 1), or no token id is left.
    """
    if min(prompt_tokens, output_tokens) < 1:
        raise ValueError(f"lengths are {prompt_tokens} and {output_tokens} tokens; each must be 1 or more.")
    if not 0 <= range_ratio < 1:
        raise ValueError(f"range_ratio is {range_ratio}; it must be in [0, 1). 0 makes all lengths equal.")
    if not 0 <= first_token < vocab_size:
        raise ValueError(f"no token id is in [{first_token}, {vocab_size}); vocab_size must be above first_token.")
    rng = np.random.default_rng(seed)
    prompts = _lengths(rng, prompt_tokens, range_ratio, count)
    outputs = _lengths(rng, output_tokens, range_ratio, count)
    return [
        LoadRequest(rng.integers(first_token, vocab_size, length).tolist(), length, output)
        for length, output in zip(prompts, outputs)
    ]


def trace_requests(
    path: str | Path, default: tuple[int, int], *, vocab_size: int = 256, first_token: int = 3, seed: int = 0
) -> list[LoadRequest]:
    """Prompts of random token ids with the lengths of a trace: "input_length" and "output_length" of each JSON object,
    as in Mooncake's traces.

    Args:
        default: lengths of the prompt and the completion where a line has none.
    """
    rng = np.random.default_rng(seed)
    requests = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if line.strip():
            entry = json.loads(line)
            lengths = entry if isinstance(entry, dict) else {}
            prompt = int(lengths.get("input_length", default[0]))
            output = int(lengths.get("output_length", default[1]))
            requests.append(LoadRequest(rng.integers(first_token, vocab_size, prompt).tolist(), prompt, output))
    return requests


def text_requests(count: int, texts: Sequence[str], output_tokens: int) -> list[LoadRequest]:
    """Texts in turn, again from the first after the last.

    Raises:
        ValueError: there are no texts.
    """
    if not texts:
        raise ValueError("there are 0 texts; give 1 or more. They are used in turn.")
    return [LoadRequest(texts[index % len(texts)], 0, output_tokens) for index in range(count)]


def _lengths(rng: np.random.Generator, mean: int, range_ratio: float, count: int) -> list[int]:
    shortest, longest = max(1, int(mean * (1 - range_ratio))), int(np.ceil(mean * (1 + range_ratio)))
    return [int(length) for length in rng.integers(shortest, longest + 1, count)]
