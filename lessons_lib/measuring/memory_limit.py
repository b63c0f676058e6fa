"""Lesson 13: a memory limit for tensors, so that a laptop runs out of memory as a GPU does: in the middle of a step."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OutOfMemory(MemoryError):
    """The live tensors would exceed the limit."""


class memory_limit(TorchDispatchMode):
    """Context manager that limits the total bytes of live tensors created inside; `peak`: their maximum.

    >>> with memory_limit(2**20) as memory:
    ...     torch.zeros(1000)
    >>> memory.peak
    4000
    """

    def __init__(self, limit: float):
        super().__init__()
        self.limit = limit
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        before = {_storage(leaf)._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = operator(*args, **kwargs)
        made = [_storage(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        made = [storage for storage in made if storage._cdata not in before]  # a view shares its tensor's storage
        if made:
            self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
            self._alive |= {storage._cdata: (StorageWeakRef(storage), storage.nbytes()) for storage in made}
            self.peak = max(self.peak, taken := sum(size for _, size in self._alive.values()))
            if taken > self.limit:
                raise OutOfMemory(
                    f"tensors would take {taken:,} bytes; the limit is {self.limit:,.0f}. "
                    "Use a smaller batch, or a smaller cache."
                )
        return result


def _storage(tensor):
    return tensor.untyped_storage()
