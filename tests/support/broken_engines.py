"""Engines with one mistake each, and the item of the conformance suite that must name it.

Most are the course's engine with one part changed. Mistakes that learners make in an engine of their own, such as
static batches, an ignored end token or an id that can't be used again, are among the answers of lesson 17.
"""

import random
from dataclasses import replace
from types import SimpleNamespace

from lessons_lib.conformance.adapters.course import CourseEngine, config_of, sampling_params
from lessons_lib.conformance.break_in import mutants
from lessons_lib.conformance.examples.slow_engine import make_engine as slow_engine
from lessons_lib.engine.llm_engine import LLMEngine

BROKEN = {"recomputes_everything": (slow_engine, "batches.the_cache_is_used")}  # name -> (make_engine, item)


def changed(values, functions):
    """A copy of an object's fields, some of them computed anew from all of them."""
    fields = vars(values)
    return SimpleNamespace(**{**fields, **{name: function(fields) for name, function in functions.items()}})


def broken(item, name="", **limits):
    """Register a change of a course engine (see `mutants`), or an engine under other limits than it was given."""

    def note(change):
        def make_engine(model, given, tokenizer):
            given = changed(given, limits)
            course = CourseEngine(LLMEngine(model, tokenizer, config_of(given)))
            course.limits = given
            change(course, course.engine, course.engine.scheduler)
            return course

        BROKEN[name or change.__name__] = make_engine, item
        return change

    return note


def around(item, path, **limits):
    """Register an engine with a function in place of one of its methods; see `mutants.around`."""
    return lambda function: broken(item, **limits)(mutants.around(path)(function))


def broken_request(name, item, new_prompt=lambda prompt: prompt, **functions):
    """Register an engine that is given another prompt, or other parameters, than it was asked for."""

    def change(course, add, id, prompt, params):
        add(id, new_prompt(prompt), changed(params, functions))

    broken(item, name)(mutants.around("add_request")(change))


for item, mutant in {
    "manners.unknown_token": mutants.keeps_what_it_refuses,
    "memory.under_pressure": mutants.forgets_the_answer_of_the_preempted,
    "sharing.other_beginnings": mutants.hashes_a_block_alone,
    "sharing.abort_of_a_sharer": mutants.frees_blocks_that_others_use,
    "sampling.texts": mutants.decodes_each_token_alone,
}.items():
    broken(item)(mutant)


# Batches


@broken("batches.first_come")
def shortest_first(course, engine, scheduler):
    scheduler.waiting.policy.rank = lambda sequence: len(sequence.prompt_ids)


@around("batches.no_starvation", "engine.scheduler.schedule_running", max_num_seqs=lambda given: 200)
def prefills_first(course, schedule_running, output):
    """While a prompt waits, nothing that runs goes on."""
    if not course.engine.scheduler.waiting:
        schedule_running(output)


@broken("batches.twins")
def serves_a_prompt_once(course, engine, scheduler):
    prompts = {}
    add, step = course.add_request, course.step

    def add_request(name, prompt, params):
        names = prompts.setdefault(tuple(prompt), [])
        names.append(name)
        if len(names) == 1:
            add(name, prompt, params)

    def copied():
        names = {each[0]: each for each in prompts.values()}
        return [replace(event, request_id=name) for event in step() for name in names[event.request_id]]

    course.add_request, course.step = add_request, copied


# Manners


@around("manners.id_in_use", "add_request")
def replaces_a_request_of_the_same_id(course, add, name, *request):
    course.abort(name)
    add(name, *request)


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


@around("manners.abort_anywhere", "abort")
def loses_the_blocks_of_the_aborted(course, abort, name):
    if name in course.engine.requests:
        abort(name)
        course.engine.scheduler.pool.allocate(1)


@around("manners.abort_before_the_first_step", "abort")
def aborts_only_what_runs(course, abort, name):
    if name in course.engine.requests and course.engine.requests[name].num_cached_tokens is not None:
        abort(name)


@around("manners.abort_of_nothing", "abort")
def raises_at_an_unknown_abort(course, abort, name):
    abort(course.engine.requests[name].id)


@around("manners.nothing_kept_after_abort", "abort")
def keeps_tokens_of_the_aborted(course, abort, name):
    course.engine.abort(name)


@around("manners.tokens_kept_for_step", "has_unfinished")
def forgets_what_a_stream_computed_for_others(course, has_unfinished):
    return course.engine.scheduler.has_unfinished()


# Streams


@around("manners.stream_left_early", "stream")
def streams_go_on_without_a_reader(course, stream, name, *request):
    course.add_request(name, *request)
    while True:
        for event in course.step():
            if event.request_id == name:
                yield from event.token_ids
                if event.finish_reason:
                    return


