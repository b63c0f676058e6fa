"""Read a model's configuration: the sizes of its context and of its KV cache."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class UnsupportedModel(ValueError):
    """The model needs a feature that the engine doesn't have. The message names it, its value and a remedy."""


def text_config(config: Any) -> Any:
    """The text decoder's part of a configuration; all of it unless the model also takes images or audio."""
    return config.get_text_config(decoder=True)


def context_length(config: "PretrainedConfig") -> int | None:
    """Maximum sequence length, prompt and answer together; None if unlimited, as with relative positions (Bloom)."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        length: int | None = getattr(text_config(config), name, None)
        if length is not None:
            return length
    return None


def kv_head_size(config: "PretrainedConfig") -> tuple[int, int]:
    """(number of KV heads, head size), for old and new configurations.

    GPT-2 has one KV head per query head; Llama and Qwen2 may have fewer (grouped-query attention,
    Ainslie et al. 2023, https://arxiv.org/abs/2305.13245).
    """
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return kv_heads, head_dim


@dataclass(frozen=True)
class KVShape:
    """Shape of one token's keys and values in one layer: KV heads, and elements per head of a key and of a value."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements(self) -> int:
        """Number of elements, keys and values together."""
        return self.kv_heads * (self.key_dim + self.value_dim)


def kv_shapes(config: "PretrainedConfig") -> list[KVShape]:
    """The KVShape of every layer, from the configuration.

    In most models all layers are alike. Gemma 4 has larger heads in layers without a window; DeepSeek's keys are larger
    than its values (multi-head latent attention, which transformers expands to one KV head per query head).
    """
    config = text_config(config)
    if hasattr(config, "qk_nope_head_dim") and hasattr(config, "v_head_dim"):
        key_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
        return [KVShape(config.num_attention_heads, key_dim, config.v_head_dim)] * config.num_hidden_layers
    layers = getattr(config, "per_layer_config", None) or [config] * config.num_hidden_layers
    sizes = [kv_head_size(layer) for layer in layers]
    return [KVShape(heads, head_dim, getattr(config, "v_head_dim", None) or head_dim) for heads, head_dim in sizes]


def cache_bytes_per_token(config: "PretrainedConfig", bytes_per_element: int = 4) -> int:
    """Bytes of KV cache that one token takes, over all layers.

    Args:
        config: a Hugging Face model configuration, of a model whose layers are all alike.
        bytes_per_element: 4 for float32, 2 for bfloat16 and float16.
    """
    kv_heads, head_dim = kv_head_size(config)
    num_layers: int = config.num_hidden_layers
    return 2 * num_layers * kv_heads * head_dim * bytes_per_element
