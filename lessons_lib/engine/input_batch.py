"""Lesson 12: from a SchedulerOutput to a ForwardBatch, computed on the host in front of every forward pass."""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

from lessons_lib.attention.hf_backend import ForwardBatch
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


class BlockTables:
    """The block tables of the running sequences as rows of one array, so that a step rewrites only what has changed.

    Attributes:
        array: int32 [rows, width]. Row 0 is all null blocks, for padding.
        null_block: fills a row up; no sequence has it.
        max_num_seqs, max_blocks: the most sequences of a step, and the most blocks of one; if None, the array grows.
    """

    def __init__(self, null_block: int = 0, max_num_seqs: int | None = None, max_blocks: int | None = None):
        self.null_block, self.max_num_seqs, self.max_blocks = null_block, max_num_seqs, max_blocks
        self.reset()

    def reset(self, num_seqs: int = 8, num_blocks: int = 16) -> None:
        """Forget all rows, and make room for this number of sequences and blocks."""
        shape = 1 + (self.max_num_seqs or num_seqs), self.max_blocks or num_blocks
        self.array = np.full(shape, self.null_block, dtype=np.int32)
        self._row_of: dict[Sequence, int] = {}
        self._free = list(range(1, len(self.array)))
        # For each row, the list of blocks that it was copied from, and a copy: reading the array takes too long.
        self._source: list[list[int]] = [[] for _ in self.array]
        self._written: list[list[int]] = [[] for _ in self.array]

    def rows(self, sequences: Collection[Sequence], starts: Iterable[int]) -> list[int]:
        """The row of each sequence, up to date.

        Args:
            sequences: those of a step. Rows of any others may be overwritten.
            starts: for each, the index of the first block that the step writes to. As long as a sequence keeps its list
                of blocks, that block may have been replaced by a copy, and others appended. Blocks before it stay as
                they are, and aren't looked at: a long context has thousands.
        """
        longest = max((len(each.blocks) for each in sequences), default=0)
        if len(sequences) >= len(self.array) or longest > self.array.shape[1]:
            self.reset(2 * len(sequences), 2 * longest)
        rows = []
        for sequence, start in zip(sequences, starts):
            row, blocks = self._row_of.get(sequence), sequence.blocks
            if row is None:
                row = self._row_of[sequence] = self._take_row(sequences)
            written = self._written[row]
            if self._source[row] is not blocks:  # the sequence is new here, or was preempted and is back
                self._source[row], start = blocks, 0
                written.clear()
            if len(written) != len(blocks) or written[start] != blocks[start]:
                self.array[row, start : len(blocks)] = written[start:] = blocks[start:]
            rows.append(row)
        return rows

    def _take_row(self, wanted: Collection[Sequence]) -> int:
        if not self._free:
            self._free = [self._row_of.pop(other) for other in list(self._row_of) if other not in wanted]
        return self._free.pop()


