"""Lesson 07: run a kernel through Triton's interpreter and record the loads and stores of each program.

Every address is checked before use: one outside the tensors raises OutOfBounds instead of crashing the process.
"""

import inspect
import math
import sys
import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lessons_lib.recording.interpreter import cause_of, interpreted, on_cpu  # before Triton

import numpy as np
import torch
import triton.language as tl
from triton.runtime.errors import InterpreterError

from lessons_lib.recording.kernel_moments import Moment, kernel_frame, moment
from lessons_lib.recording.kernel_races import AccessOrder, Race, once
from lessons_lib.recording.moved_pointers import APART, UNNOTED, addresses_of, back, left_by, moved_back, tensor_numbers


class OutOfBounds(IndexError):
    """A program (`ids`) accessed an element outside its tensor.

    Attributes:
        kind: "load", "store", or "update" for an atomic operation.
        tensor: name of the parameter that the address was computed from.
        number, count: offset of the element in that tensor, and its number of elements.
    """

    def __init__(self, ids: tuple[int, ...], kind: str, tensor: str, number: int, count: int):
        super().__init__(
            f"program {ids if len(ids) > 1 else ids[0]} would {kind} element {number:,} of `{tensor}`, which has "
            f"{f'elements 0 to {count - 1:,}' if count else 'no elements'}. Look at the mask, and at the strides."
        )
        self.ids, self.kind, self.tensor, self.number, self.count = ids, kind, tensor, number, count


