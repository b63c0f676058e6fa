"""A KV cache: what it keeps of attention, growing by one request's tokens, and reserved by many requests."""

from lessons_lib.viz.cache.attention import draw_attention
from lessons_lib.viz.cache.growth import draw_cache_growth
from lessons_lib.viz.cache.memory_map import draw_memory
