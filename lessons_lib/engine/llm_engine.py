"""Lesson 12: the engine. A step schedules, computes, samples and passes tokens on; the rest is adding requests and
returning their outputs."""

import threading
import time
import warnings
from collections.abc import Callable, Iterable
from collections.abc import Sequence as ListOf
from itertools import count
from typing import TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.engine import generate as engine_calls
from lessons_lib.engine.config import EngineConfig, checked_num_blocks, known_policy
from lessons_lib.engine.gathered_runner import GatheredRunner
from lessons_lib.engine.generation_defaults import GenerationDefaults
from lessons_lib.engine.logits_processors import LogitsProcessor
from lessons_lib.engine.metrics import EngineGauges, EngineMetrics, EngineStep
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.outputs import CompletionOutput, EngineRequest, OnToken, RequestOutput, drop_frames
from lessons_lib.engine.passing_on import pass_on
from lessons_lib.engine.probe import GATHERED, probe
from lessons_lib.engine.recovery import Changes, one_call, recover
from lessons_lib.engine.request_checks import check_options
from lessons_lib.engine.requests_in import checked_params, new_request, new_sequence
from lessons_lib.engine.resumption import resume
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.step import run_step
from lessons_lib.engine.step_results import LaunchedStep, completions_with_token
from lessons_lib.engine.stopwatch import StopWatch
from lessons_lib.kv_cache.block_copies import BlockCopy, copy_blocks
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.prompts import BadRequest, checked_context
from lessons_lib.models.support import UnsupportedModel, check_context, text_config
from lessons_lib.scheduling.preemption import PreemptiveScheduler, PreemptiveSchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

EngineT = TypeVar("EngineT", bound="LLMEngine")


