"""Count the operations and memory traffic of a forward pass from the model's shape."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from lessons_lib.models.configuration import cache_bytes_per_token


@dataclass(frozen=True)
class Cost:
    """Cost of one forward pass.

    Attributes:
        operations: floating-point operations; a multiply-add counts as two.
        bytes: memory traffic: the weights once, the cache once, the new keys and values once.
    """

    operations: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: operations per byte moved (Williams et al. 2009, the roofline model)."""
        return self.operations / self.bytes


def forward_cost(model: PreTrainedModel, new_tokens: int, cached_tokens: int = 0) -> Cost:
    """Cost of computing `new_tokens` tokens of one sequence after `cached_tokens` cached ones.

    Each weight takes two operations per token. For each query and visible key, attention takes two operations per
    element for the score and two for the weighted sum of values. Embedding lookups, norms and activations, a few
    percent in such models, are ignored. Only the last token's logits are computed.
    """
    config = model.config
    weights = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and not _is_embedding(name))
    head = config.vocab_size * config.hidden_size
    query_width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    pairs = sum(cached_tokens + position + 1 for position in range(new_tokens))
    operations = 2 * weights * new_tokens + 2 * head + 4 * config.num_hidden_layers * query_width * pairs
    size = model.dtype.itemsize
    cache = cache_bytes_per_token(config, size) * (cached_tokens + new_tokens)
    return Cost(operations, (weights + head) * size + cache)


def _is_embedding(name: str) -> bool:
    return any(part in name for part in ("embed_tokens", "wte", "wpe", "lm_head"))
