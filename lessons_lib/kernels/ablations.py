"""Lesson 08: variants of the fast kernels, each without one idea, to measure its benefit.

If an idea is a separate function, `with_functions` builds the kernel with another function in its place. If it is part
of the kernel's loop, `with_lines` replaces those lines. All variants compute the same results as the originals.
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
import triton.language as tl

from lessons_lib.kernels import paged_flash
from lessons_lib.kernels.group_decode import decode_groups, decode_groups_kernel
from lessons_lib.kernels.paged_flash import decode_kernel, prefill_kernel


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


def _replacing(idea: str, kernel, **functions) -> Variant:
    pairs = tuple((getattr(paged_flash, name), function) for name, function in functions.items())
    return Variant(idea, with_functions(kernel, **functions), pairs)


def _rewriting(idea: str, kernel, *pairs: tuple[str, str]) -> Variant:
    changed = with_lines(kernel, *pairs)
    return Variant(idea, changed, ((kernel, changed),))


# --- functions of prefill_kernel without their idea


@triton.jit
def natural_online_softmax(scores, row_max, row_sum, acc):
    """`online_softmax` with natural exponentials; the launcher passes the scale without log2(e)."""
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    # A row that hasn't seen a key yet has the maximum -inf, and -inf - (-inf) is NaN.
    reference = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp(scores - reference[:, None])
    rescale = tl.exp(row_max - reference)
    return weights, new_max, row_sum * rescale + tl.sum(weights, axis=1), acc * rescale[:, None]


@triton.jit
def natural_unmasked_softmax(scores, scale, row_max, row_sum, acc):
    """`unmasked_softmax` with natural exponentials."""
    new_max = tl.maximum(row_max, tl.max(scores, axis=1) * scale)
    weights = tl.exp(scores * scale - new_max[:, None])
    rescale = tl.exp(row_max - new_max)
    return weights, new_max, row_sum * rescale + tl.sum(weights, axis=1), acc * rescale[:, None]


@triton.jit
def shortest_first():
    """This program's tile, counted from the first."""
    return tl.program_id(1)


@triton.jit
def every_key(first_position, BLOCK_N: tl.constexpr):
    """Start the masked loop at the first key, so that the unmasked loop has no iterations."""
    return 0


@triton.jit
def never(q_len):
    """No sequence is left to another kernel."""
    return False


# Lesson 08's Ideas 1 and 2, a group of heads and a tile of keys, without Idea 3: it multiplies element by element, like
# lesson 07's kernel. Without `tl.dot`, a tile can have fewer than 16 rows.
decode_groups_by_sums_kernel = with_lines(
    decode_groups_kernel,
    (
        'tl.dot(queries, tl.trans(keys), input_precision="ieee")',
        "tl.sum(queries[:, None, :].to(tl.float32) * keys[None, :, :].to(tl.float32), axis=2)",
    ),
    (
        'acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")',
        "acc += tl.sum(weights[:, :, None] * values[None, :, :].to(tl.float32), axis=1)",
    ),
)
decode_groups_by_sums = functools.partial(decode_groups, kernel=decode_groups_by_sums_kernel, min_rows=1)

_LOOP = "    for first in range(start, end, BLOCK_N):\n"
_READ_TABLE = "        blocks = tl.load(table + position // BLOCK_SIZE, mask=is_key, other=0)\n"
_OFFSETS = "        offsets = cache_offsets(blocks, position, stride_block, stride_slot, BLOCK_SIZE, USE_INT64)\n"

VARIANTS = {
    # GROUP = 1, for cache views with one KV head per query head, four of which share the same memory.
    "one program per query head": _rewriting(
        "one program for all query heads of a KV head: its keys are read once",
        decode_kernel,
        (
            "k_cache + kv_head * stride_head, v_cache + value_offset(kv_head * stride_head, HEAD_DIM, VALUE_DIM)",
            "k_cache + kv_head // 4 * HEAD_DIM, v_cache + kv_head // 4 * VALUE_DIM",
        ),
    ),
    # float32 products and sums need no padding: the tile has GROUP rows, a power of two.
    "no tensor cores": _rewriting(
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
    "table read one iteration early": _rewriting(
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
    "natural exponentials": _replacing(
        "exponentials in base 2",
        prefill_kernel,
        online_softmax=natural_online_softmax,
        unmasked_softmax=natural_unmasked_softmax,
    ),
    "a mask in every iteration": _replacing("a mask on the diagonal only", prefill_kernel, first_masked_key=every_key),
    "first tokens first": _replacing("the longest programs first", prefill_kernel, longest_first=shortest_first),
    "one kernel for prefills and decodes": _replacing(
        "a kernel of its own for decodes", prefill_kernel, has_own_kernel=never
    ),
}
