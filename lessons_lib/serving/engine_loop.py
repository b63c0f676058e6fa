"""Lesson 14: the engine's side. Commands in, one step, events out: the same in a thread and in a process of its own."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.metrics import EngineGauges, EngineMetrics
from lessons_lib.engine.output_processor import TokenReader
from lessons_lib.engine.outputs import NewToken
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.floors.pinning import open_pinned
from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.messages import (
    AbortRequest,
    Accepted,
    AddRequest,
    Command,
    Draining,
    EngineStatus,
    Event,
    NewTokens,
    Refused,
    RequestEnded,
    error_text,
)
from lessons_lib.serving.stream_text import TextRules

COMPILER_MILLISECONDS = 5  # between two looks at an idle engine's compiler
METRICS_INTERVAL = 0.25  # seconds; a copy of all metrics takes about as long as serving a few tokens


class EngineLoop:
    """Uses an engine. Everything else sends it commands.

    Attributes:
        answer: gets the answers to commands before the step, so that no caller waits for the step as well. If None,
            they are returned with the events of the step.
        readers: id -> reader of an added request, until its end has been told.
        compiling: requests whose grammars are being compiled in another thread, which no step waits for.
    """

    def __init__(
        self, engine: LLMEngine, answer: Callable[[list[Event]], object] | None = None, *,
        clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self.engine, self.answer, self.clock, self.metrics = engine, answer, clock, EngineMetrics(engine)
        self.readers: dict[str, TokenReader] = {}
        self.compiling: dict[str, tuple[AddRequest, Future[Any]]] = {}
        self._next_metrics = clock()

    @property
    def open(self) -> list[str]:
        """The ids of the requests that have not ended."""
        return [*self.compiling, *self.readers]

    def turn(self, commands: Iterable[Command]) -> list[Event]:
        """Carry out commands, then take one step. If this raises, the engine can't go on."""
        answers = self.apply(commands)
        if self.answer and answers:
            self.answer(answers)
            answers = []
        return answers + self.step()

    def apply(self, commands: Iterable[Command]) -> list[Event]:
        """Carry out commands, without a step."""
        events: list[Event] = []
        for command in commands:
            if not isinstance(command, AddRequest):
                events += self._abort(command)
            elif not self._compiles(command):
                events += self._add(command)
        for name, (command, grammar) in list(self.compiling.items()):
            if grammar.done():
                error = grammar.exception()
                events += [Refused(name, _plain(error))] if error else self._add(command)  # which finds the grammar
                del self.compiling[name]
        return events

    def step(self) -> list[Event]:
        """One step, if there is anything to do."""
        if not self.engine.has_unfinished():
            wait([grammar for _, grammar in self.compiling.values()], COMPILER_MILLISECONDS / 1000)
            return self.collect()
        self.engine.step()
        return [*self.collect(), self.status()]

    def collect(self) -> list[Event]:
        """New tokens and ends of the requests."""
        tokens: list[NewToken] = []
        ended: list[Event] = []
        for name, reader in list(self.readers.items()):
            for token in self.engine.core.read(reader):
                tokens.append(token)
                reader.move_on(token)
            if output := reader.group.output:
                del self.readers[name]
                ended.append(RequestEnded.of(output))
        return [NewTokens(tokens), *ended] if tokens else ended

    def status(self) -> EngineStatus:
        """The gauges, and now and then the metrics. They are complete whenever the engine has become idle."""
        metrics, now = None, self.clock()
        if now >= self._next_metrics or not self.engine.has_unfinished():
            metrics, self._next_metrics = self.metrics.snapshot(), now + METRICS_INTERVAL
        return EngineStatus(EngineGauges.of(self.engine), metrics)

    def close(self) -> None:
        """Abort what is left. The engine itself stays as it is, and may have died."""
        for request_id in list(self.readers):
            try:
                self.engine.abort(request_id)
            except Exception:  # noqa: BLE001 - of an engine that has died; the others are still to be aborted
                continue
        self.readers.clear()
        for _, grammar in self.compiling.values():
            grammar.cancel()
        self.compiling.clear()

    def _compiles(self, command: AddRequest) -> bool:
        """Begin to compile the grammar of a request. Returns False if it has none."""
        rules = getattr(command.params, "structured_outputs", None)
        if rules is None:
            return False
        soon = rules.compiled_soon(self.engine.tokenizer, self.engine.vocab_size)
        self.compiling[command.request_id] = command, soon
        return True

    def _add(self, command: AddRequest) -> list[Event]:
        name, params, rules = command.request_id, command.params or SamplingParams(), None
        try:
            if isinstance(params, SamplingParams) and (rules := TextRules.of(params, self.engine)):
                params = replace(params, detokenize=False)
            reader = open_pinned(self.engine, command.prompt, params, request_id=name, **command.options)
        except Exception as error:
            return [Refused(name, _plain(error))]
        self.readers[name] = reader
        return [Accepted(name, len(reader.group.prompt_ids), rules)]

    def _abort(self, command: AbortRequest) -> list[Event]:
        if command.request_id in self.compiling:
            _, grammar = self.compiling.pop(command.request_id)
            grammar.cancel()
            return [Refused(command.request_id, Draining("the request was aborted before it began."))]
        output = self.engine.abort(command.request_id) if command.request_id in self.readers else None
        if output is None:
            return []
        del self.readers[command.request_id]
        return [RequestEnded.of(output), self.status()]


def _plain(error: BaseException) -> Exception:
    """An error that can be pickled, without its traceback, which would keep objects alive."""
    if isinstance(error, BadRequest | OutOfBlocks):
        return error.with_traceback(None)
    return RuntimeError(error_text(error))
