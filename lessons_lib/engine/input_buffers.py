"""Lesson 13: the inputs of a decode step at fixed addresses on the device, where CUDA graphs read them."""

import numpy as np
import torch

from lessons_lib.attention.forward_batch import ForwardBatch


class InputBuffers:
    """A batch of decodes at fixed addresses, read by the graphs of all captured sizes.

    What changes from step to step is one piece of memory, and is sent in one copy.

    Attributes:
        batch: ForwardBatch of the largest size; smaller graphs read the beginning of each tensor.
    """

    # As the batches that aren't captured: for other tensors, the model would be compiled once more.
    @torch.inference_mode()
    def __init__(self, max_num_seqs: int, table_width: int, block_size: int, device: torch.device):
        columns = {"input_ids": np.int64, "positions": np.int64, "slot_mapping": np.int64, "context_lens": np.int32}
        shapes = {name: (dtype, (max_num_seqs,)) for name, dtype in columns.items()} | {
            "block_tables": (np.int32, (max_num_seqs, table_width))
        }
        self._layout = np.dtype([(name, *each) for name, each in shapes.items()])
        self._sizes: dict[int, ForwardBatch] = {}
        self._memory = torch.zeros(self._layout.itemsize, dtype=torch.uint8, device=device)
        self.batch = ForwardBatch(
            **{name: self._view(name) for name in shapes},
            logits_index=torch.arange(max_num_seqs, device=device),
            cu_seqlens_q=torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device),
            # A graph launches its kernels for the longest context that a table has room for.
            max_lens=torch.tensor([1, table_width * block_size]),
        )

    def of_size(self, num_seqs: int) -> ForwardBatch:
        """The beginnings of the tensors: views, not copies."""
        if num_seqs not in self._sizes:
            beginnings = {name: tensor[:num_seqs] for name, tensor in vars(self.batch).items()}
            beginnings |= {"cu_seqlens_q": self.batch.cu_seqlens_q[: num_seqs + 1], "max_lens": self.batch.max_lens}
            self._sizes[num_seqs] = ForwardBatch(**beginnings)
        return self._sizes[num_seqs]

    def fill(self, batch: ForwardBatch) -> None:
        """Copy a batch of decodes there, behind all work that was started. One token of each: `cu_seqlens_q` never
        changes.

        Args:
            batch: on the CPU.
        """
        on_host = torch.empty_like(self._memory, device="cpu", pin_memory=self._memory.is_cuda)
        (record,) = on_host.numpy().view(self._layout)
        for name in self._layout.names or ():
            tensor = getattr(batch, name)
            record[name][: len(tensor)] = tensor.numpy()
        self._memory.copy_(on_host, non_blocking=True)

    def _view(self, name: str) -> torch.Tensor:
        dtype, offset = self._layout.fields[name][:2]  # type: ignore[index]
        return self._memory[offset : offset + dtype.itemsize].view(getattr(torch, dtype.base.name)).view(dtype.shape)
