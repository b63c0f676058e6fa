"""Lesson 13: from a SchedulerOutput to the tensors of a row: computed on the host, sent without waiting, where a graph reads them in fixed places."""

import numpy as np
import torch

from lessons_lib.attention.custom_op import RowInputs
from lessons_lib.engine.model_runner import tokens_of
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


class TableMirror:
    """The block tables of the running sequences as lines of one array, so that a step changes only what has changed.

    Attributes:
        tables: int32 [max_num_seqs + 1, width]; the last line has the spare block, for what fills up a row.
    """

    def __init__(self, max_num_seqs: int, width: int, null_block: int):
        self.max_num_seqs, self.width, self.null_block = max_num_seqs, width, null_block
        self.tables = np.full((max_num_seqs + 1, width), null_block, dtype=np.int32)
        self._lines: dict[Sequence, int] = {}
        self._written: list[list[int]] = [[] for _ in range(max_num_seqs)]
        self._free = list(reversed(range(max_num_seqs)))

    def lines(self, sequences) -> list[int]:
        """The line of each sequence, up to date.

        Args:
            sequences: those of a plan, `max_num_seqs` at most; a container that can be asked whether a sequence is in it.

        Raises:
            ValueError: there are too many sequences, or one holds more blocks than a line has room for.
        """
        if len(sequences) > self.max_num_seqs:
            raise ValueError(
                f"{len(sequences)} sequences, and room for {self.max_num_seqs}; give the runner the scheduler's max_num_seqs."
            )
        found = []
        for sequence in sequences:
            line = self._lines.get(sequence)
            if line is None:
                line = self._take(sequence, sequences)
            if self._written[line] != sequence.blocks:
                self._write(line, sequence)
            found.append(line)
        return found

    def _take(self, sequence: Sequence, wanted) -> int:
        if not self._free:
            for other in [other for other in self._lines if other not in wanted]:
                self._free.append(self._lines.pop(other))
        self._lines[sequence] = self._free.pop()
        return self._lines[sequence]

    def _write(self, line: int, sequence: Sequence) -> None:
        blocks = sequence.blocks
        if len(blocks) > self.width:
            raise ValueError(
                f"sequence {sequence.id!r} holds {len(blocks)} blocks, and a table has room for {self.width}; raise max_model_len."
            )
        self.tables[line, : len(blocks)] = blocks
        self._written[line] = list(blocks)


def row_arrays(
    scheduler_output: SchedulerOutput, mirror: TableMirror, block_size: int, num_rows: int
) -> dict[str, np.ndarray]:
    """The row of a plan, as arrays on the host, filled up with sequences of one token that nobody reads.

    Args:
        mirror: its spare block belongs to nobody. What the filling computes is written there.
        num_rows: how many sequences the row is to have, at least those of the plan.

    Returns:
        what RowInputs has, by name.
    """
    filling = num_rows - len(scheduler_output.num_scheduled_tokens)
    counts = np.array([*scheduler_output.num_scheduled_tokens.values()] + [1] * filling)
    contexts = counts + np.array(
        [sequence.num_computed_tokens for sequence in scheduler_output.num_scheduled_tokens] + [0] * filling
    )
    tables = mirror.tables.take(
        mirror.lines(scheduler_output.num_scheduled_tokens) + [mirror.max_num_seqs] * filling, axis=0
    )
    ends = counts.cumsum()
    seq_ids = np.arange(num_rows).repeat(counts)
    positions = np.arange(ends[-1]) + (contexts - ends)[seq_ids]
    blocks, offsets = np.divmod(positions, block_size)
    return dict(
        input_ids=np.array(next_tokens(scheduler_output) + [0] * filling, dtype=np.int64),
        positions=positions,
        slot_mapping=tables[seq_ids, blocks].astype(np.int64) * block_size + offsets,
        logits_index=ends - 1,
        cu_seqlens_q=np.concatenate([[0], ends], dtype=np.int32),
        context_lens=contexts.astype(np.int32),
        block_tables=tables,
        maxima=np.array([counts.max(), rounded_up(int(contexts.max()), mirror.width * block_size)]),
    )


