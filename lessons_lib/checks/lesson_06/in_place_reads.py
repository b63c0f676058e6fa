"""Whether an answer to 06.3 reads slots without a token, which a right result doesn't show."""

from collections.abc import Callable, Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_06.in_place_cases import Case, make, tokens_text

PICKS = ("index", "index_select", "gather", "take", "masked_select", "embedding")  # they read what they return
NO_READ = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_")


class UnusedReads(TorchDispatchMode):
    """While active, `operator` is the first one that computes with a part of the cache in which a slot has no token.
    Such slots are NaN, and a view reads nothing."""

    def __init__(self, case: Case):
        super().__init__()
        self.operator = ""
        self.cache = {tensor.untyped_storage().data_ptr() for tensor in (case.keys, case.values)}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
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


def check_reads(attempt: Callable) -> None:
    case = make((2, 1), 1, 1, 4, 0, seed=0)
    with UnusedReads(case) as reads:
        attempt(case.query, case.keys, case.values, list(case.blocks), case.num_tokens, case.scale)
    if reads.operator:
        raise Mistake(
            f"the result is right, but `{reads.operator}` reads slots without a token.",
            case=case.words,
            idea=f"The block has 4 slots and holds {tokens_text(case.num_tokens)}. Cleaning what the others hold, or "
            "cutting it off later, reads them all the same. Take a view of the filled slots first, "
            "`keys[block, :count]`, and compute with that.",
        )
