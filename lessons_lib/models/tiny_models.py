"""Small random models of widely served families: GPT-2, Llama and Qwen2, and two whose layers aren't all alike.

Their text is nonsense, but they compute as their large siblings do, and fast: a mistake changes the output at once.
"""

from functools import cache
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
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
    """Build a random float32 model of the family "gpt2", "llama", "qwen2", "windowed" or "hybrid".

    It has 4 query heads, and 2 KV heads if the family supports sharing. Most families have two layers. "windowed" is a
    Qwen2 of four: three see a window of 12 tokens. "hybrid" is a Qwen3.5 of four: three are gated delta nets.
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
    elif family == "windowed":
        layers = ["sliding_attention"] * 3 + ["full_attention"]
        own: dict[str, Any] = dict(layer_types=layers, sliding_window=12, use_sliding_window=True, num_hidden_layers=4)
        model = Qwen2ForCausalLM(Qwen2Config(**llama_like | own | common))
    elif family == "hybrid":
        layers = ["linear_attention"] * 3 + ["full_attention"]
        own = dict(layer_types=layers, num_hidden_layers=4, head_dim=8, linear_num_key_heads=2,
                   linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)  # fmt: skip
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(CONFIG_MAPPING["qwen3_5_text"](**llama_like | own | common))
    else:
        raise ValueError(f"no tiny model of family {family!r}; choose gpt2, llama, qwen2, windowed or hybrid.")
    tiny: PreTrainedModel = model.eval().requires_grad_(False)
    return tiny
