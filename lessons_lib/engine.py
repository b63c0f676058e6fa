"""Lesson 11: the engine. A step schedules, computes, samples and hands out; everything else is putting requests in and taking answers out."""

import random
import time
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from lessons_lib import engine_calls
from lessons_lib.block_moves import apply_moves
from lessons_lib.block_pool import BlockPool, blocks_in_budget
from lessons_lib.engine_metrics import EngineMetrics, EngineStep
from lessons_lib.engine_request import Answer, EngineRequest, NewToken, RequestOutput
from lessons_lib.model_runner import ModelRunner
from lessons_lib.paged_cache import PagedKVCache
from lessons_lib.policies import FirstComeFirstServed
from lessons_lib.preemption import MemoryPlan, PreemptiveScheduler, fork
from lessons_lib.prefix_cache import PrefixCache
from lessons_lib.prompts import BadRequest, encode_prompts
from lessons_lib.sampling import NO_TOKEN, SamplingParams, sample
from lessons_lib.scheduler import optimistic
from lessons_lib.sequence import Sequence
from lessons_lib.timing import StopWatch


@dataclass(frozen=True)
class EngineConfig:
    """The sizes of an engine.

    Attributes:
        max_num_seqs: the most sequences that run at a time.
        max_num_batched_tokens: the most tokens of a step.
        block_size: tokens of a block.
        num_blocks: size of the pool; if None, as many blocks as fit in `cache_bytes`.
        cache_bytes: memory of the KV cache.
        num_swap_blocks: size of the swap space; without one, preempted sequences are computed again.
        watermark: share of the blocks that admission leaves free for those who run.
        share_prefixes: whether sequences with the same beginning share blocks.
        policy: who goes next, see `policies`.
        admission: see `scheduler`.
        backend: how attention is computed, see `paged_model.plan_attention`.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    num_blocks: int | None = None
    cache_bytes: int = 2**28
    num_swap_blocks: int = 0
    watermark: float = 0.01
    share_prefixes: bool = True
    policy: object = field(default_factory=FirstComeFirstServed)
    admission: Callable = optimistic
    backend: str | Callable | None = None


class LLMEngine:
    """Serves requests with one model: continuous batching over a paged cache, with preemption, prefix sharing and sampling.

    Attributes:
        scheduler: a PreemptiveScheduler.
        runner: a ModelRunner.
        metrics: EngineMetrics.
        requests: id -> the requests that have not finished.
    """

    def __init__(self, model, tokenizer, config: EngineConfig | None = None, clock: Callable[[], float] = time.perf_counter):
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
        self.runner = ModelRunner(model, num_blocks, config.block_size, config.backend)
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

    def add_request(
        self,
        prompt: str | ListOf[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        tier: int = 0,
        expected_tokens: float | None = None,
        on_token: Callable[[NewToken], None] | None = None,
    ) -> str:
        """Put a request in. It is served by the steps that follow.

        Args:
            prompt: text, or token ids.
            request_id: its name; "0", "1", ... if not given.
            tier, expected_tokens: for policies that ask for them.
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
            raise BadRequest(f"request id {name!r} is being served; give every request an id of its own, or none at all.")
        (prompt_ids,), (cap,) = encode_prompts(self.model, self.tokenizer, [prompt], params.max_tokens)
        if params.max_tokens is None:
            cap = max(1, min(cap, self.scheduler.pool.num_blocks * self.config.block_size + 1 - len(prompt_ids)))
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos and self.tokenizer.eos_token_id is not None:
            stop_token_ids |= {self.tokenizer.eos_token_id}
        now = self.clock()
        sequence = Sequence(name, prompt_ids, cap, stop_token_ids, now, tier, expected_tokens)
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
        if self._is_telling:
            raise RuntimeError("step() was called by an on_token, in the middle of a step; note down what is wanted, and do it after the step.")
        watch = StopWatch(self.clock)
        plan = self.scheduler.schedule()
        watch.lap("schedule")
        try:
            apply_moves(plan.moves, self.runner.cache, self.swap_cache)
            watch.lap("move")
            if not plan.counts:
                return self._claim()
            logits = self.runner.forward(plan)
            watch.lap("forward")
            answers = [self._answers[sequence] for sequence in plan.counts]
            tokens = sample(logits, *zip(*((answer.params, answer.seed, len(answer.sequence.output_ids)) for answer in answers)))
            watch.lap("sample")
        except BaseException as error:
            # Whoever is being swapped out may have lost its cache, too, if moving was what failed.
            half_moved = [] if "move" in watch.laps else [sequence for sequence in plan.preempted if sequence.swapped]
            concerned = dict.fromkeys(self._answers[sequence].request for sequence in [*plan.counts, *half_moved])
            self._unclaimed += [self._end(request, "error", error) for request in concerned]
            if not isinstance(error, Exception):
                raise  # somebody pressed Ctrl-C
            return self._claim()
        self._write_down_queue_times(plan, watch.start)
        last_known = sum(sequence.num_computed_tokens + count == sequence.num_tokens for sequence, count in plan.counts.items())
        work = dict(tokens=plan.num_tokens, prefill_tokens=plan.num_tokens - last_known, running=len(plan.counts))
        told, outputs = self._hand_out(plan, logits, tokens)
        self._unclaimed += outputs
        watch.lap("update")
        self._write_down(plan, watch, new_tokens=told, **work)
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

    def _hand_out(self, plan: MemoryPlan, logits, tokens: list[int]) -> tuple[int, list[RequestOutput]]:
        """Give every sequence whose known tokens are all computed its next one.

        Returns:
            (how many tokens were handed out, the requests that have ended).
        """
        told, outputs = [], []
        for row, sequence in enumerate(list(plan.counts)):
            if sequence.num_computed_tokens + plan.counts[sequence] < sequence.num_tokens:
                continue
            answer = self._answers.get(sequence)
            if answer is None:
                continue  # another sequence of its request has failed in this loop
            request = answer.request
            if tokens[row] == NO_TOKEN:
                error = FloatingPointError("the model's logits are not finite numbers; look at its weights and its dtype.")
                outputs.append(self._end(request, "error", error))
                continue
            answer.add_logprobs(logits[row], tokens[row])
            told.append(answer)
            if len(request.answers) < request.params.n:
                told += self._fork(request, sequence, plan.counts[sequence], logits[row])
        tokens = {sequence: token for sequence, token in zip(plan.counts, tokens) if sequence in self._answers}
        plan.counts = {sequence: plan.counts[sequence] for sequence in tokens}
        self.scheduler.update(plan, tokens.values())
        now = self.clock()
        for answer in told:
            if answer.sequence in self._answers:
                outputs += self._tell(answer, now)
        return len(told), outputs

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

    def _tell(self, answer: Answer, now: float) -> list[RequestOutput]:
        """Hand over the newest token of an answer.

        Returns:
            the request's output in a list, if that was its last token.
        """
        request, sequence = answer.request, answer.sequence
        is_running = not sequence.finish_reason
        text = answer.add_text()
        if sequence.finish_reason and is_running:  # by a stop string, which the scheduler knows nothing of
            self.scheduler.remove(sequence)
        self._measure(answer, now)
        if request.on_token:
            self._is_telling = True
            try:
                request.on_token(NewToken(request.id, answer.index, sequence.output_ids[-1], text, sequence.finish_reason))
            except Exception as error:
                return [self._end(request, "error", error)]
            finally:
                self._is_telling = False
            if self.requests.get(request.id) is not request:
                return []  # it was aborted by its own callback
        if sequence.finish_reason:
            del self._answers[sequence]
            answer.is_over = True
        return [self._end(request, sequence.finish_reason)] if request.is_finished else []

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

    def _measure(self, answer: Answer, now: float) -> None:
        metrics, count = self.metrics, len(answer.sequence.output_ids)
        if answer.first_token is None:
            answer.first_token = now
            metrics.ttft.add(now - answer.request.arrival)
        else:
            metrics.itl.add(now - answer.last_token)
        answer.last_token = now
        if answer.sequence.finish_reason and count > 1:
            metrics.tpot.add((now - answer.first_token) / (count - 1))

    def _write_down_queue_times(self, plan: MemoryPlan, now: float) -> None:
        for sequence in plan.admitted:
            request = self._answers[sequence].request
            if not request.is_admitted:  # a preempted sequence is admitted once more
                request.is_admitted = True
                self.metrics.queue_time.add(now - request.arrival)

    def _write_down(self, plan: MemoryPlan, watch: StopWatch, **work: int) -> None:
        step = EngineStep(
            **work,
            start=watch.start,
            seconds=watch.laps,
            waiting=len(self.scheduler.waiting),
            used_blocks=len(self.scheduler.pool.used),
            named_blocks=len(self.scheduler.pool.name_of),
            preempted=len(plan.preempted),
            cached_tokens=sum(plan.cached.values()),
        )
        self.metrics.add_step(step)
        for listener in self.listeners:
            listener(step)
