"""Lesson 08: variants of the fast kernels, each without one idea, to measure its benefit.

Each replaces a few lines, of a kernel or of functions that it calls. All compute the same results as the originals.
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
from lessons_lib.kernels.paged_flash import (
    decode_kernel,
    first_masked_key,
    has_own_kernel,
    longest_first,
    online_softmax,
    prefill_kernel,
    unmasked_softmax,
)


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


def _without(idea: str, kernel, *pairs: tuple[str, str], of: tuple[Any, ...] = ()) -> Variant:
    """Replace pieces of the kernel's source, or of the functions `of` that it calls."""
    changed = tuple((original, with_lines(original, *pairs)) for original in of or (kernel,))
    functions = {original.fn.__name__: function for original, function in changed}
    return Variant(idea, with_functions(kernel, **functions) if of else changed[0][1], changed)


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

_LOOP = "    for first in range(start, end, BLOCK_N):\n"
_READ_TABLE = "        blocks = tl.load(table + position // BLOCK_SIZE, mask=is_key, other=0)\n"
_OFFSETS = "        offsets = cache_offsets(blocks, position, stride_block, stride_slot, BLOCK_SIZE, USE_INT64)\n"

VARIANTS = {
    # GROUP = 1, for cache views with one KV head per query head, four of which share the same memory.
    "one program per query head": _without(
        "one program for all query heads of a KV head: its keys are read once",
        decode_kernel,
        (
            "k_cache + kv_head * stride_head, v_cache + value_offset(kv_head * stride_head, HEAD_DIM, VALUE_DIM)",
            "k_cache + kv_head // 4 * HEAD_DIM, v_cache + kv_head // 4 * VALUE_DIM",
        ),
    ),
    # float32 products and sums need no padding: the tile has GROUP rows, a power of two.
    "no tensor cores": _without(
        "tensor cores",
        decode_kernel,
        ("tl.arange(0, BLOCK_M)", "tl.arange(0, GROUP)"),
        ("[BLOCK_M", "[GROUP"),
        (
            'tl.dot(queries, keys, input_precision="ieee")',
            "tl.sum(queries[:, :, None].to(tl.float32) * keys[None].to(tl.float32), axis=1)",
        ),
        (
            'acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")',
            "acc += tl.sum(weights[:, :, None] * values[None].to(tl.float32), axis=1)",
        ),
    ),
    "table read one iteration early": _without(
        "a block table read when it is needed",
        decode_kernel,
        (
            _LOOP,
            f"    blocks = tl.load(table + (start + key) // BLOCK_SIZE, mask=start + key < end, other=0)\n{_LOOP}",
        ),
        (_READ_TABLE, ""),
        (
            _OFFSETS,
            f"{_OFFSETS}        upcoming = position + BLOCK_N\n"
            "        blocks = tl.load(table + upcoming // BLOCK_SIZE, mask=upcoming < end, other=0)\n",
        ),
    ),
    "natural exponentials": _without(  # the launcher passes the scale without log2(e)
        "exponentials in base 2", prefill_kernel, ("tl.exp2(", "tl.exp("), of=(online_softmax, unmasked_softmax)
    ),
    # The masked loop starts at the first key, so the unmasked one has no iterations.
    "a mask in every iteration": _without(
        "a mask on the diagonal only",
        prefill_kernel,
        ("(first_position + 1) // BLOCK_N * BLOCK_N", "0"),
        of=(first_masked_key,),
    ),
    "first tokens first": _without(
        "the longest programs first", prefill_kernel, ("tl.num_programs(1) - 1 - ", ""), of=(longest_first,)
    ),
    "one kernel for prefills and decodes": _without(
        "a kernel of its own for decodes", prefill_kernel, ("q_len == 1", "False"), of=(has_own_kernel,)
    ),
}
