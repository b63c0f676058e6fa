"""What a right result of 06.3 doesn't show: copies that grow with the context, and reads of slots without a token."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.checks.lesson_06.operators import Operators
from lessons_lib.measuring.random_batches import random_row

PICKS = ("index", "index_select", "gather", "take", "masked_select", "embedding")  # they read what they return
NO_READ = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_")


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


class UnusedReads(TorchDispatchMode):
    """While active, `operator` is the first one that computes with a part of the cache in which a slot has no token.
    Such slots are NaN, and a view reads nothing."""

    def __init__(self, *cache: torch.Tensor):
        super().__init__()
        self.operator = ""
        self.cache = {tensor.untyped_storage().data_ptr() for tensor in cache}

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operator(*args, **(kwargs or {}))
        name = operator.__name__.split(".")[0]
        if not self.operator and not name.startswith(NO_READ) and not any(map(self._is_cache, _tensors(out))):
            sources = [tensor for tensor in _tensors((args, kwargs or {})) if self._is_cache(tensor)]
            read = _tensors(out) if sources and name in PICKS else sources
            if any(tensor.is_floating_point() and bool(tensor.isnan().any()) for tensor in read):
                self.operator = name.strip("_")
        return out

    def _is_cache(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.cache


def _tensors(found: object) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, (tuple, list, dict)):
        for part in found.values() if isinstance(found, dict) else found:
            yield from _tensors(part)


def reads_filled_slots_only(attempt: Callable) -> None:
    row = random_row([(2, 1)], 1, 1, 4)
    blocks = row.block_tables[0].tolist()
    current_case.text = case = f"3 tokens in blocks {blocks} of 4, the last one new; query heads: 1, KV heads: 1."
    with UnusedReads(row.keys, row.values) as reads:
        attempt(row.query, row.keys, row.values, blocks, 3, row.scale)
    if reads.operator:
        raise Mistake(
            f"the result is right, but `{reads.operator}` reads slots without a token.",
            case=case,
            idea="The block has 4 slots and holds 3 tokens. Cleaning what the others hold, or cutting it off later, "
            "reads them all the same. Take a view of the filled slots first, `keys[block, :count]`, and compute with "
            "that.",
        )
