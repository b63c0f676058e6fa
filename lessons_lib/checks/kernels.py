"""Runs a learner's kernel for a check, through the interpreter: every address checked, every exception explained.

At the end, the compiler is asked too, which doesn't take a GPU.
"""

import re
import traceback
from collections.abc import Iterable

import torch

from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.measuring.compile_check import why_not_compiled
from lessons_lib.recording.kernel_accesses import KernelRecording, OutOfBounds, ProgramRun, record_kernel

LIMIT_32 = 2**31

# Part of an exception's text -> the idea behind it.
EXCEPTIONS = (
    (
        "range must be a power of 2",
        "`tl.arange(0, N)` takes only a power of two. Make the tile as long as the constant in capitals, and mask what "
        "is too much.",
    ),
    (
        "must be a power of 2",
        "The sides of a tile must be powers of two. The constants in capitals are; other lengths aren't.",
    ),
    (
        "must be of type tl.constexpr",
        "The length of a tile must be known when the kernel is compiled: `tl.arange(0, N)` takes a constant in "
        "capitals, not an argument such as a length.",
    ),
    (
        "incompatible dimensions",
        "You can't combine two tiles of different lengths element by element. `a[:, None]` makes a column and "
        "`b[None, :]` a row; a column and a row combine to a rectangle `[M, N]`. Its sum along `axis=1` has M "
        "elements, along `axis=0` N.",
    ),
    (
        "cannot make_shape_compatible",
        "Two tiles have different shapes. `a[:, None]` makes a column and `b[None, :]` a row; a column and a row "
        "combine to a rectangle.",
    ),
    (
        "pointer<fp32> and triton.language.f",
        "You computed with an address as if it were a value, or with a float as if it were an offset. Load the values "
        "first, `tl.load(pointer + offsets)`, also for a function that takes a tile. And `/` gives a float: use `//`.",
    ),
    (
        "operands of type pointer",
        "You can only add integers to a pointer: pointer + offsets. You can't compute with the address itself; "
        "`tl.load` gets the value stored there. And `/` gives a float: use `//`.",
    ),
    ("pointers together", "You can't add two addresses. `tl.load` gets the values stored there; add those."),
    (
        "'int' object is not iterable",
        "A pointer, or a tile, has no `[i]`. Element i of a tensor is `tl.load(pointer + i)`. The elements of a "
        "tile are used all at once: `tl.sum`, `tl.max`, `tl.where`.",
    ),
    (
        "of type <class 'tuple'> to tensor",
        "Return one tile. A function that a kernel calls has returned several values.",
    ),
    ("has no attribute 'inf'", 'Infinity is `float("inf")`, and minus infinity `float("-inf")`.'),
    (
        "if pointer argument is not a block",
        "There is one address for a whole tile. Give one for each element: `out + offsets`, where `offsets` is a tile.",
    ),
    (
        "unsupported ptr type",
        "`tl.load` and `tl.store` take an address. This is a value, perhaps one that was loaded already. If it is the "
        "one you need, use it as it is; if you need others, pass the pointer, moved to where the data starts.",
    ),
    ("zeros() missing", "`tl.zeros` takes the shape and the dtype: `tl.zeros([HEAD_DIM], tl.float32)`."),
    (
        "required positional argument",
        "Pass all arguments to a function that a kernel calls, in order, including the constants in capitals.",
    ),
    (
        "list index out of range",
        "A pointer has no shape. A kernel gets the lengths and strides that it needs as arguments.",
    ),
    (
        "must be Tensor, not tensor",
        "Inside a kernel only functions of `tl` work, such as `tl.exp`, `tl.sum` and `tl.maximum`. PyTorch doesn't "
        "know tiles.",
    ),
    (
        "operand type(s) for @",
        "`@` isn't a matrix product here. A score is the sum of query × key: "
        "`tl.sum(query[None, :] * block_keys, axis=1)`; for a tile of queries, `tl.dot`.",
    ),
    ("cannot convert none", "A function that a kernel calls must return its result. Yours returned nothing."),
    (
        "'int' object has no attribute 'to'",
        "The variable of a loop is a plain integer in the interpreter, without `.to`. What `tl.load` gives has it: is "
        "this value read from memory?",
    ),
    (
        "must have equal ranks",
        "`tl.dot` takes two tiles with two axes each, and one of these has another number. Where a function returns "
        "several tiles, are they taken in its order?",
    ),
    (
        "expected pointer argument to have shape",
        "The tile that you store and the tile of its addresses have different shapes.",
    ),
    ("must be same dtype", "Both factors of `tl.dot` need the same dtype: convert the one that is computed."),
    (
        "axis",
        "A tile `[N]` has only axis 0; a rectangle `[M, N]` has axis 0, down its columns, and axis 1, along its rows.",
    ),
    (
        "shape",
        "The shapes of two tiles don't match. `tl.sum(..., axis=...)` removes an axis; `[:, None]` and `[None, :]` add "
        "one.",
    ),
)

