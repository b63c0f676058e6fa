"""Runs a learner's kernel for a check: through the interpreter on any machine, every address looked up, every exception in words.

At the end the compiler is asked, too, which needs no GPU for that.
"""

import traceback
from collections.abc import Callable

import torch

from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.kernels.compile_check import why_not_compiled
from lessons_lib.recording.kernel_accesses import KernelRecording, OutOfBounds, ProgramRun, record_kernel

LIMIT_32 = 2**31

# Words of an exception -> the idea behind it.
EXCEPTIONS = (
    (
        "range must be a power of 2",
        "`tl.arange(0, N)` takes only a power of two. Make the tile as long as the constant in capitals, and mask what is too much.",
    ),
    (
        "must be a power of 2",
        "The sides of a tile are powers of two. The constants in capitals are; other numbers are not.",
    ),
    (
        "must be of type tl.constexpr",
        "The length of a tile must be known when the kernel is compiled: `tl.arange(0, N)` takes a constant in capitals, not an argument such as a length.",
    ),
    (
        "incompatible dimensions",
        "Two tiles of unequal length can not be added. `a[:, None]` makes a column and `b[None, :]` a row; a column and a row give a rectangle.",
    ),
    (
        "cannot make_shape_compatible",
        "Two tiles of unequal shape met. `a[:, None]` makes a column and `b[None, :]` a row; a column and a row give a rectangle.",
    ),
    (
        "pointer<fp32> and triton.language.f",
        "An address was multiplied with numbers. Load the numbers first, `tl.load(pointer + place)`; what a function takes as a tile is not handed over as a pointer.",
    ),
    (
        "operands of type pointer",
        "A pointer takes whole numbers only: pointer + offsets. Of an address itself nothing can be computed; `tl.load` gets the number that lies there. And `/` gives a fraction: use `//`.",
    ),
    ("pointers together", "Two addresses can not be added. `tl.load` gets the numbers that lie there; add those."),
    ("'int' object is not iterable", "A pointer has no `[i]`. The number i behind it is `tl.load(pointer + i)`."),
    (
        "if pointer argument is not a block",
        "You store many numbers to one address. Give one address for each number: `out + place`, where `place` is a tile.",
    ),
    (
        "unsupported ptr type",
        "`tl.load` and `tl.store` take an address. This is a number, one that was loaded already, perhaps: hand on the pointer, moved to where the numbers begin.",
    ),
    ("zeros() missing", "`tl.zeros` takes the shape and the type: `tl.zeros([HEAD_DIM], tl.float32)`."),
    (
        "required positional argument",
        "A function that a kernel calls is given all its arguments, in order, the constants in capitals too.",
    ),
    (
        "list index out of range",
        "A pointer has no shape. What a kernel has to know of lengths and strides it is given as arguments.",
    ),
    (
        "must be Tensor, not tensor",
        "Inside a kernel only functions of `tl` work, such as `tl.exp`, `tl.sum` and `tl.maximum`. PyTorch does not know tiles.",
    ),
    (
        "operand type(s) for @",
        "A product of matrices is not `@` here. A score is the sum of query × key: `tl.sum(query[None, :] * block_keys, axis=1)`.",
    ),
    ("cannot convert none", "A function that a kernel calls must return its result. Yours returned nothing."),
    (
        "expected pointer argument to have shape",
        "The tile that is stored and the tile of its addresses have different shapes.",
    ),
    (
        "axis",
        "A tile `[N]` has only axis 0; a rectangle `[M, N]` has axis 0, down its columns, and axis 1, along its rows.",
    ),
    (
        "shape",
        "The shapes of two tiles do not fit. `tl.sum(..., axis=...)` takes an axis away; `[:, None]` and `[None, :]` add one.",
    ),
)

