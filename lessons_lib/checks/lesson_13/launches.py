"""Probes: where the CPU would wait for a GPU, and how many operations a call launches."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lessons_lib.checks.exercise import Mistake, current_case, short

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
NO_WAIT = (
    "Compute something for all of them, and choose with `torch.where`. Then nothing depends on a value, there is no "
    "loop over elements, and all shapes are fixed."
)


class NoReads(TorchFunctionMode):
    """While it is active, reading a value of a tensor is a mistake."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        what = READS.get(name)
        if name in ("__getitem__", "__setitem__") and has_mask(args[1]) and not fills(args):
            what = MASK
        if name == "to" and any(str(each) == "cpu" for each in (*args[1:], *kwargs.values())):
            what = '`.to("cpu")`'
        if what:
            raise Mistake(f"the CPU would have to wait for the GPU: {what}.", current_case.text, NO_WAIT)
        return function(*args, **kwargs)


def has_mask(index: Any) -> bool:
    each = index if isinstance(index, tuple) else (index,)
    return any(isinstance(one, torch.Tensor) and one.dtype == torch.bool and one.dim() for one in each)


def fills(args: tuple) -> bool:
    """`x[mask] = 0`: one number for all, so that PyTorch need not count them."""
    return len(args) > 2 and (not isinstance(args[2], torch.Tensor) or args[2].numel() == 1)


def never_waits(told: str, *tensors: torch.Tensor) -> Callable[[Any], None]:
    """A probe: an answer reads no value of these tensors, and creates its own on their device. On the meta device,
    tensors have no values, so whatever looks at one raises."""

    def probe(attempt: Any) -> None:
        current_case.text = told
        with NoReads():
            attempt(*(each.clone() for each in tensors))
        current_case.text = "tensors on another device, without values, as during a capture."
        try:
            got = attempt(*(each.to("meta") for each in tensors))
        except Exception as error:
            if "device" in str(error):
                idea = "Create tensors on the device of the arguments: `device=….device`."
                raise Mistake("your code mixes tensors of several devices.", current_case.text, idea) from None
            what = f"your code raised {type(error).__name__}: {short(str(error))}."
            raise Mistake(what, current_case.text, NO_WAIT) from None
        if got.device.type != "meta":
            what = f"the result should be on the device of the arguments; yours is on {got.device}."
            raise Mistake(what, current_case.text, "The next operation reads it there.")

    return probe


class Launches(TorchDispatchMode):
    """Notes the names of the operations, in order."""

    def __init__(self, attempt: Any, *tensors: torch.Tensor) -> None:
        super().__init__()
        self.names: list[str] = []
        with self:
            attempt(*tensors)

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))
