"""Counts the operators that PyTorch runs. A Python loop over tokens or sequences shows in how the count grows."""

from torch.utils._python_dispatch import TorchDispatchMode


class CountOperators(TorchDispatchMode):
    """While active, `names` collects the operators in order."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(operator.name())
        return operator(*args, **(kwargs or {}))
