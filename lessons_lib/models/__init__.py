"""Load models, encode prompts, and build tiny random models for tests.

Read in this order: configuration, loading, validate, prompts, tiny_models; then support and whole_folder, which loading
calls.
"""

from lessons_lib.models.configuration import cache_bytes_per_token, kv_head_size
from lessons_lib.models.loading import load_model
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
