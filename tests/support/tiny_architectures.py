"""A tiny random model of every causal language model in transformers, made from its own default configuration."""

import math
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCAB_SIZE = 128
WINDOW = 6
CONTEXT = 128
LAYERS = 4
HEADS = 4
HEAD_DIM = 16
HIDDEN = HEADS * HEAD_DIM

# Each size under all names that configurations have for it.
SIZES: list[tuple[int, str]] = [
    (VOCAB_SIZE, "vocab_size vocab_size_per_layer_input decoder_vocab_size unpadded_vocab_size "
    "pronunciation_vocab_size shape_vocab_size encoder_hash_byte_group_vocab ngram_vocab_size_base audio_vocab_size"),
    (HIDDEN, "hidden_size n_embd d_model dim emb_dim embedding_dim embed_dim embedding_size word_embed_proj_dim "
    "attention_hidden_size lru_width input_embedding_size output_embedding_size backbone_hidden_size "
    "hidden_size_global input_size ple_embed_dim"),
    (HEADS, "num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads "
    "encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads "
    "num_local_experts num_experts n_routed_experts moe_num_experts swa_num_attention_heads linear_num_heads "
    "linear_num_value_heads conf_num_attention_heads mamba_num_heads num_codebooks index_topk_blocks n_mamba_heads"),
    (2, "num_key_value_heads num_kv_heads swa_num_key_value_heads num_global_key_value_heads kv_n_heads "
    "num_experts_per_tok num_experts_per_token moe_topk moe_top_k moe_k top_k_experts linear_num_key_heads "
    "sliding_window_pattern _sliding_window_pattern global_attn_every_n_layers no_rope_layer_interval "
    "attn_layer_period layer_group_size num_kv_shared_layers num_layers_per_stack n_groups depth zero_expert_num "
    "patch_size num_local_groups o_groups num_query_groups hc_mult hc_count mamba_expand expand "
    "max_window_layers num_residual_layers num_hash_layers"),
    (24, "index_n_heads"),  # with few heads, relu makes index scores exactly 0, and `topk` breaks ties by length
    (1, "n_group num_expert_group topk_group first_k_dense_replace num_dense_layers moe_layer_start_index "
    "attn_layer_offset mamba_n_groups mamba_ngroups num_shared_experts n_shared_experts moe_num_shared_experts"),
    (LAYERS, "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_encoder_layers "
    "num_decoder_layers num_blocks conf_num_hidden_layers num_global_layers index_topk"),
    (HEAD_DIM, "head_dim attention_head_dim kv_channels dim_head d_head attention_head_size global_head_dim "
    "swa_head_dim linear_head_dim linear_key_head_dim linear_value_head_dim kv_lora_rank q_lora_rank o_lora_rank "
    "index_head_dim v_head_dim mamba_d_state state_size mamba_d_head mamba_head_dim mamba_headdim ssm_state_size d_kv "
    "linear_attn_head_dim hidden_size_per_layer_input laurel_rank gated_norm_rank hc_lowrank adapter_rank "
    "router_hidden_size d_rel rel_extent codebook_dim num_filters block_multiple_of index_block_size"),
    (8, "qk_nope_head_dim qk_rope_head_dim rotary_dim time_step_rank mamba_dt_rank chunk_size mamba_chunk_size "
    "mamba_n_heads prompt_length floor_scale keep_window_size"),
    (2 * HIDDEN, "intermediate_size n_inner ffn_dim decoder_ffn_dim encoder_ffn_dim ffn_hidden_size dim_ff dff d_ff "
    "d_inner intermediate_size_mlp dense_intermediate_size mamba_d_ssm feed_forward_size mlp_dim"),
    (32, "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size "
    "moe_shared_expert_intermediate_size shared_experts_intermediate_size moe_shared_intermediate_size"),
    (CONTEXT, "max_position_embeddings n_positions n_ctx max_seq_len context_length max_target_positions "
    "position_bias_max_distance model_max_length"),
    (CONTEXT // 8, "original_max_position_embeddings"),  # shorter than some prompts, as windows are
    (WINDOW, "sliding_window window_size attention_window_size local_attention sliding_window_size "
    "local_attention_window_len attention_chunk_size"),
]  # fmt: skip
SIZE_OF = {name: size for size, names in SIZES for name in names.split()}

# Fields that no rule finds, because they must agree with one another or have no usable default.
MLA: dict[str, Any] = dict(num_key_value_heads=HEADS, qk_rope_head_dim=8, head_dim=8, qk_head_dim=16)
HYBRID = ["linear_attention", "full_attention"] * (LAYERS // 2)
SPECIAL: dict[str, dict[str, Any]] = {
    "axk1": MLA,
    "axk2": MLA,
    "bailing_hybrid": MLA,
    "minimax_m3_vl_text": dict(
        layer_types=["full_attention", "minimax_m3_sparse"] * (LAYERS // 2), index_n_heads=HEADS
    ),
    "lfm2": dict(layer_types=["conv", "full_attention"] * (LAYERS // 2), full_attn_idxs=None),
    "bamba": dict(attn_layer_indices=[1, 3]),
    "cohere_compass_text": dict(logit_scale=0.5),
    "dbrx": dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "deepseek_v2": MLA | dict(num_experts_per_tok=2, topk_method="greedy"),
    "deepseek_v3": MLA,
    "deepseek_v32": MLA,
    "dots1": dict(
        num_experts_per_tok=2, n_routed_experts=4, num_local_experts=4, n_shared_experts=1, first_k_dense_replace=1
    ),
    "dots3_note_text": MLA | dict(head_dim=16),
    "glm4_moe_lite": MLA,
    "glm_moe_dsa": MLA,
    "granitemoehybrid": dict(layer_types=HYBRID),
    "hrm_text": dict(num_layers_per_stack=2, num_hidden_layers=16),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"] * (LAYERS // 2)),
    "longcat_flash": MLA | dict(qk_head_dim=16),
    "mamba2": dict(num_heads=8),
    "minicpm3": MLA,
    "nemotron": dict(num_key_value_heads=2),
    # At this length its `generate` drops the cache, for rotary positions that change there, and loses its place.
    "phi4_multimodal": dict(original_max_position_embeddings=CONTEXT),
    "qwen4_exp_text": dict(
        indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=4, indexer_compress_ratio=2
    ),
    "reformer": dict(axial_pos_shape=[8, 16], axial_pos_embds_dim=[16, 48]),
    "xlm": dict(causal=True, use_lang_emb=False),
    "xlstm": dict(embedding_dim=HIDDEN, qk_dim_factor=1.0),
    "xmod": dict(default_language="en_XX"),
    "youtu": MLA,
    "zamba": dict(attention_hidden_size=2 * HIDDEN, attention_head_dim=32, n_mamba_heads=1),
    "zamba2": dict(
        layers_block_type=["linear_attention", "hybrid"] * (LAYERS // 2), hybrid_layer_ids=[1, 3], num_mem_blocks=1,
        attention_hidden_size=2 * HIDDEN, attention_head_dim=32, n_mamba_heads=8),
}  # fmt: skip
DROPPED = frozenset(
    (
        *("transformers_version", "model_type", "architectures", "dtype", "torch_dtype", "use_cache", "id2label"),
        *("label2id", "attribute_map", "_name_or_path", "per_layer_config"),
    )
)
TOKEN_IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
FIRST_WORD = 3


def architectures() -> list[str]:
    """The model types of all causal language models, each once."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_fields(model_type: str) -> dict[str, Any]:
    """The fields of the default configuration of a model type, with small sizes."""
    return shrunk(CONFIG_MAPPING[model_type]().to_dict())


def tiny_config(model_type: str, **changes: Any) -> PreTrainedConfig:
    """The configuration with these fields, and some of them changed."""
    config: PreTrainedConfig = CONFIG_MAPPING[model_type](**tiny_fields(model_type) | changes)
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    return config


def shrunk(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration, with small sizes in the place of its own."""
    num_layers = {value for name, value in fields.items() if name in LAYER_COUNTS and isinstance(value, int)}
    small = {name: _small(name, value, num_layers) for name, value in fields.items() if name not in DROPPED}
    return small | SPECIAL.get(fields.get("model_type", ""), {})


LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def _small(name: str, value: Any, num_layers: set[int]) -> Any:
    if isinstance(value, dict):
        return shrunk(value)
    if isinstance(value, list) and len(value) in num_layers:
        return [SIZE_OF[name]] * LAYERS if name in SIZE_OF else a_few(value)
    if name in TOKEN_IDS and value is not None:
        return TOKEN_IDS[name]
    if name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
        return value % VOCAB_SIZE
    if name == "sliding_window" and value is None:
        return WINDOW  # off by default, used by published models
    is_size = isinstance(value, int) and not isinstance(value, bool) and value > 1
    if name == "use_sliding_window":
        return True
    if name == "tie_word_embeddings":
        return False  # tied, a random model mostly repeats the last token
    return SIZE_OF[name] if name in SIZE_OF and is_size else HEAD_DIM if name == "head_dim" and value is None else value


def a_few(per_layer: list[Any]) -> list[Any]:
    """What a model says of its layers, for four layers: each kind of layer, in turn."""
    kinds = list({str(each): each for each in per_layer}.values())
    return (kinds * LAYERS)[:LAYERS]


def tiny_model(model_type: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model in float32 of four layers, with a sliding window of 6 where the architecture has one; see
    `tiny_config`.

    Raises:
        Exception: of any kind, from the architecture: these sizes do not suit it, or a package is missing.
    """
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(tiny_config(model_type, **changes))
    model = model.float().eval().requires_grad_(False)
    randomize(model, seed)
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model  # type: ignore[no-any-return]


def randomize(model: PreTrainedModel, seed: int) -> None:
    """Give a model weights under which every term counts: no bias, sink or gate stays zero, and answers don't repeat
    one token."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() < 2:
                weight.add_(noise, alpha=0.2)
            elif isinstance(module, torch.nn.Embedding):
                weight.copy_(noise)
            else:
                weight.copy_(noise * (1.5 / math.sqrt(weight.shape[-1])))
