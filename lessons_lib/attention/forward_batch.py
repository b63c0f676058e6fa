"""Lesson 06: the input of one forward pass: lesson 05's packed batch, plus the cache slots to write and read."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lessons_lib.attention.packing import PackedBatch


@dataclass(frozen=True)
class ForwardBatch:
    """T new tokens of N sequences in one packed row, with the block tables of the sequences.

    Attributes:
        input_ids: the new tokens, int64 [T]. A negative id, -1 - i, stands for token i of the step in flight (lesson
            13).
        positions: position of each token in its own sequence, int64 [T].
        slot_mapping: the cache slot of each new token, block x block_size + offset, int64 [T].
        cu_seqlens_q: cumulative lengths: the start of each sequence in the row and the end of the last, int32 [N + 1].
            Any tokens after the last sequence are padding.
        context_lens: tokens of each sequence after this pass, cached and new, int32 [N].
        block_tables: blocks of each sequence, those of the new tokens included, int32 [N, M]; entries after its last
            block are never read.
        logits_index: row index of each sequence's last token, int64 [N], followed by those of any other tokens whose
            logits are wanted.
        max_lens: upper bounds of any sequence's new tokens and context, int64 [2]. Always on the CPU, so that reading
            them doesn't synchronize with a GPU.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    cu_seqlens_q: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    logits_index: torch.Tensor
    max_lens: torch.Tensor

    @classmethod
    def of(cls, packed: "PackedBatch", slot_mapping: torch.Tensor, block_tables: torch.Tensor) -> "ForwardBatch":
        """Build the batch from a packed batch of at least one sequence.

        Args:
            slot_mapping: int [T]. block_tables: int [N, M].
        """
        return cls(
            packed.input_ids,
            packed.positions,
            slot_mapping.long(),
            packed.cu_seqlens_q.int(),
            packed.context_lens.int(),
            block_tables.int(),
            packed.logits_index,
            torch.tensor([max(packed.new_lens), int(packed.context_lens.max())]),
        )

    @property
    def new_lens(self) -> list[int]:
        """New tokens of each sequence."""
        return self.cu_seqlens_q.diff().tolist()

    @property
    def cached_lens(self) -> list[int]:
        """Tokens of each sequence that are in the cache before this pass."""
        return (self.context_lens - self.cu_seqlens_q.diff()).tolist()

    def to(self, device: torch.device) -> "ForwardBatch":
        """Copy the batch to another device asynchronously, in stream order.

        PyTorch doesn't reuse the pinned memory before the copies are done.
        """
        if device.type == "cpu":
            return self
        tensors = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "max_lens"}
        if device.type == "cuda":
            tensors = {name: tensor if tensor.is_cuda else tensor.pin_memory() for name, tensor in tensors.items()}
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        return ForwardBatch(**moved, max_lens=self.max_lens)
