"""Triton kernels. Importing this folder needs Triton; everything else in the course runs without it.

Read in this order: triton_setup, basics, simple_paged (lesson 07), group_decode, paged_flash, launch, validation (08),
race (12), write_pair (13). hopper_prefill needs Gluon, so it is imported only where it runs. interpreter runs any
kernel without a GPU, compile_check tries to compile it for one, machine_code counts its instructions, and ablations
removes one idea at a time from the fast kernels.
"""

import lessons_lib.kernels.triton_setup  # before Triton: decides whether kernels are compiled

# isort: split
from lessons_lib.kernels.triton_setup import how_kernels_run, kernel_device

from lessons_lib.kernels.ablations import VARIANTS, with_functions
from lessons_lib.kernels.basics import add_kernel, gather_kernel, softmax_kernel
from lessons_lib.kernels.group_decode import (
    decode_groups,
    decode_groups_kernel,
    decode_splits,
    decode_splits_kernel,
)
from lessons_lib.kernels.launch import (
    LOG2_E,
    MAX_KEYS_PER_SPLIT,
    MIN_KEYS_PER_SPLIT,
    decode,
    decode_tiles,
    keys_per_split,
    launch_decode,
    launch_prefill,
    prefill_tiles,
)
from lessons_lib.kernels.paged_flash import (
    cache_offsets,
    decode_kernel,
    find_seq_idx,
    first_masked_key,
    has_own_kernel,
    longest_first,
    merge_kernel,
    online_softmax,
    prefill_kernel,
    unmasked_softmax,
)
from lessons_lib.kernels.simple_paged import (
    attend_blocks,
    decode_heads,
    decode_heads_kernel,
    one_block_kernel,
    single_head_kernel,
    write_cache,
    write_kernel,
)

__all__ = [
    "LOG2_E",
    "MAX_KEYS_PER_SPLIT",
    "MIN_KEYS_PER_SPLIT",
    "VARIANTS",
    "add_kernel",
    "attend_blocks",
    "cache_offsets",
    "decode",
    "decode_groups",
    "decode_groups_kernel",
    "decode_heads",
    "decode_heads_kernel",
    "decode_kernel",
    "decode_splits",
    "decode_splits_kernel",
    "decode_tiles",
    "find_seq_idx",
    "first_masked_key",
    "gather_kernel",
    "has_own_kernel",
    "how_kernels_run",
    "kernel_device",
    "keys_per_split",
    "launch_decode",
    "launch_prefill",
    "longest_first",
    "merge_kernel",
    "one_block_kernel",
    "online_softmax",
    "prefill_kernel",
    "prefill_tiles",
    "single_head_kernel",
    "softmax_kernel",
    "unmasked_softmax",
    "with_functions",
    "write_cache",
    "write_kernel",
]
