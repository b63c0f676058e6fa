"""Lesson 07: check that a kernel compiles for an NVIDIA GPU, even on a machine without one.

The interpreter accepts more than the compiler. Only the compiler's first stage runs, from Python's syntax tree to
Triton's intermediate language: it checks types and shapes. For lesson 08, `ptx_of` runs the stages down to PTX.
"""

import inspect
import io
import re
import warnings
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any

from lessons_lib.kernels.triton_setup import put, replace_in
from lessons_lib.recording.interpreter import language_as_imported  # before Triton

import torch
import triton
import triton.language as tl
from triton.compiler import CompilationError
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

ARCHITECTURE = 90  # an H100; the first stage gives the same result for any other


@dataclass(frozen=True)
class Refusal:
    """The compiler's error for a kernel.

    Attributes:
        text: the compiler's message.
        line: source line of the error, in the kernel or in the function `about`; "" if unknown.
    """

    text: str
    line: str


def why_not_compiled(kernel, *args, about=None, **kwargs) -> Refusal | None:
    """Return the compiler's error for `kernel[grid](*args, **kwargs)`; None if it compiles or nothing can be compiled.

    Args:
        about: function, called by the kernel, in which to locate the error; by default the kernel itself.
    """
    made = _compiled_if_possible(kernel, *args, about=about, **kwargs)
    return made if isinstance(made, Refusal) else None


def rounded_products(kernel, *args, **kwargs) -> int:
    """Count the `tl.dot` of float32 tiles with factors rounded to TF32; 0 if nothing can be compiled."""
    made = _compiled_if_possible(kernel, *args, **kwargs)
    return len(re.findall(r"inputPrecision = tf32 : tensor<[\dx]+f32", made)) if isinstance(made, str) else 0


def tensor_core_products(kernel, *args, **kwargs) -> tuple[int, int] | None:
    """Count the `tl.dot` (on tensor cores, elsewhere); None if nothing can be compiled.

    Called functions count once per call. A loop counts as one iteration.
    """
    made = _compiled_if_possible(kernel, *args, **kwargs)
    return _products(made) if isinstance(made, str) else None


def ptx_of(kernel, *args, **kwargs) -> str | None:
    """Compile `kernel[grid](*args, **kwargs)` to PTX, NVIDIA's assembly language; None if that fails."""
    made = _compiled_if_possible(kernel, *args, down_to="ptx", **kwargs)
    return made if isinstance(made, str) else None


def _compiled_if_possible(kernel, *args, about=None, **kwargs) -> Refusal | str | None:
    if not can_compile():
        return None
    try:
        return _compiled(kernel, about or kernel, *args, **kwargs)
    except Exception:  # noqa: BLE001 - this check failed, not the kernel: report nothing rather than something wrong
        return None


def _products(module: str) -> tuple[int, int]:
    bodies = {_NAME.findall(text)[0]: text for text in module.split("tt.func ")[1:]}

    def of(name: str) -> tuple[int, int]:
        slow = [number == "f32" and "inputPrecision" not in options for options, number in _DOT.findall(bodies[name])]
        called = [of(_NAME.findall(call)[0]) for call in _CALL.findall(bodies[name])]
        found = [(slow.count(False), slow.count(True)), *called]
        return sum(fast for fast, _ in found), sum(others for _, others in found)

    return of(next(iter(bodies)))


_NAME = re.compile(r'@("[^"]+"|[\w.$]+)')
_CALL = re.compile(r"tt\.call (.*)")
_DOT = re.compile(r"tt\.dot ([^:]*): tensor<[\dx]+x(\w+)>")  # a product in IEEE precision names none


@cache
def can_compile() -> bool:
    """Test once, on a small kernel, if this Triton can compile for a GPU that may not be present."""
    try:
        return isinstance(_compiled(_copy_kernel, _copy_kernel, torch.zeros(1)), str)
    except Exception:  # noqa: BLE001 - another version of Triton may have changed what is used below
        return False


@triton.jit
def _copy_kernel(x):
    tl.store(x, tl.load(x))


