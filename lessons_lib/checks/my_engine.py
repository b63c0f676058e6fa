"""Your own engine: an `LLMEngine` of your answers where an exercise is solved, and of the reference where it isn't.

An answer is used only if it still passes its check, and if an engine with it computes the reference engine's tokens
in a short trial. `my_parts` says which parts are yours.
"""

import time
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from lessons_lib.checks.engine_trial import engine_of, serve_trial
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.judge import describe, judge
from lessons_lib.checks.kept import kept_answer
from lessons_lib.checks.linking import Link, Linked, executed_answer, link
from lessons_lib.checks.registry import exercises_of, lesson_numbers
from lessons_lib.checks.sandbox import Outcome, run_guarded
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.scheduling.scheduler import conservative
from lessons_lib.viz.tables.table import Table

STAND_INS = "lessons_lib.checks.stand_ins"
# What the engine is made of, each behind those that it uses. One that is an exercise's reference is a part. To add a
# part, add its line, and those of the definitions between it and LLMEngine that are missing.
LINKS = (
    Link("lessons_lib.kv_cache.block_pool:blocks_for"),
    Link("lessons_lib.kv_cache.block_pool:BlockPool"),
    Link("lessons_lib.kv_cache.cache_slots:slot_mapping"),
    Link("lessons_lib.kv_cache.paged_kv_cache:PagedKVCache"),
    Link("lessons_lib.kv_cache.block_hashes:block_hash"),
    Link("lessons_lib.kv_cache.prefix_cache:SharedBlockPool"),
    Link("lessons_lib.kv_cache.prefix_cache:PrefixCache"),
    Link("lessons_lib.attention.online_softmax:add_block"),
    Link("lessons_lib.attention.plain_attention:attention_in_place"),
    Link("lessons_lib.attention.paged_attention:plan_torch", f"{STAND_INS}:plan_torch"),
    Link("lessons_lib.attention.hf_backend:plan_attention"),
    Link("lessons_lib.attention.hf_backend:paged_attention_forward"),
    Link("lessons_lib.attention.hf_backend:attention_of_layer"),
    Link("lessons_lib.attention.hf_backend:paged_attention_in", f"{STAND_INS}:paged_attention_in"),
    Link("lessons_lib.attention.hf_backend:paged_forward"),
    Link("lessons_lib.scheduling.scheduler:share_budget"),
    Link("lessons_lib.scheduling.scheduler:conservative"),
    Link("lessons_lib.scheduling.scheduler:SchedulerBase"),
    Link("lessons_lib.scheduling.stalling:Scheduler"),
    Link("lessons_lib.scheduling.preemption:last_in_rank"),
    Link("lessons_lib.scheduling.preemption:preempt_sequence"),
    Link("lessons_lib.scheduling.preemption:PreemptiveScheduler"),
    Link("lessons_lib.scheduling.swapping:SwappingScheduler"),
    Link("lessons_lib.scheduling.shared_blocks:copy_before_write"),
    Link("lessons_lib.scheduling.shared_blocks:take_cached"),
    Link("lessons_lib.scheduling.shared_blocks:CopyOnWriteScheduler"),
    Link("lessons_lib.scheduling.shared_blocks:CopyOnWriteScheduler", f"{STAND_INS}:CopyOnWriteScheduler"),
    Link("lessons_lib.engine.plain_sampling:token_probabilities"),
    Link("lessons_lib.engine.plain_sampling:draw_on_device"),
    Link("lessons_lib.engine.sampling:race_on", f"{STAND_INS}:race_on"),
    Link("lessons_lib.engine.sampling:choose_tokens"),
    Link("lessons_lib.engine.detokenizer:releasable"),
    Link("lessons_lib.engine.detokenizer:IncrementalDetokenizer"),
    Link("lessons_lib.engine.request:Request"),
    Link("lessons_lib.engine.output_processor:OutputProcessor"),
    Link("lessons_lib.engine.input_processor:InputProcessor"),
    Link("lessons_lib.engine.input_batch:next_tokens"),
    Link("lessons_lib.engine.input_batch:forward_batch"),
    Link("lessons_lib.engine.input_batch:forward_batch", f"{STAND_INS}:forward_batch"),
    Link("lessons_lib.engine.model_runner:ModelRunner"),
    Link("lessons_lib.compat.alone_runner:AloneRunner"),
    Link("lessons_lib.engine.core:overlapped_step"),
    Link("lessons_lib.engine.core:run_step"),
    Link("lessons_lib.engine.core:EngineCore"),
    Link("lessons_lib.compat.fit:make_alone"),
    Link("lessons_lib.compat.fit:fit"),
    Link("lessons_lib.engine.llm_engine:Parts"),
    Link("lessons_lib.engine.llm_engine:default_runner"),
    Link("lessons_lib.engine.llm_engine:LLMEngine"),
    Link("lessons_lib.attention.custom_op:OperatorCache"),
    Link("lessons_lib.engine.cuda_graphs:GraphStore"),
    Link("lessons_lib.engine.gpu_model_runner:GPUModelRunner"),
    Link("lessons_lib.engine.gpu_model_runner:gpu_model_runner"),
)
YOURS, REFERENCE = "yours", "reference"
NOT_A_PART = "not part of the engine"
TRIAL_SECONDS = 20.0


