"""Lesson 06: what one forward pass gets: the packed batch of lesson 05, where its keys and values are written, and
where they are read."""

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
        cu_seqlens_q: where each sequence begins in the row, and where the last one ends: cumulative lengths, int32
            [N + 1]. Tokens behind the last sequence, if there are any, are padding.
        context_lens: tokens of each sequence after this pass, those in the cache and the new ones, int32 [N].
        block_tables: the blocks of each sequence, those of the new tokens included, int32 [N, M]; what follows its last
            block is never read.
        logits_index: index in the row of each sequence's last token, int64 [N], and behind them of any other tokens
            whose logits are wanted.
        max_lens: upper bounds of the new tokens and of the context of any sequence, int64 [2]. Always on the CPU:
            reading them doesn't synchronize with a GPU.
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
        """A packed batch of at least one sequence over a paged cache.

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
        """The same batch on another device, behind all work that was started there. The host doesn't wait.

        Copies from page-locked memory run while the CPU goes on. That memory isn't reused before they are done, so
        nothing is overwritten.
        """
        if device.type == "cpu":
            return self
        tensors = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "max_lens"}
        if device.type == "cuda":
            tensors = {name: tensor if tensor.is_cuda else tensor.pin_memory() for name, tensor in tensors.items()}
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        return ForwardBatch(**moved, max_lens=self.max_lens)
