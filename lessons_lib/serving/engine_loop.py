"""Lesson 14: the engine's side. Commands in, one step, events out: the same in a thread and in a process of its own.

An engine that serves several fronts has a loop for each, and each loop reads the tokens of its own requests.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.metrics import EngineGauges, EngineMetrics
from lessons_lib.engine.request import NewToken, TokenReader
from lessons_lib.engine.sampling_params import SamplingParams
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
)
from lessons_lib.serving.stream_text import TextRules

COMPILER_MILLISECONDS = 5  # between two looks at an idle engine's compiler
METRICS_INTERVAL = 0.25  # seconds; a copy of all metrics takes about as long as serving a few tokens


class EngineLoop:
    """Owns an engine, alone or together with the loops of other fronts. Everything else sends it commands.

    Attributes:
        engine: an LLMEngine.
        metrics: of the engine. Loops that share an engine share them.
        open: id -> reader, of the requests that it has added, and whose end it hasn't told.
        compiling: requests whose grammars are being compiled in another thread, which no step waits for.
    """

    def __init__(
        self, engine: LLMEngine, clock: Callable[[], float] = time.monotonic, metrics: EngineMetrics | None = None
    ):
        self.engine, self.clock, self.metrics = engine, clock, metrics or EngineMetrics(engine)
        self.open: dict[str, TokenReader] = {}
        self.compiling: dict[str, tuple[AddRequest, Future[Any]]] = {}
        self._next_metrics = clock()

    def turn(self, commands: Iterable[Command]) -> list[Event]:
        """Carry out commands, then take one step.

        Raises:
            What the engine's `step` raises: the engine can't go on.
        """
        return self.apply(commands) + self.step()

    def apply(self, commands: Iterable[Command]) -> list[Event]:
        """Carry out commands, without a step: a caller that waits for its request to be accepted needn't wait for
        the step as well."""
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
        """What is new of the requests of this loop."""
        tokens: list[NewToken] = []
        ended: list[Event] = []
        for name, reader in list(self.open.items()):
            for token in self.engine.core.read(reader):
                tokens.append(token)
                reader.move_on(token)
            if output := reader.group.output:
                del self.open[name]
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
        for request_id in list(self.open):
            try:
                self.engine.abort(request_id)
            except Exception:  # noqa: BLE001 - of an engine that has died; the others are still to be aborted
                continue
        self.open.clear()
        for _, grammar in self.compiling.values():
            grammar.cancel()
        self.compiling.clear()

    def _compiles(self, command: AddRequest) -> bool:
        """Begin to compile the grammar of a request. Returns whether it has one."""
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
            reader = self.engine.open(command.prompt, params, request_id=name, **command.options)
        except Exception as error:
            return [Refused(name, _plain(error))]
        self.open[name] = reader
        return [Accepted(name, len(reader.group.prompt_ids), rules)]

    def _abort(self, command: AbortRequest) -> list[Event]:
        if command.request_id in self.compiling:
            _, grammar = self.compiling.pop(command.request_id)
            grammar.cancel()
            return [Refused(command.request_id, Draining("the request was aborted before it began."))]
        output = self.engine.abort(command.request_id) if command.request_id in self.open else None
        if output is None:
            return []
        del self.open[command.request_id]
        return [RequestEnded.of(output), self.status()]


def _plain(error: BaseException) -> Exception:
    """An error without what it holds on to."""
    assert isinstance(error, Exception)
    return error.with_traceback(None)
