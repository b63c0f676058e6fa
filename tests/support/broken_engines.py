"""Engines with one mistake each, and the item of the conformance suite that must name it.

Most are the course's engine with one part changed. Mistakes that learners make in an engine of their own, such as
static batches, an ignored end token or an id that can't be used again, are among the answers of lesson 17.
"""

import random
from dataclasses import replace
from types import SimpleNamespace

from lessons_lib.conformance.adapters.course import CourseEngine, config_of, sampling_params
from lessons_lib.conformance.break_in import mutants
from lessons_lib.conformance.break_in.mutants import changed_step
from lessons_lib.conformance.examples.slow_engine import make_engine as slow_engine
from lessons_lib.engine.llm_engine import LLMEngine

BROKEN = {}  # name -> (make_engine, item)


def course_engine(kind, model, limits, tokenizer):
    engine = kind(LLMEngine(model, tokenizer, config_of(limits)))
    engine.limits = limits
    return engine


def broken(item):
    """Register a subclass of CourseEngine, or a function that changes a course engine."""

    def note(change):
        def make_engine(model, limits, tokenizer):
            limits = getattr(change, "limits", lambda limits: limits)(limits)
            kind = change if isinstance(change, type) else CourseEngine
            course = course_engine(kind, model, limits, tokenizer)
            if kind is CourseEngine:
                change(course, course.engine, course.engine.scheduler)
            return course

        BROKEN[change.__name__] = make_engine, item
        return change

    return note


def changed(values, functions):
    """A copy of an object's fields, some of them computed anew from all of them."""
    fields = vars(values)
    return SimpleNamespace(**{**fields, **{name: function(fields) for name, function in functions.items()}})


def broken_limits(name, item, **functions):
    """Register the course's engine under other limits than it was given."""

    def make_engine(model, limits, tokenizer):
        return course_engine(CourseEngine, model, changed(limits, functions), tokenizer)

    BROKEN[name] = make_engine, item


def broken_request(name, item, prompt=lambda prompt: prompt, **functions):
    """Register an engine that is given another prompt, or other parameters, than it was asked for."""

    def change(course, engine, scheduler):
        add = course.add_request
        course.add_request = lambda id, prompt_ids, params: add(id, prompt(prompt_ids), changed(params, functions))

    change.__name__ = name
    broken(item)(change)


def broken_events(name, item, change):
    """Register an engine each of whose events is changed, or left out where `change` returns None."""

    def change_events(course, engine, scheduler):
        changed_step(course, lambda events: [new for new in map(change, events) if new])

    change_events.__name__ = name
    broken(item)(change_events)


# One request


@broken("answers.one_token_answer")
def sends_the_first_token_twice(course, engine, scheduler):
    seen = set()

    def change(events):
        twice = [
            replace(each, token_ids=each.token_ids * 2) if each.request_id not in seen else each for each in events
        ]
        seen.update(each.request_id for each in events)
        return twice

    changed_step(course, change)


# Batches


@broken("batches.a_waiting_request_starts")
def shortest_first(course, engine, scheduler):
    scheduler.waiting.policy.rank = lambda sequence: len(sequence.prompt_ids)


@broken("batches.no_starvation")
class PrefillsFirst(CourseEngine):
    """While a prompt waits, nothing that runs goes on."""

    def __init__(self, engine):
        super().__init__(engine)
        scheduler, running = engine.scheduler, engine.scheduler.schedule_running

        def schedule_running(output):
            if not scheduler.waiting:
                running(output)

        scheduler.schedule_running = schedule_running


PrefillsFirst.limits = staticmethod(lambda limits: SimpleNamespace(**{**vars(limits), "max_num_seqs": 200}))


@broken("batches.twins")
def serves_a_prompt_once(course, engine, scheduler):
    prompts = {}
    add, step = course.add_request, course.step

    def add_request(name, prompt, params):
        if tuple(prompt) in prompts:
            prompts[tuple(prompt)].append(name)
        else:
            prompts[tuple(prompt)] = [name]
            add(name, prompt, params)

    def copied():
        events = step()
        names = {each[0]: each for each in prompts.values()}
        return [replace(event, request_id=name) for event in events for name in names[event.request_id]]

    course.add_request, course.step = add_request, copied


BROKEN["recomputes_everything"] = slow_engine, "batches.the_cache_is_used"


# Manners


@broken("manners.id_in_use")
def replaces_a_request_of_the_same_id(course, engine, scheduler):
    add = course.add_request

    def add_request(name, prompt, params):
        course.abort(name)
        add(name, prompt, params)

    course.add_request = add_request


broken("manners.unknown_token")(mutants.keeps_what_it_refuses)


