"""Lesson 12: an engine at work, step by step: its batch slots, its blocks, and the texts as they grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lessons_lib.engine.detokenizer import HALF_A_CHARACTER
from lessons_lib.scheduling.sequence import Sequence

if TYPE_CHECKING:
    from lessons_lib.engine.llm_engine import LLMEngine
    from lessons_lib.engine.outputs import RequestOutput

PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True)
class Slot:
    """A sequence in a batch slot in one step: PREFILL if prompt tokens were computed, else DECODE."""

    name: str
    work: str


@dataclass(frozen=True)
class Told:
    """A request's text so far; `end` says why it ended, and is empty while it has not."""

    text: str
    end: str = ""


@dataclass(frozen=True)
class EngineMoment:
    """An engine after a step.

    Attributes:
        event: what happened, in words.
        slots: the sequence in each batch slot; None if there is none, or if none of its tokens was computed.
        waiting: names of the requests in the queue.
        num_blocks: of the pool.
        owners: block -> the sequences that use it.
        cached: free blocks that prefix matching can still find.
        texts: request -> its text, in order of arrival.
    """

    event: str
    slots: tuple[Slot | None, ...]
    waiting: tuple[str, ...]
    num_blocks: int
    owners: dict[int, tuple[str, ...]]
    cached: frozenset[int]
    texts: dict[str, Told]


def engine_moments(engine: LLMEngine, trouble: Mapping[int, Callable[[], str]]) -> list[EngineMoment]:
    """Step an engine until no request is left. `trouble`: step, from 1, -> what is done before it, in words."""
    moments: list[EngineMoment] = []
    slots: list[Sequence | None] = []
    texts: dict[str, Told] = {}
    while engine.has_unfinished():
        events = [trouble[len(moments) + 1]()] if len(moments) + 1 in trouble else []
        computed = {sequence: sequence.num_computed_tokens for sequence in engine.scheduler.running}
        ended = {output.request_id: output for output in engine.step()}
        running = set(engine.scheduler.running)
        slots = [each if each in running or _has_finished(each) else None for each in slots]
        for sequence in engine.scheduler.running:
            if sequence not in slots:
                free = next((slot for slot, there in enumerate(slots) if there is None), len(slots))
                slots[free : free + 1] = [sequence]
        seen = tuple(_slot(each, computed.get(each, 0)) if each else None for each in slots)
        slots = [each if each in running else None for each in slots]
        for name, told in texts.items():
            if not told.end and name not in engine.requests:
                texts[name] = Told(told.text, "aborted")
        texts |= {name: Told(output.text, _reason(output)) for name, output in ended.items()}
        texts |= {name: Told(_text_of(engine, request)) for name, request in engine.requests.items()}
        for why in dict.fromkeys(map(_reason, ended.values())):
            events.append(f"{', '.join(name for name in ended if texts[name].end == why)} ended: {why}")
        moments.append(_moment(engine, "; ".join(events), seen, dict(texts)))
    return moments


def _slot(sequence: Sequence, before: int) -> Slot | None:
    if sequence.num_computed_tokens == before and not sequence.finish_reason:
        return None
    return Slot(sequence.id, PREFILL if before < len(sequence.prompt_ids) else DECODE)


def _has_finished(sequence: Sequence | None) -> bool:
    return sequence is not None and sequence.finish_reason in ("stop", "length")


def _reason(output: RequestOutput) -> str:
    return f"{type(output.error).__name__}: {output.error}" if output.error else str(output.finish_reason)


def _text_of(engine: LLMEngine, request) -> str:
    ids = request.completions[0].output_ids
    return engine.tokenizer.decode(ids, skip_special_tokens=True).rstrip(HALF_A_CHARACTER)


def _moment(engine: LLMEngine, event: str, slots: tuple[Slot | None, ...], texts: dict[str, Told]) -> EngineMoment:
    scheduler = engine.scheduler
    owners: dict[int, tuple[str, ...]] = {}
    for sequence in (*scheduler.running, *scheduler.leaving, *scheduler.waiting):
        for block in sequence.blocks:
            owners[block] = (*owners.get(block, ()), sequence.id)
    cached = frozenset(block for block in scheduler.pool.block_to_hash if block not in owners)
    waiting = tuple(sequence.id for sequence in scheduler.waiting)
    return EngineMoment(event, slots, waiting, scheduler.pool.num_blocks, owners, cached, texts)
