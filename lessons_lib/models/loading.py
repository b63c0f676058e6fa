"""Load a model and compute the size of its KV cache."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lessons_lib.models.support import check_supported, text_config
from lessons_lib.models.whole_folder import what_is_missing

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

BUNDLED_MODEL = Path(__file__).parents[1] / "assets" / "model"


class ModelNotFound(OSError):
    """No model of that name in a folder, in the local cache or on the hub."""


class DamagedModel(OSError):
    """The model's files exist but can't be read completely."""


def load_model(
    name: str | os.PathLike[str] | None = None, device: str | None = None, dtype: "torch.dtype | None" = None
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Load a causal language model and its tokenizer, ready for inference.

    Args:
        name: a folder, or a name on the Hugging Face hub; the bundled model if not given.
        device: "cuda" if there is a GPU, else "cpu".
        dtype: bfloat16 on a GPU; float32 on a CPU, which is exact enough to compare token for token.

    Returns:
        (model, tokenizer). The model is in evaluation mode; the tokenizer always has a padding token.

    Raises:
        ModelNotFound: the name is not a folder, and the hub doesn't have it either.
        DamagedModel: a file is missing or truncated, or the weights don't match the configuration.
        UnsupportedModel: the engine can't serve this kind of model, such as an encoder-decoder or a recurrent one.
    """
    # Imported here: in a browser there is no torch, and the sizes below are needed there too.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    source = BUNDLED_MODEL if name is None else name
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or (torch.bfloat16 if device.startswith("cuda") else torch.float32)
    is_folder = Path(source).is_dir()
    # Never access the network for a local folder.
    where = {"local_files_only": True} if is_folder else {}
    show_progress = logging.is_progress_bar_enabled()
    if is_folder:
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, output_loading_info=True, **where)
        tokenizer: Any = AutoTokenizer.from_pretrained(source, **where)
    except Exception as error:
        raise load_error(source, is_folder, error) from error
    finally:
        if show_progress:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    model, report = loaded
    if reason := what_is_missing(model, tokenizer, report, Path(source) if is_folder else None):
        raise DamagedModel(f"the model {'in ' if is_folder else ''}{source} is incomplete: {reason}. {REMEDY}")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = model.eval().requires_grad_(False)
    check_supported(model)
    return model.to(device), tokenizer


REMEDY = "Fetch the files again (for the bundled model: `git checkout -- lessons_lib/assets`, or reinstall the course)."


def load_error(source: str | os.PathLike[str], is_folder: bool, error: Exception) -> OSError:
    """Convert an error of transformers to ModelNotFound or DamagedModel, with a remedy."""
    if is_folder:
        return DamagedModel(f"the model in {source} can't be read: {type(error).__name__}: {error}. {REMEDY}")
    return ModelNotFound(
        f"no model {str(source)!r}: it is not a folder here, not in the local Hugging Face cache, and the hub did not "
        f"return it ({type(error).__name__}). Check the spelling and the connection, give the path of a folder, or use "
        "`load_model()` for the bundled model, which needs no network."
    )


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
    """Shape of one token's keys and values in one layer.

    Attributes:
        kv_heads: number of KV heads.
        key_dim, value_dim: elements per head of a key and of a value.
    """

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
    return [
        KVShape(kv_heads, head_dim, getattr(config, "v_head_dim", None) or head_dim) for kv_heads, head_dim in sizes
    ]


def cache_bytes_per_token(config: "PretrainedConfig", bytes_per_element: int = 4) -> int:
    """Bytes of KV cache that one token takes, over all layers.

    Args:
        config: a Hugging Face model configuration, of a model whose layers are all alike.
        bytes_per_element: 4 for float32, 2 for bfloat16 and float16.
    """
    kv_heads, head_dim = kv_head_size(config)
    num_layers: int = config.num_hidden_layers
    return 2 * num_layers * kv_heads * head_dim * bytes_per_element