# Part of the compiler's message -> the idea behind it.
REFUSALS = (
    (
        "loop-carried variable",
        "What a loop updates keeps the dtype and the shape that it starts with. Start with 0.0, not with the integer "
        "0; and where the loop makes a tile, with a tile: `tl.zeros(...)`, or for a maximum "
        '`tl.full([...], float("-inf"), tl.float32)`.',
    ),
    (
        "must be same dtype",
        "Both factors of `tl.dot` need the same dtype. A 16-bit tile times a scalar such as `scale` is float32 to the "
        "compiler, though not to the interpreter. Multiply the scores instead, which are float32 anyway.",
    ),
    ("operands of type pointer", "Only integers can be added to a pointer: keep floats out of offsets."),
    (
        "re-assigned to",
        "What a loop or an `if` updates keeps its dtype and its shape: 0.0, not 0; a tile, not a scalar.",
    ),
    (
        "boolean value of tensor",
        "An `if` takes one boolean, and this is a tile of them. The interpreter takes the `if` for True; the compiler "
        "refuses it. Use `mask=` to leave out elements, and `tl.where` to choose elementwise.",
    ),
    (
        "loop body should only have one block",
        "`return` is inside the loop, so the first iteration is the last. Move it after the loop, to the indentation "
        "of `for`.",
    ),
    (
        "`return` statements inside",
        "`return` isn't allowed inside a loop. Let the loop run to its end, and return after it.",
    ),
    ("ast node type: break", "A kernel's loop has no `break`. `range(...)` says where it ends."),
    ("ast node type: continue", "A kernel's loop has no `continue`. Use a mask, or `tl.where`."),
    ("is not string", "`print` of a bare value works in the interpreter only. Remove it when you're done."),
    ("f-string", "`print` with an f-string works in the interpreter only. Remove it when you're done."),
    ("global variable", "A kernel sees its arguments and other kernels. Pass whatever else it needs as an argument."),
    (
        "is not defined",
        "A name that first appears inside a loop or an `if` doesn't exist after it: assign it before. And a kernel "
        "knows only `tl` and its arguments.",
    ),
)
RACE_WITHIN = (
    "Each element of a tile has a thread of its own, and the threads of a program run at their own pace: one may "
    "read or overwrite an element before another has come to it. Keep values in variables, and store each result once."
)
RACE_BETWEEN = (
    "Programs run in any order, many at a time; here they ran one after another, so the results are right by luck. "
    "Each element of the result belongs to one program, and no program reads what another stores."
)


def refuse_uncompiled(attempt, launches: Iterable[tuple[tuple, dict]], kernel=None) -> None:
    """A kernel is right only if a GPU's compiler accepts it.

    Raises:
        Mistake: it doesn't.
    """
    if refusal := _refusal(attempt, launches, kernel):
        line = f" In your line `{refusal.line}`." if refusal.line else ""
        what = f"right in the interpreter, but a GPU's compiler refuses it: {refusal.text[:200]}"
        raise Mistake(
            what, case=f"compiled for an NVIDIA GPU, which need not be there.{line}", idea=_idea(refusal.text)
        )


def _refusal(attempt, launches, kernel):
    refusals = (why_not_compiled(kernel or attempt, *args, about=attempt, **constants) for args, constants in launches)
    return next(filter(None, refusals), None)


