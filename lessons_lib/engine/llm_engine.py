"""Lesson 12: the engine. A step schedules, computes, samples and passes tokens on; the rest is adding requests and
returning their outputs."""

import random
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.engine import generate as engine_calls
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.in_flight import InFlightStep
from lessons_lib.engine.input_batch import num_prompt_logits
from lessons_lib.engine.logits_processors import LogitsProcessor, LogitsRules
from lessons_lib.engine.metrics import EngineMetrics, EngineStep
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.outputs import CompletionOutput, EngineRequest, NewToken, RequestOutput
from lessons_lib.engine.sampling import choose_tokens, why_no_token
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.stopwatch import StopWatch
from lessons_lib.kv_cache.block_copies import BlockCopy, copy_blocks
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_in_budget
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.prompts import BadRequest, encode_prompt
from lessons_lib.scheduling.preemption import PreemptiveScheduler, PreemptiveSchedulerOutput, fork
from lessons_lib.scheduling.sequence import Sequence

EngineT = TypeVar("EngineT", bound="LLMEngine")
Update = Callable[[InFlightStep, list[int]], object]


@dataclass
class LaunchedStep(InFlightStep):
    """A step of the engine that was launched.

    Attributes:
        watch: its laps so far.
        logits: what the runner's `forward` returned, until the next step is launched.
    """

    scheduler_output: PreemptiveSchedulerOutput
    watch: StopWatch
    logits: torch.Tensor | None


