"""Lesson 07: a small Triton kernel to start with. A tensor argument reaches it as a pointer to its first element."""

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