def _compiled(kernel, about, *args, down_to="", **kwargs) -> Refusal | str:
    """Compile a kernel to the intermediate language, or down to the stage `down_to`; return a Refusal on an error."""
    # Imported here because they change between versions of Triton: if one is missing, `can_compile` returns False.
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
        is_constant = {
            parameter.name: parameter.is_constexpr or arguments[parameter.name] is None for parameter in function.params
        }
        constants = {name: value for name, value in arguments.items() if is_constant[name]}
        signature = {name: "constexpr" if name in constants else mangle_type(it) for name, it in arguments.items()}
        aligned = [place for place, name in enumerate(arguments) if name not in constants and _by_16(arguments[name])]
        attributes = {(place,): [["tt.divisibility", 16]] for place in aligned}
        source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
        try:
            module = source.make_ir(
                target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
            )
            return str(_lowered(module, backend, options, source.language, down_to) if down_to else module)
        except CompilationError as error:
            return _refusal_of(error, JITFunction(about.fn).src)
        except RuntimeError as error:  # an error of the module as a whole
            return Refusal(str(error), "")


def _lowered(module, backend, options, language, last: str):
    """Run the compiler's stages on a module, up to the stage `last`."""
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, language)
    metadata = dict(options.__dict__)
    for name, stage in stages.items():
        module = stage(module, metadata)
        if name == last:
            break
    return module


def _by_16(argument) -> bool:
    """True if Triton specializes a kernel on this argument being a multiple of 16."""
    return isinstance(argument, torch.Tensor) or (isinstance(argument, int) and argument % 16 == 0)


def _refusal_of(error: BaseException | None, source: str) -> Refusal:
    """Extract the innermost message and line of this source: Triton wraps an error once per function call."""
    text, line = "", ""
    while error is not None:
        text = (error.error_message if isinstance(error, CompilationError) else str(error)) or text
        number = getattr(getattr(error, "node", None), "lineno", None)
        if getattr(error, "src", None) == source and number is not None:
            line = source.splitlines()[number - 1].strip()
        error = error.__cause__
    return Refusal(re.sub(r"""^\w+\((["'])(.*)\1\)$""", r"\2", text, flags=re.DOTALL), line)


@contextmanager
def _silence():
    """Silence Triton, which prints rejected source and warns about deprecated features."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _compiled_functions(kernel, args, kwargs):
    """Yield the kernel and its arguments by name, with all reachable functions compiled; undo this at the end."""
    replaced = []
    with language_as_imported():
        try:
            for owner in (tl, tl.standard, tl.tensor):
                replaced += replace_in(owner, _as_compiled)
            bound = inspect.signature(kernel.fn).bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = {name: _jit(value) for name, value in bound.arguments.items()}
            functions = [kernel, *(value for value in arguments.values() if hasattr(value, "fn"))]
            for function in functions:  # the list grows as we go
                found = replace_in(function.fn.__globals__, _as_compiled, function.fn.__code__.co_names)
                functions += [value for _, _, value in found]
                replaced += found
            yield JITFunction(kernel.fn), arguments
        finally:
            put(replaced)


def _jit(value):
    return JITFunction(value.fn) if isinstance(value, InterpretedFunction) else value


def _as_compiled(value) -> JITFunction | None:
    function = _interpreted(value)
    if function is None:
        return None
    is_library = function.fn.__module__.startswith("triton.")
    return _library_function(function.fn) if is_library else JITFunction(function.fn)


@cache  # about fifty per kernel, and each reads and searches its source file
def _library_function(function) -> JITFunction:
    return JITFunction(function)


def _interpreted(value) -> InterpretedFunction | None:
    """Return an interpreted function, also if wrapped in a method of `tl.tensor` such as `x.max()`; else None."""
    if isinstance(value, InterpretedFunction):
        return value
    if getattr(value, "__qualname__", "") in ("_tensor_member_fn.<locals>.wrapper", "_method.<locals>.wrapper"):
        function = inspect.getclosurevars(value).nonlocals.get("fn")
        return function if isinstance(function, InterpretedFunction) else None
    return None
