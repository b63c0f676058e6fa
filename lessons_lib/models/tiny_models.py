"""Small random models of widely served families: GPT-2, Llama and Qwen2.

Their text is nonsense, but they compute as their large siblings do, and fast: a mistake changes the output at once.
"""

from functools import cache
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCAB_SIZE = 97


@cache
@torch.inference_mode(False)  # one that is first asked for in inference mode serves others outside of it, too
def tiny_model(family: str = "qwen2", seed: int = 0, context: int = 256) -> PreTrainedModel:
    """Build a random two-layer float32 model of the family "gpt2", "llama" or "qwen2".

    It has 4 query heads, and 2 KV heads if the family supports sharing.
    """
    llama_like: dict[str, Any] = dict(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
    )
    # Much larger weights than usual: with small ones a random model repeats one token and hides mistakes.
    common: dict[str, Any] = dict(initializer_range=0.6, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    torch.manual_seed(seed)
    model: Any
    if family == "gpt2":
        config = GPT2Config(vocab_size=VOCAB_SIZE, n_positions=context, n_embd=32, n_layer=2, n_head=4, **common)
        model = GPT2LMHeadModel(config)
    elif family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**llama_like, **common))
    elif family == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**llama_like, **common))
    else:
        raise ValueError(f"no tiny model of family {family!r}; choose gpt2, llama or qwen2.")
    tiny: PreTrainedModel = model.eval().requires_grad_(False)
    return tiny
