"""Another processor's rounding: every matrix product is off by one unit in the last place.

How a matrix product rounds depends on the processor: how wide its vectors are, and which shapes its library computes
in which order. While the environment variable LESSONS_ROUNDING is set to a number, PyTorch's products on the CPU
(attention is one of them), and `tl.dot` and `tl.sum` in Triton's interpreter, return the next larger or the next
smaller float for each element. Which of the two is pseudo-random, but repeatable: it depends on that number, the
shape, the position, and the first element. Zero, infinity and NaN stay what they are.

With this folder on PYTHONPATH, every Python process does so: also a notebook's kernel, and the processes it starts.
"""

import functools
import importlib.abc
import importlib.util
import os
import random
import sys
import warnings

PRODUCTS = ["mm", "addmm", "bmm", "baddbmm", "addmv", "dot", "_grouped_mm"]
PRODUCTS += ["mm.out", "addmm.out", "bmm.out", "baddbmm.out", "addmv.out", "addmm_", "baddbmm_", "addmv_"]
PRODUCTS += ["_scaled_dot_product_flash_attention_for_cpu"]
NUMBERS = 2**16


def round_torch(torch):
    @functools.cache
    def factors(dtype, size):
        return torch.tensor(random.Random(0).choices((2, 0.5), k=NUMBERS), dtype=dtype).repeat(size // NUMBERS + 2)

    def nudge(result) -> None:
        if not result.is_floating_point() or not (size := result.numel()):
            return
        start = first_factor(result[(0,) * result.ndim].item(), result.shape)
        own = factors(result.dtype, 1 << size.bit_length()).narrow(0, start, size)
        towards = result * own.view(result.shape)
        if result.dtype == torch.float16:  # nextafter doesn't take it; the order of the bits is the same
            result, towards = result.view(torch.bfloat16), towards.view(torch.bfloat16)
        torch.nextafter(result, towards, out=result)

    def rounded_otherwise(original):
        def product(keys, *arguments, **options):
            result = original.call_boxed(keys, *arguments, **options)
            nudge(result[0] if isinstance(result, tuple) else result)
            return result

        return product

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):
        for name in PRODUCTS:
            original = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(name, rounded_otherwise(original), "CPU", with_keyset=True, allow_override=True)
    return library  # PyTorch's own products come back when this is gone


def round_triton(interpreter):
    import numpy as np

    factors = np.array(random.Random(0).choices((2, 0.5), k=NUMBERS))

    def nudged(result):
        if not np.issubdtype(result.dtype, np.floating):
            return result
        own = np.arange(result.size) + first_factor(float(result.flat[0]), result.shape)
        towards = result * factors[own % NUMBERS].reshape(result.shape).astype(result.dtype)
        return np.nextafter(result, towards)

    dot, total = interpreter.InterpreterBuilder.create_dot, interpreter.ReduceOps.sum

    def create_dot(self, *arguments, **options):
        handle = dot(self, *arguments, **options)
        handle.data = nudged(handle.data)
        return handle

    def sum(self, *arguments, **options):
        tensor = total(self, *arguments, **options)
        tensor.handle.data = nudged(tensor.handle.data)
        return tensor

    interpreter.InterpreterBuilder.create_dot, interpreter.ReduceOps.sum = create_dot, sum
    return True


def first_factor(element: float, shape) -> int:
    element = 0 if element != element else element  # the hashes of two NaNs differ
    return hash((int(os.environ["LESSONS_ROUNDING"]), element, *shape)) % NUMBERS


CHANGED = {"torch": round_torch, "triton.runtime.interpreter": round_triton}


def change(module) -> None:
    if not hasattr(module, "_other_rounding"):  # pytest and its workers get here twice
        module._other_rounding = CHANGED[module.__name__](module)


class ChangeOnImport(importlib.abc.MetaPathFinder):
    def __init__(self):
        self.names = set(CHANGED)

    def find_spec(self, name, path=None, target=None):
        if name not in self.names:
            return None
        self.names.remove(name)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), change(module))
        return spec


if "LESSONS_ROUNDING" in os.environ:
    sys.meta_path.insert(0, ChangeOnImport())
    for name in CHANGED:
        if name in sys.modules:
            change(sys.modules[name])
