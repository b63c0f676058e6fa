"""Triton kernels. Importing this folder needs Triton; everything else in the course runs without it.

Read in this order: triton_setup, basics, simple_paged (lesson 07), paged_flash, launch, validation (08). interpreter and
compile_check run any kernel without a GPU; ablations removes one idea at a time from the fast kernels.
"""

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled or interpreted

# isort: split
from lessons_lib.kernels.triton_setup import how_kernels_run, kernel_device

from lessons_lib.kernels.ablations import VARIANTS, with_functions
from lessons_lib.kernels.basics import add_kernel, gather_kernel, softmax_kernel
from lessons_lib.kernels.launch import (
    FEWEST_KEYS_A_SPLIT,
    LOG2_E,
    MOST_KEYS_A_SPLIT,
    decode,
    decode_tiles,
    keys_a_split,
    launch_decode,
    launch_prefill,
    prefill_tiles,
)
from lessons_lib.kernels.paged_flash import (
    decode_kernel,
    merge_kernel,
    online_softmax,
    places_of,
    prefill_kernel,
    sequence_of,
)
from lessons_lib.kernels.simple_paged import (
    attend_blocks,
    decode_heads,
    decode_heads_kernel,
    one_head_kernel,
    write_cache,
    write_kernel,
)

__all__ = [
    "FEWEST_KEYS_A_SPLIT",
    "LOG2_E",
    "MOST_KEYS_A_SPLIT",
    "VARIANTS",
    "add_kernel",
    "attend_blocks",
    "decode",
    "decode_heads",
    "decode_heads_kernel",
    "decode_kernel",
    "decode_tiles",
    "gather_kernel",
    "how_kernels_run",
    "kernel_device",
    "keys_a_split",
    "launch_decode",
    "launch_prefill",
    "merge_kernel",
    "one_head_kernel",
    "online_softmax",
    "places_of",
    "prefill_kernel",
    "prefill_tiles",
    "sequence_of",
    "softmax_kernel",
    "with_functions",
    "write_cache",
    "write_kernel",
]
