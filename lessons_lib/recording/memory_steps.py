"""Lessons 10 and 11: the pool in every step of a run under memory pressure, as plain data for pictures."""

from collections.abc import Iterable
from dataclasses import dataclass

from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kv_cache.block_copies import BlockCopy, copy_blocks
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.sequence import Sequence


@dataclass(frozen=True)
class MemoryStep:
    """One step and the state of the pool after it. Sequences that finished in it no longer have blocks.

    Attributes:
        owners, filled: block in use -> ids of the sequences that use it; number of computed tokens in it.
        cached: free blocks that can still be found by their hashes.
        swapped: id -> blocks in the swap space, for swapped-out sequences.
        counts: id -> number of tokens computed in the step, in the order of the packed batch.
        admitted, preempted, finished: ids of the sequences admitted, preempted and finished in the step.
        swapped_out, swapped_in: ids of those whose blocks were copied out or in.
        waiting: ids in queue order.
        block_copies: copies made before the forward pass.
        hits: id -> tokens found in the prefix cache at admission, if any.
        evicted: cached blocks that were evicted since the start of the run.
    """

    index: int
    num_blocks: int
    block_size: int
    owners: dict[int, tuple[str, ...]]
    filled: dict[int, int]
    cached: frozenset[int]
    swapped: dict[str, tuple[int, ...]]
    num_swap_blocks: int
    counts: dict[str, int]
    admitted: tuple[str, ...]
    preempted: tuple[str, ...]
    finished: tuple[str, ...]
    swapped_out: tuple[str, ...]
    swapped_in: tuple[str, ...]
    waiting: tuple[str, ...]
    block_copies: tuple[BlockCopy, ...]
    hits: dict[str, int]
    evicted: int


def serve_recorded(
    runner: ModelRunner, scheduler: PreemptiveScheduler, sequences: Iterable[Sequence],
    swap_cache: PagedKVCache | None = None, first_index: int = 0,
) -> list[MemoryStep]:  # fmt: skip
    """Serve all sequences greedily, and audit the pool after every step. Their answers are in `output_ids` afterwards.

    Args:
        runner: runner with as many cache blocks as the scheduler's pool.
        swap_cache: keys and values of the swap space; needed if a sequence may be swapped out.
        first_index: index of the first step, for a continued run.

    Raises:
        BadRequest, OutOfBlocks: see `scheduler.add`.
        LostBlocks: the pool and the sequences disagree.
    """
    for sequence in sequences:
        scheduler.add(sequence)
    steps: list[MemoryStep] = []
    while scheduler.has_unfinished():
        steps.append(recorded_step(runner, scheduler, swap_cache, first_index + len(steps)))
    return steps


def recorded_step(
    runner: ModelRunner, scheduler: PreemptiveScheduler, swap_cache: PagedKVCache | None = None, index: int = 0
) -> MemoryStep:
    """Run one step of `serve_recorded`. Between steps, sequences may be added, forked or removed."""
    pool, were_out = scheduler.pool, _ids(one for one in scheduler.waiting if one.swapped)
    output = scheduler.schedule()
    are_out = _ids(one for one in scheduler.waiting if one.swapped)
    copy_blocks(output.block_copies, runner.cache, swap_cache)
    finished = scheduler.update(output, runner.forward(output).argmax(dim=-1).tolist())
    audit(scheduler)
    owners: dict[int, tuple[str, ...]] = {}
    filled: dict[int, int] = {}
    sequences = [*scheduler.running, *scheduler.waiting]
    for sequence in sequences:
        for index_in_table, block in enumerate(sequence.blocks):
            tokens = min(sequence.num_computed_tokens - index_in_table * pool.block_size, pool.block_size)
            owners[block] = (*owners.get(block, ()), sequence.id)
            filled[block] = max(filled.get(block, 0), tokens)
    admitted, preempted = _ids(output.admitted), _ids(output.preempted)
    return MemoryStep(
        index=index,
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        owners=owners,
        filled=filled,
        cached=frozenset(block for block in pool.free_queue if block in pool.block_to_hash),
        swapped={sequence.id: tuple(sequence.swapped) for sequence in sequences if sequence.swapped},
        num_swap_blocks=scheduler.swap_space.num_blocks,
        counts={sequence.id: count for sequence, count in output.num_scheduled_tokens.items()},
        admitted=admitted,
        preempted=preempted,
        finished=_ids(finished),
        swapped_out=tuple(id for id in preempted if id in are_out),
        swapped_in=tuple(id for id in admitted if id in were_out),
        waiting=_ids(scheduler.waiting),
        block_copies=tuple(output.block_copies),
        hits={sequence.id: tokens for sequence, tokens in output.cached.items()},
        evicted=pool.evicted,
    )


def _ids(sequences: Iterable[Sequence]) -> tuple[str, ...]:
    return tuple(sequence.id for sequence in sequences)
