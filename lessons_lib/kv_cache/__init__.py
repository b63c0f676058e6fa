"""The KV cache in blocks: ownership and contents.

Read in this order: block_pool, cache_slots and block_serving (lesson 03), paged_kv_cache (06), block_copies (10),
prefix_cache (11). invariants checks that no block is lost or freed twice.
"""

from lessons_lib.kv_cache.block_copies import COPY, SWAP_IN, SWAP_OUT, BlockCopy, copy_blocks
from lessons_lib.kv_cache.block_pool import (
    BlockPool,
    BlockTable,
    OutOfBlocks,
    TableFull,
    block_bytes,
    blocks_for,
    blocks_in_budget,
    slot_of,
)
from lessons_lib.kv_cache.block_serving import (
    AdmissionView,
    CachedRequest,
    CacheStep,
    may_admit,
    serve_in_blocks,
    step_in_blocks,
    step_with_oracle,
)
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import LruQueue, PrefixCache, SharedBlockPool, block_hash

__all__ = [
    "COPY",
    "SWAP_IN",
    "SWAP_OUT",
    "AdmissionView",
    "BlockCopy",
    "BlockPool",
    "BlockTable",
    "CacheStep",
    "CachedRequest",
    "LruQueue",
    "OutOfBlocks",
    "PagedKVCache",
    "PrefixCache",
    "SharedBlockPool",
    "TableFull",
    "audit",
    "block_bytes",
    "block_hash",
    "blocks_for",
    "blocks_in_budget",
    "copy_blocks",
    "may_admit",
    "serve_in_blocks",
    "slot_mapping",
    "slot_of",
    "step_in_blocks",
    "step_with_oracle",
]
