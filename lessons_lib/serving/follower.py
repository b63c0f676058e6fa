"""Lesson 16: what every process of a model does: it makes its part, runs its steps, and all but the first follow."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.in_flight import InFlightTokens
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.model_runner import Choose, ModelRunner, greedy
from lessons_lib.engine.request import NewToken
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.serving.ranks import Ranks, join_ranks
from lessons_lib.serving.tensor_parallel import cut_model

LoadModel = Callable[[str], tuple[PreTrainedModel, PreTrainedTokenizerBase]]
MakeRunner = Callable[..., ModelRunner]


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
