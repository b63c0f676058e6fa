"""Lesson 13: the engine for a GPU: the next step is started before the tokens of the last one are read, so everything happens one step late.

What a step does is that of LLMEngine, in two halves: the first plans and starts it, the second, in the next call, hands out its tokens. In
between, its sequences are counted ahead; see `overlap`.
"""

from dataclasses import dataclass
from functools import partial

from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.outputs import EngineRequest, RequestOutput
from lessons_lib.engine.overlap import CountedAhead, StartedStep
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.engine.stopwatch import StopWatch
from lessons_lib.scheduling.preemption import PreemptiveSchedulerOutput


@dataclass
class StartedEngineStep(StartedStep):
    """A step of the engine whose tokens have not arrived.

    Attributes:
        watch: the laps of its first half.
    """

    watch: StopWatch


def gpu_model_runner(**options):
    """For `EngineConfig.make_runner`: a GPUModelRunner with these options, and the sizes of the engine."""

    def make(model, num_blocks: int, config: EngineConfig) -> GPUModelRunner:
        sizes = dict(max_num_seqs=config.max_num_seqs, max_model_len=config.max_model_len)
        return GPUModelRunner(model, num_blocks, config.block_size, **sizes, **options)

    return make


class OverlappedEngine(LLMEngine):
    """An LLMEngine that gives the same answers, and keeps a GPU busy. Without one it works, too, with `gpu_model_runner(compiled=False, capture=rerun)`.

    Attributes:
        runner: a GPUModelRunner; has `start(scheduler_output, choose)`. `runner.warm_up()` before the first request, so that none waits for the compiler.
        ahead: CountedAhead.
        started: the step whose tokens have not been handed out, or None.
    """

    new_runner = staticmethod(gpu_model_runner())

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ahead = CountedAhead(self.scheduler)
        self.started: StartedEngineStep | None = None
        self._looked_at: dict[EngineRequest, None] = {}

    def add_request(self, *args, **kwargs) -> str:
        name = super().add_request(*args, **kwargs)
        request = self.requests[name]
        if request.params.logprobs is not None or request.params.n > 1:
            self._looked_at[request] = None
        return name

    def step(self) -> list[RequestOutput]:
        """Schedule and start the next step, then hand out the tokens of the one before. See `LLMEngine.step`.

        Where the host must see logits, or who is to be preempted must have all tokens known, one step is done after the other.
        """
        self._refuse_inside_a_step()
        if self.ahead.may_lack_blocks() or self._must_see_logits():
            self._finish_started()
            return super().step()
        watch = StopWatch(self.clock)
        scheduler_output = self.scheduler.schedule()
        watch.lap("schedule")
        try:
            self._end_who_was_preempted(scheduler_output)
            self._move(scheduler_output)
            watch.lap("move")
            params, seeds, positions = self._rules(scheduler_output)
            choose = partial(choose_tokens, params=params, seeds=seeds, positions=positions)
            watch.lap("sample")
            pending = self.runner.start(scheduler_output, choose) if scheduler_output.num_scheduled_tokens else None
            watch.lap("forward")
        except BaseException as error:
            try:
                self._finish_started()  # its tokens are good
            finally:
                self._fail(scheduler_output, watch, error)
            return self._claim()
        self._write_down_queue_times(scheduler_output, watch.start)
        before, self.started = self.started, StartedEngineStep(scheduler_output, pending, watch) if pending else None
        try:
            if before:
                self._arrive(before)
        finally:
            if self.started:
                self.ahead.count_ahead(self.started)
        if not self.requests:
            self._finish_started()  # nobody reads it, but an engine without requests has nothing under way
        return self._claim()

    def _must_see_logits(self) -> bool:
        """Whether there may be somebody in the next step whose log-probabilities are wanted, or who is to be forked."""
        has_batch_slot = len(self.scheduler.running) < self.scheduler.max_num_seqs
        return any(request.is_admitted or has_batch_slot for request in self._looked_at)

    def _end_who_was_preempted(self, scheduler_output: PreemptiveSchedulerOutput) -> None:
        """An admission that takes blocks from those who run: who has a token under way can't be computed again without it."""
        victims = [
            sequence
            for sequence in scheduler_output.preempted
            if self.started and sequence in self.started.scheduler_output.num_scheduled_tokens
        ]
        for request in dict.fromkeys(self._answers[sequence].request for sequence in victims):
            error = RuntimeError(
                f"{request.id!r} was preempted while a token was under way to it; admission must not take blocks from those who run."
            )
            self._unclaimed.append(self._end(request, "error", error))
            scheduler_output.num_scheduled_tokens = {
                sequence: count
                for sequence, count in scheduler_output.num_scheduled_tokens.items()
                if sequence in self._answers
            }

    def _finish_started(self) -> None:
        """Wait for the step that is under way, if there is one. Afterwards all tokens are known."""
        before, self.started = self.started, None
        if before:
            self._arrive(before)

    def _arrive(self, step: StartedEngineStep) -> None:
        """The second half of a step."""
        step.watch.go_on()
        try:
            tokens = step.pending.tokens()
        except BaseException as error:
            return self._fail(step.scheduler_output, step.watch, error)
        step.watch.lap("forward")
        self._finish(
            step.scheduler_output,
            step.watch,
            tokens,
            step.gets_token,
            lambda scheduler_output, tokens: self.ahead.put_in_place(step, tokens),
        )

    def _end(self, request, reason, error=None):
        self._looked_at.pop(request, None)
        for answer in request.answers:
            self.ahead.forget(answer.sequence)
        return super()._end(request, reason, error)

    def _fork(self, request, *args):
        if request.params.logprobs is None:
            del self._looked_at[request]
        return super()._fork(request, *args)
