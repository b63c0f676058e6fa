"""Lesson 12: the engine. A step schedules, computes, samples and hands out; everything else is putting requests in and taking answers out."""

import random
import time
from collections.abc import Callable
from collections.abc import Sequence as ListOf

from lessons_lib.engine import generate as engine_calls
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.metrics import EngineMetrics, EngineStep
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.outputs import Answer, EngineRequest, NewToken, RequestOutput
from lessons_lib.engine.sampling import NO_TOKEN, SamplingParams, sample
from lessons_lib.engine.stopwatch import StopWatch
from lessons_lib.kv_cache.block_copies import copy_blocks
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_in_budget
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.prompts import BadRequest, encode_prompt
from lessons_lib.scheduling.preemption import PreemptiveSchedulerOutput, PreemptiveScheduler, fork
from lessons_lib.scheduling.sequence import Sequence


class LLMEngine:
    """Serves requests with one model: continuous batching over a paged cache, with preemption, prefix sharing and sampling.

    Attributes:
        scheduler: a PreemptiveScheduler.
        runner: a ModelRunner.
        metrics: EngineMetrics.
        requests: id -> the requests that have not finished.
    """

    def __init__(
        self, model, tokenizer, config: EngineConfig | None = None, clock: Callable[[], float] = time.perf_counter
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
        self.runner = (config.make_runner or self.new_runner)(model, num_blocks, config)
        self.swap_cache = None
        if config.num_swap_blocks:
            self.swap_cache = PagedKVCache(model.config, config.num_swap_blocks, config.block_size, model.dtype)
        self.metrics = EngineMetrics(config.max_num_seqs, config.max_num_batched_tokens, num_blocks)
        self.requests: dict[str, EngineRequest] = {}
        self.listeners: list[Callable[[EngineStep], None]] = []
        self._answers: dict[Sequence, Answer] = {}
        self._unclaimed: list[RequestOutput] = []
        self._num_added = 0
        self._is_telling = False

    @staticmethod
    def new_runner(model, num_blocks: int, config: EngineConfig) -> ModelRunner:
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
        """Put a request in. It is served by the steps that follow.

        Args:
            prompt: text, or token ids.
            request_id: its name; "0", "1", ... if not given.
            tier, expected_tokens, is_interactive: for policies that ask for them; see Sequence.
            on_token: called with each new token. If it raises, this request fails, and no other.

        Returns:
            its name.

        Raises:
            BadRequest: the name is taken, or the prompt is empty, has a token outside the vocabulary, or is too long for the context.
            OutOfBlocks: the pool could not hold it, even alone. In both cases nothing has changed.
        """
        params = params or SamplingParams()
        name = self._free_name() if request_id is None else request_id
        if name in self.requests:
            raise BadRequest(
                f"request id {name!r} is being served; give every request an id of its own, or none at all."
            )
        prompt_ids, max_tokens = encode_prompt(
            self.model, self.tokenizer, f"request {name!r}", prompt, params.max_tokens, self.config.max_model_len
        )
        if params.max_tokens is None:
            max_tokens = max(
                1, min(max_tokens, self.scheduler.pool.num_blocks * self.config.block_size + 1 - len(prompt_ids))
            )
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos and self.tokenizer.eos_token_id is not None:
            stop_token_ids |= {self.tokenizer.eos_token_id}
        now = self.clock()
        sequence = Sequence(name, prompt_ids, max_tokens, stop_token_ids, now, tier, expected_tokens, is_interactive)
        self.scheduler.add(sequence)
        request = EngineRequest(name, prompt_ids, params, now, on_token)
        self.requests[name] = request
        self._num_added += 1
        seed = random.getrandbits(63) if params.seed is None else params.seed
        self._answers[sequence] = request.new_answer(sequence, seed, self.tokenizer)
        return name

    def has_unfinished(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.requests or self._unclaimed)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now, and give its blocks back. What it has so far is returned; None if there is no such request any more."""
        request = self.requests.get(request_id)
        return self._end(request, "abort") if request else None

    def step(self) -> list[RequestOutput]:
        """Schedule, compute, sample, hand out.

        An error in the model fails the requests of this step; their blocks go back to the pool, and the engine goes on.

        Returns:
            the requests that have ended.

        Raises:
            RuntimeError: it was called by an `on_token`, half-way through a step.
        """
        self._refuse_inside_a_step()
        watch = StopWatch(self.clock)
        scheduler_output = self.scheduler.schedule()
        watch.lap("schedule")
        try:
            self._move(scheduler_output)
            watch.lap("move")
            if not scheduler_output.num_scheduled_tokens:
                return self._claim()
            logits = self.runner.forward(scheduler_output)
            watch.lap("forward")
            tokens = sample(logits, *self._rules(scheduler_output))
            watch.lap("sample")
        except BaseException as error:
            self._fail(scheduler_output, watch, error)
            return self._claim()
        self._write_down_queue_times(scheduler_output, watch.start)
        gets_token = [
            sequence.num_computed_tokens + count == sequence.num_tokens
            for sequence, count in scheduler_output.num_scheduled_tokens.items()
        ]
        self._finish(scheduler_output, watch, tokens, gets_token, self._update, logits)
        return self._claim()

    def keep(self, output: RequestOutput) -> None:
        """Hand an output back that was not for the caller of `step`: the next step returns it again."""
        self._unclaimed.append(output)

    def forget(self, output: RequestOutput | None) -> None:
        """An output has found its reader in another way: no step shall return it any more."""
        self._unclaimed = [other for other in self._unclaimed if other is not output]

    def _claim(self) -> list[RequestOutput]:
        ended, self._unclaimed = self._unclaimed, []
        return ended

    generate = engine_calls.generate
    stream = engine_calls.stream

    def _free_name(self) -> str:
        name = self._num_added
        while str(name) in self.requests:
            name += 1
        return str(name)

    def _refuse_inside_a_step(self) -> None:
        if self._is_telling:
            raise RuntimeError(
                "step() was called by an on_token, in the middle of a step; note down what is wanted, and do it after the step."
            )

    def _move(self, scheduler_output: PreemptiveSchedulerOutput) -> None:
        copy_blocks(scheduler_output.block_copies, self.runner.cache, self.swap_cache)

    def _rules(self, scheduler_output: PreemptiveSchedulerOutput) -> tuple[list[SamplingParams], list[int], list[int]]:
        """What `sample` wants to know of every sequence beside the logits."""
        answers = [self._answers[sequence] for sequence in scheduler_output.num_scheduled_tokens]
        return (
            [answer.request.params for answer in answers],
            [answer.seed for answer in answers],
            [len(each.output_ids) for each in scheduler_output.num_scheduled_tokens],
        )

    def _fail(self, scheduler_output: PreemptiveSchedulerOutput, watch: StopWatch, error: BaseException) -> None:
        """Something went wrong before a plan was carried out: nobody knows what its sequences have in the cache now."""
        # Whoever is being swapped out may have lost its cache, too, if moving was what failed.
        half_moved = (
            [] if "move" in watch.laps else [sequence for sequence in scheduler_output.preempted if sequence.swapped]
        )
        answers = [
            self._answers[sequence]
            for sequence in (*scheduler_output.num_scheduled_tokens, *half_moved)
            if sequence in self._answers
        ]
        self._unclaimed += [
            self._end(request, "error", error) for request in dict.fromkeys(answer.request for answer in answers)
        ]
        if not isinstance(error, Exception):
            raise error  # somebody pressed Ctrl-C

    def _finish(
        self,
        scheduler_output: PreemptiveSchedulerOutput,
        watch: StopWatch,
        tokens: list[int],
        gets_token: list[bool],
        update: Callable,
        logits=None,
    ) -> None:
        """A plan was carried out: hand out its tokens, and write the step down.

        Args:
            gets_token: of each sequence of the plan, whether all its known tokens are computed.
            update: function (plan, tokens): tells the scheduler.
            logits: only needed for log-probabilities and forks.
        """
        work = dict(
            tokens=scheduler_output.num_tokens,
            prefill_tokens=scheduler_output.num_tokens - sum(gets_token),
            running=len(scheduler_output.num_scheduled_tokens),
        )
        told = self._hand_out(scheduler_output, tokens, gets_token, logits)
        update(scheduler_output, tokens)
        self._tell_all(told)
        watch.lap("update")
        self._write_down(scheduler_output, watch, new_tokens=len(told), **work)

    def _hand_out(
        self, scheduler_output: PreemptiveSchedulerOutput, tokens: list[int], gets_token: list[bool], logits
    ) -> list[Answer]:
        """Who gets a token: every sequence whose known tokens are all computed, and the forks that begin with it."""
        told = []
        for row, (sequence, token, is_last) in enumerate(
            zip(scheduler_output.num_scheduled_tokens, tokens, gets_token)
        ):
            answer = self._answers.get(sequence) if is_last else None
            if answer is None:
                continue  # all the same if its request has ended meanwhile, or if another sequence of it has failed in this loop
            request = answer.request
            if token == NO_TOKEN:
                error = FloatingPointError(
                    "the model's logits are not finite numbers; look at its weights and its dtype."
                )
                self._unclaimed.append(self._end(request, "error", error))
                continue
            told.append(answer)
            if request.params.logprobs is not None:
                answer.add_logprobs(logits[row], token)
            if len(request.answers) < request.params.n:
                told += self._fork(request, sequence, scheduler_output.num_scheduled_tokens[sequence], logits[row])
        return told

    def _update(self, scheduler_output: PreemptiveSchedulerOutput, tokens: list[int]) -> None:
        left = {
            sequence: token
            for sequence, token in zip(scheduler_output.num_scheduled_tokens, tokens)
            if sequence in self._answers
        }
        scheduler_output.num_scheduled_tokens = {
            sequence: scheduler_output.num_scheduled_tokens[sequence] for sequence in left
        }
        self.scheduler.update(scheduler_output, left.values())

    def _fork(self, request: EngineRequest, sequence: Sequence, count: int, logits) -> list[Answer]:
        """The prompt of a request with several answers is computed: the others begin here, on the same blocks."""
        answers = []
        for index in range(1, request.params.n):
            child = fork(self.scheduler.pool, sequence, f"{request.id}/{index}")
            child.num_computed_tokens += count
            answer = request.new_answer(child, request.answers[0].seed + index, self.tokenizer)
            (token,) = sample(logits[None], [request.params], [answer.seed], [0])
            answer.add_logprobs(logits, token)
            child.append_token(token)
            if child.finish_reason:
                self.scheduler.release(child)
            else:
                self.scheduler.add(child)
            self._answers[child] = answer
            answers.append(answer)
        return answers

    def _tell_all(self, answers: list[Answer]) -> None:
        """Hand over the newest token of each answer."""
        now, gaps = self.clock(), []
        for answer in answers:
            if answer.sequence not in self._answers:
                continue  # somebody's callback has ended it
            # Of most tokens nobody wants to hear, and there are many of them in every step.
            if answer.stream or answer.sequence.finish_reason:
                self._tell(answer, now)
            if answer.first_token is None:
                answer.first_token = now
                self.metrics.ttft.add(now - answer.request.arrival)
            else:
                gaps.append(now - answer.last_token)
            answer.last_token = now
        self.metrics.itl.add_all(gaps)

    def _tell(self, answer: Answer, now: float) -> None:
        """Take the newest token of an answer into its text, call back, and see whether the answer is over, and its request."""
        request, sequence = answer.request, answer.sequence
        is_running = not sequence.finish_reason
        text = answer.add_text()
        if sequence.finish_reason and is_running:  # by a stop string, which the scheduler knows nothing of
            self.scheduler.remove(sequence)
        if sequence.finish_reason and len(sequence.output_ids) > 1:
            self.metrics.tpot.add((now - answer.first_token) / (len(sequence.output_ids) - 1))
        if request.on_token:
            self._is_telling = True
            try:
                request.on_token(
                    NewToken(request.id, answer.index, sequence.output_ids[-1], text, sequence.finish_reason)
                )
            except Exception as error:
                self._unclaimed.append(self._end(request, "error", error))
            finally:
                self._is_telling = False
            if self.requests.get(request.id) is not request:
                return  # it has failed, or it was aborted by its own callback
        if sequence.finish_reason:
            del self._answers[sequence]
            answer.is_over = True
            if request.is_finished:
                self._unclaimed.append(self._end(request, sequence.finish_reason))

    def _end(self, request: EngineRequest, reason: str, error: Exception | None = None) -> RequestOutput:
        """Take a request out, with all its sequences, wherever they are."""
        take_out = self.scheduler.discard if error else self.scheduler.remove
        for answer in request.answers:
            if not answer.sequence.finish_reason:
                take_out(answer.sequence)
                answer.sequence.finish_reason = reason
            self._answers.pop(answer.sequence, None)
        del self.requests[request.id]
        self.metrics.add_request(reason, self.clock() - request.arrival)
        request.result = request.output(self.tokenizer, error)
        return request.result

    def _write_down_queue_times(self, scheduler_output: PreemptiveSchedulerOutput, now: float) -> None:
        for sequence in scheduler_output.admitted:
            request = self._answers[sequence].request
            if not request.is_admitted:  # a preempted sequence is admitted once more
                request.is_admitted = True
                self.metrics.queue_time.add(now - request.arrival)

    def _write_down(self, scheduler_output: PreemptiveSchedulerOutput, watch: StopWatch, **work: int) -> None:
        step = EngineStep(
            **work,
            start=watch.start,
            seconds=watch.laps,
            waiting=len(self.scheduler.waiting),
            used_blocks=len(self.scheduler.pool.used),
            named_blocks=len(self.scheduler.pool.block_to_hash),
            preempted=len(scheduler_output.preempted),
            cached_tokens=sum(scheduler_output.cached.values()),
        )
        self.metrics.add_step(step)
        for listener in self.listeners:
            listener(step)
