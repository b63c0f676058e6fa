"""Time work on a GPU without launch overhead: capture it in a CUDA graph and replay it."""

from collections.abc import Callable

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split

import torch
import triton
import triton.language as tl
from triton.testing import do_bench_cudagraph


def microseconds(calls: list[Callable[[], object]]) -> float:
    """Microseconds per call: the calls in order, repeated in one captured graph of two milliseconds; median of ten
    replays.

    Args:
        calls: functions that launch the same work on different data, so that the GPU's cache doesn't hold it.

    Raises:
        RuntimeError: a call can't be captured. A call's own errors pass through.
    """

    def all_of_them() -> None:
        for call in calls:
            call()

    return do_bench_cudagraph(all_of_them, rep=2, return_mode="median") * 1e3 / len(calls)


@triton.jit
def read_kernel(x, out, BLOCK: tl.constexpr):
    """Read a tensor once, with almost no computation: one sum per program.

    Args:
        x: pointer to int32 [programs * BLOCK].
        out: pointer to int32 [programs].
        BLOCK: elements per program, a power of two.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + first + tl.arange(0, BLOCK)), axis=0))


def machine_limits() -> dict[str, float]:
    """Measure this GPU's limits: bytes read per second, and operations per second of a large bfloat16 product."""
    bytes_per_s = _read_rate(2**31, 8192)  # 8 GB; freed before the product
    size = 8192
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    product = microseconds([lambda: left @ right])
    return {"read_bytes_per_s": bytes_per_s, "matmul_flop_per_s": 2 * size**3 / product * 1e6}


def _read_rate(n_elements: int, block: int) -> float:
    """Bytes per second of `read_kernel` over this many int32 elements, a multiple of `block`."""
    x = torch.ones(n_elements, dtype=torch.int32, device="cuda")
    out = torch.empty(n_elements // block, dtype=torch.int32, device="cuda")
    return x.nbytes / microseconds([lambda: read_kernel[(len(out),)](x, out, BLOCK=block, num_warps=8)]) * 1e6
