"""Lesson 15: an engine whose model is spread over several processes.

Every process has an engine of its own, with the same requests, the same scheduler and the same block tables; only the
model's weights and the contents of the cache are parts. So that all schedule the same, the first process tells the
others of every call that changes its engine, and they do the same: arrivals with their seeds and times, aborts, steps.
Tokens are chosen by the first.
"""

import multiprocessing
import os
import pickle
import random
import tempfile
import time
import zlib
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.in_flight import InFlightTokens
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.model_runner import Choose, ModelRunner, greedy
from lessons_lib.engine.outputs import EngineRequest, NewToken, RequestOutput
from lessons_lib.engine.recovery import one_call
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.prompts import BadRequest
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.serving.tensor_parallel import cut_model

LoadModel = Callable[[str], tuple[PreTrainedModel, PreTrainedTokenizerBase]]
MakeRunner = Callable[..., ModelRunner]
START_TIMEOUT = timedelta(minutes=5)
IDLE_TIMEOUT = timedelta(days=365)  # an engine without requests sends nothing, and is not dead


class RanksDiffer(RuntimeError):
    """The processes can't go on together: one of them failed, or they scheduled different steps."""


# --- The processes ---------------------------------------------------------------------------------------------------


@dataclass
class Ranks:
    """This process and the others.

    Attributes:
        rank: its index; 0 is the first.
        world_size: how many there are.
        device: where its part of the model is.
        fingerprint: of all steps so far, the same in every process.
        error: why they can't go on together, or None.
    """

    rank: int
    world_size: int
    device: torch.device
    fingerprint: int = 0
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.messages = dist.new_group(backend="gloo", timeout=IDLE_TIMEOUT)

    @torch.inference_mode()
    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all processes."""
        dist.all_reduce(tensor)
        return tensor

    @torch.inference_mode()
    def from_first(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor of the first process."""
        dist.broadcast(tensor, src=0)
        return tensor

    def send(self, method: str, **arguments: Any) -> None:
        """Tell the others to call a method of their engine."""
        try:
            dist.broadcast_object_list([(method, arguments, self.fingerprint)], src=0, group=self.messages)
        except Exception as error:  # another process has ended
            self.error = error
            self.check()

    def receive(self) -> tuple[str, dict[str, Any]]:
        """What the first process sends next.

        Raises:
            RanksDiffer: this process has scheduled other steps than the first.
        """
        sent: list[Any] = [None]
        dist.broadcast_object_list(sent, src=0, group=self.messages)
        method, arguments, fingerprint = sent[0]
        if fingerprint != self.fingerprint:
            raise RanksDiffer(f"process {self.rank} has scheduled other steps than process 0.")
        return method, arguments

    def note_step(self, scheduler_output: SchedulerOutput) -> None:
        """Include a step in the fingerprint: which tokens of which sequences."""
        step = [
            (each.id, each.num_computed_tokens, count, each.output_ids[-1:])
            for each, count in scheduler_output.num_scheduled_tokens.items()
        ]
        self.fingerprint = zlib.crc32(repr(step).encode(), self.fingerprint)

    def check(self) -> None:
        """Raises:
        RanksDiffer: the processes can't go on together.
        """
        if self.error is not None:
            text = f"{type(self.error).__name__}: {self.error}"
            # What gloo says of a lost connection is long, and names addresses.
            reason = "another one has ended" if "Connection" in text else text
            raise RanksDiffer(
                f"the {self.world_size} processes of this model can't go on together: {reason}. Close the engine and "
                "make a new one."
            ) from self.error


def join_ranks(rank: int, world_size: int, store: str, device: str) -> Ranks:
    """Meet the other processes. The tensors of a GPU go through NCCL, those of a CPU through gloo.

    Args:
        store: path of a file that doesn't exist yet, the same for all processes.
        device: "cpu" or "cuda"; process i gets GPU i.
    """
    own, backend = torch.device(device), "gloo"
    if own.type == "cuda":
        own, backend = torch.device("cuda", rank), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(own)
    # All processes are on this machine, and it may have no other network.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if Path("/sys/class/net/lo").exists() else "lo0")
    dist.init_process_group(
        backend, init_method=Path(store).as_uri(), rank=rank, world_size=world_size, timeout=START_TIMEOUT
    )
    return Ranks(rank, world_size, own)


# --- What every process does -----------------------------------------------------------------------------------------


class TokensOfFirst(ModelRunner):
    """What is added to a runner: the tokens that the first process chooses are the tokens of all. Put it before the
    runner's own class."""

    ranks: Ranks

    def launch(self, scheduler_output: SchedulerOutput, choose: Choose = greedy) -> InFlightTokens:
        """See `ModelRunner.launch`."""
        self.ranks.note_step(scheduler_output)
        try:
            return super().launch(scheduler_output, lambda logits: self.ranks.from_first(choose(logits)))
        except Exception as error:
            self.ranks.error = error  # the others may be waiting in a sum that this process will never join
            raise


class ParallelRunner(TokensOfFirst, ModelRunner):
    """A ModelRunner for one part of a model."""


def parallel_runner(model: PreTrainedModel, num_blocks: int, config: EngineConfig) -> ParallelRunner:
    """For `EngineConfig.make_runner`. The model's configuration says how many heads this process has."""
    return ParallelRunner(model, num_blocks, config.block_size, config.backend)


class ClockOfFirst:
    """The time, or a time that the first process has sent.

    Policies compare the times of arrivals, so these must be the same in every process.
    """

    def __init__(self) -> None:
        self.sent: float | None = None

    def __call__(self) -> float:
        return time.perf_counter() if self.sent is None else self.sent


def engine_of(
    engine_type: type[LLMEngine], ranks: Ranks, load: LoadModel, config: EngineConfig, make_runner: MakeRunner
) -> LLMEngine:
    """The engine of this process, over its part of the model."""

    def make(model: PreTrainedModel, num_blocks: int, config: EngineConfig) -> ModelRunner:
        runner = make_runner(model, num_blocks, config)
        runner.ranks = ranks  # type: ignore[attr-defined]
        return runner

    model, tokenizer = load("cpu")
    cut_model(model, ranks.rank, ranks.world_size, ranks.all_reduce)
    model.to(ranks.device)  # type: ignore[arg-type]
    return engine_type(model, tokenizer, replace(config, make_runner=make), clock=ClockOfFirst())


def ignore(token: NewToken) -> None:
    """The `on_token` of a streamed request in the other processes: they do all that the first does."""


def fail(engine: LLMEngine, request_id: str, error: BaseException) -> None:
    """End a request between two steps, as if it had failed in one."""
    with engine.changes:
        engine.end(engine.requests[request_id], "error", error)


def follow(rank: int, world_size: int, store: str, device: str, *how: Any) -> None:
    """What all processes but the first do: call what it calls, until it closes its engine or ends."""
    if device == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // world_size))
    ranks = join_ranks(rank, world_size, store, device)
    engine_type, *rest = how
    engine = engine_of(engine_type, ranks, *rest)
    clock: Any = engine.clock
    while True:
        method, arguments = ranks.receive()
        if method == "close":
            break
        clock.sent = arguments.pop("now", None)
        if method == "fail":
            fail(engine, arguments["request_id"], RuntimeError("its on_token raised"))
        else:
            getattr(engine, method)(**arguments)
        clock.sent = None
        engine.unclaimed.clear()
        ranks.check()
    engine.close()
    dist.destroy_process_group()


# --- The first process -----------------------------------------------------------------------------------------------


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
