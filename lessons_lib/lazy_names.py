"""Names of a package that come from modules which load large libraries: they are imported when one is first used.

So what else the package has also works where these libraries are missing, as in a browser.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazily(package: str, **names: str) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562), from {module: its names, with spaces between them}."""
    module_of = {name: module for module, own in names.items() for name in own.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return get
