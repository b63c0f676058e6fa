"""Counts the operators that PyTorch runs, and the memory that they take: a loop or a copy shows in how they grow."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """While active, counts operators, and notes the largest tensor of floats that one of them makes.

    Args:
        cache: tensors whose views don't count: they are no new memory.

    Attributes:
        count: how many operators ran.
        shape, size: of the largest tensor, and its number of elements.
    """

    def __init__(self, *cache: torch.Tensor):
        super().__init__()
        self.count, self.shape, self.size = 0, [0], 0
        self.known = {tensor.untyped_storage().data_ptr() for tensor in cache}

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operator(*args, **(kwargs or {}))
        self.count += 1
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            is_new = isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.known
            if is_new and tensor.is_floating_point() and tensor.numel() > self.size:
                self.shape, self.size = list(tensor.shape), tensor.numel()
        return out