def forward_batch(
    scheduler_output: SchedulerOutput, tables: BlockTables, block_size: int,
    previous_rows: Mapping[Sequence, int] | None = None, num_seqs: int | None = None, num_tokens: int | None = None,
    num_extra: int = 0,
) -> ForwardBatch:  # fmt: skip
    """The batch of a scheduled step, on the CPU, padded with sequences and tokens that nothing reads.

    Args:
        tables: keys and values of the padding are written to its null block.
        previous_rows: sequence -> its index in the step in flight; see `next_tokens`.
        num_seqs: number of sequences of the batch, at least those of the step; if None, no padding.
        num_tokens: number of tokens of the batch, at least those of the step. Those that are too many belong to no
            sequence, and sequences that are too many have no token. If None, each of them has one.
        num_extra: number of logits besides one of each sequence, at least those that are wanted; 0 for just those.
    """
    scheduled = scheduler_output.num_scheduled_tokens
    padding = 0 if num_seqs is None else num_seqs - len(scheduled)
    counts = np.array([*scheduled.values()] + [1 if num_tokens is None else 0] * padding)
    computed = np.array([sequence.num_computed_tokens for sequence in scheduled] + [0] * padding)
    contexts = computed + counts
    rows = tables.rows(scheduled, (computed // block_size).tolist()) + [0] * padding
    block_tables = tables.array.take(rows, axis=0)
    ends = counts.cumsum()
    seq_ids = np.arange(len(counts)).repeat(counts)
    positions = np.arange(ends[-1]) + (contexts - ends)[seq_ids]
    blocks, offsets = np.divmod(positions, block_size)
    input_ids = with_drafts(scheduler_output, next_tokens(scheduler_output, previous_rows or {}))
    logits_index = np.concatenate([ends - 1, *extra_logits_index(scheduler_output, ends[: len(scheduled)])])
    total = num_tokens or ends[-1]
    arrays = dict(
        input_ids=_filled_up(input_ids, total, 0),
        positions=_filled_up(positions, total, 0),
        slot_mapping=_filled_up(
            block_tables[seq_ids, blocks].astype(np.int64) * block_size + offsets, total, tables.null_block * block_size
        ),
        cu_seqlens_q=np.concatenate([[0], ends], dtype=np.int32),
        context_lens=contexts.astype(np.int32),
        block_tables=block_tables,
        logits_index=_filled_up(logits_index, max(len(logits_index), len(ends) + num_extra), 0),
        max_lens=np.array([counts.max(), contexts.max()]),
    )
    return ForwardBatch(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def _filled_up(numbers: Any, length: int, filling: int) -> np.ndarray[Any, Any]:
    filled = np.full(length, filling, dtype=np.int64)
    filled[: len(numbers)] = numbers
    return filled


def num_extra_logits(scheduler_output: SchedulerOutput, sequence: Sequence, start: int, count: int) -> int:
    """Number of logits that a step returns for a sequence, in addition to those after the last of the `count` tokens
    that it computes from position `start` on: in front of each guess, or after tokens of a prompt, if those are
    wanted."""
    if sequence in scheduler_output.drafts:
        return count - 1
    missing = len(sequence.prompt_ids) - 1 - start
    return max(0, min(count - 1, missing)) if sequence.prompt_logits else 0


def extra_logits_index(scheduler_output: SchedulerOutput, ends: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Indices of these tokens in the packed row, of all sequences that have any.

    Args:
        ends: where each sequence ends in the packed row.
    """
    if ends[-1] == len(ends):
        return []  # one token of each
    found = []
    for (sequence, count), end in zip(scheduler_output.num_scheduled_tokens.items(), ends):
        if extra := num_extra_logits(scheduler_output, sequence, sequence.num_computed_tokens, count):
            found.append(np.arange(end - count, end - count + extra))
    return found


def with_drafts(scheduler_output: SchedulerOutput, token_ids: list[int]) -> list[int]:
    """Insert the guesses of a step behind the last token of their sequences.

    Args:
        token_ids: see `next_tokens`.
    """
    if not scheduler_output.drafts:
        return token_ids
    found, known = [], iter(token_ids)
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        draft = scheduler_output.drafts.get(sequence, [])
        found += [*islice(known, count - len(draft)), *draft]
    return found


def next_tokens(scheduler_output: SchedulerOutput, previous_rows: Mapping[Sequence, int]) -> list[int]:
    """The tokens that a step computes, sequence after sequence, as many of each as are scheduled.

    Args:
        previous_rows: sequence -> its index in the step in flight, for all sequences of that step.

    Returns:
        list of int: token ids. For a token that the step in flight will produce: -1 - i, where i is the index of its
        sequence in that step.
    """
    tokens: list[int] = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start, output_ids = sequence.num_computed_tokens, sequence.output_ids
        index = start - len(sequence.prompt_ids)
        if count == 1 and index >= 0:  # a decode, as most are
            tokens.append(output_ids[index] if index < len(output_ids) else -1 - previous_rows[sequence])
        else:
            tokens += sequence.prompt_ids[start : start + count]
            tokens += output_ids[max(0, index) : max(0, index + count)]
    return tokens
