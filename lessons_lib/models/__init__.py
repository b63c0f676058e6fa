"""Load models, encode prompts, and build tiny random models for tests.

Read in this order: configuration, loading (which calls support and whole_folder), validate, prompts, tiny_models.
"""

from lessons_lib.lazy_names import lazily
from lessons_lib.models.configuration import cache_bytes_per_token, kv_head_size

__getattr__ = lazily(__name__, loading="load_model", tiny_models="VOCAB_SIZE tiny_model")