@broken("manners.lists_are_copied")
def keeps_the_callers_list(course, engine, scheduler):
    add, step, late = course.add_request, course.step, []
    course.add_request = lambda *request: late.append(request)
    unfinished = course.has_unfinished
    course.has_unfinished = lambda: bool(late) or unfinished()

    def stepped():
        while late:
            add(*late.pop(0))
        return step()

    course.step = stepped


@broken("manners.abort_anywhere")
def ignores_aborts(course, engine, scheduler):
    course.abort = lambda name: None


@broken("manners.abort_anywhere")
def loses_the_blocks_of_the_aborted(course, engine, scheduler):
    abort = course.abort

    def leaking(name):
        if name in engine.requests:
            abort(name)
            scheduler.pool.allocate(1)

    course.abort = leaking


@broken("manners.abort_before_the_first_step")
def aborts_only_what_runs(course, engine, scheduler):
    abort = course.abort

    def aborting(name):
        if name in engine.requests and engine.requests[name].num_cached_tokens is not None:
            abort(name)

    course.abort = aborting


@broken("manners.abort_of_nothing")
def raises_at_an_unknown_abort(course, engine, scheduler):
    course.abort = lambda name: engine.abort(engine.requests[name].id)


@broken("manners.stream_left_early")
def streams_go_on_without_a_reader(course, engine, scheduler):
    def stream(name, prompt, params):
        course.add_request(name, prompt, params)
        while True:
            for event in course.step():
                if event.request_id == name:
                    yield from event.token_ids
                    if event.finish_reason:
                        return

    course.stream = stream


@broken("manners.tokens_kept_for_step")
def forgets_what_a_stream_computed_for_others(course, engine, scheduler):
    course.has_unfinished = scheduler.has_unfinished


@broken("manners.serves_on_after_a_fault")
def dies_of_a_fault(course, engine, scheduler):
    step, dead = course.step, []

    def stepped():
        events = step()
        if any(each.finish_reason == "error" for each in events):
            dead.append(True)
        return [replace(each, finish_reason="error", token_ids=[]) for each in events] if dead else events

    course.step = stepped


# Memory


@broken("memory.all_come_back")
def loses_a_block_at_each_end(course, engine, scheduler):
    release = scheduler.release

    def leaking(sequence):
        if len(sequence.blocks) > 1:
            scheduler.pool.ref_count[sequence.blocks[-1]] += 1
        release(sequence)

    scheduler.release = leaking


