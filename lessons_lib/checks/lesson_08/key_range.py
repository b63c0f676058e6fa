"""One call of 08.2's `attend_keys`: the case, and a kernel around it."""

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from lessons_lib.checks.diagnosis.kernels import refuse_other_tiles
from lessons_lib.checks.paged_sequence import PagedSequence
from lessons_lib.kernels.paged_flash import online_softmax

SCALE = 0.4


@dataclass(frozen=True)
class Case(PagedSequence):
    """One call: the keys from `start` to `end` - 1, 0 for all, `tile` per iteration."""

    start: int = 0
    end: int = 0
    tile: int = 16

    @property
    def block_m(self) -> int:
        return max(16, triton.next_power_of_2(self.rows))

    @property
    def range(self) -> tuple[int, int]:
        return self.start, self.end or self.tokens


@triton.jit
def range_kernel(
    ATTEND: tl.constexpr, q, k_cache, v_cache, table, out, lse, start, end, scale, stride_block, stride_slot,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row, dim = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    elements, is_row = row[:, None] * HEAD_DIM + dim[None, :], row < GROUP
    queries = tl.load(q + elements, mask=is_row[:, None], other=0.0)
    result = ATTEND(queries, k_cache, v_cache, table, start, end, scale, stride_block, stride_slot, BLOCK_SIZE, BLOCK_N)
    refuse_other_tiles(result, row_max=[BLOCK_M], row_sum=[BLOCK_M], acc=list(queries.shape))
    tl.store(out + elements, result[2] / result[1][:, None], mask=is_row[:, None])
    tl.store(lse + row, result[0] + tl.log2(result[1]), mask=is_row)


iterations: list[int] = []


@triton.jit
def counted_softmax(scores, row_max, row_sum, acc):
    iterations.append(1)  # only ever interpreted, where a kernel is Python
    return online_softmax(scores, row_max, row_sum, acc)


def launched_with(dtype: torch.dtype) -> tuple[tuple, dict]:
    """Arguments and constants of `decode_groups_kernel`, for the compiler."""
    q, cache = torch.zeros(2, 6, 16, dtype=dtype), torch.zeros(4, 8, 2, 16, dtype=dtype)
    tables, lens = torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    arguments = (q, cache, cache, tables, lens, q, SCALE, *q.stride()[:2], *cache.stride()[:3], tables.stride(0))
    return arguments, dict(GROUP=3, BLOCK_M=16, HEAD_DIM=16, BLOCK_SIZE=8, BLOCK_N=16)
