"""Lesson 11: fork a running sequence into two that share their blocks."""

from dataclasses import replace

from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.shared_blocks import CopyOnWriteScheduler


def fork(scheduler: CopyOnWriteScheduler, sequence: Sequence, id: str) -> Sequence:
    """Start a second sequence with all tokens of a running one. They share every block until one of them writes.

    Raises:
        RuntimeError: the sequence isn't running, a step with it is in flight, or no batch slot is free; nothing
            changes.
    """
    if sequence not in scheduler.running or sequence.num_placeholders:
        raise RuntimeError(
            f"sequence {sequence.id!r} is not running, or has {sequence.num_placeholders} tokens in flight; only a "
            "running sequence can be forked, after `update`. Nothing changed."
        )
    if len(scheduler.running) >= scheduler.max_num_seqs:
        raise RuntimeError(
            f"all {scheduler.max_num_seqs} batch slots are taken, and fork {id!r} needs one; raise `max_num_seqs`, or "
            "wait until a sequence has finished. Nothing changed."
        )
    scheduler.pool.touch(sequence.blocks)
    child = replace(
        sequence,
        id=id,
        output_ids=list(sequence.output_ids),
        blocks=list(sequence.blocks),
        block_hashes=list(sequence.block_hashes),
        queue_place=None,
    )
    scheduler.running.append(child)
    return child
