"""Lesson 07: whether Triton kernels run compiled on a GPU, or interpreted on the CPU. Imported by every module that defines kernels."""

import importlib.util
import os

import torch

INTERPRET = "TRITON_INTERPRET"


def prepare_triton() -> None:
    """Without a GPU, have Triton interpret all kernels that are defined from now on. With one, or if the user has decided it, as it is set.

    `@triton.jit` looks at the environment when a kernel is defined.

    Raises:
        ImportError: Triton is not installed.
    """
    if importlib.util.find_spec("triton") is None:
        raise ImportError(
            "Triton is not installed. It is made for Linux: on Windows use WSL, on macOS a container. Lessons 00 to 06 do without it."
        )
    if not torch.cuda.is_available():
        os.environ.setdefault(INTERPRET, "1")
    if is_interpreted():
        interpret_library()


def interpret_library() -> list[tuple[object, str, object]]:
    """Have the functions of `triton.language` that are written in Triton themselves, such as `tl.max`, interpreted.

    They were defined when Triton was imported, and transformers may have imported it before us.

    Returns:
        (module, name, what it was) of everything that was replaced.
    """
    import triton.language as tl

    return interpret_names_in(vars(tl), tl) + interpret_names_in(vars(tl.standard), tl.standard)


def interpret_names_in(names: dict[str, object], owner: object) -> list[tuple[object, str, object]]:
    """Replace compiled functions among `names` by interpreted ones of the same source. Returns as `interpret_library`."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    replaced = [(owner, name, value) for name, value in names.items() if isinstance(value, JITFunction)]
    for _, name, value in replaced:
        names[name] = InterpretedFunction(value.fn)
    return replaced


def mend_old_interpreter() -> None:
    """Have Triton 3.6 make an int of an array with one number in a way that NumPy 2.4 still allows. From 3.7 on it does so itself."""
    import triton
    from triton.runtime import interpreter

    if not triton.__version__.startswith("3.6"):
        return
    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patch_and_mend


def is_interpreted() -> bool:
    return os.environ.get(INTERPRET, "0") not in ("", "0")


def kernel_device() -> str:
    """Where tensors for kernels must lie: "cuda", or "cpu" where kernels are interpreted."""
    return "cpu" if is_interpreted() or not torch.cuda.is_available() else "cuda"


def how_kernels_run() -> str:
    """One line for the reader: compiled or interpreted, and by what; or why neither."""
    import triton

    if kernel_device() == "cuda":
        return f"Triton {triton.__version__}: kernels are compiled for {torch.cuda.get_device_name()}."
    if not is_interpreted():
        return f"Triton {triton.__version__}: kernels can not run, for there is no GPU, and {INTERPRET}=0 forbids to interpret them. Unset it."
    return f"Triton {triton.__version__}: kernels are interpreted on the CPU. That shows whether their results are right, and says nothing about speed."


prepare_triton()
mend_old_interpreter()
