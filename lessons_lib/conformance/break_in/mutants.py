"""Mistakes that are made when an engine is built. Each function puts one into a right engine.

The twelve of the break-in are in MUTANTS. The conformance suite is tested with some of them, too.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial, reduce, wraps
from typing import Any

from lessons_lib.conformance.break_in.engine import ChatEngine, right_engine
from lessons_lib.conformance.contract import NewTokens

Change = Callable[[Any, Any, Any], None]  # (engine behind the contract, its LLMEngine, its scheduler)


@dataclass(frozen=True)
class Mutant:
    """An engine with a mistake, which `change` puts into a right one. Its docstring says what can be seen of it."""

    change: Change

    @property
    def observable(self) -> str:
        return self.change.__doc__ or ""

    def make_engine(self, **limits: int) -> ChatEngine:
        engine = right_engine(**limits)
        self.change(engine, engine.engine, engine.engine.scheduler)
        return engine


def around(path: str) -> Callable[[Callable[..., Any]], Change]:
    """Makes a function (engine behind the contract, method, *arguments) a change that stands in for that method.

    Args:
        path: of the method, from the engine behind the contract, such as "abort" or "engine.scheduler.release".
    """
    *owners, name = path.split(".")

    def changing(function: Callable[..., Any]) -> Change:
        @wraps(function)
        def change(course: Any, engine: Any, scheduler: Any) -> None:
            owner = reduce(getattr, owners, course)
            setattr(owner, name, partial(function, course, getattr(owner, name)))

        return change

    return changing


# Answers


@around("add_request")
def gives_one_token_more(course: Any, add: Any, name: str, prompt: list[int], params: Any) -> None:
    """An answer isn't as long as was asked for."""
    add(name, prompt, replace(params, max_tokens=params.max_tokens + 1))


@around("add_request")
def adds_the_company_to_the_seed(course: Any, add: Any, name: str, prompt: list[int], params: Any) -> None:
    """A request with a seed draws other tokens when others run beside it."""
    company = len(course.engine.requests)
    add(name, prompt, params if params.seed is None else replace(params, seed=params.seed + company))


def looks_for_stop_strings_in_each_piece(course: Any, engine: Any, scheduler: Any) -> None:
    """An answer goes on past its stop string, when the string comes with more than one token."""
    stops: dict[str, tuple[str, ...]] = {}
    add, step = course.add_request, course.step

    def add_request(name: str, prompt: list[int], params: Any) -> None:
        add(name, prompt, replace(params, stop=()))
        stops[name] = (params.stop,) if isinstance(params.stop, str) else tuple(params.stop)

    def cut(event: NewTokens) -> NewTokens:
        found = [event.text.index(stop) for stop in stops.get(event.request_id, ()) if stop in event.text]
        if not found:
            return event
        engine.abort(event.request_id)
        return replace(event, text=event.text[: min(found)], finish_reason="stop")

    course.add_request, course.step = add_request, lambda: [cut(event) for event in step()]


@around("step")
def decodes_each_token_alone(course: Any, step: Any) -> list[NewTokens]:
    """The pieces of a text, joined, aren't the text of all its tokens."""
    return [replace(each, text=course.engine.tokenizer.decode(each.token_ids)) for each in step()]


# Requests that end early


@around("add_request")
def keeps_what_it_refuses(course: Any, add: Any, name: str, prompt: list[int], params: Any) -> None:
    """After a refusal the engine isn't as it was before."""
    if any(not 0 <= token < course.engine.vocab_size for token in prompt):
        add(name, [0], params)
        raise ValueError("unknown token")
    add(name, prompt, params)


@around("abort")
def keeps_the_slot_of_the_aborted(course: Any, abort: Any, name: str) -> None:
    """After an abort, fewer requests run at a time than before."""
    scheduler = course.engine.scheduler
    was_running = any(sequence.id.startswith(name) for sequence in scheduler.running)
    abort(name)
    if was_running:
        scheduler.max_num_seqs = max(1, scheduler.max_num_seqs - 1)


@around("leave")
def serves_on_after_a_disconnect(course: Any, leave: Any, name: str) -> None:
    """A client leaves, and its request isn't gone."""


@around("events")
def ends_a_stream_twice(course: Any, events: Any, *request: Any) -> Iterator[bytes]:
    """A client reads the end of its answer more often than once."""
    with closing(events(*request)) as stream:
        for event in stream:
            yield event
            body = event.removeprefix(b"data: ").strip()
            if body != b"[DONE]" and (data := json.loads(body))["choices"][0]["finish_reason"]:
                data["choices"][0]["delta"] = {}
                yield b"data: " + json.dumps(data).encode("ascii") + b"\n\n"


# Blocks


@around("engine.scheduler.preempt_sequence")
def loses_a_block_at_preemption(course: Any, preempt: Any, scheduler: Any, output: Any, victim: Any) -> None:
    """After memory was short, not all of it comes back."""
    is_first = not scheduler.num_preempted
    preempt(scheduler, output, victim)
    if is_first and scheduler.pool.free_queue:
        scheduler.pool.allocate(1)


@around("engine.scheduler.preempt_sequence")
def forgets_the_answer_of_the_preempted(course: Any, preempt: Any, scheduler: Any, output: Any, victim: Any) -> None:
    """An answer is another one when memory is short."""
    preempt(scheduler, output, victim)
    victim.output_ids.clear()


@around("engine.scheduler.block_hash")
def hashes_a_block_alone(course: Any, block_hash: Any, parent: bytes, token_ids: Any) -> Any:
    """A request isn't served as it would be alone: an earlier prompt had some of the same tokens elsewhere."""
    return block_hash(b"", token_ids)


@around("engine.scheduler.pool.free")
def frees_blocks_that_others_use(course: Any, free: Any, blocks: list[int]) -> None:
    """Two requests have the same beginning. One is aborted, and then the other isn't served right."""
    pool = course.engine.scheduler.pool
    for block in blocks:
        if pool.ref_count.get(block, 0) > 1:
            pool.free_queue.append(block)
            pool.free_queue.move_to_end(block, last=False)
    free(blocks)


# The order is the one in which a learner meets the ideas.
MUTANTS = [*map(Mutant, (
    gives_one_token_more, adds_the_company_to_the_seed, looks_for_stop_strings_in_each_piece, decodes_each_token_alone,
    keeps_what_it_refuses, keeps_the_slot_of_the_aborted, serves_on_after_a_disconnect, ends_a_stream_twice,
    loses_a_block_at_preemption, forgets_the_answer_of_the_preempted, hashes_a_block_alone,
    frees_blocks_that_others_use,
))]  # fmt: skip
