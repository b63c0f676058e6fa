"""Recorders of runs, for pictures and metrics. Reference code never imports them.

serving runs the loops of lessons 00 to 06 and returns a trace of their steps; the other modules record caches, packed
batches, pools, kernels and schedulers as plain data.
"""

from lessons_lib.recording.cache_growth import record_steps
from lessons_lib.recording.decode_inputs import decode_inputs
from lessons_lib.recording.forward_passes import attention_inputs, watch_forwards
from lessons_lib.recording.kernel_accesses import OutOfBounds, Recorder, record_kernel
from lessons_lib.recording.memory_steps import recorded_step, serve_recorded
from lessons_lib.recording.pool_states import pool_state, queue_state, replay, watch_paged_passes
from lessons_lib.recording.scheduled_steps import record_schedule
from lessons_lib.recording.serving import record_run
from lessons_lib.recording.softmax_steps import record_blocks
from lessons_lib.recording.trace import tokens_held
