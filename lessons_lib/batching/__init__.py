"""Ways to serve several requests at once, from one at a time to continuous batching over a paged cache.

Each module is one lesson's idea; all produce the same tokens. Read in this order: growing_cache, greedy (lesson 00),
static_batching (01), request, slot_cache, continuous_batching (02), packed_logits (04), ragged_batching (05),
paged_batching (06). All of them return the new tokens of each request; `lessons_lib.recording.record_run` records what
they do.

continuous_batching and ragged_batching each define a `serve`: import it from its module.
"""

from lessons_lib.batching.continuous_batching import SlotBatch, batch_generate
from lessons_lib.batching.greedy import generate_one_by_one, greedy_with_cache
from lessons_lib.batching.growing_cache import KVCache
from lessons_lib.batching.packed_logits import packed_generate
from lessons_lib.batching.paged_batching import paged_generate, paged_step
from lessons_lib.batching.ragged_batching import RaggedBatch, ragged_generate, ragged_step
from lessons_lib.batching.request import Request
from lessons_lib.batching.slot_cache import SlotCache
from lessons_lib.batching.static_batching import left_out, positions_from_mask, static_generate, waves
