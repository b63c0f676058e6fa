"""Lesson 07: two small Triton kernels to start with: elementwise addition and a row softmax.

A tensor argument reaches a kernel as a pointer to its first element. Strides count elements, and rows are contiguous
(stride 1 along a row).
"""

import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n_elements, BLOCK: tl.constexpr):
    """out = x + y. Program i computes elements i * BLOCK to (i + 1) * BLOCK - 1, up to the last.

    Args:
        x, y, out: pointers to contiguous tensors with at least `n_elements` elements, all of one floating-point dtype.
        n_elements: elements to add; later elements of the tensors stay untouched.
        BLOCK: elements per program, a power of two.
    """
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, total, mask=mask)


@triton.jit
def softmax_kernel(x, out, columns, stride_x, stride_out, COLUMNS: tl.constexpr):
    """Softmax of each row of a matrix. Program i computes row i.

    Args:
        x, out: pointers to matrices [rows, columns], float32.
        columns: elements per row.
        stride_x, stride_out: elements from the start of one row to the start of the next.
        COLUMNS: a power of two, at least `columns`.
    """
    row, column = tl.program_id(0), tl.arange(0, COLUMNS)
    mask = column < columns
    scores = tl.load(x + row * stride_x + column, mask=mask, other=float("-inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    tl.store(out + row * stride_out + column, weights / tl.sum(weights, axis=0), mask=mask)
