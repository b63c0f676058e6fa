"""Lesson 07: the source line and the variables of a kernel's program at each load and store."""

import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import triton
import triton.language as tl

_TRITON = str(Path(triton.__file__).parent)
_MOST_ELEMENTS = 256  # for larger tiles, keep only the shape


@dataclass(frozen=True)
class Variable:
    """A local variable: shape of a tile, or () for a scalar; all elements, or None if too many or of unknown type."""

    shape: tuple[int, ...]
    numbers: tuple[float, ...] | None


@dataclass(frozen=True)
class Moment:
    """A program just before a load or a store.

    Attributes:
        function: the kernel, or a function that it called.
        source: source lines of the function.
        line: index of the current line in `source`.
        variables: variables assigned so far, in source order, without parameters: scalars, and tiles of floats.
    """

    function: str
    source: tuple[str, ...]
    line: int
    variables: dict[str, Variable]


def moment() -> Moment | None:
    """The moment of the innermost caller outside Triton; None if its source isn't available."""
    frame = kernel_frame(sys._getframe(1))
    if frame is None:
        return None
    try:
        lines, first = inspect.getsourcelines(frame.f_code)
    except (OSError, TypeError):
        return None
    names = frame.f_code.co_varnames[frame.f_code.co_argcount :]
    found = {name: _variable(frame.f_locals[name]) for name in names if name in frame.f_locals}
    variables = {name: variable for name, variable in found.items() if variable}
    return Moment(frame.f_code.co_name, tuple(lines), frame.f_lineno - first, variables)


def kernel_frame(here: FrameType) -> FrameType | None:
    """The innermost calling frame outside Triton and outside the file of `here`."""
    frame: FrameType | None = here
    while frame and frame.f_code.co_filename.startswith((here.f_code.co_filename, _TRITON)):
        frame = frame.f_back
    return frame


def _variable(value: Any) -> Variable | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Variable((), (float(value),))
    if not isinstance(value, tl.tensor) or value.dtype.is_ptr() or not (value.dtype.is_floating() or not value.shape):
        return None
    shape, data = tuple(int(size) for size in value.shape), np.asarray(value.handle.data)
    is_known = data.size <= _MOST_ELEMENTS and not value.dtype.is_bf16() and not value.dtype.is_fp8()
    return Variable(shape, tuple(data.astype(np.float64).reshape(-1).tolist()) if is_known else None)