def _idea(text: str) -> str:
    known = next((idea for words, idea in REFUSALS if words in text.lower()), "")
    return (
        known
        or "The interpreter is Python. The compiler knows scalars, tiles, pointers, functions of `tl`, `if` on "
        "scalars, `for` over a `range`, and `while`."
    )


def run_through(attempt, kernel, grid, *args, case: str, explain=lambda error: "", **constants) -> KernelRecording:
    """Run a kernel that is the attempt, or calls it.

    Args:
        explain: `OutOfBounds` -> the idea that it violates; if it returns "", the message names mask and strides.

    Raises:
        Mistake: an address is outside the tensors, or Triton refused something that we can explain.
        NotImplementedError: the exercise isn't attempted yet.
    """
    refuse_undecorated(attempt)
    current_case.text = case
    try:
        return record_kernel(kernel, grid, *args, **constants)
    except NotImplementedError:
        raise
    except OutOfBounds as error:
        which = f"{error.ids}" if len(error.ids) > 1 else f"{error.ids[0]}"
        there = f"it has elements 0 to {error.count - 1:,}" if error.count else "it is empty"
        what = f"program {which} would {error.kind} element {error.number:,} of `{error.tensor}`; {there}."
        idea = (
            explain(error)
            or "Look at the mask and at the strides. On a GPU nothing stops this: it reads or overwrites other tensors."
        )
        raise Mistake(what, case=case, idea=idea) from None
    except Exception as error:
        if idea := _explained(error):
            what = f"Triton refuses your code: {type(error).__name__}: {str(error)[:160]}"
            raise Mistake(what, case=case, idea=idea) from None
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
            idea="Put `@triton.jit` above `def`. It turns the function into something that a GPU, or the interpreter, "
            "can run.",
        )


def _explained(error: Exception) -> str:
    if isinstance(error, NameError):
        return ""  # its message says it all
    message = str(error).lower()
    if "object is not iterable" in message and any(
        frame.name in ("zeros", "full") for frame in traceback.extract_tb(error.__traceback__)
    ):
        return (
            "The shape of a tile is a list, even with one side: `tl.zeros([HEAD_DIM], tl.float32)`, with the brackets."
        )
    if "object is not iterable" in message and (name := _builtin_of(error)):
        return (
            f"Python's `{name}` can't take a tile. `tl.{name}(tile, axis=0)` reduces one; `tl.maximum` and "
            "`tl.minimum` take the larger or the smaller of two."
        )
    return next((idea for words, idea in EXCEPTIONS if words.lower() in message), "")


def _builtin_of(error: Exception) -> str:
    """`max`, `min` or `sum`, if the learner's line calls Python's own; else ""."""
    lines = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__)]
    own = [found for line in lines for found in re.findall(r"(?<![\w.])(max|min|sum)\(", line)]
    return own[-1] if own else ""


def touched(recording: KernelRecording, program: ProgramRun, kind: str, tensor: str) -> list[int]:
    """Offsets of the elements of a tensor that a program loaded or stored, each once, sorted."""
    return sorted({offset for a in program.accesses if (a.kind, a.tensor) == (kind, tensor) for offset in a.offsets})


def cells(recording: KernelRecording, program: ProgramRun, kind: str, tensor: str, axes: int) -> list[tuple[int, ...]]:
    """The first `axes` parts of the indices that a program loaded or stored: (block, slot) of a cache, for example."""
    found: dict[tuple[int, ...], None] = {}
    for access in program.accesses:
        if (access.kind, access.tensor) == (kind, tensor):
            found |= dict.fromkeys(recording.indices(access, axes))
    return list(found)


def stored_anywhere(recording: KernelRecording) -> set[str]:
    """Names of the tensors that were stored to."""
    return {access.tensor for program in recording.programs for access in program.accesses if access.kind == "store"}


def ranges(numbers: list[int]) -> str:
    """Integers in words, consecutive ones together: "4 to 7", "0, 3 to 5"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    return ", ".join(texts[:6] + ["…"] * (len(texts) > 6)) or "none"


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-4) -> bool:
    """Equal up to rounding; NaN equals nothing."""
    return torch.allclose(got.double(), want.double(), atol=tolerance, rtol=tolerance)
