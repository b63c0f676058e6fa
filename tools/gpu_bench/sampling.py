"""`python -m tools.gpu_bench.sampling`: the cost of choosing the tokens of a step, by setting, on this GPU.

Each time is that of `choose_tokens` as a step calls it, the table's copy included, and of the race's kernel alone. The
tokens are compared with those of the PyTorch race on the CPU: on a GPU logarithms are rounded otherwise, so in rare
rows, another token may win.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from lessons_lib.engine import race as plain
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.kernels import race as kernel

VOCABULARY = 151_936
SETTINGS = {
    "greedy": SamplingParams(),
    "temperature 1": SamplingParams(temperature=1.0),
    "temperature 0.8, top-p 0.95": SamplingParams(temperature=0.8, top_p=0.95),
    "top-p 0.5": SamplingParams(temperature=1.0, top_p=0.5),
    "top-k 50": SamplingParams(temperature=1.0, top_k=50),
    "top-k 20, top-p 0.8": SamplingParams(temperature=0.7, top_k=20, top_p=0.8),
    "min-p 0.05": SamplingParams(temperature=1.0, min_p=0.05),
}
TILES = ((2048, 8), (2048, 16), (4096, 16), (4096, 32), (8192, 32))
COLUMNS = "{:>5} {:9} {:7} {:28} {:>9} {:>9} {:>9} {:>9}"


def median_us(call: Callable[[], object], repeat: int) -> tuple[float, float]:
    """Microseconds of a call: on the GPU, between two events; and on the host, until it returns."""
    call()
    on_gpu, on_host = [], []
    for _ in range(repeat):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        # The GPU is kept busy while the host launches; otherwise the events would time the launches.
        torch.cuda._sleep(2_000_000)
        start.record()
        began = time.perf_counter()
        call()
        on_host.append((time.perf_counter() - began) * 1e6)
        end.record()
        end.synchronize()
        on_gpu.append(start.elapsed_time(end) * 1e3)
    return statistics.median(on_gpu), statistics.median(on_host)


@cache
def logits_of(kind: str, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """Logits as of a model with random weights ("flat": thousands of tokens are likely), or of one that knows what
    comes next ("peaked": a few are)."""
    scale = {"flat": 1.0, "peaked": 4.0}[kind]
    generator = torch.Generator().manual_seed(rows)
    return (torch.randn(rows, VOCABULARY, generator=generator) * scale).to(dtype)


def race_alone(logits: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
    """The tensor that the race's kernel writes to, and the call that runs it."""
    highest, tokens = logits.max(dim=-1)
    return tokens, lambda: kernel.race(logits, highest, table, tokens)


def measured(kind: str, rows: int, dtype: torch.dtype, name: str, repeat: int, num_checked: int) -> dict:
    """One line of the table."""
    params, seeds, positions = [SETTINGS[name]] * rows, list(range(rows)), [7 * row for row in range(rows)]
    on_host = logits_of(kind, rows, dtype)
    logits = on_host.cuda()
    us, host_us = median_us(lambda: choose_tokens(logits, params, seeds, positions), repeat)
    line = {"rows": rows, "dtype": str(dtype)[6:], "logits": kind, "setting": name, "us": us, "host_us": host_us}
    if SETTINGS[name].temperature:
        table = plain.settings_table(range(rows), params, seeds, positions, VOCABULARY)
        tokens, call = race_alone(logits, table.cuda())
        line["kernel_us"] = median_us(call, repeat)[0]
        expected = torch.empty(rows, dtype=torch.int64)
        plain.race(on_host, on_host.amax(dim=-1), table[:num_checked], expected)
        line["equal"] = int((tokens.cpu() == expected)[:num_checked].sum()) / min(rows, num_checked)
    return line


def sweep(repeat: int) -> list[dict]:
    """Microseconds of the kernel by its tile and its warps."""
    lines = []
    before = kernel.TILE, kernel.NUM_WARPS
    for rows in (256, 64):
        for name in ("temperature 1", "temperature 0.8, top-p 0.95", "top-k 50"):
            table = plain.settings_table(
                range(rows), [SETTINGS[name]] * rows, list(range(rows)), [0] * rows, VOCABULARY
            )
            _, call = race_alone(logits_of("flat", rows, torch.bfloat16).cuda(), table.cuda())
            for kernel.TILE, kernel.NUM_WARPS in TILES:
                own = {"rows": rows, "setting": name, "tile": kernel.TILE, "warps": kernel.NUM_WARPS}
                lines.append(own | {"kernel_us": median_us(call, repeat)[0]})
    kernel.TILE, kernel.NUM_WARPS = before
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=20, help="measurements of which the median is shown")
    parser.add_argument("--checked", type=int, default=16, help="rows whose tokens are compared with the CPU's")
    parser.add_argument("--sweep", action="store_true", help="try other tiles as well")
    parser.add_argument("--record", type=Path, help="file for the results, as JSON")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU is visible to PyTorch; this benchmark needs one.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {VOCABULARY:,} tokens; microseconds")
    print(COLUMNS.format("rows", "dtype", "logits", "setting", "all", "kernel", "host", "equal"))
    lines = []
    for rows, dtype, kind in (
        (256, torch.bfloat16, "flat"), (256, torch.bfloat16, "peaked"), (256, torch.float32, "flat"),
        (64, torch.bfloat16, "flat"), (64, torch.float32, "peaked"), (1, torch.bfloat16, "peaked"),
    ):  # fmt: skip
        for name in SETTINGS:
            line = measured(kind, rows, dtype, name, arguments.repeat, arguments.checked)
            lines.append(line)
            own, equal = line.get("kernel_us"), line.get("equal")
            told = (
                (f"{own:.1f}", f"{line['host_us']:.1f}", f"{equal:.1%}") if own else ("", f"{line['host_us']:.1f}", "")
            )
            print(COLUMNS.format(rows, line["dtype"], kind, name, f"{line['us']:.1f}", *told), flush=True)
    tiles = sweep(arguments.repeat) if arguments.sweep else []
    for line in tiles:
        print(*(f"{name} {value:.1f}" if isinstance(value, float) else value for name, value in line.items()))
    if arguments.record:
        arguments.record.write_text(json.dumps({"lines": lines, "tiles": tiles}, indent=1))


if __name__ == "__main__":
    main()
