"""Mistakes that are made when an engine is built. Each function puts one into a right engine.

The twelve of the break-in are in MUTANTS. The conformance suite is tested with some of them, too.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from lessons_lib.conformance.break_in.engine import ChatEngine, right_engine
from lessons_lib.conformance.contract import NewTokens

Change = Callable[[Any, Any, Any], None]  # (engine behind the contract, its LLMEngine, its scheduler)


@dataclass(frozen=True)
class Mutant:
    """One engine with a mistake.

    Attributes:
        observable: what can be seen of it from outside; the hint of one who hasn't found it.
        lesson: that has the idea behind it.
        change: puts it into a right engine.
    """

    observable: str
    lesson: str
    change: Change

    def make_engine(self, **limits: int) -> ChatEngine:
        engine = right_engine(**limits)
        self.change(engine, engine.engine, engine.engine.scheduler)
        return engine


def changed_step(course: Any, change: Callable[[list[NewTokens]], list[NewTokens]]) -> None:
    """`step` returns what `change(events)` makes of its events."""
    step = course.step
    course.step = lambda: change(step())


def changed_params(course: Any, change: Callable[[Any], Any]) -> None:
    """A request is added with what `change(params)` makes of its parameters."""
    add = course.add_request
    course.add_request = lambda name, prompt, params: add(name, prompt, change(params))


# Answers


def gives_one_token_more(course: Any, engine: Any, scheduler: Any) -> None:
    changed_params(course, lambda params: replace(params, max_tokens=params.max_tokens + 1))


def adds_the_company_to_the_seed(course: Any, engine: Any, scheduler: Any) -> None:
    def change(params: Any) -> Any:
        return params if params.seed is None else replace(params, seed=params.seed + len(engine.requests))

    changed_params(course, change)


def looks_for_stop_strings_in_each_piece(course: Any, engine: Any, scheduler: Any) -> None:
    stops: dict[str, tuple[str, ...]] = {}
    add = course.add_request

    def add_request(name: str, prompt: list[int], params: Any) -> None:
        add(name, prompt, replace(params, stop=()))
        stops[name] = (params.stop,) if isinstance(params.stop, str) else tuple(params.stop)

    def cut(event: NewTokens) -> NewTokens:
        found = [event.text.index(stop) for stop in stops.get(event.request_id, ()) if stop in event.text]
        if not found:
            return event
        engine.abort(event.request_id)
        return replace(event, text=event.text[: min(found)], finish_reason="stop")

    course.add_request = add_request
    changed_step(course, lambda events: [cut(event) for event in events])


def decodes_each_token_alone(course: Any, engine: Any, scheduler: Any) -> None:
    decode = engine.tokenizer.decode
    changed_step(course, lambda events: [replace(each, text=decode(each.token_ids)) for each in events])


# Requests that end early


def keeps_what_it_refuses(course: Any, engine: Any, scheduler: Any) -> None:
    add = course.add_request

    def add_request(name: str, prompt: list[int], params: Any) -> None:
        if any(not 0 <= token < engine.vocab_size for token in prompt):
            add(name, [0], params)
            raise ValueError("unknown token")
        add(name, prompt, params)

    course.add_request = add_request


def keeps_the_slot_of_the_aborted(course: Any, engine: Any, scheduler: Any) -> None:
    abort = course.abort

    def aborting(name: str) -> None:
        was_running = any(sequence.id.startswith(name) for sequence in scheduler.running)
        abort(name)
        if was_running:
            scheduler.max_num_seqs = max(1, scheduler.max_num_seqs - 1)

    course.abort = aborting


def serves_on_after_a_disconnect(course: Any, engine: Any, scheduler: Any) -> None:
    course.leave = lambda name: None


def ends_a_stream_twice(course: Any, engine: Any, scheduler: Any) -> None:
    events = course.events

    def twice(name: str, prompt: list[int], params: Any) -> Iterator[bytes]:
        with closing(events(name, prompt, params)) as stream:
            for event in stream:
                yield event
                body = event.removeprefix(b"data: ").strip()
                if body != b"[DONE]" and json.loads(body)["choices"][0]["finish_reason"]:
                    data = json.loads(body)
                    data["choices"][0]["delta"] = {}
                    yield b"data: " + json.dumps(data).encode("ascii") + b"\n\n"

    course.events = twice


# Blocks


def loses_a_block_at_preemption(course: Any, engine: Any, scheduler: Any) -> None:
    preempt = scheduler.preempt_sequence
    lost: list[int] = []

    def losing(scheduler: Any, output: Any, victim: Any) -> None:
        preempt(scheduler, output, victim)
        if not lost and scheduler.pool.free_queue:
            lost.extend(scheduler.pool.allocate(1))

    scheduler.preempt_sequence = losing


def forgets_the_answer_of_the_preempted(course: Any, engine: Any, scheduler: Any) -> None:
    preempt = scheduler.preempt_sequence

    def forgetting(scheduler: Any, output: Any, victim: Any) -> None:
        preempt(scheduler, output, victim)
        victim.output_ids.clear()

    scheduler.preempt_sequence = forgetting


def hashes_a_block_alone(course: Any, engine: Any, scheduler: Any) -> None:
    block_hash = scheduler.block_hash
    scheduler.block_hash = lambda parent, token_ids: block_hash(b"", token_ids)


def frees_blocks_that_others_use(course: Any, engine: Any, scheduler: Any) -> None:
    pool, free = scheduler.pool, scheduler.pool.free

    def freeing(blocks: list[int]) -> None:
        for block in blocks:
            if pool.ref_count.get(block, 0) > 1:
                pool.free_queue.append(block)
                pool.free_queue.move_to_end(block, last=False)
        free(blocks)

    pool.free = freeing


# The order is the one in which a learner meets the ideas.
MUTANTS = [
    Mutant("An answer isn't as long as was asked for.", "12", gives_one_token_more),
    Mutant("A request with a seed draws other tokens when others run beside it.", "12", adds_the_company_to_the_seed),
    Mutant(
        "An answer goes on past its stop string, when the string comes with more than one token.",
        "12",
        looks_for_stop_strings_in_each_piece,
    ),
    Mutant("The pieces of a text, joined, aren't the text of all its tokens.", "12", decodes_each_token_alone),
    Mutant("After a refusal the engine isn't as it was before.", "12", keeps_what_it_refuses),
    Mutant("After an abort, fewer requests run at a time than before.", "12", keeps_the_slot_of_the_aborted),
    Mutant("A client leaves, and its request isn't gone.", "14", serves_on_after_a_disconnect),
    Mutant("A client reads the end of its answer more often than once.", "14", ends_a_stream_twice),
    Mutant("After memory was short, not all of it comes back.", "10", loses_a_block_at_preemption),
    Mutant("An answer is another one when memory is short.", "10", forgets_the_answer_of_the_preempted),
    Mutant(
        "A request isn't served as it would be alone: an earlier prompt had some of the same tokens elsewhere.",
        "11",
        hashes_a_block_alone,
    ),
    Mutant(
        "Two requests have the same beginning. One is aborted, and then the other isn't served right.",
        "11",
        frees_blocks_that_others_use,
    ),
]
