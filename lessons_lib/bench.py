"""`make bench`: what each way of serving takes, all in one run on this machine.

Absolute times differ from machine to machine and from minute to minute. Compare within one run, and trust ratios.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from lessons_lib.batch_result import BatchResult
from lessons_lib.continuous_batching import batch_generate
from lessons_lib.generate import generate_one_by_one
from lessons_lib.metrics import batch_metrics
from lessons_lib.model import load_model
from lessons_lib.static_batching import static_generate
from lessons_lib.viz.table import Table
from lessons_lib.workload import skewed_workload

BATCH_SIZES = (1, 2, 4, 8)


def timed(serve: Callable[[], BatchResult]) -> tuple[float, BatchResult]:
    started = time.perf_counter()
    result = serve()
    return time.perf_counter() - started, result


def throughput(requests: int, repeats: int) -> Table:
    """New tokens a second, one at a time, static and continuous, at several batch sizes.

    The ways take turns, so that a slow minute of the machine falls on all of them; each figure is the median of its turns.
    """
    model, tokenizer = load_model()
    load = skewed_workload(requests)
    caps = dict(max_new_tokens=load.max_new_tokens)
    ways = {("one at a time", 1): lambda: generate_one_by_one(model, tokenizer, load.prompts, **caps)}
    for size in BATCH_SIZES:
        ways["static", size] = lambda size=size: static_generate(model, tokenizer, load.prompts, **caps, batch_size=size)
    for size in BATCH_SIZES:
        ways["continuous", size] = lambda size=size: batch_generate(model, tokenizer, load.prompts, **caps, batch_size=size)
    seconds = {way: [] for way in ways}
    results = {}
    for _ in range(repeats):
        for way, serve in ways.items():
            elapsed, results[way] = timed(serve)
            seconds[way].append(elapsed)
    answers = results["one at a time", 1].outputs
    new_tokens = sum(len(answer) for answer in answers)
    medians = {way: statistics.median(times) for way, times in seconds.items()}
    rows = []
    for (name, size), median in medians.items():
        result = results[name, size]
        metrics = batch_metrics(result.outputs, result.trace)
        rows.append(
            [
                name,
                size,
                round(new_tokens / median),
                f"{medians['one at a time', 1] / median:.2f} ×",
                f"{medians['static', size] / median:.2f} ×",
                result.trace.forward_calls,
                f"{1 - result.trace.waste:.0%}",
                f"{metrics.slot_utilisation:.0%}",
                "yes" if result.outputs == answers else "NO",
            ]
        )
    columns = ["way", "batch", "tokens/s", "to alone", "to static", "forward calls", "useful", "slots busy", "same tokens"]
    caption = f"{requests} requests with skewed lengths, {new_tokens} new tokens, bundled model, median of {repeats}"
    return Table(columns, rows, caption)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {device}\n")
    print(throughput(options.requests, options.repeats))


if __name__ == "__main__":
    main()
