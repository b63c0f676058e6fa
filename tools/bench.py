"""`make bench`: the time of each way of serving, all in one run on this machine.

Absolute times differ from machine to machine and from minute to minute. Compare within one run, and trust ratios.
"""

import argparse
import statistics
import time

import torch

from lessons_lib.batching.paged_batching import paged_step
from lessons_lib.batching.ragged_batching import ragged_step
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.metrics import EngineMetrics
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.block_pool import BlockPool, BlockTable
from lessons_lib.measuring.decoding_batches import decoding_paged, decoding_ragged
from lessons_lib.measuring.timing import median_ms
from lessons_lib.measuring.workloads import skewed_workload
from lessons_lib.models.loading import load_model
from lessons_lib.viz.tables.table import Table
from tools.bench_engines import measure_ways, ways_table

# (requests, context)
CONTEXTS = ((4, 50), (4, 400), (16, 50), (16, 150), (16, 400), (16, 800))
POOL_SIZES = (100, 1_000, 10_000, 100_000)


def own_time(repeats: int) -> Table:
    """Where the engine's steps spend their time."""
    model, tokenizer = load_model()
    load = skewed_workload(64)
    rows = []
    for _ in range(repeats):
        engine = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=64, max_num_batched_tokens=256))
        metrics = EngineMetrics(engine)
        engine.generate(load.prompts, [SamplingParams(max_tokens=max_tokens) for max_tokens in load.max_new_tokens])
        rows.append(
            [
                metrics.steps,
                *(f"{1000 * seconds / metrics.steps:.2f}" for seconds in metrics.part_seconds.values()),
                f"{metrics.own_share:.1%}",
            ]
        )
    return Table(
        ["steps", *(f"{part}, ms" for part in metrics.part_seconds), "outside the model"],
        rows,
        "The engine's steps, 64 requests",
    )


def contexts(repeats: int) -> Table:
    """Step time when every sequence decodes, with concatenated caches (lesson 05) and with blocks (lesson 06), as
    contexts grow.
    """
    model, _ = load_model()
    rows = []
    for requests, context in CONTEXTS:
        ragged, paged = (make(model, requests, context, repeats + 1) for make in (decoding_ragged, decoding_paged))
        of_ragged, of_paged = median_ms([lambda: ragged_step(ragged), lambda: paged_step(paged)], repeats, model.device)
        told = [f"{1000 * requests / taken:,.0f}" for taken in (of_ragged, of_paged)]
        rows.append([requests, context, *told, f"{of_ragged / of_paged:.2f} ×"])
    return Table(
        ["requests", "context", "ragged, tokens/s", "paged, tokens/s", "paged to ragged"],
        rows,
        f"Decoding, median of {repeats} steps",
    )


def allocator(repeats: int, operations: int = 100_000) -> Table:
    """Calls of the block pool and tokens appended to a block table, per second, in pools of several sizes."""

    def one_by_one(pool: BlockPool) -> int:
        for _ in range(operations // 2):
            pool.free(pool.allocate(1))
        return operations // 2 * 2

    def sixteen_blocks(pool: BlockPool) -> int:
        calls = operations // 16
        for _ in range(calls // 2):
            pool.free(pool.allocate(16))
        return calls // 2 * 32

    def tokens(pool: BlockPool) -> int:
        tables = operations // 1000
        for _ in range(tables):
            table = BlockTable(pool)
            for _ in range(1000):
                table.append()
            table.release()
        return tables * 1000

    work = {
        "allocate(1), free": one_by_one,
        "blocks, 16 a call": sixteen_blocks,
        "tokens appended, blocks of 16": tokens,
    }
    rows = []
    for size in POOL_SIZES:
        rates = {name: [] for name in work}
        for _ in range(repeats):
            for name, do in work.items():
                pool = BlockPool(size, 16)
                started = time.perf_counter()
                rates[name].append(do(pool) / (time.perf_counter() - started))
        rows.append([size, *(f"{statistics.median(rates[name]) / 1e6:.2f}" for name in work)])
    return Table(["blocks in the pool", *work], rows, f"Block pool: millions per second, median of {repeats}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {device}\n")
    if torch.cuda.is_available():
        from tools.gpu_bench.__main__ import gpu_tables

        print(gpu_tables(), end="\n\n")
    print(allocator(options.repeats))
    print()
    print(contexts(max(options.repeats, 5)))
    print()
    print(own_time(options.repeats))
    print()
    print(ways_table(measure_ways(options.repeats)))  # about four minutes per round


if __name__ == "__main__":
    main()
