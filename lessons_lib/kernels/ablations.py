"""Lesson 08: the same kernel with one idea taken out, to see what the idea buys. Made by replacing lines of its source."""

import difflib
import functools
import importlib.util
import inspect
import sys
import tempfile
import types
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import triton

import lessons_lib.kernels.paged_flash as kernels


@dataclass(frozen=True)
class Variant:
    """A kernel without one of its ideas.

    Attributes:
        kernel: name of a kernel in `kernels.py`.
        idea: what is taken out.
        lines: (text with the idea, text without it). Replaced in the whole of `kernels.py`, so that functions that the kernel calls change with it.
    """

    kernel: str
    idea: str
    lines: tuple[tuple[str, str], ...]

    def diff(self) -> str:
        """The changed lines of the kernel and of the functions that it calls, whole, with a line around them."""
        source = inspect.getsource(getattr(kernels, self.kernel).fn)
        called = (
            name
            for name, value in vars(kernels).items()
            if hasattr(value, "fn") and f" {name}(" in source and name != self.kernel
        )
        return "\n  ...\n".join(filter(None, map(self._diff, (self.kernel, *called))))

    def _diff(self, function: str) -> str:
        source = inspect.getsource(getattr(kernels, function).fn)
        lines = list(
            difflib.unified_diff(source.splitlines(), _replaced(source, self.lines).splitlines(), n=1, lineterm="")
        )[3:]
        return "\n".join("  ..." if line.startswith("@@") else line for line in lines if line.strip())

    def build(self):
        """The changed kernel, ready to run. It is right like the other, only slower."""
        return getattr(_changed_module(self.lines), self.kernel)


def with_functions(kernel, **functions):
    """The same kernel, but calling these functions in place of those of their names in its module: yours in place of the library's."""
    fn = kernel.fn
    own = types.FunctionType(fn.__code__, {**fn.__globals__, **functions}, fn.__name__, fn.__defaults__, fn.__closure__)
    return triton.jit(functools.update_wrapper(own, fn))


def _replaced(source: str, lines: tuple[tuple[str, str], ...]) -> str:
    for old, new in lines:
        source = source.replace(old, new)
    return source


@lru_cache(maxsize=None)
def _changed_module(lines: tuple[tuple[str, str], ...]):
    """`kernels.py` with lines replaced, as a module of its own: Triton reads a kernel's source from its file."""
    source = inspect.getsource(kernels)
    for old, new in lines:
        if old not in source:
            raise ValueError(f"kernels.py has no line {old!r}; the variant does not fit it any more.")
    source = _replaced(source, lines)
    path = Path(tempfile.mkdtemp(prefix="kernel-variant-")) / "changed_kernels.py"
    path.write_text(source, encoding="utf-8")
    name = f"changed_kernels_{abs(hash(lines))}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


VARIANTS = {
    "one program per query head": Variant(
        "decode_kernel",
        "one program for all query heads of a KV head: its keys are read once",
        (
            (
                "k_cache + kv_head * stride_head, v_cache + kv_head * stride_head",
                "k_cache + kv_head // 4 * HEAD_DIM, v_cache + kv_head // 4 * HEAD_DIM",
            ),
        ),
    ),
    "no tensor cores": Variant(
        "decode_kernel",
        "tensor cores",
        (
            (
                'scores = tl.dot(queries, keys, input_precision="ieee") * scale',
                "scores = tl.sum(queries[:, :, None].to(tl.float32) * keys[None].to(tl.float32), axis=1) * scale",
            ),
            (
                'acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")',
                "acc += tl.sum(weights[:, :, None] * values[None].to(tl.float32), axis=1)",
            ),
            # Tensor cores need 16 rows; without them, the query heads are enough.
            ("tl.arange(0, BLOCK_M)", "tl.arange(0, GROUP)"),
            ("[BLOCK_M", "[GROUP"),
        ),
    ),
    # Not an idea taken out, but one that was tried and not kept.
    "table read one turn early": Variant(
        "decode_kernel",
        "a block table read when it is needed",
        (
            (
                "    for first in range(start, end, BLOCK_N):\n",
                "    blocks = tl.load(table + (start + offset) // BLOCK_SIZE, mask=start + offset < end, other=0)\n"
                "    for first in range(start, end, BLOCK_N):\n",
            ),
            (
                "        blocks = tl.load(table + position // BLOCK_SIZE, mask=is_key, other=0)\n"
                "        place = places_of(blocks, position, stride_block, stride_slot, BLOCK_SIZE, USE_INT64)\n",
                "        place = places_of(blocks, position, stride_block, stride_slot, BLOCK_SIZE, USE_INT64)\n"
                "        blocks = tl.load(table + (position + BLOCK_N) // BLOCK_SIZE, mask=position + BLOCK_N < end, other=0)\n",
            ),
        ),
    ),
    "natural exponentials": Variant("prefill_kernel", "exponentials in base 2", (("tl.exp2(", "tl.exp("),)),
    "a mask in every turn": Variant(
        "prefill_kernel",
        "a mask on the diagonal only",
        (("diagonal = (first_position + 1) // BLOCK_N * BLOCK_N", "diagonal = 0"),),
    ),
    "first tokens first": Variant(
        "prefill_kernel",
        "the longest programs first",
        (("tl.num_programs(1) - 1 - tl.program_id(1)", "tl.program_id(1)"),),
    ),
    "one kernel for prefills and decodes": Variant(
        "prefill_kernel",
        "a kernel of its own for decodes",
        (("if first_token >= q_len or q_len == 1:", "if first_token >= q_len:"),),
    ),
}
