"""The rows of a batch: padded, in slots, or packed."""

from lessons_lib.viz.batches.packed_row import draw_packed_step
from lessons_lib.viz.batches.padded_batch import draw_padded_batch
from lessons_lib.viz.batches.slot_rows import draw_slot_rows
