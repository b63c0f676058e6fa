"""Lesson 07: three small Triton kernels, before there is any attention in one."""

import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, length, BLOCK: tl.constexpr):
    """out = x + y. Program i computes the numbers i x BLOCK to (i + 1) x BLOCK - 1, as far as there are any.

    Args:
        x, y, out: pointers to the first of `length` numbers.
        BLOCK: numbers of one program, a power of two.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_number = place < length
    total = tl.load(x + place, mask=is_number) + tl.load(y + place, mask=is_number)
    tl.store(out + place, total, mask=is_number)


@triton.jit
def softmax_kernel(x, out, columns, stride_x, stride_out, COLUMNS: tl.constexpr):
    """Softmax of every row of a matrix. Program i has row i.

    Args:
        x, out: pointers to the first number of two matrices with `columns` columns.
        stride_x, stride_out: numbers from the beginning of one row to that of the next.
        COLUMNS: a power of two, at least `columns`.
    """
    row, column = tl.program_id(0), tl.arange(0, COLUMNS)
    is_column = column < columns
    scores = tl.load(x + row * stride_x + column, mask=is_column, other=float("-inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    tl.store(out + row * stride_out + column, weights / tl.sum(weights, axis=0), mask=is_column)


@triton.jit
def gather_kernel(source, index, out, columns, stride_source, stride_out, COLUMNS: tl.constexpr):
    """Row i of `out` becomes row index[i] of `source`. Program i has row i of `out`.

    Args:
        source, out: pointers to the first number of two matrices with `columns` columns.
        index: pointer to integers, one for each row of `out`.
        stride_source, stride_out: numbers from the beginning of one row to that of the next.
        COLUMNS: a power of two, at least `columns`.
    """
    row, column = tl.program_id(0), tl.arange(0, COLUMNS)
    is_column = column < columns
    wanted = tl.load(index + row)
    numbers = tl.load(source + wanted * stride_source + column, mask=is_column)
    tl.store(out + row * stride_out + column, numbers, mask=is_column)
