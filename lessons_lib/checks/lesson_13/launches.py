"""Watches what code does with tensors: where the CPU would wait for a GPU, and how many operations it launches."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lessons_lib.checks.exercise import Mistake

# What looks at a value, by the name of PyTorch's function -> how the learner knows it.
READS = {
    "item": "`.item()`",
    "tolist": "`.tolist()`",
    "numpy": "`.numpy()`",
    "__array__": "`.numpy()`",
    "cpu": "`.cpu()`",
    "__bool__": "an `if`, `and` or `bool()` that looks at a tensor",
    "is_nonzero": "an `if`, `and` or `bool()` that looks at a tensor",
    "__int__": "`int()` of a tensor",
    "__index__": "a tensor used as an index of a list or in `range`",
    "__float__": "`float()` of a tensor",
    "__contains__": "`in` with a tensor",
    "equal": "`torch.equal`",
    "allclose": "`torch.allclose`",
    "nonzero": "`nonzero`, whose result has as many rows as there are values",
    "masked_select": "`masked_select`, whose result is as long as there are values",
    "unique": "`unique`, whose result is as long as there are values",
}
MASK = "a mask as an index: how many elements it selects depends on values"
SORTS = ("sort", "argsort", "topk", "msort", "kthvalue")


class NoReads(TorchFunctionMode):
    """While it is active, reading a value of a tensor is a mistake."""

    def __init__(self, case: str, idea: str):
        super().__init__()
        self.case, self.idea = case, idea

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        what = READS.get(name)
        if name in ("__getitem__", "__setitem__") and _has_mask(args[1]) and not _fills(args):
            what = MASK
        if name == "to" and any(str(each) == "cpu" for each in (*args[1:], *kwargs.values())):
            what = '`.to("cpu")`'
        if what:
            raise Mistake(f"the CPU would have to wait for the GPU: {what}.", case=self.case, idea=self.idea)
        return function(*args, **kwargs)


class Launches(TorchDispatchMode):
    """Counts operations.

    Attributes:
        names: of the operations, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))

    @property
    def sorts(self) -> list[str]:
        return [name for name in self.names if name in SORTS]


def names_of_launches(run: Callable[[], object]) -> Launches:
    with Launches() as launches:
        run()
    return launches


def _has_mask(index: Any) -> bool:
    each = index if isinstance(index, tuple) else (index,)
    return any(isinstance(one, torch.Tensor) and one.dtype == torch.bool and one.dim() for one in each)


def _fills(args: tuple) -> bool:
    """`x[mask] = 0`: one number for all, so that PyTorch need not count them."""
    return len(args) > 2 and (not isinstance(args[2], torch.Tensor) or args[2].numel() == 1)
