"""Lesson 16: the engine of each process of a model: it makes its part, and runs its steps. All but the first follow."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.core import EngineCore, InFlightStep, StepFailed
from lessons_lib.engine.llm_engine import LLMEngine, Parts
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.serving.ranks import Ranks, join_ranks
from lessons_lib.serving.tensor_parallel import cut_model

LoadModel = Callable[[str], tuple[PreTrainedModel, PreTrainedTokenizerBase]]


class RankedCore(EngineCore):
    """The core of one of the processes. A step that failed or was interrupted can't be begun again: the other processes
    may be waiting in a sum that this one will never join."""

    def __init__(self, *args: Any, ranks: Ranks, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.ranks = ranks

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Keep an error, so that later calls say why the processes can't go on."""
        try:
            yield
        except Exception as error:
            cause = error.__cause__ if isinstance(error, StepFailed) else error
            self.ranks.error = self.ranks.error or cause
            raise

    def schedule(self) -> SchedulerOutput:
        with self.noting():
            return super().schedule()

    def launch(self, scheduler_output: SchedulerOutput) -> InFlightStep | None:
        self.ranks.note_step(scheduler_output)
        with self.noting():
            return super().launch(scheduler_output)

    def process(self, depth: int) -> None:
        with self.noting():
            super().process(depth)

    def rebuild(self) -> None:
        self.ranks.error = self.ranks.error or RuntimeError("a call was interrupted")
        self.ranks.check()


def engine_of(
    engine_type: type[LLMEngine], core_type: type[RankedCore], ranks: Ranks, load: LoadModel, config: EngineConfig
) -> LLMEngine:
    """The engine of this process, over its part of the model. The first process chooses the tokens of all."""

    def sampler(*args: Any) -> torch.Tensor:
        return ranks.from_first(choose_tokens(*args))

    model, tokenizer = load("cpu")
    cut_model(model, ranks.rank, ranks.world_size, ranks.all_reduce)
    model.to(ranks.device)  # type: ignore[arg-type]
    core: Any = partial(core_type, ranks=ranks)
    return engine_type(model, tokenizer, config, parts=Parts(core=core, sampler=sampler))


def follow(rank: int, world_size: int, store: str, device: str, load: LoadModel, config: EngineConfig) -> None:
    """Repeat the calls of the first process, until it closes its engine or ends."""
    if device == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // world_size))
    ranks = join_ranks(rank, world_size, store, device)
    engine = engine_of(LLMEngine, RankedCore, ranks, load, config)
    while True:
        method, arguments = ranks.receive()
        if method == "close":
            break
        if method == "reset_prefix_cache":
            engine.reset_prefix_cache()
        else:
            carry_out(engine, **arguments)
            getattr(engine.core, method)()
    engine.close()
    dist.destroy_process_group()


def carry_out(engine: LLMEngine, added: list[dict[str, Any]], cancelled: list[tuple[str, bool]]) -> None:
    """Let the next step begin and end the requests that it begins and ends in the first process.

    Args:
        added: the arguments of `InputProcessor.process`, the time of arrival, and `is_streamed`.
        cancelled: (id, True if it ends with an error) of each.
    """
    for options in added:
        arrival, is_streamed = options.pop("arrival"), options.pop("is_streamed")
        # Policies compare the times of arrivals, so these must be the same in every process.
        group = replace(engine.inputs, clock=partial(float, arrival)).process(**options)
        group.is_streamed, group.is_awaited = is_streamed, True
        engine.core.add(group)
    for name, has_failed in cancelled:
        group_of_name = engine.core.find(name)
        assert group_of_name
        engine.core.cancel(group_of_name, RuntimeError("it failed in the first process") if has_failed else None)
