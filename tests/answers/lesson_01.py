"""Answers to the exercises of lesson 01: other ways to be right. What is wrong stands in the exercises."""

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from answers import Wrong
from lessons_lib.batching import static_batching
from lessons_lib.batching.static_batching import pad_left, positions_from_mask
from lessons_lib.checks.diagnosis.mistakes import patched

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


class _Row:
    def __init__(self, limit):
        self.left, self.tokens = limit, []

    def take(self, token, eos_token_id):
        if self.left:
            self.tokens.append(token)
            self.left = 0 if token == eos_token_id else self.left - 1


@torch.inference_mode()
def wave_that_hides_finished_rows(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """An object for each row; a finished row is fed padding, and its new columns are hidden."""
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
        left = torch.tensor([[int(row.left > 0)] for row in rows])
        mask = torch.cat([mask, left], 1)
        input_ids, positions = torch.where(left > 0, tokens[:, None], pad_token_id), mask.sum(1, keepdim=True) - 1


def with_hugging_face(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    options = dict(do_sample=False, pad_token_id=pad_token_id, eos_token_id=eos_token_id)
    output = model.generate(input_ids, attention_mask=mask, max_new_tokens=max(max_tokens_each), **options)
    return [row[:limit] for row, limit in zip(output[:, input_ids.shape[1] :].tolist(), max_tokens_each)]


def of_the_reference(patch):
    return patched(static_batching.generate_wave, patch, {})


NEXT = "~ position_ids[:, -1:] + 1 => "
# what a pass was fed, or took from its logits: the message says which, whatever the mistake is
ODD = {
    "row 0 of `attention_mask` in pass 2 should be [1, 1, 1, 1]; yours is [1, 1, 1].": "- attention_mask = torch.cat",
    "of `attention_mask` in the prefill should be [0, 0, 1, 1, 1]; yours has none": "~ attention_mask=attention_mask, => ",
    "of `attention_mask` in the prefill should be [1, 1, 1]; yours is [0, 0, 0]":
        "~ attention_mask=attention_mask, => attention_mask=1 - attention_mask,",
    "of `position_ids` in the prefill should be [0, 0, 0, 1, 2]; yours has none": "~ position_ids=position_ids, => ",
    "of `position_ids` in pass 2 should be [3]; yours is [2]": NEXT + "position_ids[:, -1:]",
    "of `position_ids` in pass 2 should be [3]; yours is [0, 1, 2, 3]": NEXT + "positions_from_mask(attention_mask)",
    "of `position_ids` in pass 2 should be [3]; yours is [5]":
        NEXT + "torch.full_like(input_ids, attention_mask.shape[1] - 1)",
    "before pass 2, the cache should hold 3 columns; yours holds 0": "~ =cache, => =DynamicCache(),",
    "`input_ids` of pass 2 should have the shape [1, 1]; yours has [1]": (
        "~ input_ids = next_tokens[:, None] => input_ids = next_tokens\n"
        "~ torch.ones_like(input_ids) => torch.ones_like(next_tokens[:, None])"
    ),
    "row 0 of `input_ids` in pass 2 should be [66]; yours is [11]": "~ next_tokens[:, None] => input_ids[:, -1:]",
    "the token of row 1 from the prefill should be 77; yours is 66":
        "~ .argmax(dim=-1) => [:1].argmax(dim=-1).expand(len(prompt_ids))",
    "Row 0 ends with 2, the token that reaches its limit: not before": "~ token != eos_token_id => token != 25",
}  # fmt: skip
WRONG = {
    "01.1": [],
    "01.2": [
        Wrong("the oracle itself", with_hugging_face, "your code calls `model.generate`"),
        *(Wrong(patch, of_the_reference(patch), says) for says, patch in ODD.items()),
    ],
}

RIGHT = {
    "01.1": [pads_with_pytorch, pads_into_tensors, pads_through_the_mask],
    "01.2": [
        wave_like_generate,
        wave_by_counting,
        wave_that_hides_finished_rows,
    ],
}
