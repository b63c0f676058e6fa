"""A table that grows by a row per lesson: the cost of each method of serving the same six requests."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from lessons_lib.attention.paged_attention import plan_torch
from lessons_lib.batching.continuous_batching import batch_generate
from lessons_lib.batching.greedy import generate_one_by_one, greedy_without_cache
from lessons_lib.batching.packed_logits import packed_generate
from lessons_lib.batching.paged_batching import paged_generate
from lessons_lib.batching.ragged_batching import ragged_generate
from lessons_lib.batching.static_batching import static_generate
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.measuring.stories import MAX_NEW_TOKENS, NAMES, PROMPTS
from lessons_lib.models.configuration import cache_bytes_per_token
from lessons_lib.recording.memory_steps import serve_recorded
from lessons_lib.recording.scheduled_steps import record_schedule
from lessons_lib.recording.serving import RecordedRun, counted_in_blocks, record_run
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.viz.notebook import with_progress
from lessons_lib.viz.tables.table import Table

SIX_STORIES: dict[str, Any] = dict(prompts=PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES)


def by(loop: Callable[..., Any], **options: Any) -> Callable[..., RecordedRun]:
    """A function (model, tokenizer) that serves the six stories by a loop of lessons 00 to 06."""
    return lambda *model: record_run(loop, *model, **SIX_STORIES, **options)


def story_sequences(tokenizer) -> list[Sequence]:
    """The six stories as sequences for a scheduler."""
    end = frozenset({tokenizer.eos_token_id})
    prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    return [Sequence(name, prompt, max_tokens, end) for name, prompt, max_tokens in zip(NAMES, prompts, MAX_NEW_TOKENS)]


def under_pressure(model, tokenizer, share_prefixes: bool = False) -> RecordedRun:
    """All six at a time, in half of the blocks that they need."""
    sequences = story_sequences(tokenizer)
    num_blocks = sum(blocks_for(sequence.most_tokens, 16) for sequence in sequences) // 2
    scheduler = PreemptiveScheduler(
        PrefixCache(num_blocks, 16), max_num_seqs=6, max_num_batched_tokens=32, share_prefixes=share_prefixes
    )
    with record_schedule(scheduler) as trace:
        serve_recorded(ModelRunner(model, num_blocks, 16), scheduler, sequences)
    return RecordedRun([sequence.output_ids for sequence in sequences], trace)


def by_engine(model, tokenizer, new_engine: Callable[..., LLMEngine] = LLMEngine, **settings: Any) -> RecordedRun:
    """All six at a time, with as many blocks as they need."""
    sizes: dict[str, Any] = dict(max_num_seqs=6, max_num_batched_tokens=64, num_blocks=64)
    engine = new_engine(model, tokenizer, EngineConfig(**sizes, **settings))
    with record_schedule(engine.scheduler) as trace:
        outputs = engine.generate(PROMPTS, [SamplingParams(max_tokens=max_tokens) for max_tokens in MAX_NEW_TOKENS])
    return RecordedRun([output.token_ids for output in outputs], trace)


NO_CACHE = ", no cache"
in_slots = by(batch_generate, batch_size=4, max_seq_len=256)
# (lesson, name of the row, function that serves the six stories)
METHODS: tuple[tuple[str, str, Callable[..., RecordedRun]], ...] = (
    ("00", f"alone{NO_CACHE}", by(generate_one_by_one, greedy=greedy_without_cache)),
    ("00", "alone, KV cache", by(generate_one_by_one)),
    ("01", "static, waves of 4", by(static_generate, batch_size=4)),
    ("02", "continuous, 4 slots", in_slots),
    ("03", "the same, cache counted in blocks of 16", lambda *model: counted_in_blocks(in_slots(*model), 16)),
    ("04", f"one row{NO_CACHE}", by(packed_generate)),
    ("05", "ragged row, 4 requests", by(ragged_generate, max_num_seqs=4)),
    ("06", "paged row, 4 requests", by(paged_generate, max_num_seqs=4, block_size=16)),
    ("10", "6 requests, half the blocks, preempted", under_pressure),
    ("11", "the same, blocks found by hash", partial(under_pressure, share_prefixes=True)),
    ("12", "engine, 6 requests", by_engine),
)
BASELINE = "alone, KV cache"
COLUMNS = (
    "tokens computed", "useful", "cache reserved", "used", "copied per step", "forward calls", "speed",
)  # fmt: skip
PER_STEP = ("cache_reserved", "cache_used", "bytes_copied")  # averaged over the steps


def ledger(
    model, tokenizer, upto: str, with_cache_only: bool = False, since: str = "00",
    my_engine: Callable[..., LLMEngine] | None = None, columns: tuple[str, ...] = COLUMNS,
) -> Table:  # fmt: skip
    """Serve the six stories with all methods of lessons `since` to `upto`, and count. The baseline, one request at a
    time with a cache, is always included. This takes many seconds; a notebook shows the current row.

    Args:
        upto: the last lesson to include, such as "01".
        with_cache_only: omit the methods without a cache, which take most of the time.
        since: omit earlier lessons, except for the baseline.
        columns: those to show.
        my_engine: a function like LLMEngine, for a last row with the learner's engine, except its attention.
    """
    methods = [
        (lesson, method, serve)
        for lesson, method, serve in METHODS
        if method == BASELINE or (since <= lesson <= upto and not (with_cache_only and method.endswith(NO_CACHE)))
    ]
    if my_engine:
        # With the reference's attention: the learner's computes one block at a time, several times slower, which says
        # nothing about the engine.
        own = partial(by_engine, new_engine=my_engine, backend=plan_torch)
        methods.append((upto, "yours, 6 requests", own))
    per_token = cache_bytes_per_token(model.config, model.dtype.itemsize)
    rows, rates, new_tokens = [], {}, 0
    for lesson, method, serve in with_progress(methods, lambda each: f"{each[1]} ({each[0]})"):
        started = time.perf_counter()
        run = serve(model, tokenizer)
        trace, tokens = run.trace, sum(map(len, run.outputs))
        rates[method] = tokens / (time.perf_counter() - started)
        new_tokens = tokens if method == BASELINE else new_tokens
        mean = {name: sum(getattr(step, name) for step in trace.steps) / len(trace.steps) for name in PER_STEP}
        reserved, used = per_token * mean["cache_reserved"], per_token * mean["cache_used"]
        memory = [f"{count / 1024:,.0f} KiB" for count in (reserved, used, mean["bytes_copied"])]
        useful = f"{trace.tokens_useful / trace.tokens_computed:.0%}"
        rows.append([f"{method} ({lesson})", trace.tokens_computed, useful, *memory, trace.forward_calls])
    shown = [COLUMNS.index(each) for each in columns]
    rows = [[*row, f"{rate / rates[BASELINE]:.2f} ×"] for row, rate in zip(rows, rates.values())]
    return Table(
        columns=["method", *columns],
        rows=[[row[0], *(row[1 + index] for index in shown)] for row in rows],
        caption=f"The ledger: six stories, {new_tokens} new tokens. Cache and copies are averages over the steps; "
        "the speed is that of one run.",
    )
