"""Lesson 07: runs a kernel through Triton's interpreter, and writes down what each program loads and stores.

Every address is looked up before it is used: one outside the tensors is an error with a name, not a crash of the process.
"""

import inspect
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import lessons_lib.triton_mode as triton_mode

import numpy as np
import torch
import triton.language as tl
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import InterpretedFunction


class OutOfBounds(IndexError):
    """A program asked for a number that lies in none of the tensors that the kernel was given.

    Attributes:
        ids: of the program; kind: "load" or "store"; tensor: name of the parameter whose tensor is nearest.
        number: which number of that tensor was asked for; count: how many it has.
    """

    def __init__(self, ids: tuple[int, ...], kind: str, tensor: str, number: int, count: int):
        super().__init__(
            f"program {ids if len(ids) > 1 else ids[0]} would {kind} number {number:,} of `{tensor}`, which has "
            f"{f'the numbers 0 to {count - 1:,}' if count else 'no numbers'}. Look at the mask, and at the strides."
        )
        self.ids, self.kind, self.tensor, self.number, self.count = ids, kind, tensor, number, count


@dataclass(frozen=True)
class TensorLayout:
    """A tensor that a kernel was given.

    Attributes:
        name: of the kernel's parameter.
        shape, strides: as of the tensor, strides in numbers.
        itemsize: bytes of one number.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    def index_of(self, offset: int) -> tuple[int, ...]:
        """The index of the number that lies `offset` numbers behind the first."""
        return tuple(self.indices_of((offset,))[0].tolist())

    def indices_of(self, offsets: Sequence[int]) -> np.ndarray:
        """The indices of many numbers, [numbers, axes]. Between the numbers of a view, an index lies outside the shape."""
        rest = np.asarray(offsets, np.int64)
        indices = np.zeros((len(rest), len(self.shape)), np.int64)
        for axis in sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis]):
            if self.strides[axis] and self.shape[axis] > 1:
                indices[:, axis], rest = np.divmod(rest, self.strides[axis])
        return indices

    def has(self, offsets: Sequence[int]) -> np.ndarray:
        """Which of these numbers the tensor has: none before it, behind it, or between the numbers of a view."""
        indices = self.indices_of(offsets)
        inside = ((indices >= 0) & (indices < self.shape)).all(axis=1) & bool(np.prod(self.shape))
        return inside & (indices @ np.asarray(self.strides, np.int64) == offsets)


@dataclass(frozen=True)
class Access:
    """One `tl.load` or `tl.store` of one program.

    Attributes:
        kind: "load" or "store".
        tensor: name of the kernel's parameter.
        offsets: which numbers, counted from the first of the tensor; those masked out are not among them.
    """

    kind: str
    tensor: str
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class ProgramRun:
    """What one program did, in order.

    Attributes:
        ids: its program ids, one for each axis of the grid.
    """

    ids: tuple[int, ...]
    accesses: tuple[Access, ...]


@dataclass(frozen=True)
class KernelRecording:
    """A whole run.

    Attributes:
        kernel: its name.
        grid: how many programs there are along each axis.
        tensors: name of the parameter -> what was given for it.
        programs: in the order in which the interpreter ran them; on a GPU they run in any order, and many at a time.
    """

    kernel: str
    grid: tuple[int, ...]
    tensors: dict[str, TensorLayout]
    programs: tuple[ProgramRun, ...]

    def indices(self, access: Access, axes: int) -> tuple[tuple[int, ...], ...]:
        """The first `axes` parts of the indices that were touched, each once, in order: (block, slot) of a cache, for example."""
        return tuple(dict.fromkeys(map(tuple, self.tensors[access.tensor].indices_of(access.offsets)[:, :axes].tolist())))

    def bytes_of(self, program: ProgramRun, kind: str) -> int:
        """Bytes that a program loaded or stored."""
        return sum(len(a.offsets) * self.tensors[a.tensor].itemsize for a in program.accesses if a.kind == kind)


def record_kernel(kernel, grid: tuple[int, ...], *args, **kwargs) -> KernelRecording:
    """Run `kernel[grid](*args, **kwargs)` through the interpreter, on any machine, and write down its loads and stores.

    Tensors that the kernel stores to are changed as in any run. What a mask hides from a load without `other` is NaN here. Loads and
    stores through block pointers and tensor descriptors are not written down.

    Raises:
        OutOfBounds: a program asked for a number outside the tensors. Stores before that have been done.
        Whatever the kernel raises.
    """
    parameters = inspect.signature(kernel.fn)
    own = {name: value for name, value in kwargs.items() if name in parameters.parameters}  # without num_warps and the like
    bound = parameters.bind(*args, **own).arguments
    on_cpu = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in bound.items()}
    tensors = {name: value for name, value in on_cpu.items() if isinstance(value, torch.Tensor)}
    notes = _Notes(tensors, len(grid))
    with _interpreted(kernel, on_cpu) as run, notes.taken():
        try:
            run[grid](**on_cpu)
        except InterpreterError as error:
            raise _cause(error) from None
    for name, tensor in tensors.items():
        if bound[name].is_cuda:
            bound[name].copy_(tensor)
    layouts = {name: TensorLayout(name, tuple(t.shape), t.stride(), t.element_size()) for name, t in tensors.items()}
    return KernelRecording(kernel.fn.__name__, tuple(grid), layouts, notes.programs(grid))


def _cause(error: BaseException) -> BaseException:
    """What went wrong in the kernel, with the whole way there in its traceback: the interpreter wraps an exception once for each function."""
    trace = last = error.__traceback__
    while isinstance(error, InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
        while last.tb_next is not None:
            last = last.tb_next
        last.tb_next = error.__traceback__
    return error.with_traceback(trace)


@contextmanager
def _interpreted(kernel, arguments: dict[str, object]):
    """The kernel as an interpreted function; inside, the functions that it calls are interpreted too."""
    replaced = []
    try:
        if not triton_mode.is_interpreted():
            replaced = triton_mode.interpret_library()
            functions = [kernel, *(value for value in arguments.values() if hasattr(value, "fn"))]
            for names in {id(function.fn.__globals__): function.fn.__globals__ for function in functions}.values():
                replaced += triton_mode.interpret_names_in(names, names)
        for name, value in arguments.items():
            if hasattr(value, "fn") and not isinstance(value, InterpretedFunction):
                arguments[name] = InterpretedFunction(value.fn)
        yield kernel if isinstance(kernel, InterpretedFunction) else InterpretedFunction(kernel.fn)
    finally:
        for owner, name, value in replaced:
            (owner if isinstance(owner, dict) else vars(owner))[name] = value


class _Notes:
    """Takes the place of `tl.load` and `tl.store` while a kernel runs."""

    def __init__(self, tensors: dict[str, torch.Tensor], num_axes: int):
        self.ranges = []
        for name, tensor in tensors.items():
            numbers = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1 if tensor.numel() else 0
            self.ranges.append((name, tensor.data_ptr(), numbers, tensor.element_size()))
        self.num_axes = num_axes
        self.by_program: dict[tuple[int, ...], list[Access]] = {}

    def programs(self, grid: tuple[int, ...]) -> tuple[ProgramRun, ...]:
        return tuple(ProgramRun(ids, tuple(self.by_program.get(ids, ()))) for ids in np.ndindex(*grid))

    @contextmanager
    def taken(self):
        originals = {name: getattr(tl, name) for name in ("load", "store")}
        for kind, original in originals.items():
            setattr(tl, kind, self._noting(kind, original))
        try:
            yield
        finally:
            for kind, original in originals.items():
                setattr(tl, kind, original)

    def _noting(self, kind: str, original):
        program_id = tl.program_id

        @tl.core.builtin
        def noted(pointer, *args, _semantic=None, **kwargs):
            arguments = inspect.signature(original).bind(pointer, *args, **kwargs).arguments
            addresses = getattr(pointer.handle, "data", None)
            if addresses is not None:
                mask = arguments.get("mask")
                wanted = np.asarray(mask.handle.data if hasattr(mask, "handle") else True if mask is None else bool(mask))
                ids = tuple(int(program_id(axis, _semantic=_semantic).handle.data[0]) for axis in range(self.num_axes))
                self._note(kind, addresses[np.broadcast_to(wanted, addresses.shape).astype(bool)], ids)
                if kind == "load" and mask is not None and arguments.get("other") is None and pointer.dtype.scalar.element_ty.is_floating():
                    kwargs["other"] = float("nan")  # on a GPU it may be anything; the interpreter's 0 would hide that
            return original(pointer, *args, _semantic=_semantic, **kwargs)

        return noted

    def _note(self, kind: str, addresses: np.ndarray, ids: tuple[int, ...]) -> None:
        if not addresses.size:
            return
        addresses = addresses.astype(np.int64)
        name, start, numbers, itemsize = self._nearest(int(addresses[0]))
        offsets = (addresses - start) // itemsize
        outside = (offsets < 0) | (offsets >= numbers)
        if outside.any():
            raise OutOfBounds(ids, kind, name, int(offsets[outside][0]), numbers)
        self.by_program.setdefault(ids, []).append(Access(kind, name, tuple(offsets.tolist())))

    def _nearest(self, address: int):
        def distance(of) -> int:
            _, start, numbers, itemsize = of
            return max(start - address, address - (start + max(numbers - 1, 0) * itemsize), 0)

        return min(self.ranges, key=distance)
