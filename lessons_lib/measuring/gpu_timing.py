"""Time work on a GPU without launch overhead: capture it in a CUDA graph and replay it."""

import statistics
from collections.abc import Callable

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split

# isort: split
import torch
import triton
import triton.language as tl

REPLAYS = 7
MIN_SECONDS = 2e-3  # per replay; shorter ones are too close to the clock's resolution


def microseconds(calls: list[Callable[[], object]]) -> float:
    """Microseconds per call: the calls in order, repeated in one captured graph; median of seven replays.

    Args:
        calls: functions that launch the same work on different data, so that the GPU's cache doesn't hold it.

    Raises:
        RuntimeError: a call can't be captured. A call's own errors pass through.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2] * 2:
            call()
        stream.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        for call in calls:
            call()
        end.record(stream)
        stream.synchronize()
        rounds = max(1, round(MIN_SECONDS * 1e3 / max(start.elapsed_time(end), 1e-3)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(rounds):
                for call in calls:
                    call()
        graph.replay()
        times = []
        for _ in range(REPLAYS):
            start.record(stream)
            graph.replay()
            end.record(stream)
            stream.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / (rounds * len(calls)))
    return statistics.median(times)


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
