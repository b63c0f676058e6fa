"""Everything that watches a run so that it can be drawn or counted. Reference code never imports it.

trace is what the batching loops of lessons 00 to 06 did, step by step; the other modules record caches, packed batches, pools,
kernels and schedulers as plain data.
"""

from lessons_lib.recording.forward_passes import count_operators, watch_forwards
from lessons_lib.recording.kernel_accesses import OutOfBounds, Recorder, record_kernel
from lessons_lib.recording.mask_text import mask_text, read_pair, read_row
from lessons_lib.recording.memory_steps import recorded_step, serve_recorded
from lessons_lib.recording.packed_steps import packed_text
from lessons_lib.recording.paged_steps import paged_step_text
from lessons_lib.recording.softmax_steps import record_blocks

__all__ = [
    "OutOfBounds",
    "Recorder",
    "count_operators",
    "mask_text",
    "packed_text",
    "paged_step_text",
    "read_pair",
    "read_row",
    "record_blocks",
    "record_kernel",
    "recorded_step",
    "serve_recorded",
    "watch_forwards",
]
