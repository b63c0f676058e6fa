"""Names of a package that come from a module which loads PyTorch: it is imported when one of them is first used.

So what the rest of the package has also works where there is no PyTorch, as in a browser.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazily(module: str, *names: str) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562): the given names, taken from one of its modules."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module.rpartition('.')[0]!r} has no attribute {name!r}")
        return getattr(import_module(module), name)

    return get
