"""Lesson 13: the engine for a GPU: the next step is launched before the tokens of the last one are read, so results
arrive one step later.

A step does what a step of LLMEngine does, in two halves: one call launches it, the next call processes its results. In
between, its sequences have placeholders; see `overlap`.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.gpu_model_runner import MAX_CAPTURED_TOKENS, GPUModelRunner
from lessons_lib.engine.in_flight import InFlightStep
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.metrics import EngineGauges
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.outputs import EngineRequest, RequestOutput
from lessons_lib.engine.overlap import OverlappedSteps
from lessons_lib.engine.probe import probe
from lessons_lib.engine.recovery import one_call
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.step_results import LaunchedStep
from lessons_lib.scheduling.preemption import PreemptiveSchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


def gpu_model_runner(**options: Any) -> Callable[[PreTrainedModel, int, EngineConfig], GPUModelRunner]:
    """For `EngineConfig.make_runner`: a GPUModelRunner with these options, and the sizes of the engine."""

    def make(model: PreTrainedModel, num_blocks: int, config: EngineConfig) -> GPUModelRunner:
        sizes: dict[str, Any] = dict(max_num_seqs=config.max_num_seqs, max_model_len=config.max_model_len)
        if config.probe:
            sizes["layer_shapes"] = probe(model).layer_shapes
        # A step never has more tokens than the budget, so larger graphs would be captured for nothing.
        sizes["max_captured_tokens"] = min(MAX_CAPTURED_TOKENS, config.max_num_batched_tokens)
        return GPUModelRunner(model, num_blocks, config.block_size, **sizes | options)

    return make


class EngineSteps(OverlappedSteps):
    """Overlapped steps that launch and process as an engine does."""

    def __init__(self, engine: "OverlappedEngine"):
        super().__init__(engine.scheduler, engine.runner)
        self.engine = engine

    def launch(self) -> InFlightStep | None:
        launched = self.engine.launch_next()
        if launched:
            launched.logits = None  # they are not needed, and the next launch may overwrite them
        return launched

    def process_results(self, step: Any) -> list[Sequence]:
        self.engine.process_results(step)
        return []


class OverlappedEngine(LLMEngine):
    """An LLMEngine that gives the same answers and keeps a GPU busy. Without a GPU: `gpu_model_runner(compiled=False,
    capture=rerun)`.

    Attributes:
        runner: a GPUModelRunner. Call `runner.warm_up()` before the first request, so that none waits for the compiler.
        overlap: EngineSteps: the step in flight, and the protocol.
    """

    @staticmethod
    def new_runner(model: PreTrainedModel, num_blocks: int, config: EngineConfig) -> ModelRunner:
        """See `LLMEngine.new_runner`."""
        return gpu_model_runner()(model, num_blocks, config)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.overlap = EngineSteps(self)
        self._needs_logits: dict[EngineRequest, None] = {}

    @property
    def in_flight(self) -> InFlightStep | None:
        """The step whose results haven't been processed, or None."""
        return self.overlap.in_flight

    @one_call
    def advance(self) -> None:
        """Schedule and launch the next step, then process the results of the one before. See `LLMEngine.advance`.

        If the host must see logits or tokens, or if blocks may run out (all tokens of a preempted sequence must be
        known), one step waits for the other.
        """
        self._refuse_inside_a_step()
        if self.overlap.may_lack_blocks() or self._next_needs_logits():
            with self.changes:
                self._finish_in_flight()
            return super().advance()
        with self.changes:
            self.overlap.step()
            if not self.requests:
                self._finish_in_flight()  # its result is unused, but an engine without requests has nothing in flight

    def reset(self) -> None:
        """See `LLMEngine.reset`."""
        super().reset()
        self.overlap.reset()
        self._needs_logits.clear()

    def note_request(self, request: EngineRequest) -> None:
        """See `LLMEngine.note_request`."""
        if _waits(request.params) or len(request.completions) < request.params.n:
            self._needs_logits[request] = None
        else:
            self._needs_logits.pop(request, None)

    def gauges(self) -> EngineGauges:
        """See `LLMEngine.gauges`. A sequence whose last token is in flight is running."""
        with self.lock:
            now = super().gauges()
            return replace(now, running=now.running + len(self.overlap.leaving))

    def _next_needs_logits(self) -> bool:
        """Whether the next step may compute a sequence whose log-probabilities are wanted, whose rules look at its last
        token, or which is to be forked."""
        has_batch_slot = len(self.scheduler.running) < self.scheduler.max_num_seqs
        return any(request.is_admitted or has_batch_slot for request in self._needs_logits)

    def launch_next(self) -> LaunchedStep | None:
        """The first half of `run_step`: schedule, copy blocks, and start the forward pass and the choice of tokens.

        Returns:
            LaunchedStep, or None if there was nothing to compute or an error failed the requests of the step.
        """
        scheduler_output = self.schedule()
        swapped_out = scheduler_output.swapped_out
        try:
            self._end_preempted_in_flight(scheduler_output)
            self.copy_blocks(scheduler_output.block_copies)
            swapped_out = []  # it is whole
            if not scheduler_output.num_scheduled_tokens:
                return None
            return self.launch(scheduler_output)
        except Exception as error:
            watch = self.watch
            try:
                self._finish_in_flight()
            finally:
                self.watch = watch
                self.fail([*scheduler_output.num_scheduled_tokens, *swapped_out], error)
            return None

    def process_results(self, step: LaunchedStep) -> None:
        """The second half of `run_step`: wait for the tokens of a step, pass them on, and record the step."""
        try:
            tokens = self.wait_for(step)
        except Exception as error:
            return self.fail(step.scheduler_output.num_scheduled_tokens, error)
        completions = self.completions_with_token(step.scheduler_output, step.gets_token, tokens, step.logits)
        self.overlap.fill_placeholders(step, tokens)
        self.pass_on(completions)
        self.record_step(step.scheduler_output, sum(step.gets_token), len(completions))

    def fail(self, sequences: Iterable[Sequence], error: Exception) -> None:
        self.runner.reset()
        super().fail(sequences, error)

    def _end_preempted_in_flight(self, scheduler_output: PreemptiveSchedulerOutput) -> None:
        """An admission rule of the user's may take blocks from running sequences: one with a token in flight can't be
        recomputed without it."""
        victims = self.overlap.preempted_in_flight(scheduler_output)
        for request in dict.fromkeys(self.completions[sequence].request for sequence in victims):
            error = RuntimeError(
                f"{request.id!r} was preempted with a token in flight; admission must not take its blocks."
            )
            self.end(request, "error", error)
        if victims:
            counts = scheduler_output.num_scheduled_tokens
            scheduler_output.num_scheduled_tokens = {each: counts[each] for each in counts if each in self.completions}

    def _finish_in_flight(self) -> None:
        self.overlap.finish_in_flight()

    def end(self, request: EngineRequest, reason: str, error: BaseException | None = None) -> RequestOutput:
        self._needs_logits.pop(request, None)
        for completion in request.completions:
            self.overlap.forget(completion.sequence)
        return super().end(request, reason, error)


def _waits(params: SamplingParams) -> bool:
    """Whether no step of a request can be launched before the host has the logits or the token of the one before."""
    return params.logprobs is not None or params.prompt_logprobs is not None or params.needs_last_token
