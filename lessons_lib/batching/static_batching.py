"""Lesson 01: static batching. Requests go through the model in waves, padded to one length, and leave together."""

from contextlib import contextmanager

import torch
from transformers import DynamicCache

from lessons_lib.batching.batch_result import BatchResult, request_names
from lessons_lib.models.loading import cache_bytes_per_token
from lessons_lib.models.prompts import check_batch_size, encode_prompts
from lessons_lib.recording.forward_passes import Forward, watch_forwards
from lessons_lib.recording.trace import RowWork, Step


def pad_left(prompt_ids, pad_token_id):
    """Put prompts of unequal length into one rectangle, with the padding on the left.

    On the left, so that the newest token of every row is in the last column.

    Args:
        prompt_ids: list of B lists of int, each at least one token long.
        pad_token_id: what to fill with. Any token will do: the mask hides it.

    Returns:
        (input_ids, attention_mask): int64 tensors [B, L], L the longest prompt; the mask is 1 on tokens and 0 on padding.
    """
    longest = max(len(ids) for ids in prompt_ids)
    padding = [longest - len(ids) for ids in prompt_ids]
    input_ids = [[pad_token_id] * pad + list(ids) for pad, ids in zip(padding, prompt_ids)]
    attention_mask = [[0] * pad + [1] * len(ids) for pad, ids in zip(padding, prompt_ids)]
    return torch.tensor(input_ids), torch.tensor(attention_mask)


def positions_from_mask(attention_mask):
    """The position of every token within its own prompt: the first real token has position 0.

    Args:
        attention_mask: int64 tensor [B, L], 1 on tokens and 0 on the padding to their left.

    Returns:
        int64 tensor [B, L]. Padding has position 0 too; nobody reads it.
    """
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


def wave_steps(answer_lengths, batch_size):
    """How many forward passes static batching takes: each wave lasts as long as its longest answer.

    Args:
        answer_lengths: new tokens of each request, in order of arrival.
        batch_size: requests of a wave; the last wave may have fewer.

    Returns:
        list of int: the steps of each wave.
    """
    return [max(wave) for wave in waves(answer_lengths, batch_size)]


@torch.inference_mode()
def generate_wave(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """Continue a whole wave greedily: one padded prefill, then decode steps for all rows until the last one has ended.

    A row that has ended stays in the batch and is computed on; its tokens are thrown away.

    Args:
        prompt_ids: list of B lists of int.
        caps: list of B ints, the most new tokens of each row.
        pad_token_id, eos_token_id: see `pad_left` and `greedy_without_cache`.

    Returns:
        list of B lists of int: the new tokens of each row.
    """
    input_ids, attention_mask = (tensor.to(model.device) for tensor in pad_left(prompt_ids, pad_token_id))
    position_ids = positions_from_mask(attention_mask)
    cache = DynamicCache(config=model.config)
    answers = [[] for _ in prompt_ids]
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
    model, tokenizer, prompts, *, max_new_tokens, batch_size=4, names=None, generate_wave=generate_wave
) -> BatchResult:
    """Serve requests in waves of `batch_size`, in order of arrival. A wave begins when the one before has left.

    Args:
        prompts: texts, or lists of token ids; all are there at the start.
        max_new_tokens: one cap for all requests, or one for each.
        names: what to call the requests in the trace; "0", "1", ... if not given.
        generate_wave: the function that computes one wave, yours if you like.

    Raises:
        BadRequest: see `lessons_lib.models.prompts`; nothing was computed.
    """
    check_batch_size(batch_size)
    prompt_ids, max_tokens_each = encode_prompts(model, tokenizer, prompts, max_new_tokens)
    names = request_names(names, len(prompt_ids))
    result = BatchResult()
    for wave in waves(range(len(prompt_ids)), batch_size):
        ids = [prompt_ids[i] for i in wave]
        with watch_forwards(model) as passes:
            answers = generate_wave(
                model, ids, [max_tokens_each[i] for i in wave], tokenizer.pad_token_id, tokenizer.eos_token_id
            )
        result.outputs += answers
        waiting = tuple(names[wave[-1] + 1 :])
        result.trace.steps += wave_trace([names[i] for i in wave], ids, answers, passes, waiting, model)
    return result


def waves(items, batch_size: int) -> list[list]:
    """Cut a sequence into lists of `batch_size`, the last one perhaps shorter."""
    items = list(items)
    return [items[start : start + batch_size] for start in range(0, len(items), batch_size)]


def wave_trace(names, prompt_ids, answers, passes: list[Forward], waiting, model) -> list[Step]:
    """What each row of a wave did in each of its forward passes."""
    steps = []
    for number, forward in enumerate(passes):
        running = [number < len(answer) for answer in answers]
        rows = []
        for name, ids, is_running in zip(names, prompt_ids, running):
            phase = "prefill" if number == 0 else "decode" if is_running else "finished"
            needed = len(ids) if number == 0 else int(is_running)
            rows.append(RowWork(name, phase, computed=forward.tokens, useful=needed))
        steps.append(
            Step(
                rows=tuple(rows),
                seconds=forward.seconds,
                waiting=waiting,
                forward_calls=1,
                cache_reserved=forward.rows * (forward.cached + forward.tokens),
                cache_used=sum(len(ids) + number for ids, is_running in zip(prompt_ids, running) if is_running),
                # A DynamicCache makes room for a new token by copying all the old ones into a larger tensor.
                bytes_copied=forward.rows * forward.cached * cache_bytes_per_token(model.config, model.dtype.itemsize),
            )
        )
    return steps


@contextmanager
def left_out(model, *names: str):
    """Take keyword arguments out of every call of the model, to see what they are for.

    >>> with left_out(model, "attention_mask"):
    ...     generate_wave(model, prompt_ids, caps, pad_token_id)
    """

    def drop(module, args, kwargs):
        return args, {name: value for name, value in kwargs.items() if name not in names}

    hook = model.register_forward_pre_hook(drop, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
