"""Models with random weights, in the shapes of known ones, and a tokenizer for them."""

from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

SHAPES: dict[str, tuple[type, dict[str, Any]]] = {
    "Qwen2.5-0.5B": (Qwen2Config, dict(
        hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, intermediate_size=4864,
        vocab_size=151936, tie_word_embeddings=True,
    )),
    "Qwen3-0.6B": (Qwen3Config, dict(
        hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
        intermediate_size=3072, vocab_size=151936, tie_word_embeddings=True,
    )),
    "Llama-3.2-1B": (LlamaConfig, dict(
        hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
        intermediate_size=8192, vocab_size=128256, tie_word_embeddings=True,
    )),
    "Llama-3.1-8B": (LlamaConfig, dict(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        intermediate_size=14336, vocab_size=128256, tie_word_embeddings=False,
    )),
}  # fmt: skip
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             intermediate_size=64, vocab_size=97)  # fmt: skip


def random_model(shape: str, max_model_len: int, small: bool = False) -> PreTrainedModel:
    """A model of this shape with random weights, made on the GPU in bfloat16."""
    make_config, sizes = SHAPES[shape]
    dtype, device = (torch.float32, "cpu") if small else (torch.bfloat16, "cuda")
    sizes = sizes | SMALL if small else sizes
    config = make_config(**sizes, max_position_embeddings=max_model_len, dtype=dtype, eos_token_id=None,
                         bos_token_id=None, pad_token_id=None)  # fmt: skip
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # 8 B parameters in float32 would take 32 GB
    try:
        with torch.device(device):
            model: PreTrainedModel = MODEL_FOR_CAUSAL_LM_MAPPING[make_config](config)
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False)


class NoWords:
    """The tokenizer of an untrained model."""

    eos_token_id = None

    def decode(self, token_ids, skip_special_tokens=True) -> str:
        return ""
