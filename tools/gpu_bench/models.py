"""Models with random weights, in the shapes of known ones, and a tokenizer for them."""

from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
          "intermediate_size", "vocab_size", "tie_word_embeddings")  # fmt: skip
SHAPES: dict[str, tuple[Any, ...]] = {  # the largest first
    "Llama-3.1-8B": (LlamaConfig, 4096, 32, 32, 8, 128, 14336, 128256, False),
    "Qwen3-8B": (Qwen3Config, 4096, 36, 32, 8, 128, 12288, 151936, False),
    "Qwen3-1.7B": (Qwen3Config, 2048, 28, 16, 8, 128, 6144, 151936, True),
    "Llama-3.2-1B": (LlamaConfig, 2048, 16, 32, 8, 64, 8192, 128256, True),
    "1B with heads of 96": (LlamaConfig, 1536, 24, 16, 4, 96, 6144, 128256, True),
    "Qwen3-0.6B": (Qwen3Config, 1024, 28, 16, 8, 128, 3072, 151936, True),
    "Qwen2.5-0.5B": (Qwen2Config, 896, 24, 14, 2, 64, 4864, 151936, True),
}
SMALL = dict(zip(FIELDS, (32, 2, 4, 2, 16, 64, 97)))


def random_model(shape: str, max_model_len: int, small: bool = False) -> PreTrainedModel:
    """A model of this shape with random weights, made on the GPU in bfloat16."""
    make_config, *values = SHAPES[shape]
    dtype, device = (torch.float32, "cpu") if small else (torch.bfloat16, "cuda")
    sizes = dict(zip(FIELDS, values)) | (SMALL if small else {})
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
