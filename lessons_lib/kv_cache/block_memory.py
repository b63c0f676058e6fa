"""Lesson 03: how much memory a block takes, and how many fit in a budget."""

from typing import TYPE_CHECKING

from lessons_lib.models.configuration import KVShape, kv_shapes

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def block_bytes(
    config: "PretrainedConfig", block_size: int, bytes_per_element: int = 4, layer_shapes: "list[KVShape] | None" = None
) -> int:
    """Size of one block in bytes: the keys and values of `block_size` tokens in all layers.

    Args:
        bytes_per_element: 4 for float32, 2 for bfloat16 and float16.
        layer_shapes: shape of each layer, if not the configuration's.
    """
    layers = kv_shapes(config) if layer_shapes is None else layer_shapes
    return block_size * bytes_per_element * sum(shape.elements for shape in layers)


def blocks_in_budget(config: "PretrainedConfig", block_size: int, budget_bytes: int, bytes_per_element: int = 4) -> int:
    """Number of whole blocks that fit in a memory budget.

    Args:
        config: a Hugging Face model configuration.
        block_size: tokens per block, at least 1.
        budget_bytes: bytes that the cache may use.
        bytes_per_element: 4 for float32, 2 for bfloat16 and float16.

    Raises:
        ValueError: `block_size` is below 1, or the budget is negative.
    """
    if block_size < 1 or budget_bytes < 0:
        raise ValueError(
            f"block_size is {block_size} and budget_bytes {budget_bytes}; they must be at least 1 and at least 0."
        )
    return int(budget_bytes // block_bytes(config, block_size, bytes_per_element))
