"""Lesson 06: what some layers do with the scores of attention besides scaling them, each as one rule or one term."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lessons_lib.models.support import UnsupportedModel


@dataclass(frozen=True)
class ScoreTerms:
    """The terms of one layer. Scores are scaled first, then softcapped, biased, masked; then the softmax.

    Attributes:
        window: a query sees this many keys, the last one its own (Mistral, Gemma); None for all.
        chunk: positions are divided into chunks of this many, and a query sees keys of its own chunk only (Llama 4).
        softcap: a score s becomes softcap x tanh(s / softcap), so it stays between -softcap and softcap (Gemma 2).
        sinks: [q_heads], one more score for each head in the softmax, that of a key without a value (gpt-oss).
        alibi_slopes: [q_heads], slope x (key position - query position) is added to each score (Press et al. 2021,
            https://arxiv.org/abs/2108.12409).
    """

    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None


def score_terms(module: Any, attention_mask: object, keywords: Mapping[str, Any]) -> ScoreTerms | None:
    """The terms that a layer asks for; None for most models.

    Args:
        module: the layer. If it doesn't say whether it has a window, `config.layer_types` does: for its mask.
        attention_mask: what the layer passes as its mask.
        keywords: every other argument that the layer passes, by transformers' names.

    Raises:
        UnsupportedModel: the layer passes a mask, an argument that is unknown here, or asks to see the future.
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
            raise UnsupportedModel(_refusal(module, name, f"{name}={_short(value)}"))
    return ScoreTerms(**terms) if terms else None


# transformers' name -> ours
TERMS = {"sliding_window": "window", "softcap": "softcap", "s_aux": "sinks", "alibi_slopes": "alibi_slopes"}
NEUTRAL = {"is_causal": True}  # for other arguments it is False, besides None
# Arguments that leave the result as it is: dropout is off, and positions are in query and key already.
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
        f"attention doesn't know {name!r}. Use another model, or transformers' own `generate`."
    )


def _short(value: object) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:60]


def first_visible_key(query_positions: torch.Tensor, terms: ScoreTerms) -> torch.Tensor:
    """The first key position that each query may attend to; negative if the window begins before the sequence."""
    first = torch.zeros_like(query_positions)
    if terms.window is not None:
        first = query_positions - terms.window + 1
    if terms.chunk is not None:
        first = first.maximum(query_positions // terms.chunk * terms.chunk)
    return first


def weights_with_terms(
    scores: torch.Tensor, mask: torch.Tensor, distance: torch.Tensor, terms: ScoreTerms
) -> torch.Tensor:
    """The softmax of scores with all terms applied, in float32.

    Args:
        scores: [..., q_heads, Q, K], scaled.
        mask: bool, True where the query may attend to the key, broadcast to the scores.
        distance: key position - query position, broadcast to the scores.

    Returns:
        tensor of the shape of the scores. With sinks, the weights of a query sum up to less than 1.
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
