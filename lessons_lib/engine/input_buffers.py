"""Lesson 13: the inputs of a step at fixed addresses on the device, where CUDA graphs read them."""

import numpy as np
import torch

from lessons_lib.attention.hf_backend import ForwardBatch
from lessons_lib.engine.cuda_graphs import GraphSize

OF_TOKENS = ("input_ids", "positions", "slot_mapping")
OF_SEQUENCES = ("context_lens", "block_tables", "logits_index")


class InputBuffers:
    """A batch at fixed addresses, read by the graphs of all captured sizes: of decodes, or of any steps.

    What changes from step to step is one piece of memory, and is sent in one copy.

    Attributes:
        batch: ForwardBatch of the largest size; smaller graphs read the beginning of each tensor.
    """

    # As the batches that aren't captured: for other tensors, the model would be compiled once more.
    @torch.inference_mode()
    def __init__(
        self,
        max_num_seqs: int,
        table_width: int,
        block_size: int,
        device: torch.device,
        max_num_tokens: int | None = None,
    ):
        """
        Args:
            max_num_tokens: the most tokens of a batch. If None, each sequence has one, so where it begins is known, and
                not sent.
        """
        num_tokens = max_num_tokens or max_num_seqs
        # What takes 8 bytes comes first, so that everything begins at a multiple of its own size.
        shapes: dict[str, tuple[type, tuple[int, ...]]] = {}
        shapes |= dict.fromkeys(OF_TOKENS, (np.int64, (num_tokens,)))
        if max_num_tokens:
            shapes["logits_index"] = (np.int64, (max_num_seqs,))
        shapes |= {"context_lens": (np.int32, (max_num_seqs,)), "block_tables": (np.int32, (max_num_seqs, table_width))}
        if max_num_tokens:
            shapes["cu_seqlens_q"] = (np.int32, (max_num_seqs + 1,))
        self._layout = np.dtype([(name, *each) for name, each in shapes.items()])
        self._sizes: dict[GraphSize, ForwardBatch] = {}
        self._memory = torch.zeros(self._layout.itemsize, dtype=torch.uint8, device=device)
        starts = {
            "logits_index": torch.arange(max_num_seqs, device=device),
            "cu_seqlens_q": torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device),
        }
        self.batch = ForwardBatch(
            **starts | {name: self._view(name) for name in shapes},
            # A graph launches its kernels for the longest context that a table has room for.
            max_lens=torch.tensor([max_num_tokens or 1, table_width * block_size]),
        )

    def of_size(self, size: GraphSize) -> ForwardBatch:
        """The beginnings of the tensors: views, not copies."""
        if size not in self._sizes:
            num_seqs, batch = size.num_seqs, self.batch
            num_tokens = size.num_tokens or num_seqs
            of_tokens = {name: getattr(batch, name)[:num_tokens] for name in OF_TOKENS}
            of_seqs = {name: getattr(batch, name)[:num_seqs] for name in OF_SEQUENCES}
            self._sizes[size] = ForwardBatch(
                **of_tokens, **of_seqs, cu_seqlens_q=batch.cu_seqlens_q[: num_seqs + 1], max_lens=batch.max_lens
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

    def _view(self, name: str) -> torch.Tensor:
        dtype, offset = self._layout.fields[name][:2]  # type: ignore[index]
        own = self._memory[offset : offset + dtype.itemsize].view(getattr(torch, dtype.base.name)).view(dtype.shape)
        # The same memory as the beginning of a tensor of its own. Otherwise the model would be compiled once more, for
        # tensors that begin somewhere in another one.
        return torch.from_dlpack(own)
