"""Tiny random models whose attention has windows, softcaps, sinks, chunks or heads of several sizes."""

from functools import cache

import torch
from transformers import AutoConfig, AutoModelForCausalLM

WINDOW = 6
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2)
LATENT = dict(
    q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, n_routed_experts=4,
    num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=16, first_k_dense_replace=1,
    num_key_value_heads=4, head_dim=None,
)  # fmt: skip
SOME_LAYERS = dict(sliding_window=WINDOW, layer_types=LAYERS)
# model type -> what its config has beyond COMMON
MODELS = {
    "mistral": dict(sliding_window=WINDOW),
    "mixtral": dict(sliding_window=WINDOW, **EXPERTS),
    "gemma2": dict(**SOME_LAYERS, attn_logit_softcapping=2.0, query_pre_attn_scalar=5),
    "gemma3_text": dict(**SOME_LAYERS, query_pre_attn_scalar=5),
    "gpt_oss": dict(**SOME_LAYERS, **EXPERTS),
    "phi3": dict(sliding_window=WINDOW, partial_rotary_factor=0.5),
    "starcoder2": dict(sliding_window=WINDOW),
    "olmo3": SOME_LAYERS,
    "cohere2": SOME_LAYERS,
    "qwen2": dict(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    # passes no window: its layer types say it
    "qwen2_moe": dict(
        use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, shared_expert_intermediate_size=16,
    ),
    "deepseek_v3": LATENT,
    "llama4_text": dict(
        attention_chunk_size=WINDOW, num_local_experts=2, num_experts_per_tok=1, intermediate_size_mlp=32,
        no_rope_layers=[1, 0, 1], attn_temperature_tuning=False,
    ),
    "gemma4_text": dict(
        sliding_window=WINDOW, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        global_head_dim=16, vocab_size_per_layer_input=97,
    ),
    "phi": dict(partial_rotary_factor=0.5),
}  # fmt: skip
COMMON = dict(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=128, tie_word_embeddings=False, bos_token_id=None,
    eos_token_id=None, pad_token_id=None,
)  # fmt: skip


@cache
def term_model(model_type, **changes):
    """A model with three layers in float32, and weights large enough that its tokens vary."""
    own = COMMON | MODELS[model_type] | changes
    own = {name: value for name, value in own.items() if value is not None or name.endswith("_id")}
    own |= {name: list(value) for name, value in own.items() if isinstance(value, tuple)}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **own)).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 or "sinks" in name:
            parameter.normal_(0, 2.0 if "sinks" in name else 0.3, generator=generator)
    return model
