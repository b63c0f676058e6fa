"""Lesson 04: several sequences packed into one row of one forward pass; only the mask separates them. No cache yet."""

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.attention.masks import Rule, block_diagonal_mask, tag_tokens
from lessons_lib.batching.prompts import encode_prompts


@torch.inference_mode()
def packed_logits(
    model: "PreTrainedModel", sequences: list[list[int]], mask: "Rule" = block_diagonal_mask
) -> list[torch.Tensor]:
    """Compute several sequences in one forward pass, one after the other in one row, without padding.

    Args:
        model: a Hugging Face causal language model.
        sequences: list of lists of token ids, each at least one token long; at least one sequence. They go into the
            row in the order of the list.
        mask: function (tags of queries, tags of keys) -> the mask, bool [tokens, tokens].

    Returns:
        list of tensors, [length of the sequence, vocabulary] each: the logits after every token.
    """
    lengths = [len(sequence) for sequence in sequences]
    tags = tag_tokens(lengths)
    row = [token for sequence in sequences for token in sequence]
    logits: torch.Tensor = model(
        input_ids=torch.tensor([row], device=model.device),
        position_ids=tags.positions[None].to(model.device),
        attention_mask=mask(tags, tags)[None, None].to(model.device),
        use_cache=False,
    ).logits[0]
    return list(torch.split(logits, lengths))


@torch.inference_mode()
def logits_at(model: PreTrainedModel, sequences: list[list[int]], positions: torch.Tensor) -> list[torch.Tensor]:
    """`packed_logits` with the block-diagonal mask and any positions [tokens], right or wrong."""
    lengths = [len(sequence) for sequence in sequences]
    tags = tag_tokens(lengths)
    row = [token for sequence in sequences for token in sequence]
    mask = block_diagonal_mask(tags, tags)[None, None]
    inputs = dict(input_ids=torch.tensor([row]), position_ids=positions[None], attention_mask=mask, use_cache=False)
    return list(torch.split(model(**inputs).logits[0], lengths))


def packed_generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[int]], *,
    max_new_tokens: int | Sequence[int] | None, packed_logits: Callable[..., list[torch.Tensor]] = packed_logits,
) -> list[list[int]]:  # fmt: skip
    """Serve all requests at once in one packed batch, without a cache: every step recomputes the whole batch.

    A finished sequence leaves the batch at once.

    Args:
        packed_logits: function that computes the packed batch; you can pass your own.
        The others, and Returns and Raises: see `generate_one_by_one`.
    """
    prompt_ids, max_tokens_each = encode_prompts(model, tokenizer, prompts, max_new_tokens)
    answers: list[list[int]] = [[] for _ in prompt_ids]
    running = list(range(len(prompt_ids)))
    while running:
        sequences = packed_logits(model, [[*prompt_ids[i], *answers[i]] for i in running])
        for i, logits in zip(list(running), sequences):
            token = int(logits[-1].argmax())
            answers[i].append(token)
            if token == tokenizer.eos_token_id or len(answers[i]) == max_tokens_each[i]:
                running.remove(i)
    return answers
