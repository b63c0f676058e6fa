"""Lesson 07: run any kernel through Triton's interpreter, even where kernels are compiled, and restore Triton."""

from contextlib import contextmanager
from typing import Any

from lessons_lib.kernels.triton_setup import as_interpreted, interpret_library, is_interpreted, put, replace_in

import torch
import triton.language as tl
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import InterpretedFunction


def on_cpu(tensor: torch.Tensor, storages: dict[int, tuple[Any, Any]]) -> torch.Tensor:
    """Return the tensor if it is on the CPU, else a copy with the same strides.

    Views of one storage become views of one copy.
    """
    if tensor.device.type == "cpu":
        return tensor
    storage = tensor.untyped_storage()
    _, copy = storages.setdefault(storage.data_ptr(), (storage, storage.cpu()))
    return torch.empty(0, dtype=tensor.dtype).set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())


def cause_of(error: BaseException) -> BaseException:
    """Unwrap the original exception, with its full traceback: the interpreter wraps it once per function call."""
    trace = last = error.__traceback__
    while isinstance(error, InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        if last is not None:
            last.tb_next = error.__traceback__
    return error.with_traceback(trace)


@contextmanager
def interpreted(kernel, arguments: dict[str, object]):
    """Context manager: yield the kernel as an interpreted function; the functions that it calls are interpreted too."""
    if not is_interpreted():
        # Triton imports it at the first call; it must not see interpreted functions.
        import triton.experimental.gluon  # noqa: F401
    replaced = []
    with _language_kept():
        try:
            replaced += interpret_library()
            functions, seen = [kernel, *(value for value in arguments.values() if hasattr(value, "fn"))], set()
            for names in (function.fn.__globals__ for function in functions):  # the list grows as we go
                if id(names) not in seen:
                    seen.add(id(names))
                    found = replace_in(names, as_interpreted)
                    functions += [value for _, _, value in found]
                    replaced += found
            for name, value in arguments.items():
                if hasattr(value, "fn") and not isinstance(value, InterpretedFunction):
                    arguments[name] = InterpretedFunction(value.fn)
            yield kernel if isinstance(kernel, InterpretedFunction) else InterpretedFunction(kernel.fn)
        finally:
            put(replaced)


# Patched by the interpreter while a kernel runs.
LANGUAGE = (tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base)


def _language() -> list[dict[str, object]]:
    return [dict(vars(owner)) for owner in LANGUAGE]


def _set_language(wanted: list[dict[str, object]]) -> None:
    for owner, names in zip(LANGUAGE, wanted):
        now = dict(vars(owner))
        for name in now.keys() - names.keys():
            delattr(owner, name)
        for name, value in names.items():
            if name not in now or now[name] is not value:
                setattr(owner, name, value)


_AS_IMPORTED = _language()  # before any kernel of ours has run


@contextmanager
def _language_kept():
    """Restore `triton.language` afterwards.

    The interpreter patches it and doesn't undo everything if a kernel calls functions; compiling would then fail.
    """
    before = _language()
    try:
        yield
    finally:
        _set_language(before)


@contextmanager
def language_as_imported():
    """Context manager: `triton.language` as imported, before the interpreter's patches, for the compiler."""
    with _language_kept():
        _set_language(_AS_IMPORTED)
        yield
