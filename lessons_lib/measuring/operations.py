"""Count the operations that PyTorch starts. On a GPU, each launches at least one kernel."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class CountOperations(TorchDispatchMode):
    """Context manager that counts operations. Views compute nothing and don't count; a custom operator is one."""

    count = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += not operation.is_view and "view" not in operation.name()
        return operation(*args, **(kwargs or {}))