@dataclass(frozen=True)
class TensorLayout:
    """A tensor given as the parameter `name` of a kernel; strides in elements, `itemsize` in bytes."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def span(self) -> int:
        """From the first element to the last, those of others between them included."""
        strides = ((size - 1) * stride for size, stride in zip(self.shape, self.strides))
        return 1 + sum(strides) if math.prod(self.shape) else 0

    def indices_of(self, offsets: Sequence[int] | np.ndarray) -> np.ndarray:
        """The indices of many elements, [elements, axes]. Between elements of a view, an index is outside the shape."""
        rest = np.asarray(offsets, np.int64)
        indices = np.zeros((len(rest), len(self.shape)), np.int64)
        for axis in sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis]):
            if self.strides[axis] and self.shape[axis] > 1:
                indices[:, axis], rest = np.divmod(rest, self.strides[axis])
        return indices

    def has(self, offsets: Sequence[int] | np.ndarray) -> np.ndarray:
        """Test which offsets are elements of the tensor, not before, after, or between the elements of a view."""
        wanted = np.asarray(offsets, np.int64)
        if math.prod(self.shape) == self.span:  # contiguous
            return (wanted >= 0) & (wanted < self.span)
        indices = self.indices_of(wanted)
        inside = ((indices >= 0) & (indices < self.shape)).all(axis=1)
        return inside & (indices @ np.asarray(self.strides, np.int64) == wanted)


@dataclass(frozen=True)
class Access:
    """One `tl.load` or `tl.store` of one program.

    Attributes:
        tensor: name of the kernel's parameter.
        offsets: element offsets from the start of the tensor, without masked-out elements.
        moment: state of the program, if requested.
    """

    kind: str
    tensor: str
    offsets: tuple[int, ...]
    moment: Moment | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ProgramRun:
    """The accesses of one program, in order; `ids` along each axis of the grid."""

    ids: tuple[int, ...]
    accesses: tuple[Access, ...]


@dataclass(frozen=True, repr=False)
class KernelRecording:
    """A whole launch.

    Attributes:
        tensors: parameter name -> the tensor passed for it.
        programs: in the interpreter's order; on a GPU they run in any order, many at a time.
        race: two accesses in undefined order on a GPU, so that results may be right only here; None if there are none.
    """

    kernel: str
    grid: tuple[int, ...]
    tensors: dict[str, TensorLayout]
    programs: tuple[ProgramRun, ...]
    race: Race | None = None

    def __repr__(self) -> str:
        loaded, stored = (sum(self.bytes_of(program, kind) for program in self.programs) for kind in ("load", "store"))
        count = f"{len(self.programs)} program{'s' * (len(self.programs) != 1)}"
        return f"<KernelRecording of {self.kernel}: {count}, {loaded:,} bytes loaded, {stored:,} stored>"

    def indices(self, access: Access, axes: int) -> tuple[tuple[int, ...], ...]:
        """The distinct first `axes` components of the accessed indices, in order: (block, offset) of a cache, say."""
        indices = self.tensors[access.tensor].indices_of(access.offsets)[:, :axes]
        return tuple(dict.fromkeys(map(tuple, indices.tolist())))

    def bytes_of(self, program: ProgramRun, kind: str) -> int:
        """Number of bytes that a program loaded or stored."""
        return sum(len(a.offsets) * self.tensors[a.tensor].itemsize for a in program.accesses if a.kind == kind)


class Recorder:
    """Stand-in for a kernel in a function that launches it: `launch(..., kernel=Recorder(kernel))`. `recording` is then
    that of the last launch; `moments_of`: see `record_kernel`.
    """

    def __init__(self, kernel, moments_of: tuple[int, ...] | None = None):
        self.kernel, self.moments_of = kernel, moments_of

    def __getitem__(self, grid):
        def run(*args, **kwargs):
            self.recording = record_kernel(self.kernel, grid, *args, moments_of=self.moments_of, **kwargs)

        return run


def record_kernel(
    kernel, grid: tuple[int, ...], *args, moments_of: tuple[int, ...] | None = None, **kwargs
) -> KernelRecording:
    """Run `kernel[grid](*args, **kwargs)` through the interpreter, on any machine, and record its loads and stores.

    The kernel's stores take effect as usual. Masked-out elements of a load without `other` are NaN here. Accesses
    through block pointers and tensor descriptors are not recorded; atomic operations only for `race`.

    Args:
        moments_of: ids of the program whose accesses are recorded with their `Moment`.

    Raises:
        OutOfBounds: a program accessed an element outside the tensors. Earlier stores have taken effect.
        TypeError: `kernel` is not a kernel, or an argument is missing.
        The kernel's own errors pass through.
    """
    if not hasattr(kernel, "fn"):
        raise TypeError(f"{getattr(kernel, '__name__', kernel)!r} is not a kernel: put @triton.jit above it.")
    parameters = inspect.signature(kernel.fn)
    own = {name: value for name, value in kwargs.items() if name in parameters.parameters}  # no num_warps
    bound = parameters.bind(*args, **own).arguments
    storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
    here = {name: on_cpu(it, storages) if isinstance(it, torch.Tensor) else it for name, it in bound.items()}
    tensors = {name: value for name, value in here.items() if isinstance(value, torch.Tensor)}
    notes = _Notes(tensors, len(grid), moments_of)

    def grid_of(arguments: dict[str, Any]) -> tuple[int, ...]:
        notes.set_apart(arguments)
        return tuple(grid)

    with interpreted(kernel, here) as run, notes.taken(), _without_warnings():
        try:
            run[grid_of](**here)
        except InterpreterError as error:
            raise cause_of(error) from None
    for theirs, ours in storages.values():
        theirs.copy_(ours)
    return KernelRecording(kernel.fn.__name__, tuple(grid), notes.layouts, notes.programs(grid), notes.order.race())


@contextmanager
def _without_warnings():
    """Silence NumPy's warnings about infinite and NaN results, which are ordinary on a GPU."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