class LLMEngine:
    """Serves requests with one model: continuous batching over a paged cache, with preemption, prefix sharing and
    sampling.

    The model belongs to the engine until `close`, which leaves it as it was before: `with LLMEngine(model, tokenizer)
    as engine:`.

    Any thread may call the engine at any time: a call waits until that of another thread has returned, and each step
    serves the requests of all threads. Callbacks run in the thread whose step computed the token, inside that step.
    They may add and abort requests, and must not wait for another thread that calls the engine.

    An interrupt (Ctrl-C, MemoryError) loses nothing: the next call recovers the engine first. See `recovery`.

    Attributes:
        scheduler: a PreemptiveScheduler.
        runner: a ModelRunner.
        metrics: EngineMetrics.
        requests: id -> the requests that have not ended.
        completions: sequence -> its completion, of all that have not finished.
        context: the most tokens of a prompt and its answer together; None if there is no limit.
        vocab_size: token ids are below it.
        generation_defaults: what is taken from the model's generation_config.
        unclaimed: the outputs that the next `step` returns, by their requests. They stay until then.
        listeners: called with the EngineStep of each step. If one raises, `step` does so once the step is complete.
        lock: to do several things while no other thread calls the engine: `with engine.lock:`.
        abandoned: requests whose reader has left in the middle of a call. The next call aborts them.
        late_errors: what callbacks and listeners have raised in this step, and is raised at its end.
        changes, calling_thread: see `recovery`.
        watch: of the step that is being computed.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: EngineConfig | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.config = config = config or EngineConfig()
        self.model, self.tokenizer, self.clock = model, tokenizer, clock
        served = probe(model) if config.probe else None
        layer_shapes = served.layer_shapes if served else None
        if served:
            check_context(model.config, config.max_model_len)
        num_blocks = checked_num_blocks(config, model, layer_shapes)
        # Looked up once: an attribute of a Hugging Face configuration takes microseconds, and a request needs several.
        self.context = checked_context(model, config.max_model_len)
        self.vocab_size: int = text_config(model.config).vocab_size
        self.generation_defaults = GenerationDefaults.of(model, tokenizer, config.generation_config)
        self.scheduler = PreemptiveScheduler(
            PrefixCache(num_blocks, config.block_size),
            max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens,
            policy=known_policy(config.policy), admission=config.admission,
            watermark=int(config.watermark * num_blocks), share_prefixes=config.share_prefixes,
            swap_space=BlockPool(config.num_swap_blocks, config.block_size),
        )  # fmt: skip
        self.runner: ModelRunner = (config.make_runner or self.new_runner)(model, num_blocks, config)
        if served and served.way == GATHERED and not isinstance(self.runner, GatheredRunner):
            raise UnsupportedModel(
                f"{type(self.runner).__name__} can't serve {type(model).__name__}: {served.reason}. LLMEngine can, one "
                "sequence at a time; leave out make_runner."
            )
        self.swap_cache = None
        if config.num_swap_blocks:
            self.swap_cache = PagedKVCache(
                model.config, config.num_swap_blocks, config.block_size, model.dtype, layer_shapes=layer_shapes
            )
        self.metrics = EngineMetrics(config.max_num_seqs, config.max_num_batched_tokens, num_blocks)
        self.requests: dict[str, EngineRequest] = {}
        self.listeners: list[Callable[[EngineStep], None]] = []
        self.completions: dict[Sequence, CompletionOutput] = {}
        self.unclaimed: dict[EngineRequest, RequestOutput] = {}
        self.abandoned: list[EngineRequest] = []
        self.lock = threading.RLock()
        self.changes = Changes()
        self.calling_thread: int | None = None
        self.late_errors: list[BaseException] = []
        self.watch = StopWatch(clock)
        self._num_added = 0
        self._is_closed = False

    @staticmethod
    def new_runner(model: PreTrainedModel, num_blocks: int, config: EngineConfig) -> ModelRunner:
        """The runner of an engine whose config names none."""
        served = probe(model) if config.probe else None
        shapes = served.layer_shapes if served else None
        if served and served.way == GATHERED:
            warnings.warn(
                f"{type(model).__name__} is served slowly, one sequence at a time: {served.reason}.", stacklevel=3
            )
            return GatheredRunner(model, num_blocks, config.block_size, layer_shapes=shapes)
        return ModelRunner(model, num_blocks, config.block_size, config.backend, shapes)

    @one_call
    def add_request(
        self,
        prompt: str | ListOf[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        tier: int = 0,
        expected_tokens: float | None = None,
        is_interactive: bool = False,
        on_token: OnToken | None = None,
        cache_salt: str | None = None,
        output_ids: ListOf[int] = (),
        awaited: dict[EngineRequest, None] | None = None,
    ) -> str:
        """Add a request. The steps that follow serve it.

        Args:
            prompt: text, or token ids.
            request_id: "0", "1", ... if not given.
            tier, expected_tokens, is_interactive: for policies that look at them; see Sequence.
            on_token: called with each new token. If it raises, this request fails, and no other.
            cache_salt: the request shares cached blocks only with requests of the same salt, so that how fast it is
                served tells nothing about the prompts of others.
            output_ids: tokens that another engine has computed for this completion, which goes on behind them; see
                `resumption`.
            awaited: for callers that look for the request's `result` themselves: the request is in it until it has
                ended, and `step` doesn't return the output.

        Returns:
            the request's id.

        Raises:
            BadRequest: the id is taken, or the prompt is empty, has a token outside the vocabulary, or is too long for
                the context, or a value makes no sense or exceeds a limit; see `request_checks`.
            OutOfBlocks: the pool could not hold it, even alone. In both cases nothing has changed.
            RuntimeError: the engine is closed.
        """
        if self._is_closed:
            raise RuntimeError("the engine is closed; make a new one.")
        check_options(request_id, tier, expected_tokens, is_interactive, on_token, cache_salt)
        name = self._free_id() if request_id is None else request_id
        if name in self.requests:
            raise BadRequest(f"request id {name!r} is being served; give every request its own id, or none at all.")
        params = checked_params(self, params)
        sequence = new_sequence(self, name, f"request {name!r}", prompt, params)
        sequence.tier, sequence.expected_tokens, sequence.is_interactive = int(tier), expected_tokens, is_interactive
        sequence.cache_salt = cache_salt
        request = new_request(self, sequence, params, on_token, awaited)
        if len(output_ids):
            resume(self, request.completions[0], output_ids)
        if awaited is not None:
            awaited[request] = None
        with self.changes:
            self.scheduler.add(sequence)
            self.completions[sequence] = request.completions[0]
            self._num_added += 1
            self.requests[name] = request
            self.note_request(request)
        return name

    def note_request(self, request: EngineRequest) -> None:
        """For engines that treat some requests in another way: a request was added or restored, or its forks have
        begun."""

    def has_unfinished(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.requests or self.unclaimed)

    def gauges(self) -> EngineGauges:
        """What the engine is doing now. If another thread calls the engine, this waits until that call has returned."""
        with self.lock:
            scheduler, pool, waiting = self.scheduler, self.scheduler.pool, self.scheduler.waiting
            return EngineGauges(
                running=len(scheduler.running), waiting=len(waiting),
                # Most of the time none is, and looking at all that wait would take time.
                swapped=sum(bool(each.swapped) for each in waiting) if scheduler.swap_space.used else 0,
                used_blocks=len(pool.used), named_blocks=len(pool.block_to_hash), num_blocks=pool.num_blocks,
            )  # fmt: skip

    @one_call
    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now, and free its blocks. Returns what it has so far; None if there is no such request any
        more."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        with self.changes:
            return self.end(request, "abort")

    @one_call
    def step(self) -> list[RequestOutput]:
        """One step for all requests; see `run_step`.

        Returns:
            the requests that have ended, without those that `generate` and `stream` wait for.

        Raises:
            RuntimeError: it was called by an `on_token` or a listener, in the middle of a step.
        """
        self.advance()
        return list(self.unclaimed.values())

    @one_call
    def advance(self) -> None:
        """One step, without its return value; see `run_step`."""
        self._refuse_inside_a_step()
        with self.changes:
            run_step(self)

    # What a step consists of, in this order; see `run_step`

    def schedule(self) -> PreemptiveSchedulerOutput:
        """Decide what the next step computes, and allocate its blocks."""
        self.watch = StopWatch(self.clock)
        scheduler_output = self.scheduler.schedule()
        self.watch.lap("schedule")
        return scheduler_output

    def copy_blocks(self, block_copies: list[BlockCopy]) -> None:
        """Carry out the block copies of a scheduled step."""
        copy_blocks(block_copies, self.runner.cache, self.swap_cache)

    def compute(self, scheduler_output: PreemptiveSchedulerOutput) -> tuple[list[int], torch.Tensor | None]:
        """Run the model, and choose tokens by the sampling parameters.

        Returns:
            (tokens, logits): a token and a row [vocabulary] for each scheduled sequence, in order, even where tokens of
            its prompt are still missing; logits of `prompt_logprobs` follow.
        """
        try:
            step = self.launch(scheduler_output)
            return self.wait_for(step), step.logits
        except Exception:
            self.runner.reset()
            raise

    def fail(self, sequences: Iterable[Sequence], error: Exception) -> None:
        """End the requests of these sequences with an error, each once. Sequences that have ended already are left
        out."""
        found = (self.completions[each].request for each in sequences if each in self.completions)
        for request in list(dict.fromkeys(found)):
            self.end(request, "error", error)

    def completions_with_token(
        self, scheduler_output: PreemptiveSchedulerOutput, gets_token: list[bool], tokens: list[int],
        logits: torch.Tensor | None = None,
    ) -> list[CompletionOutput]:  # fmt: skip
        """See `step_results`. Call it before `update`."""
        return completions_with_token(self, scheduler_output, gets_token, tokens, logits)

    def update(self, scheduler_output: PreemptiveSchedulerOutput, tokens: list[int]) -> None:
        """Tell the scheduler what was computed: sequences whose tokens are all computed get theirs, and those that
        finish return their blocks. Sequences that have ended meanwhile are left out."""
        scheduled = scheduler_output.num_scheduled_tokens
        served = {sequence: token for sequence, token in zip(scheduled, tokens) if sequence in self.completions}
        counts = {sequence: scheduled[sequence] for sequence in served}
        self.scheduler.update(PreemptiveSchedulerOutput(counts), served.values())

    def pass_on(self, completions: list[CompletionOutput]) -> None:
        """Pass on the newest token of each completion, and end the requests that have finished; see `passing_on`."""
        pass_on(self, completions)

    def record_step(self, scheduler_output: PreemptiveSchedulerOutput, num_sampled: int, new_tokens: int) -> None:
        """Count a complete step, and call the listeners.

        Args:
            num_sampled: sequences that got a token.
            new_tokens: those tokens, and the first ones of forks.
        """
        self.watch.lap("update")
        recorded = EngineStep(
            start=self.watch.start, seconds=self.watch.laps, new_tokens=new_tokens,
            tokens=scheduler_output.num_tokens, prefill_tokens=scheduler_output.num_tokens - num_sampled,
            running=len(scheduler_output.num_scheduled_tokens), waiting=len(self.scheduler.waiting),
            used_blocks=len(self.scheduler.pool.used), named_blocks=len(self.scheduler.pool.block_to_hash),
            preempted=len(scheduler_output.preempted), cached_tokens=sum(scheduler_output.cached.values()),
        )  # fmt: skip
        self.metrics.add_step(recorded)
        for listener in self.listeners:
            try:
                listener(recorded)
            except BaseException as error:
                self.late_errors.append(error)

    # The two halves of `compute`

    def launch(self, scheduler_output: PreemptiveSchedulerOutput) -> LaunchedStep:
        """Start the forward pass and the choice of tokens."""
        self.watch.lap("move")
        seen: list[torch.Tensor] = []

        def choose(logits: torch.Tensor) -> torch.Tensor:
            self.watch.lap("forward")
            seen.append(logits)
            return choose_tokens(logits[: len(scheduler_output.num_scheduled_tokens)], *self._rules(scheduler_output))

        tokens = self.runner.launch(scheduler_output, choose)
        self.watch.lap("sample")
        self._note_admitted(scheduler_output)
        return LaunchedStep(scheduler_output, tokens, self.watch, seen[0] if seen else None)

    def wait_for(self, step: LaunchedStep) -> list[int]:
        """The tokens of a step that was launched."""
        self.watch = step.watch
        self.watch.go_on()
        tokens = step.tokens.wait()
        self.watch.lap("forward")
        return tokens

    @one_call
    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes. Call it after the model's weights have changed: keys and values that the old ones
        computed are wrong now.

        Raises:
            RuntimeError: requests have blocks; finish or abort them first.
        """
        with self.changes:
            self._finish_in_flight()
        if self.scheduler.swap_space.used:
            raise RuntimeError("requests are swapped out; finish or abort them first. Nothing changed.")
        self.scheduler.pool.forget_contents()

    @one_call
    def close(self) -> None:
        """Abort all requests, and leave the model as it was before the engine was made. The engine takes no requests
        any more."""
        for name in list(self.requests):
            self.abort(name)
        self._finish_in_flight()
        self.runner.close()
        self._is_closed = True

    def __enter__(self: EngineT) -> EngineT:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    generate = engine_calls.generate
    stream = engine_calls.stream
    recover = recover

    def reset(self) -> None:
        """Forget everything but the requests: what is scheduled, and what is in the cache."""
        self.runner.reset()
        self.scheduler.reset()
        self.completions.clear()
        self.late_errors.clear()

    def hand_in(self, request: EngineRequest, output: RequestOutput) -> None:
        """A request has ended: its output waits for the caller of `step`, or is found in the request."""
        request.result = output  # the request has ended from here on, even if an interrupt comes now
        if request.awaited is None:
            self.unclaimed[request] = output
        else:
            request.awaited.pop(request, None)  # an interrupt may have come behind it
        del self.requests[request.id]

    def _free_id(self) -> str:
        return next(name for name in map(str, count(self._num_added)) if name not in self.requests)

    def _refuse_inside_a_step(self) -> None:
        if self.changes.unfinished:
            raise RuntimeError(
                "step() was called by an on_token or a listener, inside a step; note what you want to do, and do it "
                "after the step."
            )

    def _finish_in_flight(self) -> None:
        """For engines whose steps overlap."""

    def _rules(
        self, scheduler_output: PreemptiveSchedulerOutput
    ) -> tuple[list[SamplingParams], list[int], list[int], list[LogitsProcessor | None]]:
        """What `choose_tokens` needs of every sequence besides the logits."""
        completions = [self.completions[sequence] for sequence in scheduler_output.num_scheduled_tokens]
        return (
            [completion.request.params for completion in completions],
            [completion.seed for completion in completions],
            [len(each.output_ids) + each.num_placeholders for each in scheduler_output.num_scheduled_tokens],
            [completion.processor for completion in completions],
        )

    def end(self, request: EngineRequest, reason: str, error: BaseException | None = None) -> RequestOutput:
        """Take a request out, with all its sequences, running or waiting."""
        take_out = self.scheduler.discard if error else self.scheduler.remove
        for completion in request.completions:
            if not completion.sequence.finish_reason:
                take_out(completion.sequence)
                completion.sequence.finish_reason = reason
            if completion.finish_reason is None:
                try:
                    completion.finish(self.tokenizer)
                except Exception as failure:  # of the tokenizer: the tokens are there, their text isn't
                    error = error or failure
            self.completions.pop(completion.sequence, None)
        if error:
            drop_frames(error)
        self.metrics.add_request("error" if error else reason, self.clock() - request.arrival)
        found = request.prompt_logprobs, request.num_cached_tokens
        output = RequestOutput(request.id, request.prompt_ids, request.completions, error, *found)
        self.hand_in(request, output)
        return output

    def _note_admitted(self, scheduler_output: PreemptiveSchedulerOutput) -> None:
        for sequence in scheduler_output.admitted:
            request = self.completions[sequence].request
            if not request.is_admitted:  # a preempted sequence is admitted once more
                request.num_cached_tokens = scheduler_output.cached.get(sequence, 0)
                request.is_admitted = True
                self.metrics.queue_time.add(self.watch.start - request.arrival)
