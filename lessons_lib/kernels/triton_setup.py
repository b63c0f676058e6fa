"""Lesson 07: choose between Triton kernels compiled for a GPU and interpreted on the CPU.

Every module that defines kernels imports this one.
"""

import importlib.util
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

INTERPRET = "TRITON_INTERPRET"


def prepare_triton() -> None:
    """Without a GPU, make Triton interpret all kernels defined from now on.

    With a GPU, or if TRITON_INTERPRET is set, nothing changes. `@triton.jit` reads the environment when it is applied.

    Raises:
        ImportError: Triton is not installed.
    """
    if importlib.util.find_spec("triton") is None:
        raise ImportError(
            "Triton is not installed. It supports Linux only: on Windows use WSL, on macOS a container. Lessons 00 to "
            "06 don't need it."
        )
    if not torch.cuda.is_available():
        os.environ.setdefault(INTERPRET, "1")
    if is_interpreted():
        interpret_library()


def interpret_library() -> list[tuple[Any, str, Any]]:
    """Interpret the functions of `triton.language` that are written in Triton, such as `tl.max` and `x.max()`.

    Returns:
        see `replace_in`; without the methods of `tl.tensor`.
    """
    import triton.language as tl

    replace_in(tl.tensor, lambda value: (own := as_interpreted(value)) and _method(own))
    return replace_in(tl, as_interpreted) + replace_in(tl.standard, as_interpreted)


def as_interpreted(value: Any) -> Any:
    """The interpreted form of a compiled function; None for anything else."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    return InterpretedFunction(value.fn) if isinstance(value, JITFunction) else None


def _method(fn):
    """Turn a function into a method: Triton's function objects don't bind `self`."""

    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


def replace_in(
    owner: Any, change: Callable[[Any], Any], of: Collection[str] | None = None
) -> list[tuple[Any, str, Any]]:
    """Replace the values of an owner's names for which `change` returns another value.

    Args:
        owner: a module, a class, or a function's globals.
        of: names to consider; None for all.

    Returns:
        (owner, name, previous value) of each replacement.
    """
    names = dict(owner if isinstance(owner, dict) else vars(owner))
    changed = {name: change(value) for name, value in names.items() if of is None or name in of}
    replaced = [(owner, name, names[name]) for name, value in changed.items() if value is not None]
    put((owner, name, changed[name]) for owner, name, _ in replaced)
    return replaced


def put(values: Iterable[tuple[Any, str, Any]]) -> None:
    """Set (owner, name, value), such as the previous values that `replace_in` returned."""
    for owner, name, value in values:
        if isinstance(owner, dict):
            owner[name] = value
        else:
            setattr(owner, name, value)


def patch_old_interpreter() -> None:
    """Make Triton 3.6 convert one-element arrays to int in a way that NumPy 2.4 allows, as Triton 3.7 does."""
    import triton
    from triton.runtime import interpreter

    if not triton.__version__.startswith("3.6"):
        return
    patch = interpreter._patch_lang_tensor

    def patch_and_fix(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patch_and_fix


def is_interpreted() -> bool:
    return os.environ.get(INTERPRET, "0") not in ("", "0")


def kernel_device() -> str:
    """Device for the kernels' tensors: "cuda", or "cpu" if kernels are interpreted."""
    return "cpu" if is_interpreted() or not torch.cuda.is_available() else "cuda"


def how_kernels_run() -> str:
    """One line for the reader: Triton's version, and if kernels are compiled, interpreted or can't run."""
    import triton

    if kernel_device() == "cuda":
        return f"Triton {triton.__version__}: kernels are compiled for {torch.cuda.get_device_name()}."
    if not is_interpreted():
        return (
            f"Triton {triton.__version__}: kernels can't run: there is no GPU, and {INTERPRET}=0 forbids interpreting "
            "them. Unset it."
        )
    return (
        f"Triton {triton.__version__}: kernels are interpreted on the CPU. That shows whether their results are right; "
        "it says nothing about speed."
    )


prepare_triton()
patch_old_interpreter()
