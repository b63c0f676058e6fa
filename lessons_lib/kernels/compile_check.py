"""Lesson 07: whether a kernel compiles for an NVIDIA GPU, also on a machine without one. The interpreter takes much that the compiler refuses.

Only the compiler's first stage is run, from Python's syntax tree to Triton's own intermediate language: types and shapes are checked there.
"""

import inspect
import io
import re
import warnings
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache

from lessons_lib.kernels.interpreter import language_as_imported  # before Triton

import torch
import triton
import triton.language as tl
from triton.compiler import CompilationError
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

ARCHITECTURE = 90  # an H100; at this stage any other would say the same


@dataclass(frozen=True)
class Refusal:
    """What the compiler says.

    Attributes:
        text: its message.
        line: the line of the kernel, or of the function that was asked about, at which it stopped; "" if it named none.
    """

    text: str
    line: str


def why_not_compiled(kernel, *args, about=None, **kwargs) -> Refusal | None:
    """Why the compiler refuses `kernel[grid](*args, **kwargs)`; None if it takes it, or if nothing can be compiled here.

    Args:
        about: a function that the kernel calls, in which to look for the line; the kernel itself if not given.
    """
    if not can_compile():
        return None
    try:
        return _refusal(kernel, about or kernel, *args, **kwargs)
    except Exception:  # noqa: BLE001 - not a word of the compiler, but a fault in asking it: say nothing rather than something wrong
        return None


@cache
def can_compile() -> bool:
    """Whether this Triton can compile for a GPU that may not be there: it is tried on a kernel that does nothing."""
    try:
        return _refusal(_nothing_kernel, _nothing_kernel, torch.zeros(1)) is None
    except Exception:  # noqa: BLE001 - another version may have changed what is used below
        return False


@triton.jit
def _nothing_kernel(x):
    tl.store(x, tl.load(x))


def _refusal(kernel, about, *args, **kwargs) -> Refusal | None:
    # Here, since these change from version to version: where one is missing, `can_compile` says so.
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import mangle_type

    target = GPUTarget("cuda", ARCHITECTURE, 32)
    backend = make_backend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with _compiled_functions(kernel, args, kwargs) as (function, arguments), _silence():
        constants = {
            parameter.name: arguments[parameter.name] for parameter in function.params if parameter.is_constexpr
        }
        signature = {
            name: "constexpr" if name in constants else mangle_type(value) for name, value in arguments.items()
        }
        source = ASTSource(fn=function, signature=signature, constexprs=constants)
        try:
            source.make_ir(
                target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
            )
        except CompilationError as error:
            return _said(error, JITFunction(about.fn).src)
        except RuntimeError as error:  # the module as a whole was refused
            return Refusal(str(error), "")
    return None


def _said(error: BaseException | None, source: str) -> Refusal:
    """The innermost message, and the innermost line of this source: an error is wrapped once for each function on the way."""
    text, line = "", ""
    while error is not None:
        text = (error.error_message if isinstance(error, CompilationError) else str(error)) or text
        if getattr(error, "src", None) == source and hasattr(error.node, "lineno"):
            line = source.splitlines()[error.node.lineno - 1].strip()
        error = error.__cause__
    return Refusal(re.sub(r"""^\w+\((["'])(.*)\1\)$""", r"\2", text, flags=re.DOTALL), line)


@contextmanager
def _silence():
    """Triton prints what it refuses, and warns of what is old."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _compiled_functions(kernel, args, kwargs):
    """The kernel and its arguments by name, with the compiler's form of every interpreted function that is in reach; undone at the end."""
    replaced = []
    with language_as_imported():
        try:
            for owner in (tl, tl.standard, tl.tensor):
                replaced += _swap(owner)
            arguments = {
                name: _jit(value)
                for name, value in inspect.signature(kernel.fn).bind(*args, **kwargs).arguments.items()
            }
            functions, seen = [kernel, *(value for value in arguments.values() if hasattr(value, "fn"))], set()
            for names in (function.fn.__globals__ for function in functions):  # the list grows as we go
                if id(names) not in seen:
                    seen.add(id(names))
                    found = _swap(names)
                    functions += [value for _, _, value in found]
                    replaced += found
            yield JITFunction(kernel.fn), arguments
        finally:
            for owner, name, value in replaced:
                _put(owner, name, value)


def _jit(value):
    return JITFunction(value.fn) if isinstance(value, InterpretedFunction) else value


def _swap(owner) -> list[tuple[object, str, object]]:
    """In a module, a class or a dict of globals. Returns (owner, name, what it was) of everything that was replaced."""
    names = owner if isinstance(owner, dict) else vars(owner)
    replaced = [(owner, name, value) for name, value in list(names.items()) if isinstance(value, InterpretedFunction)]
    for _, name, value in replaced:
        _put(owner, name, _jit(value))
    return replaced


def _put(owner, name: str, value: object) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)
