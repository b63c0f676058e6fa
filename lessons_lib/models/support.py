"""Reject models that the engine can't serve, before the first token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lessons_lib.models.configuration import UnsupportedModel, context_length, text_config
from lessons_lib.models.validate import BadRequest

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

RESCALED_ROPE = frozenset(("dynamic", "longrope"))
REMEDY = "Serve it with Hugging Face's `generate`, or choose a model from tests/conformance/MODELS.md."


def check_supported(model: PreTrainedModel) -> None:
    """Inspect a model without running it.

    Serving relies on one property: a token's logits depend only on that token and those before it.

    Raises:
        UnsupportedModel: the model's own attributes contradict this.
    """
    if reason := why_unsupported(model):
        name = f"{type(model).__name__} (model_type {model.config.model_type!r})"
        raise UnsupportedModel(f"{name} can't be served: {reason}. {REMEDY}")


def why_unsupported(model: PreTrainedModel) -> str:
    """Name the property that the engine can't serve; an empty string if there is none."""
    config = text_config(model.config)
    if model.config.is_encoder_decoder:
        return "it is an encoder-decoder (config.is_encoder_decoder), and the engine has no encoder"
    if not model.can_generate():
        return "it is not a causal language model (it has no `generate`)"
    if getattr(config, "add_cross_attention", False):
        return "its layers attend to a second input (cross-attention)"
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        return "it attends to later tokens too (config.use_bidirectional_attention)"
    if any(getattr(module, "attention_type", "") == "block_sparse" for module in model.modules()):  # BigBird
        return "a short prompt changes how it attends to long ones; first, call `set_attention_type('original_full')`"
    if hasattr(config, "lsh_attn_chunk_length"):  # Reformer
        return "the length of its first prompt decides how it attends to all others (config.num_buckets)"
    if getattr(config, "is_decoder", None) is not True and (name := _bidirectional_layer(model)):
        return f"it attends to later tokens too ({name}.is_causal is False; BERT-like models need is_decoder=True)"
    if model.training:
        return "it is in training mode, so dropout makes its answers random; call `model.eval()` first"
    return ""


def check_context(config: PretrainedConfig, longest: int | None) -> None:
    """Reject contexts, by default the model's, in which one long sequence changes the positions of all others in its
    batch.

    Raises:
        UnsupportedModel: at `longest`, rotary frequencies depend on the longest sequence of a batch.
    """
    config = text_config(config)
    context = getattr(config, "max_position_embeddings", None)
    longest = longest or context or 0
    for parameters in rope_parameters(config):
        kind = parameters.get("rope_type")
        of_config = getattr(config, "original_max_position_embeddings", None)
        limit = parameters.get("original_max_position_embeddings") or of_config or context or longest
        if kind in RESCALED_ROPE and longest > limit:
            raise UnsupportedModel(
                f"sequences of {longest} tokens can't be served: beyond {limit} tokens, the model's {kind!r} rotary "
                f"positions change for every sequence in the batch. Set EngineConfig(max_model_len={limit}) or less."
            )


def rope_parameters(config: PretrainedConfig) -> list[dict[str, Any]]:
    """Parameters of a model's rotary embedding: those for all layers, then those for each layer type."""
    rope = getattr(text_config(config), "rope_parameters", None) or {}
    return [rope, *(each for each in rope.values() if isinstance(each, dict))]


def rescales_rope(config: PretrainedConfig) -> bool:
    """True if rotary frequencies depend on the longest sequence of a batch."""
    return any(parameters.get("rope_type") in RESCALED_ROPE for parameters in rope_parameters(config))


def _bidirectional_layer(model: PreTrainedModel) -> str:
    decoder: Any = model.get_decoder() or model  # type: ignore[no-untyped-call]
    for name, module in decoder.named_modules():
        is_cross_attention = "cross" in name or "encoder_attn" in name  # present, but unused without an encoder
        if hasattr(module, "layer_idx") and not getattr(module, "is_causal", True) and not is_cross_attention:
            return str(name)
    return ""


def checked_context(model: PreTrainedModel, context: int | None) -> int | None:
    """Return the maximum sequence length; None if neither the caller nor the model sets one.

    Raises:
        BadRequest: `context` is below 2 or exceeds the model's.
    """
    longest: int | None = context_length(model.config)
    if context is None:
        return longest
    if context < 2 or (longest is not None and context > longest):
        limits = "at least 2" if longest is None else f"2 to {longest}, the model's context"
        raise BadRequest(f"the maximum sequence length is set to {context}; it must be {limits}.")
    return context