def next_tokens(scheduler_output: SchedulerOutput) -> list[int]:
    """The tokens to compute, those of one sequence behind those of the other."""
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        place = sequence.num_computed_tokens - len(sequence.prompt_ids)
        if count == 1 and place >= 0:  # a decode, as most are
            tokens.append(sequence.output_ids[place])
        else:
            tokens += tokens_of(sequence, count)
    return tokens


def rounded_up(longest: int, room: int) -> int:
    """A power of two: the decode kernel is compiled for the number of pieces that a context is cut into, and so that need not be often.

    Args:
        longest: tokens of the longest context. room: the most that a table has room for.
    """
    return min(room, max(512, 1 << (longest - 1).bit_length()))


def send_row(arrays: dict[str, np.ndarray], device: torch.device) -> RowInputs:
    """To the device, behind all work that has been started, without waiting: a copy out of page-locked memory runs beside the CPU.

    Page-locked memory is not handed out again before the copies out of it are done, so nothing is overwritten under way. `maxima` stay here.
    """

    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    maxima = tensors.pop("maxima")
    if device.type == "cuda":
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    return RowInputs(**{name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}, maxima=maxima)


class InputBuffers:
    """A row of decodes in fixed places of the device's memory, where the graphs of all sizes read.

    What changes from step to step lies in one piece, and is sent in one copy.

    Attributes:
        row: RowInputs for the largest size; smaller graphs read the beginning of each tensor.
    """

    @torch.inference_mode()  # as the rows that are not captured: for other tensors, the model would be compiled once more
    def __init__(self, max_rows: int, table_width: int, block_size: int, device: torch.device):
        lines = {"input_ids": np.int64, "positions": np.int64, "slot_mapping": np.int64, "context_lens": np.int32}
        shapes = {name: (dtype, (max_rows,)) for name, dtype in lines.items()} | {
            "block_tables": (np.int32, (max_rows, table_width))
        }
        self._layout = np.dtype([(name, *each) for name, each in shapes.items()])
        self._sizes: dict[int, RowInputs] = {}
        self._memory = torch.zeros(self._layout.itemsize, dtype=torch.uint8, device=device)
        self.row = RowInputs(
            **{name: self._piece(name) for name in shapes},
            logits_index=torch.arange(max_rows, device=device),
            cu_seqlens_q=torch.arange(max_rows + 1, dtype=torch.int32, device=device),
            # A graph is launched with what it was captured with: for any context that a table has room for.
            maxima=torch.tensor([1, table_width * block_size]),
        )

    def of_size(self, num_rows: int) -> RowInputs:
        """The beginnings of the tensors: views, not copies."""
        if num_rows not in self._sizes:
            beginnings = {name: tensor[:num_rows] for name, tensor in vars(self.row).items()}
            beginnings |= {"cu_seqlens_q": self.row.cu_seqlens_q[: num_rows + 1], "maxima": self.row.maxima}
            self._sizes[num_rows] = RowInputs(**beginnings)
        return self._sizes[num_rows]

    def fill(self, arrays: dict[str, np.ndarray]) -> None:
        """Put a row of decodes there, behind all work that has been started. Where each sequence lies in the row is always the same."""
        on_host = torch.empty_like(self._memory, device="cpu", pin_memory=self._memory.is_cuda)
        (places,) = on_host.numpy().view(self._layout)
        for name in self._layout.names:
            places[name][: len(arrays[name])] = arrays[name]
        self._memory.copy_(on_host, non_blocking=True)

    def _piece(self, name: str) -> torch.Tensor:
        dtype, offset = self._layout.fields[name]
        return self._memory[offset : offset + dtype.itemsize].view(getattr(torch, dtype.base.name)).view(dtype.shape)
