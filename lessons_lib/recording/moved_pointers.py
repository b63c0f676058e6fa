"""Lesson 07: the pointers of a recorded kernel, moved apart so that every address identifies its tensor."""

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
import numpy as np
import triton.language as tl

# Addresses of a process need 47 bits. While a kernel runs, the pointers to different tensors are this far apart, so an
# address identifies its tensor even if it is far out of range, and views of one storage differ.
APART = 1 << 50
# Their results aren't accessed through `tl.load` and `tl.store` of pointers.
UNNOTED = ("make_block_ptr", "make_tensor_descriptor")


def moved_back(original):
    """Wrap a function to be called with the original address."""

    @tl.core.builtin
    def called(base, *args, _semantic=None, **kwargs):
        return original(back(base), *args, _semantic=_semantic, **kwargs)

    return called


def back(pointer):
    """Undo `set_apart` for a pointer."""
    addresses = addresses_of(pointer)
    if addresses is None:
        return pointer
    addresses = addresses - tensor_numbers(addresses) * np.uint64(APART)
    return tl.tensor(type(pointer.handle)(addresses, pointer.handle.dtype, dict(pointer.handle.attr)), pointer.type)


def tensor_numbers(addresses: np.ndarray) -> np.ndarray:
    return (addresses + np.uint64(APART // 2)) // np.uint64(APART)


def addresses_of(pointer) -> np.ndarray | None:
    """The addresses in a tensor of pointers; None for block pointers, and for anything else."""
    if not isinstance(pointer, tl.tensor) or not pointer.type.scalar.is_ptr():
        return None
    return getattr(pointer.handle, "data", None)


def left_by(addresses: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The addresses that a mask keeps, and their indices in the flat tile; nothing if the shapes do not match."""
    try:
        addresses, mask = np.broadcast_arrays(addresses, mask)
    except ValueError:
        return addresses[:0].reshape(-1), np.arange(0)
    lanes = np.flatnonzero(mask)
    return addresses.reshape(-1)[lanes], lanes
