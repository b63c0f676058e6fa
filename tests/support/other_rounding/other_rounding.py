"""Another processor's rounding: every product of matrices on the CPU is off by one unit in the last place.

How a product of matrices rounds depends on the processor, whose libraries add in an order of their own; NumPy's
exponentials, which Triton's interpreter calls, do too. Here each element becomes the next larger or the next smaller
float. Which of the two depends on its bits alone, and so equal elements stay equal: a row gives the same alone and in
company. An element whose last eight bits are 0 stays: it is zero, infinite, NaN or, like products of small integers,
probably exact, as it would be anywhere.

With this folder on PYTHONPATH, every Python process that imports PyTorch does so: PyTorch calls the entry points named
torch.backends at the end of its import. `tests/conftest.py` puts it there if LESSONS_ROUNDING is set; different numbers
round differently.
"""

import functools
import os
import warnings

PRODUCTS = ["mm", "addmm", "bmm", "baddbmm", "addmv", "dot", "_grouped_mm"]
PRODUCTS += ["mm.out", "addmm.out", "bmm.out", "baddbmm.out", "addmv.out", "addmm_", "baddbmm_", "addmv_"]
PRODUCTS += ["_scaled_dot_product_flash_attention_for_cpu"]
registered = []  # while it exists, PyTorch calls what is here


def nudge(bits) -> None:
    """Add 1 or -1 to the bits of floats: signed integers, in a tensor or an array, ordered as the floats are."""
    last = bits.itemsize * 8 - 1
    factor = int(int(os.environ["LESSONS_ROUNDING"]) * 0.6180339887 % 1 * 2**last) | 1
    bits += (bits * factor >> last | 1) * (bits & 0xFF != 0)


def round_torch() -> None:
    import torch

    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}

    def rounded(original):
        def product(keys, *arguments, **options):
            result = original.call_boxed(keys, *arguments, **options)
            elements = result[0] if isinstance(result, tuple) else result
            if elements.is_floating_point():
                nudge(elements.view(integers[elements.itemsize]))
            return result

        return product

    library = torch.library.Library("aten", "IMPL")
    registered.append(library)
    with warnings.catch_warnings(action="ignore"):
        for name in PRODUCTS:
            kernel = rounded(torch.library.get_kernel(f"aten::{name}", "CPU"))
            library.impl(name, kernel, "CPU", with_keyset=True, allow_override=True)


def round_numpy() -> None:
    import numpy

    def rounded(original):
        @functools.wraps(original)
        def function(*arguments, **options):
            result = original(*arguments, **options)
            if isinstance(result, numpy.ndarray) and result.dtype.char in "efd":
                nudge(result.view(f"i{result.itemsize}"))
            return result

        return function

    for name in ("matmul", "exp", "exp2", "log", "log2"):
        setattr(numpy, name, rounded(getattr(numpy, name)))


def round_otherwise() -> None:
    if not registered:
        round_torch()
        round_numpy()
