"""Count the operations that PyTorch starts. On a GPU, each launches at least one kernel."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class CountOperations(TorchDispatchMode):
    """Context manager that counts operations, and notes their `names`. Views compute nothing and don't count; a custom
    operator is one."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @property
    def count(self) -> int:
        return len(self.names)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not operation.is_view and "view" not in operation.name():
            self.names.append(operation.name())
        return operation(*args, **(kwargs or {}))
