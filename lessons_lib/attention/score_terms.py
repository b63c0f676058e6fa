"""Lesson 06: terms that some layers apply to attention scores besides scaling: windows, softcaps, sinks, ALiBi."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lessons_lib.models.configuration import UnsupportedModel
from lessons_lib.models.validate import shortened


@dataclass(frozen=True)
class ScoreTerms:
    """The terms of one layer. Scores are scaled, softcapped, biased and masked, in this order, before the softmax.

    Attributes:
        window: number of keys that a query sees, its own included (Mistral, Gemma); None for all.
        chunk: chunk length in positions; a query sees only its own chunk (Llama 4).
        softcap: a score s becomes softcap x tanh(s / softcap), so it stays within +-softcap (Gemma 2).
        sinks: [q_heads], an extra score per head in the softmax, for a key without a value (gpt-oss).
        alibi_slopes: [q_heads], slope x (key position - query position) is added to each score (Press et al. 2021,
            https://arxiv.org/abs/2108.12409).
    """

    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None


def score_terms(module: Any, attention_mask: object, keywords: Mapping[str, Any]) -> ScoreTerms | None:
    """Collect the terms that a layer requests; None for most models.

    Args:
        module: the layer. If it passes no window, `config.layer_types` determines it.
        attention_mask: the layer's mask argument.
        keywords: the layer's other arguments, by transformers' names.

    Raises:
        UnsupportedModel: the layer passes a mask or an unknown argument, or isn't causal.
    """
    if attention_mask is not None:
        raise UnsupportedModel(_refusal(module, "attention_mask", "a mask of its own"))
    terms = {} if "sliding_window" in keywords else _window_by_layer_type(module)
    for name, value in keywords.items():
        if name in IGNORED or value is None:
            continue
        if name in TERMS:
            terms[TERMS[name]] = value
        elif value is not NEUTRAL.get(name, False):
            is_tensor = isinstance(value, torch.Tensor)
            what = f"a tensor of shape {list(value.shape)}" if is_tensor else shortened(value)
            raise UnsupportedModel(_refusal(module, name, f"{name}={what}"))
    return ScoreTerms(**terms) if terms else None


# transformers' name -> ours
TERMS = {"sliding_window": "window", "softcap": "softcap", "s_aux": "sinks", "alibi_slopes": "alibi_slopes"}
NEUTRAL = {"is_causal": True}  # values without effect, besides None; False for other arguments
# Arguments without effect: dropout is off, and query and key are already rotated to their positions.
IGNORED = frozenset({
    "dropout", "position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states",
    "output_router_logits", "return_dict", "logits_to_keep", "deterministic",
})  # fmt: skip


def _window_by_layer_type(module: Any) -> dict[str, Any]:
    config: Any = getattr(module, "config", None)
    layer_types = getattr(config, "layer_types", None) or []
    layer_type = layer_types[module.layer_idx] if module.layer_idx < len(layer_types) else None
    if layer_type == "sliding_attention":
        return {"window": config.sliding_window}
    if layer_type == "chunked_attention":
        return {"chunk": config.attention_chunk_size}
    return {}


def _refusal(module: Any, name: str, what: str) -> str:
    return (
        f"layer {getattr(module, 'layer_idx', None)} ({type(module).__name__}) passes {what} to its attention; paged "
        f"attention doesn't support {name!r}. Use another model, or transformers' own `generate`."
    )


def first_visible_key(query_positions: torch.Tensor, terms: ScoreTerms) -> torch.Tensor:
    """First key position visible to each query; negative if the window begins before the sequence."""
    first = torch.zeros_like(query_positions)
    if terms.window is not None:
        first = query_positions - terms.window + 1
    if terms.chunk is not None:
        first = first.maximum(query_positions // terms.chunk * terms.chunk)
    return first


def attention_with_terms(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float, terms: ScoreTerms
) -> torch.Tensor:  # fmt: skip
    """Attention with ScoreTerms, which PyTorch's attention function doesn't support.

    Args:
        query: [S, q_heads, Q, head_dim].
        keys, values: [S, kv_heads, K, head_dim], of positions 0 to K - 1.
        mask: bool [S, 1, Q, K], True for the keys up to the query's own position.
    """
    keys, values = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (keys, values))
    key_positions = torch.arange(mask.shape[-1], device=query.device)
    query_positions = mask.sum(dim=-1, keepdim=True) - 1  # [S, 1, Q, 1]
    mask = mask & (key_positions >= first_visible_key(query_positions, terms))
    weights = weights_with_terms(query @ keys.mT * scale, mask, key_positions - query_positions, terms)
    return weights.to(values.dtype) @ values


def weights_with_terms(
    scores: torch.Tensor, mask: torch.Tensor, distance: torch.Tensor, terms: ScoreTerms
) -> torch.Tensor:
    """Apply all terms and the softmax to scaled scores, [..., q_heads, Q, K], in float32.

    Args:
        mask, distance: True where the query may attend to the key, and key position - query position; broadcast to the
            scores.

    Returns:
        tensor of the scores' shape. With sinks, a query's weights sum to less than 1.
    """
    scores = scores.float()
    if terms.softcap is not None:
        scores = terms.softcap * torch.tanh(scores / terms.softcap)
    if terms.alibi_slopes is not None:
        scores = scores + terms.alibi_slopes.float()[:, None, None] * distance
    scores = scores.masked_fill(~mask, float("-inf"))
    if terms.sinks is None:
        return scores.softmax(dim=-1)
    sinks = terms.sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
