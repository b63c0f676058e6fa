"""The cases of 06.3: one sequence in scattered blocks; slots without a token of it are NaN."""

from dataclasses import dataclass

import torch

from lessons_lib.measuring.random_batches import random_row

HEAD_DIM = 4  # of `random_row`
LARGE, FAR = 20.0, 1e4  # elements of a query above which exponentials overflow, or scores are below any finite stand-in


@dataclass(frozen=True)
class Case:
    """One sequence in one layer. Slots without a token of it are NaN.

    Attributes:
        query: [new, q_heads, head_dim]; keys, values: [num_blocks, block_size, kv_heads, head_dim].
        blocks: its blocks, and perhaps more.
        words: the case as a learner reads it.
    """

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    blocks: list[int]
    num_tokens: int
    scale: float
    words: str

    @property
    def slots(self) -> list[int]:
        """The slot of each token."""
        size = self.keys.shape[1]
        return [self.blocks[position // size] * size + position % size for position in range(self.num_tokens)]


def make(
    lens: tuple[int, int], q_heads: int, kv_heads: int, block_size: int, spare: int, seed: int,
    larger: float = 1.0, dtype: torch.dtype = torch.float32,
) -> Case:  # fmt: skip
    row = random_row([lens], q_heads, kv_heads, block_size, seed, dtype=dtype)
    blocks = row.block_tables[0].tolist()
    words = f"{tokens_text(sum(lens))} in blocks {blocks} of {block_size}, "
    words += f"the last {lens[1] if lens[1] > 1 else 'one'} new"
    if spare:
        unused = [block for block in range(len(row.keys)) if block not in blocks][:spare]
        blocks += unused
        words += f"; `blocks` is {blocks}, longer than the sequence needs"
    words += f"; query heads: {q_heads}, KV heads: {kv_heads}"
    if larger != 1:
        words += f"; scores up to about {_largest_score(row) * larger:.0f}"
    words += f"; {str(dtype).removeprefix('torch.')}." if dtype != torch.float32 else "."
    return Case(row.query * larger, row.keys, row.values, blocks, sum(lens), row.scale, words)


def _largest_score(row) -> float:
    keys = row.keys.flatten(0, 1).nan_to_num(0.0)
    return float(torch.einsum("qhd,kgd->qhkg", row.query, keys).max()) * row.scale


def tokens_text(count: int) -> str:
    return f"{count} token{'s' if count > 1 else ''}"
