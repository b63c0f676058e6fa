"""Lesson 12: the engine as its callers see it. Requests are added, aborted, waited for and streamed; `core` serves
them."""

import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.core import EngineCore
from lessons_lib.engine.input_processor import InputProcessor, check_options
from lessons_lib.engine.model_fit import ModelFit
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.output_processor import OutputProcessor, TokenReader
from lessons_lib.engine.outputs import NewToken, OnToken, RequestOutput
from lessons_lib.engine.reentrancy import refuse_inside
from lessons_lib.engine.request import RequestGroup
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.configuration import text_config
from lessons_lib.models.validate import BadRequest, must
from lessons_lib.scheduling.preemption import PreemptiveScheduler


def compatible_fit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: EngineConfig) -> ModelFit:
    """See `compat.fit`. It serves with the engine's own parts, so it is above the engine, and imported only here."""
    from lessons_lib.compat.fit import fit

    return fit(model, tokenizer, config)


@dataclass(frozen=True)
class Parts:
    """The parts of an engine. Each can be replaced, such as by a learner's own.

    Attributes:
        core: an EngineCore class, or a function that makes one.
        scheduler: function (pool, **limits) -> PreemptiveScheduler, such as `partial(PreemptiveScheduler,
            share_budget=mine)`. If None, a PreemptiveScheduler, or one with memory below the pool; see `lower_memory`.
        pool: function (num_blocks, block_size) -> PrefixCache.
        sampler: see `choose_tokens`.
        fit: function (model, tokenizer, config) -> ModelFit. It refuses models that the engine can't serve.
    """

    core: Callable[..., EngineCore] = EngineCore
    scheduler: Callable[..., PreemptiveScheduler] | None = None
    pool: Callable[[int, int], PrefixCache] = PrefixCache
    sampler: Callable[..., torch.Tensor] = choose_tokens
    fit: Callable[[Any, Any, EngineConfig], ModelFit] = compatible_fit


