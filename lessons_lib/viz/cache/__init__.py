"""A KV cache: what it keeps of attention, and growing by one request's tokens."""

from lessons_lib.viz.cache.attention import draw_attention
from lessons_lib.viz.cache.growth import draw_cache_growth