class LLMEngine:
    """Serves requests with one model: continuous batching over a paged cache, with preemption, prefix sharing and
    sampling.

    The model belongs to the engine until `close`, which leaves it as it was before: `with LLMEngine(model, tokenizer)
    as engine:`.

    Attributes:
        scheduler: a PreemptiveScheduler.
        runner: a ModelRunner.
        metrics: EngineMetrics.
        requests: id -> the requests that have not ended.
        listeners: called with the EngineStep of each step.
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
        num_blocks = config.num_blocks
        if num_blocks is None:
            num_blocks = blocks_in_budget(model.config, config.block_size, config.cache_bytes, model.dtype.itemsize)
        self.scheduler = PreemptiveScheduler(
            PrefixCache(num_blocks, config.block_size),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            policy=config.policy,
            admission=config.admission,
            watermark=int(config.watermark * num_blocks),
            swap_space=BlockPool(config.num_swap_blocks, config.block_size),
            share_prefixes=config.share_prefixes,
        )
        self.runner: ModelRunner = (config.make_runner or self.new_runner)(model, num_blocks, config)
        self.swap_cache = None
        if config.num_swap_blocks:
            self.swap_cache = PagedKVCache(model.config, config.num_swap_blocks, config.block_size, model.dtype)
        self.metrics = EngineMetrics(config.max_num_seqs, config.max_num_batched_tokens, num_blocks)
        self.requests: dict[str, EngineRequest] = {}
        self.listeners: list[Callable[[EngineStep], None]] = []
        self._completions: dict[Sequence, CompletionOutput] = {}
        self._unclaimed: list[RequestOutput] = []
        self._num_added = 0
        self._is_in_callback = self._is_closed = False

    @staticmethod
    def new_runner(model: PreTrainedModel, num_blocks: int, config: EngineConfig) -> ModelRunner:
        """The runner of an engine whose config names none."""
        return ModelRunner(model, num_blocks, config.block_size, config.backend)

    def add_request(
        self,
        prompt: str | ListOf[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        tier: int = 0,
        expected_tokens: float | None = None,
        is_interactive: bool = False,
        on_token: Callable[[NewToken], None] | None = None,
    ) -> str:
        """Add a request. The steps that follow serve it.

        Args:
            prompt: text, or token ids.
            request_id: "0", "1", ... if not given.
            tier, expected_tokens, is_interactive: for policies that look at them; see Sequence.
            on_token: called with each new token. If it raises, this request fails, and no other.

        Returns:
            the request's id.

        Raises:
            BadRequest: the id is taken, or the prompt is empty, has a token outside the vocabulary, or is too long for
                the context.
            OutOfBlocks: the pool could not hold it, even alone. In both cases nothing has changed.
            RuntimeError: the engine is closed.
        """
        if self._is_closed:
            raise RuntimeError("the engine is closed; make a new one.")
        params = params or SamplingParams()
        name = self._free_id() if request_id is None else request_id
        if name in self.requests:
            raise BadRequest(f"request id {name!r} is being served; give every request its own id, or none at all.")
        prompt_ids, max_tokens = encode_prompt(
            self.model, self.tokenizer, f"request {name!r}", prompt, params.max_tokens, self.config.max_model_len
        )
        if params.max_tokens is None:
            room = self.scheduler.pool.num_blocks * self.config.block_size + 1 - len(prompt_ids)
            max_tokens = max(1, min(max_tokens, room))
        rules = LogitsRules.of(params, self.tokenizer, self.model.config.get_text_config().vocab_size)
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos and self.tokenizer.eos_token_id is not None:
            stop_token_ids |= {self.tokenizer.eos_token_id}
        now = self.clock()
        sequence = Sequence(name, prompt_ids, max_tokens, stop_token_ids, now, tier, expected_tokens, is_interactive)
        sequence.prompt_logits = params.prompt_logprobs is not None
        self.scheduler.add(sequence)
        request = EngineRequest(name, prompt_ids, params, now, on_token, rules)
        self.requests[name] = request
        self._num_added += 1
        seed = random.getrandbits(63) if params.seed is None else params.seed
        self._completions[sequence] = request.new_completion(sequence, seed, self.tokenizer)
        return name

    def has_unfinished(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.requests or self._unclaimed)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now, and free its blocks. Returns what it has so far; None if there is no such request any
        more."""
        request = self.requests.get(request_id)
        return self._end(request, "abort") if request else None

    def step(self) -> list[RequestOutput]:
        """Launch a step and process its results: schedule, compute, sample, pass the tokens on.

        An error in the model fails the requests of this step; their blocks go back to the pool, and the engine goes on.

        Returns:
            the requests that have ended.

        Raises:
            RuntimeError: it was called by an `on_token`, in the middle of a step.
        """
        self._refuse_inside_a_step()
        if launched := self.launch():
            self.process_results(launched, self._update)
        return self._claim()

    def launch(self) -> LaunchedStep | None:
        """The first half of a step: schedule, copy blocks, and start the forward pass and the choice of tokens.

        Returns:
            LaunchedStep, or None if there was nothing to compute or an error failed the requests of the step.
        """
        watch = StopWatch(self.clock)
        scheduler_output = self.scheduler.schedule()
        watch.lap("schedule")
        seen: list[torch.Tensor] = []

        def choose(logits: torch.Tensor) -> torch.Tensor:
            watch.lap("forward")
            seen.append(logits)
            return choose_tokens(logits[: len(scheduler_output.num_scheduled_tokens)], *self._rules(scheduler_output))

        try:
            self._before_copies(scheduler_output)
            self.copy_blocks(scheduler_output.block_copies)
            watch.lap("move")
            if not scheduler_output.num_scheduled_tokens:
                return None
            tokens = self.runner.launch(scheduler_output, choose)
            watch.lap("sample")
        except BaseException as error:
            try:
                self._finish_in_flight()
            finally:
                self._fail(scheduler_output, watch, error)
            return None
        self._record_queue_times(scheduler_output.admitted, watch.start)
        return LaunchedStep(scheduler_output, tokens, watch, seen[0] if seen else None)

    def process_results(self, step: LaunchedStep, update: Update) -> None:
        """The second half of a step: wait for its tokens, pass them on, and record the step.

        Args:
            update: function (step, tokens): tells the scheduler.
        """
        step.watch.go_on()
        try:
            tokens = step.tokens.wait()
        except BaseException as error:
            return self._fail(step.scheduler_output, step.watch, error)
        step.watch.lap("forward")
        completions = self._completions_with_token(step, tokens)
        update(step, tokens)
        self._pass_on(completions)
        step.watch.lap("update")
        self._record_step(step, len(completions))

    def copy_blocks(self, block_copies: list[BlockCopy]) -> None:
        """Carry out the block copies of a scheduled step."""
        copy_blocks(block_copies, self.runner.cache, self.swap_cache)

    def keep(self, output: RequestOutput) -> None:
        """Return an output that was not for the caller of `step` once more, with the next step."""
        self._unclaimed.append(output)

    def forget(self, output: RequestOutput | None) -> None:
        """The caller has the output already: no step returns it any more."""
        self._unclaimed = [other for other in self._unclaimed if other is not output]

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

    def _claim(self) -> list[RequestOutput]:
        ended, self._unclaimed = self._unclaimed, []
        return ended

    def _free_id(self) -> str:
        index = self._num_added
        while str(index) in self.requests:
            index += 1
        return str(index)

    def _refuse_inside_a_step(self) -> None:
        if self._is_in_callback:
            raise RuntimeError(
                "step() was called by an on_token, inside a step; note what you want to do, and do it after the step."
            )

    def _before_copies(self, scheduler_output: PreemptiveSchedulerOutput) -> None:
        """For engines whose steps overlap."""

    def _finish_in_flight(self) -> None:
        """For engines whose steps overlap."""

    def _rules(
        self, scheduler_output: PreemptiveSchedulerOutput
    ) -> tuple[list[SamplingParams], list[int], list[int], list[LogitsProcessor | None]]:
        """What `choose_tokens` needs of every sequence besides the logits."""
        completions = [self._completions[sequence] for sequence in scheduler_output.num_scheduled_tokens]
        return (
            [completion.request.params for completion in completions],
            [completion.seed for completion in completions],
            [len(each.output_ids) + each.num_placeholders for each in scheduler_output.num_scheduled_tokens],
            [completion.processor for completion in completions],
        )

    def _fail(self, scheduler_output: PreemptiveSchedulerOutput, watch: StopWatch, error: BaseException) -> None:
        """A step failed halfway, and what its sequences have in the cache now is unknown: fail their requests."""
        # If copying was what failed, sequences that are being swapped out may have lost their cache, too.
        half_copied = [] if "move" in watch.laps else [each for each in scheduler_output.preempted if each.swapped]
        sequences = (*scheduler_output.num_scheduled_tokens, *half_copied)
        completions = [self._completions[each] for each in sequences if each in self._completions]
        for request in dict.fromkeys(completion.request for completion in completions):
            self._unclaimed.append(self._end(request, "error", error))
        if not isinstance(error, Exception):
            raise error  # someone pressed Ctrl-C

    def _completions_with_token(self, step: LaunchedStep, tokens: list[int]) -> list[CompletionOutput]:
        """The completions that get a token: of every sequence whose tokens are all computed, and of the forks that
        begin with it."""
        completions, scheduled, logits = [], step.scheduler_output.num_scheduled_tokens, step.logits
        if logits is not None and any(sequence.prompt_logits for sequence in scheduled):
            self._add_prompt_logprobs(scheduled, logits)
        for row, (sequence, token, gets_token) in enumerate(zip(scheduled, tokens, step.gets_token)):
            completion = self._completions.get(sequence) if gets_token else None
            if completion is None:
                continue  # also if its request has ended meanwhile, or has failed in this loop
            if token < 0:
                self._unclaimed.append(
                    self._end(completion.request, "error", why_no_token(token, completion.processor))
                )
                continue
            completions.append(completion)
            if logits is not None:
                completion.add_logprobs(logits[row], token)
                if len(completion.request.completions) < completion.request.params.n:
                    completions += self._fork(completion.request, sequence, scheduled[sequence], logits[row])
        return completions

    def _add_prompt_logprobs(self, scheduled: dict[Sequence, int], logits: torch.Tensor) -> None:
        """Note the log-probabilities of the tokens of prompts, for the requests that asked for them."""
        own, others = logits[: len(scheduled)], logits[len(scheduled) :]
        for row, (sequence, count) in enumerate(scheduled.items()):
            extra = num_prompt_logits(sequence, count)
            if sequence.prompt_logits and sequence in self._completions:
                rows = torch.cat([others[:extra], own[row : row + 1]])
                self._completions[sequence].request.add_prompt_logprobs(sequence.num_computed_tokens, rows)
            others = others[extra:]

    def _update(self, step: InFlightStep, tokens: list[int]) -> None:
        scheduled = step.scheduler_output.num_scheduled_tokens
        served = {sequence: token for sequence, token in zip(scheduled, tokens) if sequence in self._completions}
        counts = {sequence: scheduled[sequence] for sequence in served}
        self.scheduler.update(PreemptiveSchedulerOutput(counts), served.values())

    def _fork(
        self, request: EngineRequest, sequence: Sequence, count: int, logits: torch.Tensor
    ) -> list[CompletionOutput]:
        """The prompt of a request with several completions is computed: the others begin here, on the same blocks."""
        completions = []
        for index in range(1, request.params.n):
            child = fork(self.scheduler.pool, sequence, f"{request.id}/{index}")
            child.num_computed_tokens += count
            completion = request.new_completion(child, request.completions[0].seed + index, self.tokenizer)
            rules = [request.params], [completion.seed], [0], [completion.processor]
            (token,) = choose_tokens(logits[None], *rules).tolist()
            if token < 0:
                self.scheduler.release(child)
                child.finish_reason = "error"
                self._unclaimed.append(self._end(request, "error", why_no_token(token, completion.processor)))
                return []
            completion.add_logprobs(logits, token)
            child.append_token(token)
            if child.finish_reason:
                self.scheduler.release(child)
            else:
                self.scheduler.add(child)
            self._completions[child] = completion
            completions.append(completion)
        return completions

    def _pass_on(self, completions: Iterable[CompletionOutput]) -> None:
        """Pass on the newest token of each completion."""
        now, gaps = self.clock(), []
        for completion in completions:
            if completion.sequence not in self._completions:
                continue  # a callback has ended it
            # Most tokens have no reader, and there are many of them in every step.
            if completion.detokenizer or completion.sequence.finish_reason:
                self._pass_on_one(completion, now)
            if (previous := completion.last_token_time) is None:
                completion.first_token_time = now
                self.metrics.ttft.add(now - completion.request.arrival)
            else:
                gaps.append(now - previous)
            completion.last_token_time = now
        self.metrics.itl.add_all(gaps)

    def _pass_on_one(self, completion: CompletionOutput, now: float) -> None:
        """Append the newest token of a completion to its text, call back, and see whether the completion has finished,
        and its request."""
        request, sequence = completion.request, completion.sequence
        is_running = not sequence.finish_reason
        text = completion.add_text()
        if sequence.finish_reason and is_running:  # by a stop string, which the scheduler doesn't know
            self.scheduler.remove(sequence)
        if sequence.finish_reason and completion.first_token_time is not None:
            self.metrics.tpot.add((now - completion.first_token_time) / (len(sequence.output_ids) - 1))
        if request.on_token:
            token = NewToken(request.id, completion.index, sequence.output_ids[-1], text, sequence.finish_reason)
            self._is_in_callback = True
            try:
                request.on_token(token)
            except Exception as error:
                self._unclaimed.append(self._end(request, "error", error))
            finally:
                self._is_in_callback = False
            if self.requests.get(request.id) is not request:
                return  # it has failed, or its own callback has aborted it
        if sequence.finish_reason:
            del self._completions[sequence]
            completion.finish(self.tokenizer)
            if request.is_finished:
                self._unclaimed.append(self._end(request, sequence.finish_reason))

    def _end(self, request: EngineRequest, reason: str, error: BaseException | None = None) -> RequestOutput:
        """Take a request out, with all its sequences, running or waiting."""
        take_out = self.scheduler.discard if error else self.scheduler.remove
        for completion in request.completions:
            if not completion.sequence.finish_reason:
                take_out(completion.sequence)
                completion.sequence.finish_reason = reason
            if completion.finish_reason is None:
                completion.finish(self.tokenizer)
            self._completions.pop(completion.sequence, None)
        del self.requests[request.id]
        self.metrics.add_request(reason, self.clock() - request.arrival)
        request.result = RequestOutput(
            request.id, request.prompt_ids, request.completions, error, request.prompt_logprobs
        )
        return request.result

    def _record_queue_times(self, admitted: list[Sequence], now: float) -> None:
        for sequence in admitted:
            request = self._completions[sequence].request
            if not request.is_admitted:  # a preempted sequence is admitted once more
                request.is_admitted = True
                self.metrics.queue_time.add(now - request.arrival)

    def _record_step(self, step: LaunchedStep, new_tokens: int) -> None:
        scheduler_output = step.scheduler_output
        recorded = EngineStep(
            start=step.watch.start,
            seconds=step.watch.laps,
            tokens=scheduler_output.num_tokens,
            prefill_tokens=scheduler_output.num_tokens - sum(step.gets_token),
            new_tokens=new_tokens,
            running=len(scheduler_output.num_scheduled_tokens),
            waiting=len(self.scheduler.waiting),
            used_blocks=len(self.scheduler.pool.used),
            named_blocks=len(self.scheduler.pool.block_to_hash),
            preempted=len(scheduler_output.preempted),
            cached_tokens=sum(scheduler_output.cached.values()),
        )
        self.metrics.add_step(recorded)
        for listener in self.listeners:
            listener(recorded)