class LLMEngine:
    """Serves requests with one model: continuous batching over a paged cache, with preemption, prefix sharing and
    sampling.

    The model belongs to the engine until `close`, which leaves it as it was before: `with LLMEngine(model, tokenizer)
    as engine:`.

    Any thread may call the engine at any time, and each step serves the requests of all threads. Callbacks run after
    the step, in the thread that called `step`; they may add and abort requests, and must not wait for another thread
    that calls the engine. An interrupt (Ctrl-C, MemoryError) loses nothing; see `core`.

    Attributes:
        core: an EngineCore, which serves the requests.
        scheduler, runner: the core's.
        fit: facts about the model, see ModelFit.
        vocab_size: token ids are below it.
        inputs: InputProcessor, which makes requests.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: EngineConfig | None = None,
        clock: Callable[[], float] = time.perf_counter, parts: Parts | None = None,
    ):  # fmt: skip
        parts, config = parts or Parts(), config or EngineConfig()
        self.fit = fit = parts.fit(model, tokenizer, config)
        self.config = config = replace(config, layer_shapes=fit.layer_shapes)
        self.model, self.tokenizer, self.clock = model, tokenizer, clock
        self.vocab_size = text_config(model.config).vocab_size
        if config.num_swap_blocks or config.host_cache_bytes or config.disk_cache_bytes:
            from lessons_lib.engine.lower_memory import with_lower_memory  # few engines have any

            parts = with_lower_memory(parts, model, fit, config)
        self.scheduler = (parts.scheduler or PreemptiveScheduler)(
            parts.pool(fit.num_blocks, config.block_size),
            max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens,
            policy=config.policy, admission=config.admission,
            watermark=int(config.watermark * fit.num_blocks), share_prefixes=config.share_prefixes,
            states=fit.states,
        )  # fmt: skip
        make_runner = fit.make_runner or config.make_runner or default_runner
        self.runner: ModelRunner = make_runner(model, fit.num_blocks, config)
        if config.overlap and not self.runner.can_overlap:
            raise ValueError(
                f"overlap is True, and {type(self.runner).__name__} needs the tokens of a step before it launches the "
                "next. Leave out overlap, or use a GPUModelRunner."
            )
        self.core = parts.core(
            self.scheduler, self.runner, OutputProcessor(tokenizer), clock,
            sampler=parts.sampler, depth=int(config.overlap),
        )  # fmt: skip
        self.inputs = InputProcessor(tokenizer, fit, self.vocab_size, config.max_logprobs, self.scheduler, clock)
        self._readers: dict[RequestGroup, TokenReader] = {}
        self._passing_on = threading.RLock()
        self._num_added = count()
        self._is_closed = False

    @property
    def requests(self) -> dict[str, RequestGroup]:
        """The requests that have not ended, by their ids, in the order in which they were added."""
        return {**self.core.groups, **self.core.inbox}

    def add_request(
        self, prompt: str | ListOf[int], params: SamplingParams | None = None, *, request_id: str | None = None,
        tier: int = 0, expected_tokens: float | None = None, is_interactive: bool = False,
        on_token: OnToken | None = None, cache_salt: str | None = None, output_ids: ListOf[int] = (),
    ) -> str:  # fmt: skip
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

        Returns:
            the request's id.

        Raises:
            BadRequest: the id is taken, or the prompt is empty, has a token outside the vocabulary, or is too long for
                the context, or a value makes no sense or exceeds a limit.
            OutOfBlocks: the pool could not hold it, even alone. In both cases nothing has changed.
            RuntimeError: the engine is closed.
        """
        options = dict(tier=tier, expected_tokens=expected_tokens, is_interactive=is_interactive, cache_salt=cache_salt)
        group = self._new_group(prompt, params, request_id, on_token, output_ids, **options)
        try:
            if on_token:
                group.on_token, group.is_streamed = on_token, True
                self._readers[group] = TokenReader(group, self.core.outputs)
            self._add(group)
        except BaseException:  # its id is taken, or an interrupt came first: a reader without a request never ends
            if self.core.find(group.id) is not group:
                self._readers.pop(group, None)
            raise
        return group.id

    def open(self, prompt: str | ListOf[int], params: SamplingParams | None = None, **options: Any) -> TokenReader:
        """Add a request whose tokens and output the caller reads after each step, with `core.read`; `step` doesn't
        return it.

        Args:
            See `add_request`.
        """
        group = self._new_group(prompt, params, **options)
        group.is_awaited = group.is_streamed = True
        self._add(group)
        return TokenReader(group, self.core.outputs)

    def has_unfinished(self) -> bool:
        """True if a step has anything to do."""
        return bool(self.core.groups or self.core.inbox or self.core.ended or self._readers)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now, and free its blocks. Returns what it has so far; None if there is no such request any
        more."""
        group = self.core.find(request_id)
        if group is None or group.output:
            return None
        was_awaited = group.is_awaited
        try:
            group.is_awaited = True  # so that no step returns it
            self.core.cancel(group)
            self.core.settle()
            self._readers.pop(group, None)
            return group.output
        except BaseException:
            group.is_awaited = was_awaited
            if group.output and not was_awaited:
                self.core.ended[group] = None  # the caller hasn't got it
            raise

    def step(self) -> list[RequestOutput]:
        """Run one step for all requests; see `EngineCore.step`.

        Returns:
            the requests that have ended, without those that `generate` and `stream` wait for.

        Raises:
            RuntimeError: it was called by an `on_token`.
        """
        self.advance()
        ended: list[RequestGroup] = []
        try:
            with self.core.lock:
                ended += self.core.ended
                outputs = [group.output for group in ended if group.output]
                self.core.ended.clear()  # last: an interrupt in the loop may skip the `except` (Python 3.12)
            return outputs
        except BaseException:
            self.core.ended.update(dict.fromkeys(ended))  # the caller hasn't got them
            raise

    def advance(self) -> None:
        """Run one step, and the calls of `on_token` that follow it. Outputs stay until `step` returns them."""
        refuse_inside(self)
        self.core.step()
        with self._passing_on:
            late = list(self._call_back())
        if late:
            raise late[0]

    def generate(
        self, prompts: ListOf[str | ListOf[int]],
        params: SamplingParams | ListOf[SamplingParams | None] | None = None, *, cache_salt: str | None = None,
    ) -> list[RequestOutput]:  # fmt: skip
        """Complete several prompts, and return when all have ended.

        Args:
            prompts: texts, or lists of token ids.
            params: one SamplingParams for all, a list with one for each, or None.
            cache_salt: of all the prompts, see `add_request`.

        Returns:
            the outputs, in the order of the prompts. One that failed says so in `error`.

        Raises:
            BadRequest, OutOfBlocks: see `add_request`; none of them was added.
        """
        self._refuse_if_closed()
        is_list = isinstance(prompts, ListOf) or hasattr(prompts, "tolist")  # an array or a tensor
        must(is_list and not isinstance(prompts, str), "prompts", prompts, "a list of prompts, such as `[prompt]`")
        groups = [
            self.inputs.process(self._free_id(), f"prompt {index}", prompt, own, cache_salt=cache_salt)
            for index, (prompt, own) in enumerate(zip(prompts, _one_each(params, len(prompts))))
        ]
        try:
            for group in groups:
                group.is_awaited = True
                self.core.add(group)
            for group in groups:
                while not group.output:
                    self.advance()
        finally:
            for group in groups:
                self.core.cancel(group)
            self.core.settle()
        return [group.output for group in groups if group.output]

    def stream(
        self, prompt: str | ListOf[int], params: SamplingParams | None = None, **options: Any
    ) -> Iterator[NewToken]:
        """Complete one prompt, and yield each token when it is there. All other requests are served along.

        When the caller stops reading, the request is aborted.

        Args:
            See `add_request`. The request is interactive unless the options say otherwise.

        Raises:
            What went wrong, if the request failed.
        """
        group = self._new_group(prompt, params, **{"is_interactive": True} | options)
        group.is_awaited = group.is_streamed = True
        stream = self._read(group)
        next(stream)  # into its `try`: from now on, dropping it aborts the request, even if nothing was ever read
        return stream

    def _read(self, group: RequestGroup) -> Iterator[Any]:
        reader = TokenReader(group, self.core.outputs)
        try:
            self._add(group)
            yield
            while True:
                for token in self.core.read(reader):
                    reader.move_on(token)
                    yield token
                    if group.output and group.output.finish_reason == "abort":
                        return  # nothing follows an abort, not even what had arrived before it
                if not group.output:
                    self.advance()
                elif not reader.has_news:
                    if group.output.error:
                        raise group.output.error
                    return
        finally:
            self.core.cancel(group)
            with suppress(RuntimeError):  # dropped by the garbage collector inside a step: the next one ends it
                self.core.settle()

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes. Call it after the model's weights have changed: keys and values that the old ones
        computed are wrong now.

        Raises:
            RuntimeError: requests have blocks; finish or abort them first.
        """
        with self.core.lock:
            if self.scheduler.pool.used or self.scheduler.swap_space.used:
                raise RuntimeError("requests have blocks; finish or abort all of them first. Nothing changed.")
            self.scheduler.pool.reset()

    def close(self) -> None:
        """Abort all requests, and leave the model as it was before the engine was made. The engine takes no requests
        any more."""
        for group in self.requests.values():
            self.core.cancel(group)
        self.core.settle()
        if self.config.host_cache_bytes:
            pool: Any = self.scheduler.pool
            pool.close()  # its blocks may go to the disk
        self.runner.close()
        self._is_closed = True

    def __enter__(self) -> "LLMEngine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _new_group(
        self, prompt: str | ListOf[int], params: SamplingParams | None, request_id: str | None = None,
        on_token: OnToken | None = None, output_ids: ListOf[int] = (), **options: Any,
    ) -> RequestGroup:  # fmt: skip
        self._refuse_if_closed()
        check_options(request_id, on_token=on_token, **options)
        name = self._free_id() if request_id is None else request_id
        return self.inputs.process(name, f"request {name!r}", prompt, params, output_ids=output_ids, **options)

    def _add(self, group: RequestGroup) -> None:
        self.core.add(group)
        self.core.settle()

    def _free_id(self) -> str:
        return next(name for name in map(str, self._num_added) if not self.core.find(name))

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise RuntimeError("the engine is closed; make a new one.")

    def _call_back(self) -> Iterator[BaseException]:
        """Call `on_token` of every request that has one, with its new tokens. If a callback raises, its request fails;
        Ctrl-C or SystemExit is raised once all have been called."""
        for group, reader in list(self._readers.items()):
            for token in self.core.read(reader):
                if group not in self._readers:
                    break  # its callback has aborted it
                was_interrupted, reader.is_read = not reader.is_read, False
                try:
                    if was_interrupted:
                        raise RuntimeError("an interrupt came during on_token; whether it got the token is unknown.")
                    assert group.on_token
                    group.on_token(token)
                except BaseException as error:
                    self.core.cancel(group, error)
                    self.core.settle()
                    if group.output and not group.output.error:  # it has ended, with this token
                        group.output = replace(group.output, error=error)
                    self._readers.pop(group, None)
                    if not isinstance(error, Exception):
                        yield error
                    break
                reader.move_on(token)
            if group.output and not reader.has_news:
                self._readers.pop(group, None)


def default_runner(model: PreTrainedModel, num_blocks: int, config: EngineConfig) -> ModelRunner:
    """Make the runner, unless the config does."""
    if config.overlap:
        from lessons_lib.engine.gpu_model_runner import gpu_model_runner  # imports the compiler

        return gpu_model_runner()(model, num_blocks, config)
    return ModelRunner(model, num_blocks, config.block_size, config.backend, config.layer_shapes)


def _one_each(params: Any, count: int) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    must(isinstance(params, ListOf), "params", params, "one SamplingParams for all, a list of them, or None")
    if len(params) != count:
        raise BadRequest(f"{len(params)} sampling parameters for {count} prompts; give one for all, or one for each.")
    return list(params)
