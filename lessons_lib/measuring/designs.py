"""Lesson 12: common designs of serving engines on the same requests, each as built in its lesson."""

from collections.abc import Callable
from functools import partial
from typing import Any

from lessons_lib.batching.continuous_batching import batch_generate
from lessons_lib.batching.greedy import generate_one_by_one
from lessons_lib.batching.paged_batching import paged_generate
from lessons_lib.batching.ragged_batching import loop_forward, ragged_generate, ragged_step
from lessons_lib.batching.static_batching import static_generate
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.measuring.fused_llama import fused_runner
from lessons_lib.measuring.workloads import Workload
from lessons_lib.viz.tables.table import Table

ALONE = "one at a time"


def _served_by(loop: Callable, size_name: str | None = None, **options: Any) -> Callable:
    """A design that is the loop of a lesson, in batches whose size is the argument `size_name`."""

    def serve(model, tokenizer, load: Workload, size: int) -> list[list[int]]:
        sizes = {size_name: size} if size_name else {}
        return loop(model, tokenizer, load.prompts, max_new_tokens=load.max_new_tokens, **sizes, **options)

    return serve


def paged_engine(model, tokenizer, load: Workload, size: int, make_runner: Callable | None = None) -> list[list[int]]:
    """The paged row with a token budget and prefix caching (this lesson)."""
    lengths = [len(tokenizer(prompt).input_ids) for prompt in load.prompts]
    longest = max(map(sum, zip(lengths, load.max_new_tokens)))
    config = EngineConfig(
        max_num_seqs=size,
        max_num_batched_tokens=max(256, size),
        num_blocks=size * blocks_for(longest, 16),  # a larger pool would only take longer to initialize
        make_runner=make_runner,
    )
    params = [SamplingParams(max_tokens=max_tokens) for max_tokens in load.max_new_tokens]
    return [output.token_ids for output in LLMEngine(model, tokenizer, config).generate(load.prompts, params)]


# name -> function (model, tokenizer, load, batch size) -> answers
DESIGNS: dict[str, Callable] = {
    ALONE: _served_by(generate_one_by_one),
    "static waves": _served_by(static_generate, "batch_size"),
    # Batched scheduling, but one model call per sequence (lesson 05's loop).
    "loop over sequences": _served_by(ragged_generate, "max_num_seqs", step=partial(ragged_step, forward=loop_forward)),
    "dense slots": _served_by(batch_generate, "batch_size"),
    "packed row": _served_by(ragged_generate, "max_num_seqs"),
    "paged row": _served_by(paged_generate, "max_num_seqs"),
    "engine": paged_engine,
    "engine, fused": partial(paged_engine, make_runner=fused_runner),
}


def ways_table(results: dict) -> Table:
    """New tokens per second of every design."""
    new_tokens, requests = results["new_tokens"], results["requests"]
    seconds = {(way["name"], way["size"]): way["seconds"] for way in results["ways"]}
    alone, engine = seconds[ALONE, 1], min(taken for (name, _), taken in seconds.items() if name.startswith("engine"))
    rows = []
    for way, ((name, size), taken) in zip(results["ways"], seconds.items()):
        ratios = (f"{alone / taken:.2f} ×", f"{taken / engine:.2f} ×")
        rows.append([name, size, f"{new_tokens / taken:,.0f}", *ratios, f"{way['same']} of {requests}"])
    columns = ["design", "batch", "tokens/s", "over one at a time", "best engine over this", "same answers"]
    caption = (
        f"{requests} requests with skewed lengths, {new_tokens:,} new tokens, bundled model, greedy; "
        f"median of {results['repeats']}"
    )
    return Table(columns, rows, caption)
