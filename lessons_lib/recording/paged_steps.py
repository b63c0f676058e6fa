"""Lesson 06: the cache slots that a forward pass wrote and read, as plain data for pictures and in words."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from lessons_lib.batching.paged_batching import PagedBatch
from lessons_lib.recording.words import runs_of_numbers


@dataclass(frozen=True)
class PagedStep:
    """The cache slots of one packed batch. A cache slot is block x block_size + offset.

    Attributes:
        num_blocks, block_size: sizes of the pool.
        tables: request -> its blocks in token order; requests in the order of the packed batch.
        written: request -> the cache slots of its new tokens, in order.
        context_lens: request -> its tokens after the pass; its last new token attends to them all.
    """

    num_blocks: int
    block_size: int
    tables: dict[str, tuple[int, ...]]
    written: dict[str, tuple[int, ...]]
    context_lens: dict[str, int]

    def read(self, name: str) -> tuple[int, ...]:
        """The cache slots of all tokens of a request, in order; its last new token attends to them."""
        return _slots_of(self.tables[name], self.block_size, 0, self.context_lens[name])


@contextmanager
def watch_paged_passes(batch: PagedBatch) -> Iterator[list[PagedStep]]:
    """Context manager that records the cache slots written and read by each forward pass of a batch.

    >>> with watch_paged_passes(batch) as passes:
    ...     paged_step(batch)
    >>> passes[0].written
    """
    passes: list[PagedStep] = []

    def before(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        tables = {request.id: batch.caches[request.id] for request in batch.running}
        size = batch.pool.block_size
        passes.append(
            PagedStep(
                num_blocks=batch.pool.num_blocks,
                block_size=size,
                tables={name: tuple(table.blocks) for name, table in tables.items()},
                written={
                    request.id: _slots_of(table.blocks, size, request.num_computed_tokens, table.num_tokens)
                    for request, table in zip(batch.running, tables.values())
                },
                context_lens={name: table.num_tokens for name, table in tables.items()},
            )
        )

    hook = batch.model.register_forward_pre_hook(before)
    try:
        yield passes
    finally:
        hook.remove()


def _slots_of(blocks: Sequence[int], block_size: int, start: int, end: int) -> tuple[int, ...]:
    """The cache slots of the positions from `start` up to `end`."""
    return tuple(blocks[position // block_size] * block_size + position % block_size for position in range(start, end))


def named_slots(slots: Sequence[int]) -> str:
    """Cache slots in words, neighbors together: "slot 12", "slots 4 to 7, 12"."""
    runs = runs_of_numbers(slots)
    ranges = ", ".join(f"{first} to {last}" if first < last else str(first) for first, last in runs)
    return f"slot{'s' if len(slots) > 1 else ''} {ranges}"
