"""The KV cache in blocks: ownership and contents.

Read in this order: block_pool, block_table, block_memory, cache_slots and block_serving (lesson 03), paged_kv_cache
(06), block_copies (10), block_hashes and prefix_cache (11). invariants checks that no block is lost or freed twice.
"""

from lessons_lib.kv_cache.block_copies import COPY, BlockCopy
from lessons_lib.kv_cache.block_memory import block_bytes, blocks_in_budget
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.kv_cache.block_serving import serve_in_blocks, step_in_blocks, step_with_oracle
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.prefix_cache import PrefixCache, SharedBlockPool
from lessons_lib.lazy_names import lazily

__getattr__ = lazily(__name__, paged_kv_cache="PagedKVCache")