class _Notes:
    """Replacements for `tl.load`, `tl.store`, atomic operations and barriers while a kernel runs."""

    def __init__(self, tensors: dict[str, torch.Tensor], num_axes: int, moments_of: tuple[int, ...] | None):
        self.moments_of = moments_of
        self.layouts = {
            name: TensorLayout(name, tuple(it.shape), it.stride(), it.element_size()) for name, it in tensors.items()
        }
        self.ranges = [(layout, tensors[name].data_ptr(), layout.span) for name, layout in self.layouts.items()]
        self.num_axes, self.program_id = num_axes, tl.program_id
        self.by_program: dict[tuple[int, ...], list[Access]] = {}
        self.order = AccessOrder()

    def programs(self, grid: tuple[int, ...]) -> tuple[ProgramRun, ...]:
        return tuple(ProgramRun(ids, tuple(self.by_program.get(ids, ()))) for ids in np.ndindex(*grid))

    def set_apart(self, arguments: dict[str, Any]) -> None:
        """Move a kernel's pointers apart; the interpreter calls the grid function with them at the start."""
        for number, (layout, _, _) in enumerate(self.ranges, start=1):
            handle = arguments[layout.name].handle
            handle.data = handle.data + np.uint64(number * APART)

    @contextmanager
    def taken(self):
        atomic = {name: "update" for name in vars(tl) if name.startswith("atomic_")}
        kinds = {"load": "load", "store": "store"} | atomic
        replaced = {name: self._noting(kind, getattr(tl, name)) for name, kind in kinds.items()}
        replaced |= {name: moved_back(getattr(tl, name)) for name in UNNOTED if hasattr(tl, name)}
        replaced["debug_barrier"] = self._counting(tl.debug_barrier)
        methods = [name for name in ("store", *atomic) if hasattr(tl.tensor, name)]  # of a pointer: the same functions
        places = [(tl, name) for name in replaced] + [(tl.tensor, name) for name in methods]
        originals = [(owner, name, getattr(owner, name)) for owner, name in places]
        for owner, name in places:
            setattr(owner, name, replaced[name])
        try:
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)

    def _counting(self, original):
        @tl.core.builtin
        def counted(_semantic=None):
            self.order.barrier(self._ids(_semantic))
            return original(_semantic=_semantic)

        return counted

    def _ids(self, semantic) -> tuple[int, ...]:
        return tuple(int(self.program_id(axis, _semantic=semantic).handle.data[0]) for axis in range(self.num_axes))

    def _noting(self, kind: str, original):
        signature = inspect.signature(original)

        @tl.core.builtin
        def noted(pointer, *args, _semantic=None, **kwargs):
            arguments = signature.bind(pointer, *args, **kwargs).arguments
            mask = arguments.get("mask")
            wanted = np.asarray(mask.handle.data if hasattr(mask, "handle") else True if mask is None else bool(mask))
            addresses = addresses_of(pointer)
            if addresses is not None:
                self._note(kind, pointer, arguments, *left_by(addresses, wanted), self._ids(_semantic))
                is_undefined = kind == "load" and mask is not None and arguments.get("other") is None
                if is_undefined and pointer.dtype.scalar.element_ty.is_floating():
                    kwargs["other"] = float("nan")  # undefined on a GPU; the interpreter's 0 would hide that
            return original(back(pointer), *args, _semantic=_semantic, **kwargs)

        return noted

    def _note(self, kind: str, pointer, arguments: dict, addresses, lanes, ids: tuple[int, ...]) -> None:
        if not addresses.size:
            return
        number = int(tensor_numbers(addresses)[0])
        if number == 0:
            return  # a pointer that was not moved, or was itself loaded
        number = min(number, len(self.ranges))
        layout, start, span = self.ranges[number - 1]
        addresses = addresses.astype(np.int64) - number * APART
        offsets = (addresses - start) // layout.itemsize
        outside = (offsets < 0) | (offsets >= span)
        if outside.any():
            raise OutOfBounds(ids, kind, layout.name, int(offsets[outside][0]), span)
        frame = kernel_frame(sys._getframe(1))
        place = (frame.f_code, frame.f_lineno) if frame else None
        orders = kind == "update" and arguments.get("sem") != "relaxed"
        shape = tuple(int(size) for size in pointer.shape)
        value = arguments["value"] if kind == "store" else None
        kept = once(addresses, np.asarray(value.handle.data), lanes) if hasattr(value, "handle") else slice(None)
        elements = addresses[kept], offsets[kept], lanes[kept]
        self.order.note(ids, kind, layout.name, elements, shape, orders, place)
        if kind != "update":
            now = moment() if ids == self.moments_of else None
            self.by_program.setdefault(ids, []).append(Access(kind, layout.name, tuple(offsets.tolist()), now))
