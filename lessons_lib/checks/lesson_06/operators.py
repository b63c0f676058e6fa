"""What a right result doesn't show: loops, copies that grow with the context, and reads of slots without a token."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.measuring.random_batches import random_row

PICKS = ("index", "index_select", "gather", "take", "masked_select", "embedding")  # they read what they return
NO_READ = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_")


class Operators(TorchDispatchMode):
    """While active, watches the operators that PyTorch runs.

    Args:
        cache: tensors whose views are no new memory. Slots without a token are NaN.

    Attributes:
        count: how many operators ran.
        shape, size: of the largest new tensor of floats, and its number of elements.
        reads_unused: the first operator that computes with a part of the cache in which a slot has no token.
    """

    def __init__(self, *cache: torch.Tensor):
        super().__init__()
        self.count, self.shape, self.size, self.reads_unused = 0, [0], 0, ""
        self.cache = {tensor.untyped_storage().data_ptr() for tensor in cache}

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        self.count += 1
        out, views = self._floats(result)
        for tensor in out:
            if tensor.numel() > self.size:
                self.shape, self.size = list(tensor.shape), tensor.numel()
        name = operator.__name__.split(".")[0]
        _, sources = self._floats((args, kwargs))
        read = out if sources and name in PICKS else sources
        if not views and not name.startswith(NO_READ) and any(bool(tensor.isnan().any()) for tensor in read):
            self.reads_unused = self.reads_unused or name.strip("_")
        return result

    def _floats(self, found: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """(new tensors of floats, parts of the cache)."""
        floats = [each for each in tree_leaves(found) if isinstance(each, torch.Tensor) and each.is_floating_point()]
        parts = [each for each in floats if each.untyped_storage().data_ptr() in self.cache]
        return [each for each in floats if not any(each is part for part in parts)], parts


def one_block_at_a_time(attempt: Callable) -> None:
    """No tensor may grow with the number of blocks. With two KV heads, even a copy of one head's keys is new memory."""
    current_case.text = case = "120 tokens in 30 blocks of 4, one of them new; query heads: 4, KV heads: 2."
    sizes = []
    for count in (3, 30):
        row = random_row([(count * 4 - 1, 1)], 4, 2, 4, seed=22, dtype=torch.float64)  # `.float()` copies
        with Operators(row.keys, row.values) as largest:
            attempt(row.query, row.keys, row.values, row.block_tables[0].tolist(), count * 4, row.scale)
        sizes.append(largest)
    if sizes[1].size > 2 * sizes[0].size:
        raise Mistake(
            f"your code made a tensor of shape {sizes[1].shape} for 30 blocks, and none larger than {sizes[0].shape} "
            "for 3 blocks.",
            case=case,
            idea="No tensor of keys, values or scores may grow with the context. `keys[block]` with one integer is a "
            "view; a list of blocks, `torch.cat`, `.contiguous()`, a row of all scores and a float mask over all keys "
            "are new memory. Add one block to the state, then forget its scores.",
        )


def reads_filled_slots_only(attempt: Callable) -> None:
    row = random_row([(2, 1)], 1, 1, 4)
    blocks = row.block_tables[0].tolist()
    current_case.text = case = f"3 tokens in blocks {blocks} of 4, the last one new; query heads: 1, KV heads: 1."
    with Operators(row.keys, row.values) as operators:
        attempt(row.query, row.keys, row.values, blocks, 3, row.scale)
    if operators.reads_unused:
        raise Mistake(
            f"the result is right, but `{operators.reads_unused}` reads slots without a token.",
            case=case,
            idea="The block has 4 slots and holds 3 tokens. Cleaning what the others hold, or cutting it off later, "
            "reads them all the same. Take a view of the filled slots first, `keys[block, :count]`, and compute with "
            "that.",
        )
