"""Lessons 07 and 08: the inputs of attention in the decodes of a real run, to run kernels on."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.attention.hf_backend import plan_attention
from lessons_lib.batching.paged_batching import paged_generate


class DecodeInputs(NamedTuple):
    """The inputs of attention in one layer of a decode-only step.

    Attributes:
        query: [N, q_heads, head_dim].
        keys, values: [num_blocks, block_size, kv_heads, head_dim], of this layer.
        block_tables: int32 [N, M].
        context_lens: int32 [N], the new tokens included.
        scale: factor of the scores.
    """

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    scale: float


def decode_inputs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[int]], **settings: Any
) -> tuple[list[list[int]], list[DecodeInputs]]:
    """Serve with `paged_generate`: the new tokens of each request, and the inputs in each decode-only step."""
    noted = []

    def noting(packed: Any, block_tables: torch.Tensor, block_size: int) -> Callable[..., torch.Tensor]:
        attend = plan_attention("torch", model.device)(packed, block_tables, block_size)
        if set(packed.new_lens) != {1}:
            return attend

        def attend_and_note(
            query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
        ) -> torch.Tensor:
            tensors = (query, keys, values, block_tables.int(), packed.context_lens.int())
            noted.append(DecodeInputs(*(tensor.clone() for tensor in tensors), scale))
            return attend(query, keys, values, scale)

        return attend_and_note

    return paged_generate(model, tokenizer, prompts, **settings, backend=noting), noted
