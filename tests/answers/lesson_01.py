"""Answers to the exercises of lesson 01: other ways to be right. What is wrong stands in the exercises."""

import itertools

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from answers import Wrong
from lessons_lib.batching import static_batching
from lessons_lib.batching.static_batching import pad_left, positions_from_mask

# 01.1


def pads_with_pytorch(prompt_ids, pad_token_id):
    rows = [torch.tensor(ids) for ids in prompt_ids]
    input_ids = pad_sequence(rows, batch_first=True, padding_value=pad_token_id, padding_side="left")
    return [input_ids, pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left")]


def pads_into_tensors(prompt_ids, pad_token_id):
    longest = max(map(len, prompt_ids))
    input_ids = torch.full((len(prompt_ids), longest), pad_token_id)
    attention_mask = torch.zeros_like(input_ids)
    for row, ids in enumerate(prompt_ids):
        input_ids[row, longest - len(ids) :] = torch.tensor(ids)
        attention_mask[row, longest - len(ids) :] = 1
    return input_ids, attention_mask


def pads_from_reversed(prompt_ids, pad_token_id):
    columns = list(itertools.zip_longest(*(ids[::-1] for ids in prompt_ids)))
    cells = [list(row)[::-1] for row in zip(*columns)]
    return (
        torch.tensor([[pad_token_id if cell is None else cell for cell in row] for row in cells]),
        torch.tensor([[int(cell is not None) for cell in row] for row in cells]),
    )


def pads_through_the_mask(prompt_ids, pad_token_id):
    lengths = torch.tensor([len(ids) for ids in prompt_ids])
    real = torch.arange(int(lengths.max())) >= (lengths.max() - lengths)[:, None]
    input_ids = torch.full(real.shape, pad_token_id)
    input_ids[real] = torch.tensor([token for ids in prompt_ids for token in ids])
    return input_ids, real.long()


# 01.2


@torch.inference_mode()
def wave_like_generate(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """With a tensor of unfinished rows, as in Hugging Face transformers."""
    input_ids, attention_mask = pad_left(prompt_ids, pad_token_id)
    width, limits = input_ids.shape[1], torch.tensor(max_tokens_each)
    unfinished = torch.ones(len(max_tokens_each), dtype=torch.bool)
    lengths, sequences, cache = torch.zeros_like(limits), input_ids, None
    while unfinished.any():
        positions = (attention_mask.cumsum(-1) - 1).masked_fill(attention_mask == 0, 1)[:, -input_ids.shape[1] :]
        output = model(
            input_ids, attention_mask=attention_mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        tokens, cache = output.logits[:, -1, :].max(-1).indices, output.past_key_values
        lengths += unfinished
        sequences = torch.cat([sequences, tokens.unsqueeze(1)], 1)
        ended = lengths >= limits
        if eos_token_id is not None:
            ended = ended | (tokens == eos_token_id)
        unfinished &= ~ended
        input_ids = tokens.unsqueeze(1)
        attention_mask = torch.nn.functional.pad(attention_mask, (0, 1), value=1)
    return [row[width : width + int(length)].tolist() for row, length in zip(sequences, lengths)]


@torch.inference_mode()
def wave_by_recursion(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    cache = DynamicCache(config=model.config)

    def go_on(ids, mask, positions, answers):
        inputs = dict(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        best = model(**inputs).logits[:, -1].argmax(-1, keepdim=True)
        over = [len(a) == limit or a[-1:] == [eos_token_id] for a, limit in zip(answers, max_tokens_each)]
        answers = [a if done else [*a, token] for a, done, (token,) in zip(answers, over, best.tolist())]
        if all(len(a) == limit or a[-1] == eos_token_id for a, limit in zip(answers, max_tokens_each)):
            return answers
        return go_on(best, torch.cat([mask, mask.new_ones(len(mask), 1)], 1), positions[:, -1:] + 1, answers)

    ids, mask = pad_left(prompt_ids, pad_token_id)
    return go_on(ids, mask, positions_from_mask(mask), [[] for _ in prompt_ids])


@torch.inference_mode()
def wave_by_counting(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """Runs for a fixed number of steps, and recomputes masks and positions in each of them."""
    lengths, cache, answers = (
        [len(ids) for ids in prompt_ids],
        DynamicCache(config=model.config),
        [[] for _ in prompt_ids],
    )
    done = [False for _ in prompt_ids]
    fed, _ = pad_left(prompt_ids, pad_token_id)
    for step in range(max(max_tokens_each)):
        if all(done):
            break
        mask = torch.tensor([[False] * (max(lengths) - length) + [True] * (length + step) for length in lengths])
        positions = torch.tensor([[length + step - 1] for length in lengths]) if step else positions_from_mask(mask)
        best = torch.argmax(
            model(fed, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1).logits, -1
        )
        for answer, token, max_tokens, i in zip(
            answers, best[:, 0].numpy(), max_tokens_each, range(len(max_tokens_each))
        ):
            if not done[i]:
                answer.append(token)
            done[i] = done[i] or len(answer) >= max_tokens or token == eos_token_id
        fed = best
    return answers


def _complete(answer, max_tokens, eos_token_id):
    return answer[-1] == eos_token_id or len(answer) == max_tokens


@torch.inference_mode()
def wave_that_feeds_padding(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """Feeds the padding token for a finished row, and counts the positions in the mask."""
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    positions, cache = positions_from_mask(mask), DynamicCache(config=model.config)
    answers, finished = [[] for _ in prompt_ids], [False] * len(prompt_ids)
    while True:
        inputs = dict(input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        tokens = model(**inputs).logits[:, -1].argmax(-1).tolist()
        for row, token in enumerate(tokens):
            if not finished[row]:
                answers[row].append(token)
                finished[row] = _complete(answers[row], max_tokens_each[row], eos_token_id)
        if all(finished):
            return answers
        input_ids = torch.tensor([[pad_token_id if over else token] for token, over in zip(tokens, finished)])
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        positions = mask.sum(1, keepdim=True) - 1


class _Row:
    def __init__(self, limit):
        self.left, self.tokens = limit, []

    def take(self, token, eos_token_id):
        if self.left:
            self.tokens.append(token)
            self.left = 0 if token == eos_token_id else self.left - 1


@torch.inference_mode()
def wave_that_hides_finished_rows(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """An object for each row; the new columns of a finished row are hidden."""
    rows, cache = [_Row(limit) for limit in max_tokens_each], DynamicCache(config=model.config)
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    positions = positions_from_mask(mask)
    while True:
        inputs = dict(input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        tokens = model(**inputs).logits[:, -1].argmax(-1)
        for row, token in zip(rows, tokens.tolist()):
            row.take(token, eos_token_id)
        if not any(row.left for row in rows):
            return [row.tokens for row in rows]
        mask = torch.cat([mask, torch.tensor([[int(row.left > 0)] for row in rows])], 1)
        input_ids, positions = tokens[:, None], positions[:, -1:] + 1


def with_hugging_face(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    options = dict(do_sample=False, pad_token_id=pad_token_id, eos_token_id=eos_token_id)
    output = model.generate(input_ids, attention_mask=mask, max_new_tokens=max(max_tokens_each), **options)
    return [row[:limit] for row, limit in zip(output[:, input_ids.shape[1] :].tolist(), max_tokens_each)]


def changes_the_limits(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    answers = static_batching.generate_wave(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id)
    for row, answer in enumerate(answers):
        max_tokens_each[row] -= len(answer)
    return answers


WRONG = {
    "01.1": [],
    "01.2": [
        Wrong("the oracle itself", with_hugging_face, "your code calls `model.generate`"),
        Wrong("changes the limits", changes_the_limits, "changed its argument `max_tokens_each`"),
    ],
}

RIGHT = {
    "01.1": [pads_with_pytorch, pads_into_tensors, pads_from_reversed, pads_through_the_mask],
    "01.2": [
        wave_like_generate,
        wave_by_recursion,
        wave_by_counting,
        wave_that_feeds_padding,
        wave_that_hides_finished_rows,
    ],
}
