"""Lesson 01: static batching. Requests are padded to one length, computed in waves, and leave together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.batching.prompts import encode_prompts
from lessons_lib.models.validate import must

Item = TypeVar("Item")


def pad_left(prompt_ids: list[list[int]], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Put prompts of unequal length into one rectangle, with the padding on the left.

    With padding on the left, the newest token of every row is in the last column.

    Args:
        prompt_ids: list of N lists of int, each at least one token long.
        pad_token_id: the padding token. Any token will do: the mask hides it.

    Returns:
        (input_ids, attention_mask): int64 tensors [N, L]; L is the length of the longest prompt. The mask is 1
        on tokens and 0 on padding.
    """
    longest = max(len(ids) for ids in prompt_ids)
    padding = [longest - len(ids) for ids in prompt_ids]
    input_ids = [[pad_token_id] * pad + list(ids) for pad, ids in zip(padding, prompt_ids)]
    attention_mask = [[0] * pad + [1] * len(ids) for pad, ids in zip(padding, prompt_ids)]
    return torch.tensor(input_ids), torch.tensor(attention_mask)


def positions_from_mask(attention_mask: torch.Tensor) -> torch.Tensor:
    """Compute each token's position in its own prompt; the first real token has position 0.

    Args:
        attention_mask: int64 tensor [N, L], 1 on tokens and 0 on the padding to their left.

    Returns:
        int64 tensor [N, L]. Padding may have any valid position, such as 0: its results are never read.
    """
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


def wave_steps(answer_lengths: list[int], batch_size: int) -> list[tuple[int, int, int]]:
    """Compute when each request starts, gets its last token and is returned, in steps since the first wave's start.

    Args:
        answer_lengths: the number of new tokens of each request, at least 1, in order of arrival.
        batch_size: the number of requests in a wave; the last wave may have fewer.

    Returns:
        list of (starts after step, last token in step, returned after step), one for each request.
    """
    times = []
    start = 0
    for wave in waves(answer_lengths, batch_size):
        end = start + max(wave)
        times += [(start, start + length, end) for length in wave]
        start = end
    return times


@torch.inference_mode()
def generate_wave(
    model: "PreTrainedModel",
    prompt_ids: list[list[int]],
    max_tokens_each: list[int],
    pad_token_id: int,
    eos_token_id: int | None = None,
) -> list[list[int]]:
    """Continue a whole wave greedily: one padded prefill, then decode steps for all rows until the last one finishes.

    A finished row stays in the batch and is still computed; its tokens are discarded.

    Args:
        prompt_ids: list of N lists of int, each at least one token long.
        max_tokens_each: list of N ints, the maximum number of new tokens of each row.
        pad_token_id: the padding token, passed to `pad_left`.
        eos_token_id: the end token; an answer includes it and ends there. None: only the limit ends an answer.

    Returns:
        list of N lists of int: the new tokens of each row.
    """
    input_ids, attention_mask = (tensor.to(model.device) for tensor in pad_left(prompt_ids, pad_token_id))
    position_ids = positions_from_mask(attention_mask)
    cache = DynamicCache(config=model.config)
    answers: list[list[int]] = [[] for _ in prompt_ids]
    running = [True] * len(prompt_ids)
    while any(running):
        next_tokens = (
            model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=cache,
                logits_to_keep=1,
            )
            .logits[:, -1]
            .argmax(dim=-1)
        )
        for row, token in enumerate(next_tokens.tolist()):
            if running[row]:
                answers[row].append(token)
                running[row] = token != eos_token_id and len(answers[row]) < max_tokens_each[row]
        input_ids = next_tokens[:, None]
        attention_mask = torch.cat([attention_mask, torch.ones_like(input_ids)], dim=1)
        position_ids = position_ids[:, -1:] + 1
    return answers


def static_generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[int]], *,
    max_new_tokens: int | Sequence[int] | None, batch_size: int = 4,
    generate_wave: Callable[..., list[list[int]]] = generate_wave,
) -> list[list[int]]:  # fmt: skip
    """Serve requests in waves of `batch_size`, in order of arrival, one wave after the other.

    Args:
        batch_size: requests per wave, at least 1.
        generate_wave: function that computes one wave; you can pass your own.
        The others, and Returns and Raises: see `generate_one_by_one`.
    """
    must(batch_size >= 1, "batch_size", batch_size, "at least 1")
    prompt_ids, max_tokens_each = encode_prompts(model, tokenizer, prompts, max_new_tokens)
    outputs: list[list[int]] = []
    for ids, max_tokens in zip(waves(prompt_ids, batch_size), waves(max_tokens_each, batch_size)):
        outputs += generate_wave(model, ids, max_tokens, tokenizer.pad_token_id, tokenizer.eos_token_id)
    return outputs


def waves(items: Iterable[Item], batch_size: int) -> list[list[Item]]:
    """Split a sequence into lists of `batch_size`; the last one may be shorter."""
    items = list(items)
    return [items[start : start + batch_size] for start in range(0, len(items), batch_size)]


@contextmanager
def left_out(model: PreTrainedModel, *names: str) -> Iterator[None]:
    """Remove keyword arguments from every call of the model, to show what they do.

    >>> with left_out(model, "attention_mask"):
    ...     generate_wave(model, prompt_ids, max_tokens_each, pad_token_id)
    """

    def drop(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {name: value for name, value in kwargs.items() if name not in names}

    hook = model.register_forward_pre_hook(drop, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
