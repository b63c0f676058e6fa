"""Lesson 06: which places of the pool one row wrote and which it read, as plain data for pictures and in words."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lessons_lib.attention.packing import PackedBatch
from lessons_lib.kv_cache.block_pool import BlockPool, BlockTable


@dataclass(frozen=True)
class PagedStep:
    """The places of one row. A place is a slot: block x block_size + offset.

    Attributes:
        num_blocks, block_size: of the pool.
        tables: request -> its blocks, in the order of its tokens, for the requests in the order of the row.
        written: request -> the slots of its new tokens, in the order of the tokens.
        context_lens: request -> tokens it has after the row; the attention of its last new token reads them all.
    """

    num_blocks: int
    block_size: int
    tables: dict[str, tuple[int, ...]]
    written: dict[str, tuple[int, ...]]
    context_lens: dict[str, int]

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        packed: PackedBatch,
        tables: list[BlockTable],
        slots: list[torch.Tensor],
        pool: BlockPool,
    ) -> "PagedStep":
        return cls(
            num_blocks=pool.num_blocks,
            block_size=pool.block_size,
            tables={name: tuple(table.blocks) for name, table in zip(names, tables)},
            written={name: tuple(own.tolist()) for name, own in zip(names, slots)},
            context_lens=dict(zip(names, packed.context_lens.tolist())),
        )

    def read(self, name: str) -> tuple[int, ...]:
        """The slots of all tokens of a request, in the order of its tokens: what its last new token attends to."""
        return tuple(
            self.tables[name][position // self.block_size] * self.block_size + position % self.block_size
            for position in range(self.context_lens[name])
        )


def paged_step_text(step: PagedStep) -> str:
    """A line for each request: where its new tokens were written, and which blocks were read."""
    lines = []
    for name, slots in step.written.items():
        blocks = ", ".join(map(str, step.tables[name]))
        lines.append(
            f"{name} writes {named_slots(slots)}; reads {step.context_lens[name]} tokens in block{'s' if len(step.tables[name]) > 1 else ''} {blocks}"
        )
    return "\n".join(lines)


def named_slots(slots: Sequence[int]) -> str:
    """Slots in words, neighbours together: "slot 12", "slots 4 to 7, 12"."""
    runs = [[slots[0], slots[0]]]
    for slot in slots[1:]:
        if slot == runs[-1][1] + 1:
            runs[-1][1] = slot
        else:
            runs.append([slot, slot])
    ranges = ", ".join(f"{first} to {last}" if first < last else str(first) for first, last in runs)
    return f"slot{'s' if len(slots) > 1 else ''} {ranges}"
