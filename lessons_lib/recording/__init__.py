"""Recorders of runs, for pictures and metrics. Reference code never imports them.

serving runs the loops of lessons 00 to 06 and returns a trace of their steps; the other modules record caches, packed
batches, pools, kernels and schedulers as plain data.
"""

from lessons_lib.recording.cache_growth import CacheStep, record_steps
from lessons_lib.recording.decode_inputs import decode_inputs
from lessons_lib.recording.forward_passes import attention_inputs, count_operators, watch_forwards
from lessons_lib.recording.fragmentation import (
    contiguous_use,
    counted_in_blocks,
    final_tokens,
    tokens_held,
)
from lessons_lib.recording.kernel_accesses import OutOfBounds, Recorder, record_kernel
from lessons_lib.recording.mask_text import mask_text, read_pair, read_row
from lessons_lib.recording.memory_steps import recorded_step, serve_recorded
from lessons_lib.recording.packed_steps import PackedStep
from lessons_lib.recording.paged_steps import PagedStep, watch_paged_passes
from lessons_lib.recording.pool_states import pool_state, replay
from lessons_lib.recording.queue_states import QueueState, queue_state
from lessons_lib.recording.scheduled_steps import record_schedule
from lessons_lib.recording.serving import RecordedRun, record_run
from lessons_lib.recording.softmax_steps import record_blocks
from lessons_lib.recording.trace import RowWork, Step, Trace

__all__ = [
    "CacheStep",
    "OutOfBounds",
    "PackedStep",
    "PagedStep",
    "QueueState",
    "RecordedRun",
    "Recorder",
    "RowWork",
    "Step",
    "Trace",
    "attention_inputs",
    "contiguous_use",
    "count_operators",
    "counted_in_blocks",
    "decode_inputs",
    "final_tokens",
    "mask_text",
    "pool_state",
    "queue_state",
    "read_pair",
    "read_row",
    "record_blocks",
    "record_kernel",
    "record_run",
    "record_schedule",
    "record_steps",
    "recorded_step",
    "replay",
    "serve_recorded",
    "tokens_held",
    "watch_forwards",
    "watch_paged_passes",
]