def my_engine(
    model: Any,
    tokenizer: Any,
    config: EngineConfig | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> LLMEngine:
    """An engine of your own parts. The arguments are those of LLMEngine. `overlap` (lesson 13) needs no GPU here.

    If the config has a `make_runner` or `backend`, it is used as it is, in place of the parts of lesson 06.

    Returns:
        an engine with one more attribute: `parts`, what `my_parts` returns, and which parts of yours the engine can't
        call.
    """
    answers = kept_answers()
    states = states_of(answers)
    linked = link(LINKS, {target: answers[target] for target, state in states.items() if state == YOURS})
    config = config or EngineConfig()
    engine = engine_of(linked, model, tokenizer, config, clock)
    engine.parts = table_of(states, not_called(config, on_gpu=engine.model.device.type == "cuda"))
    return engine


def my_parts() -> Table:
    """Which parts of `my_engine` are yours, and why the others are the reference's."""
    return table_of(states_of(kept_answers()))


def kept_answers() -> dict[str, str]:
    """Reference -> source, of the kept answers to exercises that are parts of the engine."""
    found = {target: kept_answer(exercise) for target, exercise in part_exercises().items()}
    return {target: source for target, source in found.items() if source is not None}


def part_exercises() -> dict[str, Exercise]:
    """Reference -> exercise, of those that are parts of the engine, in the order of the course."""
    targets = {each.target for each in LINKS}
    return {exercise.reference: exercise for exercise in _all_exercises() if exercise.reference in targets}


def states_of(answers: Mapping[str, str]) -> dict[str, str]:
    """Reference -> YOURS, or REFERENCE and why.

    Args:
        answers: reference -> source.
    """
    states = dict.fromkeys(part_exercises(), f"{REFERENCE}: not solved yet")
    for target, source in answers.items():
        problem = why_refused(target, source)
        states[target] = f"{REFERENCE}: {problem}" if problem else YOURS
    usable = {target: source for target, source in answers.items() if states[target] == YOURS}
    if problem_with(usable):
        # Add one at a time, and leave out those that don't fit the ones before.
        used: dict[str, str] = {}
        for target, source in usable.items():
            if problem := problem_with({**used, target: source}):
                states[target] = f"{REFERENCE}: your answer passes its check, but an engine with it {problem}"
            else:
                used[target] = source
    return states


def not_called(config: EngineConfig, on_gpu: bool = False) -> dict[str, str]:
    """Name of a part -> what keeps an engine from calling it, whatever its requests are."""
    attention = ("add_block", "attention_in_place")
    found: dict[str, str] = {}
    if not config.overlap:
        found["GraphStore"] = "without `overlap`"
    elif not config.make_runner:  # its runner computes attention by an operator of its own, whatever the backend
        found |= dict.fromkeys(attention, "with `overlap`")
    if callable(config.backend) or config.backend == "triton" or (config.backend is None and on_gpu):
        found |= dict.fromkeys(attention, "with this `backend`")
    if config.make_runner:
        of_runner = ("slot_mapping", "PagedKVCache", *attention, "paged_attention_forward", "next_tokens", "GraphStore")
        found |= dict.fromkeys(of_runner, "with this `make_runner`")
    if config.admission is conservative:
        found |= dict.fromkeys(("last_in_rank", "preempt_sequence"), "with this `admission`")
    if not config.share_prefixes:
        found |= dict.fromkeys(("take_cached", "copy_before_write"), "with this `share_prefixes`")
    return found


def table_of(states: Mapping[str, str], unused: Mapping[str, str] = MappingProxyType({})) -> Table:
    """A row for each exercise of the lessons that have a part in the engine.

    Args:
        unused: what `not_called` returns.
    """
    lessons = {exercise.id.split(".")[0] for exercise in part_exercises().values()}
    rows, num_unused = [], 0
    for exercise in _all_exercises():
        if exercise.id.split(".")[0] not in lessons:
            continue
        state = states.get(exercise.reference, NOT_A_PART)
        if state == YOURS and (why := unused.get(exercise.name)):
            state, num_unused = f"{YOURS}; not called {why}", num_unused + 1
        rows.append([exercise.id, f"{exercise.name}: {exercise.title}", state])
    caption = f"Your engine: {sum(state == YOURS for state in states.values())} of {len(states)} parts are yours"
    if num_unused:
        caption += f"; this engine never calls {num_unused} of them"
    return Table(["exercise", "part", "in the engine"], rows, caption)


def by_lesson(parts: Table) -> Table:
    """What `my_parts` returns, folded: a row for each lesson and state. Leaves out what has no part in the engine."""
    folded: dict[tuple[str, str], list[str]] = {}
    for exercise, part, state in parts.rows:
        if state != NOT_A_PART:
            folded.setdefault((exercise.split(".")[0], state), []).append(part.split(":")[0])
    rows = [[lesson, ", ".join(names), state] for (lesson, state), names in folded.items()]
    return Table(["lesson", "parts", "in the engine"], rows, parts.caption)


@cache
def why_refused(target: str, source: str) -> str:
    """Why a kept answer can't be used: it can't be loaded, or it fails its check. "" if it passes."""
    loaded: list[Any] = []
    outcome = run_guarded(lambda: loaded.append(executed_answer(target, source)), TRIAL_SECONDS)
    if not loaded:
        return f"loading your answer {_what_happened(outcome)}"
    exercise = part_exercises()[target]
    panel = describe(exercise, *judge(exercise, loaded[0]), loaded[0])
    return "" if panel.kind == "right" else f"your answer no longer passes its check: {panel.title[:200]}"


def problem_with(answers: Mapping[str, str]) -> str:
    """What an engine with these answers does wrong in a trial, as the end of a sentence. "" if nothing."""
    return _trial(tuple(answers.items())) if answers else ""


@cache
def _trial(answers: tuple[tuple[str, str], ...]) -> str:
    served: list[Any] = []
    outcome = run_guarded(lambda: served.append(serve_trial(link(LINKS, dict(answers)))), TRIAL_SECONDS)
    if not served:
        return _what_happened(outcome)
    return "" if served[0] == _served_by_the_reference() else "computes other tokens"


@cache
def _served_by_the_reference() -> list[Any]:
    return serve_trial(Linked())


def _what_happened(outcome: Outcome) -> str:
    if outcome.timed_out:
        return f"takes more than {TRIAL_SECONDS:g} seconds"
    return f"raises {type(outcome.error).__name__}: {str(outcome.error)[:160]}"


def _all_exercises() -> list[Exercise]:
    return [exercise for lesson in lesson_numbers() for exercise in exercises_of(lesson)]
