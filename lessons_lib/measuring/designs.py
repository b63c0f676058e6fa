"""Lesson 12: common designs of serving engines on the same requests, each as built in its lesson."""

from collections.abc import Callable
from functools import partial

from lessons_lib.batching.continuous_batching import batch_generate
from lessons_lib.batching.greedy import generate_one_by_one
from lessons_lib.batching.paged_batching import paged_generate
from lessons_lib.batching.ragged_batching import loop_forward, ragged_generate, ragged_step
from lessons_lib.batching.static_batching import static_generate
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.fused_llama import fused_runner
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.measuring.workloads import Workload
from lessons_lib.viz.tables.table import Table

ALONE = "one at a time"


def one_at_a_time(model, tokenizer, load: Workload) -> list[list[int]]:
    """One request after the other (lesson 00)."""
    return generate_one_by_one(model, tokenizer, load.prompts, max_new_tokens=load.max_new_tokens)


def static(model, tokenizer, load: Workload, size: int) -> list[list[int]]:
    """Padded waves that leave together (lesson 01)."""
    return static_generate(model, tokenizer, load.prompts, max_new_tokens=load.max_new_tokens, batch_size=size)


def pseudo_batching(model, tokenizer, load: Workload, size: int) -> list[list[int]]:
    """Batched scheduling, but one model call per sequence (lesson 05's loop)."""
    step = partial(ragged_step, forward=loop_forward)
    return ragged_generate(
        model, tokenizer, load.prompts, max_new_tokens=load.max_new_tokens, max_num_seqs=size, step=step
    )


def dense_slots(model, tokenizer, load: Workload, size: int) -> list[list[int]]:
    """A rectangle of batch slots, each as long as the longest possible sequence (lesson 02)."""
    return batch_generate(model, tokenizer, load.prompts, max_new_tokens=load.max_new_tokens, batch_size=size)


def packed(model, tokenizer, load: Workload, size: int) -> list[list[int]]:
    """A packed batch without padding; caches are joined and split in every step (lesson 05)."""
    return ragged_generate(model, tokenizer, load.prompts, max_new_tokens=load.max_new_tokens, max_num_seqs=size)


def paged(model, tokenizer, load: Workload, size: int) -> list[list[int]]:
    """A packed batch without padding over one pool of blocks (lesson 06)."""
    return paged_generate(model, tokenizer, load.prompts, max_new_tokens=load.max_new_tokens, max_num_seqs=size)


def paged_engine(model, tokenizer, load: Workload, size: int, make_runner: Callable | None = None) -> list[list[int]]:
    """The same with a token budget and prefix caching (this lesson)."""
    longest = max(
        len(tokenizer(prompt).input_ids) + max_tokens for prompt, max_tokens in zip(load.prompts, load.max_new_tokens)
    )
    num_blocks = size * blocks_for(longest, 16)  # a larger pool would only take longer to initialize
    engine = LLMEngine(
        model,
        tokenizer,
        EngineConfig(
            max_num_seqs=size, max_num_batched_tokens=max(256, size), num_blocks=num_blocks, make_runner=make_runner
        ),
    )
    outputs = engine.generate(
        load.prompts, [SamplingParams(max_tokens=max_tokens) for max_tokens in load.max_new_tokens]
    )
    return [output.token_ids for output in outputs]


# name -> function (model, tokenizer, load, batch size) -> answers
DESIGNS: dict[str, Callable] = {
    ALONE: lambda model, tokenizer, load, size: one_at_a_time(model, tokenizer, load),
    "static waves": static,
    "loop over sequences": pseudo_batching,
    "dense slots": dense_slots,
    "packed row": packed,
    "paged row": paged,
    "engine": paged_engine,
    "engine, fused": partial(paged_engine, make_runner=fused_runner),
}


def ways_table(results: dict) -> Table:
    """New tokens per second of every design."""
    new_tokens, requests = results["new_tokens"], results["requests"]
    seconds = {(way["name"], way["size"]): way["seconds"] for way in results["ways"]}
    alone, engine = seconds[ALONE, 1], min(taken for (name, _), taken in seconds.items() if name.startswith("engine"))
    rows = [
        [
            name,
            size,
            f"{new_tokens / taken:,.0f}",
            f"{alone / taken:.2f} ×",
            f"{taken / engine:.2f} ×",
            f"{way['same']} of {requests}",
        ]
        for way, ((name, size), taken) in zip(results["ways"], seconds.items())
    ]
    columns = ["design", "batch", "tokens/s", "over one at a time", "best engine over this", "same answers"]
    caption = (
        f"{requests} requests with skewed lengths, {new_tokens:,} new tokens, bundled model, greedy; "
        f"median of {results['repeats']}"
    )
    return Table(columns, rows, caption)
