"""Lesson 20: copies blocks of all layers to and from rows, which cross the bus in one piece."""

import triton
import triton.language as tl


@triton.jit
def move_kernel(staged, blocks, layers, starts, width, IS_STORE: tl.constexpr, BLOCK: tl.constexpr):
    """Copy blocks between all layers of a cache and rows of a staging area; a program copies one block of one layer.

    Args:
        staged: rows of `width` numbers.
        blocks: int64 [rows].
        layers: int64 [layers], the addresses of the cache's tensors.
        starts: int64 [layers + 1], where a layer's part of a row begins.
    """
    row, layer = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = tl.load(starts + layer)
    length = tl.load(starts + layer + 1) - start
    cached = tl.load(layers + layer).to(tl.pointer_type(staged.dtype.element_ty)) + tl.load(blocks + row) * length
    moved = staged + row * width + start
    for first in range(0, length, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < length
        if IS_STORE:
            tl.store(moved + at, tl.load(cached + at, mask=inside), mask=inside)
        else:
            tl.store(cached + at, tl.load(moved + at, mask=inside), mask=inside)