# Words of the compiler -> the idea behind them.
REFUSALS = (
    (
        "loop-carried variable",
        "What a loop changes keeps the type and the shape that it began with. Begin with 0.0, not with 0, which is a whole number; and with a tile of zeros, not with a "
        "number, where the loop makes a tile.",
    ),
    (
        "re-assigned to",
        "What a loop or an `if` changes keeps its type and its shape: 0.0, not 0; a tile, not a number.",
    ),
    (
        "boolean value of tensor",
        "An `if` needs one yes or no, and this is a tile of them. The interpreter takes the `if` for a yes; the compiler refuses it. Which places are left out is said by `mask=`, "
        "and `tl.where` chooses number by number.",
    ),
    (
        "loop body should only have one block",
        "`return` stands inside the loop, so the first turn is the last. Move it behind the loop, as far to the left as `for`.",
    ),
    (
        "`return` statements inside",
        "`return` can not stand inside a loop. Let the loop run to its end, and return behind it.",
    ),
    ("ast node type: break", "A kernel's loop has no `break`. Say in `range(...)` where it ends."),
    ("ast node type: continue", "A kernel's loop has no `continue`. Use a mask, or `tl.where`."),
    ("is not string", "`print` of a value alone works in the interpreter only. Take it out when you are done."),
    ("f-string", "`print` with an f-string works in the interpreter only. Take it out when you are done."),
    ("global variable", "A kernel sees its arguments, and other kernels. Whatever else it needs is an argument."),
    (
        "is not defined",
        "A name that first comes up inside a loop or an `if` does not exist behind it: give it a value before. And only `tl` and the arguments are known in a kernel.",
    ),
)
NAMED_BY_THE_COMPILER = (
    "boolean value of tensor",
    "loop body should only have one block",
)  # its words are better than what the wrong results look like


def compiled_too(test: Callable[[], None], attempt, *launches: tuple[tuple, dict], kernel=None) -> None:
    """Judge an attempt by its results; if they are right, ask whether a GPU's compiler takes it.

    Args:
        test: raises a `Mistake` if results are wrong.
        launches: (arguments, constants) for which the kernel must compile.
        kernel: what is launched, if the attempt is a function that it calls.

    Raises:
        Mistake: from the test; or the compiler refuses the attempt.
    """
    try:
        test()
    except Mistake as mistake:
        said = _refusal(attempt, launches, kernel) if hasattr(attempt, "fn") else None
        if said and any(words in said.text.lower() for words in NAMED_BY_THE_COMPILER):
            raise Mistake(
                mistake.what, case=f"{mistake.case} In your line `{said.line}`.", idea=_idea(said.text)
            ) from None
        raise
    if said := _refusal(attempt, launches, kernel):
        line = f" In your line `{said.line}`." if said.line else ""
        what = f"right in the interpreter, but a GPU's compiler refuses it: {said.text[:200]}"
        raise Mistake(what, case=f"compiled for an NVIDIA GPU, which need not be there.{line}", idea=_idea(said.text))


def _refusal(attempt, launches, kernel):
    said = (why_not_compiled(kernel or attempt, *args, about=attempt, **constants) for args, constants in launches)
    return next(filter(None, said), None)


def _idea(text: str) -> str:
    known = next((idea for words, idea in REFUSALS if words in text.lower()), "")
    return (
        known
        or "The interpreter is Python. The compiler knows single numbers, tiles, pointers, functions of `tl`, `if` for single numbers, `for` over a `range`, and `while`."
    )


def run(attempt, grid: tuple[int, ...], *args, case: str, wild=lambda error: "", **constants) -> KernelRecording:
    """Run the attempt on these arguments.

    Args:
        wild: what to say of an `OutOfBounds`, the idea; where it says nothing, mask and strides are named.

    Raises:
        Mistake: an address lies outside of the tensors, or Triton refused something that we can explain.
        NotImplementedError: it is not written yet.
    """
    return run_through(attempt, attempt, grid, *args, case=case, wild=wild, **constants)


def run_through(attempt, kernel, grid, *args, case: str, wild=lambda error: "", **constants) -> KernelRecording:
    """Run a kernel that calls the attempt; see `run`."""
    refuse_undecorated(attempt)
    current_case.text = case
    try:
        return record_kernel(kernel, grid, *args, **constants)
    except NotImplementedError:
        raise
    except OutOfBounds as error:
        which = f"{error.ids}" if len(error.ids) > 1 else f"{error.ids[0]}"
        there = f"it has the numbers 0 to {error.count - 1:,}" if error.count else "it is empty"
        what = f"program {which} would {error.kind} number {error.number:,} of `{error.tensor}`; {there}."
        idea = (
            wild(error)
            or "Look at the mask, and at the strides. On a GPU nobody stops this: it reads or destroys what belongs to others."
        )
        raise Mistake(what, case=_with_line(case, error, attempt), idea=idea) from None
    except Exception as error:
        if idea := _explained(error):
            what = f"Triton refuses your code: {type(error).__name__}: {str(error)[:160]}"
            raise Mistake(what, case=_with_line(case, error, attempt), idea=idea) from None
        raise


