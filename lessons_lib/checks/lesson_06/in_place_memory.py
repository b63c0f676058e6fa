"""Whether an answer to 06.3 makes a tensor that grows with the context."""

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_06.in_place_call import check_shape
from lessons_lib.checks.lesson_06.in_place_cases import Case, make


class LargestTensor(TorchDispatchMode):
    """While active, `shape` is that of the largest float tensor that an operator makes; views of the cache don't
    count."""

    def __init__(self, case: Case):
        super().__init__()
        self.shape, self.size = [0], 0
        self.views_of = {cache.untyped_storage().data_ptr() for cache in (case.keys, case.values)}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        out = operator(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            if tensor.untyped_storage().data_ptr() not in self.views_of and tensor.numel() > self.size:
                self.shape, self.size = list(tensor.shape), tensor.numel()
        return out


def check_one_block_at_a_time(attempt: Callable) -> None:
    """No tensor may grow with the number of blocks."""
    few, many = (make((count * 4 - 1, 1), 2, 1, 4, 0, seed=22) for count in (3, 30))
    sizes = []
    for case in (few, many):
        with LargestTensor(case) as largest:
            got = attempt(case.query, case.keys, case.values, list(case.blocks), case.num_tokens, case.scale)
        sizes.append(largest)
    if sizes[1].size > 2 * sizes[0].size:
        what = (
            f"your code made a tensor of shape {sizes[1].shape} for 30 blocks, and none larger than "
            f"{sizes[0].shape} for 3 blocks."
        )
        idea = (
            "No tensor of keys, values or scores may grow with the context. `keys[block]` with one integer is a view; "
            "a list of blocks, `torch.cat`, a row of all scores and a float mask over all keys are new memory. Add one "
            "block to the state, then forget its scores."
        )
        raise Mistake(what, case=_many_words(many), idea=idea)
    check_shape(got, many)


def _many_words(case: Case) -> str:
    return f"{case.num_tokens} tokens in {len(case.blocks)} blocks of 4, one of them new; query heads: 2, KV heads: 1."