@broken("memory.blocks_on_demand")
def reserves_the_longest_answer(course, engine, scheduler):
    make_room = scheduler.make_room

    def reserving(output, sequence, count):
        missing = -(-sequence.most_tokens // scheduler.pool.block_size) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += scheduler.pool.allocate(min(missing, len(scheduler.pool.free_queue)))
        return make_room(output, sequence, count)

    scheduler.make_room = reserving


@broken("memory.under_pressure")
def waits_instead_of_preempting(course, engine, scheduler):
    def allocate_slots(output, sequence, count):
        if scheduler.make_room(output, sequence, count):
            output.num_scheduled_tokens[sequence] = count

    scheduler.allocate_slots = allocate_slots


broken("memory.under_pressure")(mutants.forgets_the_answer_of_the_preempted)


@broken("memory.never_fits")
def takes_what_never_fits(course, engine, scheduler):
    scheduler.check = lambda sequence: None


@broken("memory.never_fits")
def looks_at_the_prompt_alone(course, engine, scheduler):
    check, pool = scheduler.check, scheduler.pool

    def fits(sequence):
        if pool.block_size * pool.num_blocks < len(sequence.prompt_ids):
            check(sequence)

    scheduler.check = fits


@broken("memory.block_sizes")
def counts_in_blocks_of_four(course, engine, scheduler):
    if scheduler.pool.block_size == 16:
        engine.runner.cache.block_size = 4


@broken("memory.no_block_twice")
def shows_a_block_in_two_tables(course, engine, scheduler):
    tables = course.block_tables

    def doubled():
        found = tables()
        names = list(found)
        if len(names) > 1:
            found[names[1]] = [*found[names[1]][:-1], found[names[0]][0]]
        return found

    course.block_tables = doubled


# What is left of a request that is aborted, of a stream, of a fault


@broken("manners.nothing_kept_after_abort")
class KeepsTokensOfTheAborted(CourseEngine):
    def abort(self, request_id):
        self.engine.abort(request_id)


@broken("manners.stream_never_read")
class AddsAtTheCall(CourseEngine):
    def stream(self, request_id, prompt_ids, params):
        self.add_request(request_id, prompt_ids, params)
        return self.read(request_id)

    def read(self, request_id):
        reason = None
        try:
            while reason is None:
                own = [event for event in self.new if event.request_id == request_id]
                self.new = [event for event in self.new if event.request_id != request_id]
                for event in own:
                    yield from event.token_ids
                    reason = event.finish_reason
                if not own:
                    self.engine.step()
        finally:
            self.abort(request_id)


@broken("manners.stream_aborted")
def aborts_no_stream(course, engine, scheduler):
    course.stream = lambda name, prompt, params: (
        token.token for token in engine.stream(prompt, sampling_params(params))
    )


@broken("manners.stream_in_a_failed_pass")
def waits_for_a_token_after_an_error(course, engine, scheduler):
    def stream(name, prompt, params):
        course.add_request(name, prompt, params)
        others = []
        try:
            while True:
                for event in course.step():
                    if event.request_id != name:
                        others.append(event)
                        continue
                    yield from event.token_ids
                    if event.finish_reason not in (None, "error"):
                        return
        finally:
            course.abort(name)
            course.new = others + course.new

    course.stream = stream


@broken("manners.waiting_survive_a_fault")
def ends_the_waiting_too(course, engine, scheduler):
    end = engine.core.end

    def end_all(group, reason, error=None):
        for each in list(engine.core.groups.values()) if reason == "error" else [group]:
            end(each, reason, error)

    engine.core.end = end_all


# Sharing


broken("sharing.other_beginnings")(mutants.hashes_a_block_alone)


@broken("sharing.the_second_time_is_cheaper")
def shares_nothing(course, engine, scheduler):
    scheduler.share_prefixes = False


broken("sharing.abort_of_a_sharer")(mutants.frees_blocks_that_others_use)


@broken("sharing.nothing_stale_is_shared")
def shares_what_a_failed_pass_left(course, engine, scheduler):
    def discard(sequence):
        scheduler.computed(sequence, sequence.num_tokens - sequence.num_computed_tokens)
        scheduler.remove(sequence)

    scheduler.discard = discard


@broken("sharing.kept_blocks_are_free")
def counts_kept_blocks_as_taken(course, engine, scheduler):
    pool = scheduler.pool
    course.num_free_blocks = lambda: sum(block not in pool.block_to_hash for block in pool.free_queue)


@broken("sharing.wholly_cached")
def takes_the_last_token_from_the_cache(course, engine, scheduler):
    scheduler.cached_blocks = lambda sequence: scheduler.pool.match_prefix(scheduler.hashes_of(sequence))


# What is asked for, and under what limits

broken_limits("one_at_a_time", "batches.passes_are_shared", max_num_seqs=lambda given: 1)
broken_limits(
    "one_slot_too_many", "batches.no_more_than_the_slots", max_num_seqs=lambda given: given["max_num_seqs"] + 1
)
broken_limits(
    "twice_the_budget", "memory.token_budget", max_num_batched_tokens=lambda given: 2 * given["max_num_batched_tokens"]
)

broken_request("drops_the_first_token_of_the_prompt", "answers.one_token_prompt", lambda prompt: prompt[1:] or [0])
broken_request("takes_an_empty_prompt", "manners.empty_prompt", lambda prompt: prompt or [0])
broken_request("stops_at_every_end_token", "answers.ignore_eos", ignore_eos=lambda p: False)
broken_request("gives_one_token_at_least", "manners.no_tokens", max_tokens=lambda p: max(1, p["max_tokens"]))
clock = random.Random(1)
broken_request("draws_without_the_seed", "sampling.seeds_in_company", seed=lambda p: clock.randrange(10**9))
broken_request("one_seed_for_all", "sampling.seeds_differ", seed=lambda p: 1)
broken_request("always_greedy", "sampling.distribution", temperature=lambda p: 0.0)
broken_request("half_the_temperature", "sampling.distribution", temperature=lambda p: p["temperature"] / 2)
broken_request("one_more_than_top_k", "sampling.top_k", top_k=lambda p: p["top_k"] and p["top_k"] + 1)
broken_request("no_top_k", "sampling.top_k_of_one", top_k=lambda p: 0)
broken_request("no_top_p", "sampling.tiny_top_p", top_p=lambda p: 1.0)
broken_request("top_p_too_small", "sampling.top_p", top_p=lambda p: p["top_p"] * 0.8)
broken_request("draws_at_temperature_zero", "sampling.temperature_zero", temperature=lambda p: p["temperature"] or 4.0)
broken_request("no_stop_tokens", "answers.stop_token", stop_token_ids=lambda p: ())
broken_request(
    "takes_any_temperature",
    "sampling.senseless_params",
    temperature=lambda p: p["temperature"] if p["temperature"] > 0 else 0.0,
)


broken("sampling.texts")(mutants.decodes_each_token_alone)

broken_events(
    "loses_the_requests_of_a_failed_pass",
    "manners.a_pass_fails",
    lambda each: each if each.finish_reason != "error" else None,
)