def refuse_undecorated(attempt) -> None:
    """A kernel is a function that `triton.jit` has wrapped.

    Raises:
        Mistake: it is a plain function.
    """
    if not hasattr(attempt, "fn"):
        what = f"`{getattr(attempt, '__name__', 'this')}` is a plain Python function, not a kernel."
        raise Mistake(
            what,
            idea="Put the line `@triton.jit` above `def`. It makes the function into something that a GPU, or the interpreter, can run.",
        )


def _explained(error: Exception) -> str:
    if isinstance(error, NameError):
        return ""  # says all there is to say
    said = str(error).lower()
    if "object is not iterable" in said and any(
        frame.name in ("zeros", "full") for frame in traceback.extract_tb(error.__traceback__)
    ):
        return (
            "The shape of a tile is a list, also if it has one side: `tl.zeros([HEAD_DIM], tl.float32)`, with brackets."
        )
    return next((idea for words, idea in EXCEPTIONS if words.lower() in said), "")


def _with_line(case: str, error: Exception, attempt) -> str:
    """The case, and the line of the attempt in which it happened."""
    file = attempt.fn.__code__.co_filename
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file and frame.line]
    return f"{case} In your line `{lines[-1].line}`." if lines and "ipykernel" in file else case


def touched(recording: KernelRecording, program: ProgramRun, kind: str, tensor: str) -> list[int]:
    """The numbers of a tensor that a program loaded or stored, each once, in order of their places."""
    return sorted({offset for a in program.accesses if (a.kind, a.tensor) == (kind, tensor) for offset in a.offsets})


def cells(recording: KernelRecording, program: ProgramRun, kind: str, tensor: str, axes: int) -> list[tuple[int, ...]]:
    """The first `axes` parts of the indices that a program loaded or stored: (block, slot) of a cache, for example."""
    found = {}
    for access in program.accesses:
        if (access.kind, access.tensor) == (kind, tensor):
            found |= dict.fromkeys(recording.indices(access, axes))
    return list(found)


def stored_anywhere(recording: KernelRecording) -> set[str]:
    """Names of the tensors that were stored to."""
    return {access.tensor for program in recording.programs for access in program.accesses if access.kind == "store"}


def refuse_wrong_tensors(recording: KernelRecording, wanted: str, case: str) -> None:
    """The kernel must store to `wanted`, and to nothing else.

    Raises:
        Mistake: it does not.
    """
    stored = stored_anywhere(recording)
    if stored - {wanted}:
        name = min(stored - {wanted})
        what = f"your kernel stores to `{name}`. Its result belongs to `{wanted}`."
        raise Mistake(
            what,
            case=case,
            idea=f"`tl.store({wanted} + ..., ...)`: the first argument says where to. Whoever launches the kernel still needs `{name}`.",
        )
    if wanted not in stored:
        idea = f"A kernel returns nothing; what it does not store is lost. `tl.store({wanted} + place, result)`."
        raise Mistake(f"nothing was stored to `{wanted}`.", case=case, idea=idea)


def places(numbers: list[int]) -> str:
    """Numbers in words, neighbours together: "4 to 7", "0, 3 to 5"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    return ", ".join(texts[:6] + ["…"] * (len(texts) > 6)) or "none"


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-4) -> bool:
    """Equal up to rounding; NaN is equal to nothing."""
    return torch.allclose(got.double(), want.double(), atol=tolerance, rtol=tolerance)


def numbers_text(tensor: torch.Tensor, digits: int = 4) -> str:
    """A few numbers of a tensor, rounded."""
    values = [f"{value:.{digits}g}" for value in tensor.flatten()[:6].tolist()]
    return "[" + ", ".join(values + ["…"] * (tensor.numel() > 6)) + "]"
