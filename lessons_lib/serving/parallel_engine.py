"""Lesson 16: an engine whose model is spread over several processes.

Every process has an engine of its own, with the same requests, the same scheduler and the same block tables; only the
model's weights and the contents of the cache are parts. So that all schedule the same, the first process tells the
others of every call that changes its engine, and they do the same: arrivals with their seeds and times, aborts, steps.
Tokens are chosen by the first.
"""

import multiprocessing
import pickle
import random
import tempfile
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.request import EngineRequest, NewToken, RequestOutput
from lessons_lib.engine.recovery import one_call
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.prompts import BadRequest
from lessons_lib.serving.follower import LoadModel, MakeRunner, engine_of, fail, follow, ignore, parallel_runner
from lessons_lib.serving.ranks import Ranks, join_ranks


class ParallelEngine(LLMEngine):
    """The engine of the first process; see `parallel_engine`. It is used as any LLMEngine, except that callbacks can't
    add or abort requests.

    A step that was interrupted can't be recovered, because the other processes have gone on: from then on, every call
    but `close` raises RanksDiffer. So does every call after an error in the model.

    Attributes:
        ranks: Ranks.
        followers: the other processes.
        folder: where the processes have met.
    """

    ranks: Ranks
    followers: ListOf[Any] = ()
    folder: tempfile.TemporaryDirectory[str]
    in_step = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._failed: dict[str, BaseException] = {}

    @one_call
    def add_request(
        self,
        /,
        prompt: str | ListOf[int],
        params: SamplingParams | None = None,
        *,
        on_token: Callable[[NewToken], None] | None = None,
        awaited: dict[EngineRequest, None] | None = None,
        **options: Any,
    ) -> str:
        """See `LLMEngine.add_request`."""
        self._refuse_to_send_inside_a_step("add_request")
        self.ranks.check()
        if isinstance(params, SamplingParams | None):
            params = params or SamplingParams()
            params = replace(params, seed=random.getrandbits(63) if params.seed is None else params.seed)
        refuse_what_cannot_be_sent(params)
        guarded = self._guarded(on_token) if callable(on_token) else on_token
        name = super().add_request(prompt, params, on_token=guarded, awaited=awaited, **options)
        request = self.requests[name]
        options |= dict(request_id=name, now=request.arrival, on_token=ignore if on_token else None)
        with self.changes:
            self.ranks.send("add_request", prompt=request.prompt_ids, params=params, **options)
        return name

    @one_call
    def abort(self, request_id: str) -> RequestOutput | None:
        """See `LLMEngine.abort`."""
        self._refuse_to_send_inside_a_step("abort")
        if request_id in self.requests:
            self.ranks.check()
            self.ranks.send("abort", request_id=request_id)
        return super().abort(request_id)

    @one_call
    def advance(self) -> None:
        """See `LLMEngine.advance`."""
        self._refuse_inside_a_step()
        self.ranks.check()
        self.in_step = True
        self.ranks.send("advance")
        super().advance()
        self.in_step = False
        failed, self._failed = self._failed, {}
        for name, error in failed.items():
            if name in self.requests:
                self.ranks.send("fail", request_id=name)
                fail(self, name, error)

    @one_call
    def reset_prefix_cache(self) -> None:
        """See `LLMEngine.reset_prefix_cache`."""
        super().reset_prefix_cache()
        self.ranks.send("reset_prefix_cache")

    def recover(self) -> None:
        """See `recovery`. Between processes nothing can be recovered."""
        if self.changes.unfinished or self.in_step:
            self.ranks.error = self.ranks.error or RuntimeError("a call was interrupted")
        self.ranks.check()

    def close(self) -> None:
        """See `LLMEngine.close`. The other processes end."""
        if self._is_closed:
            return
        is_whole = not (self.ranks.error or self.changes.unfinished or self.in_step)
        if is_whole:
            super().close()
            self.ranks.send("close")
        else:
            self.runner.close()
            self._is_closed = True
        leave(self.followers, patience=10 if is_whole else 0)
        self.folder.cleanup()

    def _guarded(self, on_token: Callable[[NewToken], None]) -> Callable[[NewToken], None]:
        """Where LLMEngine would end a request whose callback raises in the middle of a step, this engine does so after
        the step, and so do the others."""

        def call(token: NewToken) -> None:
            if token.request_id in self._failed:
                return
            try:
                on_token(token)
            except BaseException as error:
                self._failed[token.request_id] = error
                if not isinstance(error, Exception):
                    self.late_errors.append(error)

        return call

    def _refuse_to_send_inside_a_step(self, method: str) -> None:
        if self.changes.unfinished:
            raise RuntimeError(
                f"{method}() was called by an on_token or a listener, inside a step; the other processes are in the "
                "middle of it too. Note what you want to do, and do it after the step."
            )


def refuse_what_cannot_be_sent(params: Any) -> None:
    """Raises:
    BadRequest: the parameters contain a function that other processes can't import.
    """
    try:
        pickle.dumps(params)
    except Exception as error:
        raise BadRequest(
            f"params can't be sent to the other processes of this model: {error}. Use functions of a module, or none."
        ) from None


def parallel_engine(
    load: LoadModel,
    config: EngineConfig | None = None,
    world_size: int = 2,
    device: str = "cpu",
    *,
    engine_type: type[ParallelEngine] = ParallelEngine,
    follower_type: type[LLMEngine] = LLMEngine,
    make_runner: MakeRunner = parallel_runner,
) -> ParallelEngine:
    """An engine over `world_size` processes: this one and others, which it starts. `close` ends them.

    Args:
        load: function from a device to (model, tokenizer), of a module: every process imports and calls it. The device
            is "cpu", since a model may be larger than one GPU.
        device: "cpu" or "cuda": a GPU for each process.
        engine_type, follower_type: of this process and of the others; see ParallelEngine.
        make_runner: as `EngineConfig.make_runner`, for a runner with `TokensOfFirst`.

    Raises:
        CannotCut: see `cut_model`.
        RuntimeError: this process already has such an engine.
    """
    if dist.is_initialized():
        raise RuntimeError("this process is part of another distributed model; close its engine first.")
    context, config = multiprocessing.get_context("spawn"), config or EngineConfig()
    how = load, config, make_runner
    # It must exist as long as the processes work together: NCCL looks for it at the first sum, after all have met.
    folder = tempfile.TemporaryDirectory()
    store = str(Path(folder.name, "store"))
    followers = [
        context.Process(target=follow, args=(rank, world_size, store, device, follower_type, *how), daemon=True)
        for rank in range(1, world_size)
    ]
    for process in followers:
        process.start()
    try:
        ranks = join_ranks(0, world_size, store, device)
        engine: Any = engine_of(engine_type, ranks, *how)
    except BaseException:
        leave(followers)
        folder.cleanup()
        raise
    engine.ranks, engine.followers, engine.folder = ranks, followers, folder
    return engine  # type: ignore[no-any-return]


def leave(followers: ListOf[Any], patience: float = 0) -> None:
    """End the other processes, and what this one shares with them.

    Args:
        patience: seconds that they may take to end by themselves.
    """
    for process in followers:
        process.join(patience)
        if process.is_alive():
            process.terminate()
            process.join()
    if dist.is_initialized():
        dist.destroy_process_group()
