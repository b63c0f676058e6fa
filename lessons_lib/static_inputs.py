"""Lesson 11: from a StepPlan to the tensors of a row: reckoned on the host, sent without waiting, where a graph reads them in fixed places."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from lessons_lib.paged_operator import RowInputs
from lessons_lib.scheduler import StepPlan
from lessons_lib.sequence import Sequence

UNKNOWN = -1  # a place in an answer whose token the GPU has chosen and the host has not seen


class TableMirror:
    """The block tables of the running sequences as lines of one array, so that a step changes only what has changed.

    Attributes:
        tables: int32 [max_num_seqs, width].
    """

    def __init__(self, max_num_seqs: int, width: int):
        self.tables = np.zeros((max_num_seqs, width), dtype=np.int32)
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
        if len(sequences) > len(self.tables):
            raise ValueError(f"{len(sequences)} sequences, and room for {len(self.tables)}; give the runner the scheduler's max_num_seqs.")
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
        blocks, width = sequence.blocks, self.tables.shape[1]
        if len(blocks) > width:
            raise ValueError(f"sequence {sequence.id!r} holds {len(blocks)} blocks, and a table has room for {width}; make max_model_len larger.")
        self.tables[line, : len(blocks)] = blocks
        self._written[line] = list(blocks)


def row_arrays(plan: StepPlan, mirror: TableMirror, block_size: int, places: dict[Sequence, int], spare_block: int, num_rows: int) -> RowInputs:
    """The row of a plan, as tensors on the host, filled up with sequences of one token that nobody reads.

    Args:
        places: sequence -> its number in the step before.
        spare_block: a block that belongs to nobody. What the filling computes is written there.
        num_rows: how many sequences the row is to have, at least those of the plan.
    """
    filling = num_rows - len(plan.counts)
    counts = np.array([*plan.counts.values(), *[1] * filling])
    starts = np.array([*(sequence.num_computed_tokens for sequence in plan.counts), *[0] * filling])
    tokens = next_tokens(plan, places) + [0] * filling
    tables = np.full((num_rows, mirror.tables.shape[1]), spare_block, dtype=np.int32)
    tables[: num_rows - filling] = mirror.tables[mirror.lines(plan.counts)]
    ends = counts.cumsum()
    seq_ids = np.arange(num_rows).repeat(counts)
    positions = np.arange(ends[-1]) + (starts + counts - ends)[seq_ids]
    slots = tables[seq_ids, positions // block_size].astype(np.int64) * block_size + positions % block_size
    arrays = dict(
        input_ids=np.array(tokens, dtype=np.int64),
        positions=positions,
        slot_mapping=slots,
        logits_index=ends - 1,
        cu_seqlens_q=np.concatenate([[0], ends]).astype(np.int32),
        context_lens=(starts + counts).astype(np.int32),
        block_tables=tables,
        maxima=np.array([counts.max(), rounded_up(int((starts + counts).max()), tables.shape[1] * block_size)]),
    )
    return RowInputs(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def next_tokens(plan: StepPlan, places: dict[Sequence, int]) -> list[int]:
    """The tokens to compute; for one that the host has not seen, -1 - i, if it was chosen for sequence i of the step before."""
    tokens = []
    for sequence, count in plan.counts.items():
        start = sequence.num_computed_tokens
        done = start - len(sequence.prompt_ids)
        if done >= 0:
            tokens += sequence.output_ids[done : done + count]
        else:
            tokens += [*sequence.prompt_ids[start : start + count], *sequence.output_ids[: max(0, done + count)]]
        if tokens[-1] == UNKNOWN:
            tokens[-1] = -1 - places[sequence]
    return tokens


def rounded_up(longest: int, room: int) -> int:
    """A power of two: the decode kernel is compiled for the number of pieces that a context is cut into, and so that need not be often.

    Args:
        longest: tokens of the longest context. room: the most that a table has room for.
    """
    return min(room, max(512, 1 << (longest - 1).bit_length()))


def copy_without_waiting(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """From the host to a tensor on the device, behind all work that has been started: a copy out of page-locked memory runs beside the CPU.

    Page-locked memory is not handed out again before the copies out of it are done, so nothing is overwritten under way.
    """
    return target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)


def send_row(row: RowInputs, device: torch.device) -> RowInputs:
    """All of a row but `maxima`, which stay on the host."""
    sent = {name: copy_without_waiting(tensor, torch.empty_like(tensor, device=device)) for name, tensor in vars(row).items()}
    return RowInputs(**sent | {"maxima": row.maxima})


@dataclass(frozen=True)
class StaticInputs:
    """A row of decodes in fixed places of the device's memory, where the graphs of all sizes read.

    Attributes:
        row: RowInputs for the largest size; smaller graphs read the beginning of each tensor.
    """

    row: RowInputs

    @classmethod
    def make(cls, max_rows: int, table_width: int, block_size: int, device: torch.device) -> "StaticInputs":
        def line(dtype):
            return torch.zeros(max_rows, dtype=dtype, device=device)

        return cls(
            RowInputs(
                input_ids=line(torch.int64),
                positions=line(torch.int64),
                slot_mapping=line(torch.int64),
                logits_index=torch.arange(max_rows, device=device),
                cu_seqlens_q=torch.arange(max_rows + 1, dtype=torch.int32, device=device),
                context_lens=torch.ones(max_rows, dtype=torch.int32, device=device),
                block_tables=torch.zeros(max_rows, table_width, dtype=torch.int32, device=device),
                # A graph is launched with what it was captured with: for any context that a table has room for.
                maxima=torch.tensor([1, table_width * block_size]),
            )
        )

    def of_size(self, num_rows: int) -> RowInputs:
        """The beginnings of the tensors: views, not copies."""
        bounds, maxima = self.row.cu_seqlens_q[: num_rows + 1], self.row.maxima
        return replace(RowInputs(**{name: tensor[:num_rows] for name, tensor in vars(self.row).items()}), cu_seqlens_q=bounds, maxima=maxima)

    def fill(self, row: RowInputs) -> None:
        """Put a row of decodes there. Where each sequence begins and ends in the row is always the same."""
        target = self.of_size(len(row.context_lens))
        for name in ("input_ids", "positions", "slot_mapping", "context_lens", "block_tables"):
            copy_without_waiting(getattr(row, name), getattr(target, name))
