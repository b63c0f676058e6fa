"""Triton kernels. Importing this folder needs Triton; everything else in the course runs without it.

Read in this order: triton_setup, basics, simple_paged (lesson 07), group_decode, paged_flash, launch, validation (08),
race (12), write_pair (13). hopper_prefill needs Gluon, so it is imported only where it runs.
README.md says what the fast kernels have beyond lesson 08.
"""

import lessons_lib.kernels.triton_setup  # before Triton: decides whether kernels are compiled

# isort: split
from lessons_lib.kernels.triton_setup import how_kernels_run, kernel_device

from lessons_lib.kernels.group_decode import decode_groups, decode_groups_kernel, decode_splits, decode_splits_kernel
from lessons_lib.kernels.simple_paged import attend_blocks, decode_heads, decode_heads_kernel, single_head_kernel
