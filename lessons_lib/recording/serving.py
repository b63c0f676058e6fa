"""Run the loops of lessons 00 to 06 and record them from outside.

Every loop takes the function that does its work as an argument (`greedy`, `generate_wave`, `step`). A recorder wraps
that function and watches the model's forward passes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lessons_lib.batching.continuous_batching import SlotBatch, batch_generate
from lessons_lib.batching.continuous_batching import serve as serve_slots
from lessons_lib.batching.greedy import generate_one_by_one, greedy_with_cache
from lessons_lib.batching.packed_logits import packed_generate
from lessons_lib.batching.paged_batching import PagedBatch, paged_generate, paged_step
from lessons_lib.batching.ragged_batching import ragged_generate, ragged_step
from lessons_lib.batching.request import request_names
from lessons_lib.batching.static_batching import generate_wave as padded_wave
from lessons_lib.batching.static_batching import static_generate
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.models.configuration import cache_bytes_per_token
from lessons_lib.recording.forward_passes import Forward, watch_forwards
from lessons_lib.recording.packed_steps import PackedStep, PackedStepRecorder
from lessons_lib.recording.pool_states import PagedStep, watch_paged_passes
from lessons_lib.recording.slot_steps import recorded_serve
from lessons_lib.recording.trace import RowWork, Step, Trace, tokens_held


@dataclass
class RecordedRun:
    """The outputs of a run and a record of its steps.

    Attributes:
        outputs: the new tokens of each request, in the order of the prompts.
        trace: every step of the run.
        packed: for `ragged_generate` and `paged_generate`: one PackedStep for each step.
        accesses: for `paged_generate`: the cache slots written and read in each step.
    """

    outputs: list[list[int]] = field(default_factory=list)
    trace: Trace = field(default_factory=Trace)
    packed: list[PackedStep] = field(default_factory=list)
    accesses: list[PagedStep] = field(default_factory=list)


def record_run(
    serve: Callable[..., list[list[int]]], model: Any, tokenizer: Any, prompts: Sequence[str | Sequence[int]], *,
    names: Sequence[str] | None = None, **options: Any,
) -> RecordedRun:  # fmt: skip
    """Run `serve(model, tokenizer, prompts, **options)` and record every step.

    Args:
        serve: a loop of lessons 00 to 06: `generate_one_by_one`, `static_generate`, `batch_generate`,
            `packed_generate`, `ragged_generate` or `paged_generate`.
        names: names of the requests; by default "0", "1", ...
        options: keyword arguments of `serve`.

    Raises:
        ValueError: `serve` is none of these functions.
        BadRequest: see `request_names`; nothing was computed.
        Errors of `serve` pass through.

    >>> run = record_run(static_generate, model, tokenizer, prompts, max_new_tokens=20, batch_size=4)
    >>> run.outputs, run.trace.forward_calls
    """
    if serve not in _RECORDERS:
        known = ", ".join(function.__name__ for function in _RECORDERS)
        raise ValueError(f"record_run can't record {getattr(serve, '__name__', serve)!r}; it records {known}.")
    return _RECORDERS[serve](model, tokenizer, prompts, request_names(names, len(prompts)), **options)


def counted_in_blocks(run: RecordedRun, block_size: int) -> RecordedRun:
    """The same run with its cache counted in blocks of `block_size`. Nothing is recomputed."""
    steps = []
    for step, held in zip(run.trace.steps, tokens_held(run.trace)):
        num_blocks = sum(blocks_for(tokens, block_size) for tokens in held.values())
        steps.append(replace(step, cache_reserved=num_blocks * block_size, cache_used=sum(held.values())))
    return replace(run, trace=Trace(steps))


def _record_waves(
    loop: Callable[..., list[list[int]]], option: str, work: Any, model: Any, tokenizer: Any, prompts: Any,
    names: list[str], **options: Any,
) -> RecordedRun:  # fmt: skip
    """A loop that hands waves, or single prompts, to the function that is its option of this name."""
    run, waiting, work = RecordedRun(), list(names), options.pop(option, work)

    def recorded(model: Any, prompt_ids: list[Any], *args: Any) -> list[Any]:
        is_wave = isinstance(prompt_ids[0], list)
        wave = prompt_ids if is_wave else [prompt_ids]
        names_in_wave = [waiting.pop(0) for _ in wave]
        with watch_forwards(model) as passes:
            answers: list[Any] = work(model, prompt_ids, *args)
        own, token_bytes = answers if is_wave else [answers], _token_bytes(model)
        run.trace.steps += _steps_of_wave(names_in_wave, wave, own, passes, tuple(waiting), token_bytes)
        return answers

    run.outputs = loop(model, tokenizer, prompts, **{option: recorded}, **options)
    return run


def _steps_of_wave(
    names: list[str], prompts: list[list[int]], answers: list[list[int]], passes: list[Forward],
    waiting: tuple[str, ...], token_bytes: int,
) -> list[Step]:  # fmt: skip
    """The steps of a wave, or of one request that runs alone: the work of each row in each forward pass."""
    steps = []
    for index, forward in enumerate(passes):
        running = [index < len(answer) for answer in answers]
        rows = []
        for name, ids, is_running in zip(names, prompts, running):
            phase = "prefill" if index == 0 else "decode" if is_running else "finished"
            # Without a cache, every pass after the first computes the old tokens again; only the newest is needed.
            needed = len(ids) if index == 0 else int(is_running)
            rows.append(RowWork(name, phase, computed=forward.tokens, useful=needed))
        used = sum(len(ids) + index for ids, is_running in zip(prompts, running) if is_running)
        reserved = forward.rows * (forward.cached + forward.tokens)
        cache = (reserved, used) if forward.keeps_cache else (0, 0)
        # A DynamicCache makes room for a new token by copying all the old ones into a larger tensor.
        copied = forward.rows * forward.cached * token_bytes
        steps.append(Step(tuple(rows), forward.seconds, waiting, 1, *cache, copied))
    return steps


def _record_slots(
    model: Any, tokenizer: Any, prompts: Any, names: list[str], *, loop: Any = serve_slots, **options: Any
) -> RecordedRun:
    run = RecordedRun()

    def recorded(batch: SlotBatch) -> None:
        run.trace = recorded_serve(batch, loop)

    run.outputs = batch_generate(model, tokenizer, prompts, names=names, loop=recorded, **options)
    return run


def _record_packed(model: Any, tokenizer: Any, prompts: Any, names: list[str], **options: Any) -> RecordedRun:
    with watch_forwards(model) as passes:
        outputs = packed_generate(model, tokenizer, prompts, **options)
    lengths = [len(tokenizer(prompt).input_ids if isinstance(prompt, str) else prompt) for prompt in prompts]
    steps = []
    for index, forward in enumerate(passes):
        rows = tuple(
            # Every pass after the first computes the old tokens again; only the newest is needed.
            RowWork(name, "decode" if index else "prefill", length + index, useful=1 if index else length)
            for name, length, answer in zip(names, lengths, outputs)
            if index < len(answer)
        )
        steps.append(Step(rows, forward.seconds, waiting=(), forward_calls=1, cache_reserved=0, cache_used=0))
    return RecordedRun(outputs, Trace(steps))


def _record_ragged(
    model: Any, tokenizer: Any, prompts: Any, names: list[str], *, step: Any = ragged_step, **options: Any
) -> RecordedRun:
    recorder = PackedStepRecorder(step)
    outputs = ragged_generate(model, tokenizer, prompts, names=names, step=recorder, **options)
    return RecordedRun(outputs, recorder.trace, recorder.steps)


def _record_paged(
    model: Any, tokenizer: Any, prompts: Any, names: list[str], *, step: Any = paged_step, **options: Any
) -> RecordedRun:
    accesses: list[PagedStep] = []

    def watched(batch: PagedBatch) -> None:
        with watch_paged_passes(batch) as passes:
            step(batch)
        accesses.extend(passes)

    recorder = PackedStepRecorder(watched)
    outputs = paged_generate(model, tokenizer, prompts, names=names, step=recorder, **options)
    steps = [
        replace(step, cache_reserved=access.block_size * sum(map(len, access.tables.values())))
        for step, access in zip(recorder.trace.steps, accesses)
    ]
    return RecordedRun(outputs, Trace(steps), recorder.steps, accesses)


def _token_bytes(model: Any) -> int:
    return cache_bytes_per_token(model.config, model.dtype.itemsize)


_RECORDERS: dict[Callable[..., list[list[int]]], Callable[..., RecordedRun]] = {
    generate_one_by_one: partial(_record_waves, generate_one_by_one, "greedy", greedy_with_cache),
    static_generate: partial(_record_waves, static_generate, "generate_wave", padded_wave),
    batch_generate: _record_slots,
    packed_generate: _record_packed,
    ragged_generate: _record_ragged,
    paged_generate: _record_paged,
}
