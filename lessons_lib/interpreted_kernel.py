"""Lesson 07: runs any kernel through Triton's interpreter, also on a machine where kernels are compiled, and leaves Triton as it was."""

from contextlib import contextmanager

import lessons_lib.triton_mode as triton_mode

import torch
import triton.language as tl
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import InterpretedFunction


def on_cpu(tensor: torch.Tensor, storages: dict) -> torch.Tensor:
    """The tensor, or a copy on the CPU with the same strides; two views of one storage are views of one copy."""
    if tensor.device.type == "cpu":
        return tensor
    storage = tensor.untyped_storage()
    _, copy = storages.setdefault(storage.data_ptr(), (storage, storage.cpu()))
    return torch.empty(0, dtype=tensor.dtype).set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())


def cause_of(error: BaseException) -> BaseException:
    """What went wrong in the kernel, with the whole way there in its traceback: the interpreter wraps an exception once for each function."""
    trace = last = error.__traceback__
    while isinstance(error, InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
        while last.tb_next is not None:
            last = last.tb_next
        last.tb_next = error.__traceback__
    return error.with_traceback(trace)


@contextmanager
def interpreted(kernel, arguments: dict[str, object]):
    """The kernel as an interpreted function; inside, the functions that it calls are interpreted too."""
    if not triton_mode.is_interpreted():
        import triton.experimental.gluon  # noqa: F401 - Triton imports it at the first call, and it takes nothing interpreted
    replaced = []
    with _language_kept():
        try:
            replaced += triton_mode.interpret_library()
            functions, seen = [kernel, *(value for value in arguments.values() if hasattr(value, "fn"))], set()
            for names in (function.fn.__globals__ for function in functions):  # the list grows as we go
                if id(names) not in seen:
                    seen.add(id(names))
                    found = triton_mode.interpret_names_in(names, names)
                    functions += [value for _, _, value in found]
                    replaced += found
            for name, value in arguments.items():
                if hasattr(value, "fn") and not isinstance(value, InterpretedFunction):
                    arguments[name] = InterpretedFunction(value.fn)
            yield kernel if isinstance(kernel, InterpretedFunction) else InterpretedFunction(kernel.fn)
        finally:
            for owner, name, value in replaced:
                (owner if isinstance(owner, dict) else vars(owner))[name] = value


@contextmanager
def _language_kept():
    """The interpreter changes `triton.language` and, where a kernel calls functions, does not change all of it back; what is compiled then fails."""
    owners = (tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base)
    before = [dict(vars(owner)) for owner in owners]
    try:
        yield
    finally:
        for owner, names in zip(owners, before):
            for name, value in list(vars(owner).items()):
                if name not in names:
                    delattr(owner, name)
                elif value is not names[name]:
                    setattr(owner, name, names[name])
