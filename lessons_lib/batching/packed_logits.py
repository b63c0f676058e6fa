"""Lesson 04: several sequences in one row of one forward pass, kept apart by the mask alone. No cache yet."""

import torch

from lessons_lib.attention.masks import block_diagonal_mask, tag_tokens
from lessons_lib.models.prompts import encode_prompts


@torch.inference_mode()
def packed_logits(model, sequences, mask=block_diagonal_mask):
    """Compute several sequences in one forward pass, one behind the other in one row, without padding.

    Args:
        model: a Hugging Face causal language model.
        sequences: list of lists of token ids, each at least one token long; at least one sequence.
        mask: makes the mask, bool [tokens, tokens], of the tags of queries and keys.

    Returns:
        list of tensors, [length of the sequence, vocabulary] each: the logits after every token.
    """
    lengths = [len(sequence) for sequence in sequences]
    tags = tag_tokens(lengths)
    row = [token for sequence in sequences for token in sequence]
    logits = model(
        input_ids=torch.tensor([row], device=model.device),
        position_ids=tags.positions[None].to(model.device),
        attention_mask=mask(tags, tags)[None, None].to(model.device),
        use_cache=False,
    ).logits[0]
    return list(logits.split(lengths))


def generate_packed(model, prompt_ids, max_tokens_each, eos_token_id=None, packed_logits=packed_logits):
    """Continue several prompts greedily, all of them in one row. Every turn computes the whole row again.

    A sequence that has ended leaves the row at once.

    Args:
        prompt_ids: list of lists of int.
        caps: the most new tokens of each.
        packed_logits: the function that computes a row, yours if you like.

    Returns:
        list of lists of int: the new tokens of each.
    """
    answers = [[] for _ in prompt_ids]
    running = list(range(len(prompt_ids)))
    while running:
        sequences = packed_logits(model, [[*prompt_ids[i], *answers[i]] for i in running])
        for i, logits in zip(list(running), sequences):
            token = int(logits[-1].argmax())
            answers[i].append(token)
            if token == eos_token_id or len(answers[i]) == max_tokens_each[i]:
                running.remove(i)
    return answers


def packed_generate(model, tokenizer, prompts, *, max_new_tokens, packed_logits=packed_logits) -> list[list[int]]:
    """Serve all requests at once in one packed batch, without a cache.

    Args:
        prompts: texts, or lists of token ids.
        max_new_tokens: one limit for all requests, or one for each.

    Returns:
        The new tokens of each request, in the order of the prompts.

    Raises:
        BadRequest: see `lessons_lib.models.prompts`; nothing was computed.
    """
    prompt_ids, max_tokens_each = encode_prompts(model, tokenizer, prompts, max_new_tokens)
    return generate_packed(model, prompt_ids, max_tokens_each, tokenizer.eos_token_id, packed_logits)
