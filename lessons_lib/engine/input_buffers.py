"""Lesson 13: the inputs of a step at fixed addresses on the device, where CUDA graphs read them."""

import numpy as np
import torch

from lessons_lib.attention.hf_backend import ForwardBatch
from lessons_lib.engine.cuda_graphs import GraphSize

OF_TOKENS = ("input_ids", "positions", "slot_mapping")


class InputBuffers:
    """A batch at fixed addresses, read by the graphs of all captured sizes.

    A batch is one piece of memory, and is sent in one copy. Smaller graphs read the beginning of each tensor.
    """

    # As for batches that aren't captured: for other tensors, the model would be compiled once more.
    @torch.inference_mode()
    def __init__(self, num_seqs: int, num_tokens: int, table_width: int, block_size: int, device: torch.device):
        """
        Args:
            num_seqs, num_tokens: the most sequences and tokens of a batch.
        """
        # Tensors of 8-byte elements come first, so that each one begins at a multiple of its element size.
        shapes = dict.fromkeys(OF_TOKENS, (np.int64, (num_tokens,))) | {
            "logits_index": (np.int64, (num_seqs + num_tokens,)),
            "context_lens": (np.int32, (num_seqs,)),
            "block_tables": (np.int32, (num_seqs, table_width)),
            "cu_seqlens_q": (np.int32, (num_seqs + 1,)),
        }
        self.num_tokens, self.block_size, self.longest = num_tokens, block_size, table_width * block_size
        self._layout = np.dtype([(name, *each) for name, each in shapes.items()])
        self._memory = torch.zeros(self._layout.itemsize, dtype=torch.uint8, device=device)
        self._sizes: dict[GraphSize, ForwardBatch] = {}

    @torch.inference_mode()
    def of_size(self, size: GraphSize) -> ForwardBatch:
        """The inputs of a graph: views of the memory, and the same ones at each call."""
        if size not in self._sizes:
            num_seqs, num_tokens = size.num_seqs, size.num_tokens or size.num_seqs
            self._sizes[size] = ForwardBatch(
                **{name: self._view(name, num_tokens) for name in OF_TOKENS},
                context_lens=self._view("context_lens", num_seqs),
                block_tables=self._view("block_tables", num_seqs),
                cu_seqlens_q=self._view("cu_seqlens_q", num_seqs + 1),
                logits_index=self._view("logits_index", num_seqs + size.num_extra),
                # Bounds: a graph's kernels start programs for the longest context, and those without keys exit.
                max_lens=torch.tensor([self.num_tokens if size.num_tokens else 1, self.longest]),
            )
        return self._sizes[size]

    def fill(self, batch: ForwardBatch) -> None:
        """Copy a batch there, behind all work that was started.

        Args:
            batch: on the CPU.
        """
        on_host = torch.empty_like(self._memory, device="cpu", pin_memory=self._memory.is_cuda)
        (record,) = on_host.numpy().view(self._layout)
        for name in self._layout.names or ():
            tensor = getattr(batch, name)
            record[name][: len(tensor)] = tensor.numpy()
        self._memory.copy_(on_host, non_blocking=True)

    @torch.inference_mode()
    def advance(self, size: GraphSize, tokens: torch.Tensor) -> None:
        """Make the batch that is there the decode behind it, on the device: one more token of each sequence, those that
        were drawn for them, int64 [size.num_seqs or more]."""
        batch = self.of_size(size)
        positions = batch.positions.copy_(batch.context_lens)
        blocks = batch.block_tables.gather(1, positions[:, None] // self.block_size)[:, 0]
        batch.slot_mapping.copy_(blocks * self.block_size + positions % self.block_size)
        batch.input_ids.copy_(tokens[: size.num_seqs])
        batch.context_lens.add_(1)
        torch.arange(size.num_seqs, out=batch.logits_index)
        torch.arange(size.num_seqs + 1, out=batch.cu_seqlens_q)

    def _view(self, name: str, length: int) -> torch.Tensor:
        dtype, offset = self._layout.fields[name][:2]  # type: ignore[index]
        own = self._memory[offset : offset + dtype.itemsize].view(getattr(torch, dtype.base.name)).view(dtype.shape)
        # As a tensor of its own: for a view into another one, the model would be compiled once more.
        return torch.from_dlpack(own)[:length]
