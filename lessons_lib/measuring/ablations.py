"""Lesson 08: variants of kernels, which call other functions or have other lines than the originals, and the kernel of
its Ideas 1 and 2 without Idea 3.
"""

import difflib
import functools
import inspect
import itertools
import linecache
import types
from dataclasses import dataclass
from typing import Any

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
import triton

from lessons_lib.kernels.group_decode import attend_keys, decode_groups, decode_groups_kernel


@dataclass(frozen=True)
class Variant:
    """A kernel without one of its ideas.

    Attributes:
        idea: the missing idea.
        kernel: the changed kernel, with the arguments of the original.
        changed: (original, changed) for each function that differs; the kernel itself if its own lines do.
    """

    idea: str
    kernel: Any
    changed: tuple[tuple[Any, Any], ...]

    def diff(self) -> str:
        """The differing lines, with one line of context, function by function."""
        return "\n".join(
            f"  in {original.fn.__name__}:\n{_diff(original.fn, changed.fn)}" for original, changed in self.changed
        )


def with_functions(kernel, **functions):
    """Copy a kernel so that it calls these functions in place of those with the same names, arguments and results."""
    fn = kernel.fn
    own = types.FunctionType(fn.__code__, {**fn.__globals__, **functions}, fn.__name__, fn.__defaults__, fn.__closure__)
    return triton.jit(functools.update_wrapper(own, fn))


_files = itertools.count()


def with_lines(kernel, *pairs: tuple[str, str]):
    """Copy a kernel with pieces of its source replaced, given as (old, new)."""
    source = inspect.getsource(kernel.fn)
    for old, new in pairs:
        if old not in source:
            raise ValueError(f"{kernel.fn.__name__} has no {old!r} to replace.")
        source = source.replace(old, new)
    return from_source(source, kernel.fn.__name__, kernel.fn.__globals__)


def from_source(source: str, name: str, names: dict[str, Any]):
    """The function `name` of a source text, which uses `names`. Triton and `inspect` find it as if in a file."""
    file = f"<source {next(_files)} of {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = dict(names)
    exec(compile(source, file, "exec"), namespace)  # noqa: S102
    return namespace[name]


def _diff(original, changed) -> str:
    """Diff of the two bodies; names and docstrings always differ."""
    old, new = (inspect.getsource(function).split('"""', 2)[2].splitlines() for function in (original, changed))
    lines = list(difflib.unified_diff(old, new, n=1, lineterm=""))[3:]
    return "\n".join("  ..." if line.startswith("@@") else line for line in lines if line.strip())


# Lesson 08's Ideas 1 and 2, a group of heads and a tile of keys, without Idea 3: it multiplies element by element, like
# lesson 07's kernel. Without `tl.dot`, a tile can have fewer than 16 rows.
attend_by_sums = with_lines(
    attend_keys,
    (
        'tl.dot(queries, tl.trans(tile_keys), input_precision="ieee")',
        "tl.sum(queries[:, None, :].to(tl.float32) * tile_keys[None, :, :].to(tl.float32), axis=2)",
    ),
    (
        'acc = tl.dot(weights.to(tile_values.dtype), tile_values, acc, input_precision="ieee")',
        "acc += tl.sum(weights[:, :, None] * tile_values[None, :, :].to(tl.float32), axis=1)",
    ),
)
decode_groups_by_sums_kernel = with_functions(decode_groups_kernel, attend_keys=attend_by_sums)
decode_groups_by_sums = functools.partial(decode_groups, kernel=decode_groups_by_sums_kernel, min_rows=1)
