"""How long work takes on a GPU, without what the CPU takes to start it: the work is captured in a CUDA graph and replayed."""

import statistics
from collections.abc import Callable

# isort: split
import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
import torch
import triton
import triton.language as tl

REPLAYS = 7
LEAST_SECONDS = 2e-3  # of one replay: shorter ones are lost in the clock's own steps


def microseconds(calls: list[Callable[[], object]]) -> float:
    """Time of one call: the calls in turn, captured in one graph as often as needed, and the median of seven replays.

    Raises:
        Whatever a call raises; RuntimeError if it can't be captured.
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
        rounds = max(1, round(LEAST_SECONDS * 1e3 / max(start.elapsed_time(end), 1e-3)))
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
def read_kernel(numbers, out, TILE: tl.constexpr):
    """Read numbers and do next to nothing with them: one sum for each program."""
    first = tl.program_id(0).to(tl.int64) * TILE
    tl.store(out + tl.program_id(0), tl.sum(tl.load(numbers + first + tl.arange(0, TILE)), axis=0))


def machine_limits() -> dict[str, float]:
    """What this GPU does at best: bytes read a second (8 GB, once), and operations a second (a matrix product in bfloat16)."""
    numbers, tile = torch.ones(2**31, dtype=torch.int32, device="cuda"), 8192
    programs = len(numbers) // tile
    out = torch.empty(programs, dtype=torch.int32, device="cuda")
    read = microseconds([lambda: read_kernel[(programs,)](numbers, out, TILE=tile, num_warps=8)])
    bytes_read = numbers.nbytes
    del numbers
    size = 8192
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    product = microseconds([lambda: left @ right])
    return {"read_bytes_per_s": bytes_read / read * 1e6, "matmul_flop_per_s": 2 * size**3 / product * 1e6}