@around("manners.stream_never_read", "stream")
def adds_at_the_call(course, stream, name, *request):
    course.add_request(name, *request)

    def read():
        reason = None
        try:
            while reason is None:
                own = [event for event in course.new if event.request_id == name]
                course.new = [event for event in course.new if event.request_id != name]
                for event in own:
                    yield from event.token_ids
                    reason = event.finish_reason
                if not own:
                    course.engine.step()
        finally:
            course.abort(name)

    return read()


@around("manners.stream_aborted", "stream")
def aborts_no_stream(course, stream, name, prompt, params):
    return (token.token for token in course.engine.stream(prompt, sampling_params(params)))


@around("manners.stream_in_a_failed_pass", "stream")
def waits_for_a_token_after_an_error(course, stream, name, *request):
    course.add_request(name, *request)
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


# Faults


@around("manners.serves_on_after_a_fault", "step")
def dies_of_a_fault(course, step):
    events = step()
    course.is_dead = getattr(course, "is_dead", False) or any(each.finish_reason == "error" for each in events)
    return [replace(each, finish_reason="error", token_ids=[]) for each in events] if course.is_dead else events


@around("manners.a_pass_fails", "step")
def loses_the_requests_of_a_failed_pass(course, step):
    return [each for each in step() if each.finish_reason != "error"]


@around("manners.waiting_survive_a_fault", "engine.core.end")
def ends_the_waiting_too(course, end, group, reason, error=None):
    for each in list(course.engine.core.groups.values()) if reason == "error" else [group]:
        end(each, reason, error)


# Memory


@around("memory.all_come_back", "engine.scheduler.release")
def loses_a_block_at_each_end(course, release, sequence):
    if len(sequence.blocks) > 1:
        course.engine.scheduler.pool.ref_count[sequence.blocks[-1]] += 1
    release(sequence)


@around("memory.blocks_on_demand", "engine.scheduler.make_room")
def reserves_the_longest_answer(course, make_room, output, sequence, count):
    pool = course.engine.scheduler.pool
    missing = -(-sequence.most_tokens // pool.block_size) - len(sequence.blocks)
    if missing > 0:
        sequence.blocks += pool.allocate(min(missing, len(pool.free_queue)))
    return make_room(output, sequence, count)


@around("memory.under_pressure", "engine.scheduler.allocate_slots")
def waits_instead_of_preempting(course, allocate_slots, output, sequence, count):
    if course.engine.scheduler.make_room(output, sequence, count):
        output.num_scheduled_tokens[sequence] = count


@around("memory.never_fits", "engine.scheduler.check")
def looks_at_the_prompt_alone(course, check, sequence):
    pool = course.engine.scheduler.pool
    if pool.block_size * pool.num_blocks < len(sequence.prompt_ids):
        check(sequence)


@broken("memory.block_sizes")
def counts_in_blocks_of_four(course, engine, scheduler):
    if scheduler.pool.block_size == 16:
        engine.runner.cache.block_size = 4


@around("memory.no_block_twice", "block_tables")
def shows_a_block_in_two_tables(course, block_tables):
    found = block_tables()
    names = list(found)
    if len(names) > 1:
        found[names[1]] = [*found[names[1]][:-1], found[names[0]][0]]
    return found


# Sharing


@broken("sharing.the_second_time_is_cheaper")
def shares_nothing(course, engine, scheduler):
    scheduler.share_prefixes = False


@broken("sharing.nothing_stale_is_shared")
def shares_what_a_failed_pass_left(course, engine, scheduler):
    reset, pool = scheduler.reset, scheduler.pool

    def keep_hashes():
        hashes = pool.block_to_hash, pool.hash_to_block
        reset()
        pool.block_to_hash, pool.hash_to_block = hashes

    scheduler.discard, scheduler.reset = scheduler.remove, keep_hashes


@around("sharing.kept_blocks_are_free", "num_free_blocks")
def counts_kept_blocks_as_taken(course, num_free_blocks):
    pool = course.engine.scheduler.pool
    return sum(block not in pool.block_to_hash for block in pool.free_queue)


@around("sharing.wholly_cached", "engine.scheduler.cached_blocks")
def takes_the_last_token_from_the_cache(course, cached_blocks, sequence):
    scheduler = course.engine.scheduler
    return scheduler.pool.match_prefix(scheduler.hashes_of(sequence))


# What is asked for, and under what limits

for name, item, limits in (
    ("one_at_a_time", "batches.passes_are_shared", dict(max_num_seqs=lambda given: 1)),
    ("one_slot_too_many", "batches.no_more_than_the_slots", dict(max_num_seqs=lambda given: given["max_num_seqs"] + 1)),
    (
        "twice_the_budget",
        "batches.token_budget",
        dict(max_num_batched_tokens=lambda g: 2 * g["max_num_batched_tokens"]),
    ),
):
    broken(item, name, **limits)(lambda *course: None)

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
