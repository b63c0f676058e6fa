"""How many operations PyTorch starts. On a GPU, each of them launches at least one kernel."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class CountOperations(TorchDispatchMode):
    """Counts operations while it is active. A view computes nothing, so it doesn't count. What a custom operator does
    inside counts as one.

    Attributes:
        count: so far.
    """

    count = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += not operation.is_view and "view" not in operation.name()
        return operation(*args, **(kwargs or {}))
