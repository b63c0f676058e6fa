"""Lesson 07: choose between Triton kernels compiled for a GPU and interpreted on the CPU.

Every module that defines kernels imports this one.
"""

import importlib.util
import os

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


def interpret_library() -> list[tuple[object, str, object]]:
    """Interpret the functions of `triton.language` that are written in Triton, such as `tl.max`.

    Returns:
        (module, name, previous value) of each replacement, methods of `tl.tensor` excepted.
    """
    import triton.language as tl

    interpret_methods(tl.tensor)
    return interpret_names_in(vars(tl), tl) + interpret_names_in(vars(tl.standard), tl.standard)


def interpret_methods(tensor: type) -> None:
    """Replace methods written in Triton, such as `x.max()`, as Triton does when interpreting."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    for name, value in list(vars(tensor).items()):
        if isinstance(value, JITFunction):
            setattr(tensor, name, _method(InterpretedFunction(value.fn)))


def _method(fn):
    """Turn a function into a method: Triton's function objects don't bind `self`."""

    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


def interpret_names_in(names: dict[str, object], owner: object) -> list[tuple[object, str, object]]:
    """Replace the compiled functions among `names` with interpreted ones; see `interpret_library`."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    replaced = [(owner, name, value) for name, value in names.items() if isinstance(value, JITFunction)]
    for _, name, value in replaced:
        names[name] = InterpretedFunction(value.fn)
    return replaced


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
