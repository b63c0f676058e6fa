"""Load models, encode prompts, and build tiny random models for tests.

Read in this order: loading, prompts, support, tiny_models.
"""

from lessons_lib.models.loading import cache_bytes_per_token, kv_head_size, load_model
from lessons_lib.models.prompts import BadRequest
from lessons_lib.models.support import UnsupportedModel
from lessons_lib.torch_installed import HAS_TORCH

if HAS_TORCH:
    from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

__all__ = [
    "VOCAB_SIZE",
    "BadRequest",
    "UnsupportedModel",
    "cache_bytes_per_token",
    "kv_head_size",
    "load_model",
    "tiny_model",
]
