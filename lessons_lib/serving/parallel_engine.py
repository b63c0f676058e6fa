"""Lesson 16: an engine whose model is spread over several processes.

Every process has an engine of its own, with the same requests, scheduler and block tables; only the weights and the
contents of the cache are parts. Before each step, the first process tells the others which requests begin and end, with
their seeds and times, so that all schedule the same. The first chooses the tokens.
"""

import multiprocessing
import pickle
import random
import tempfile
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.input_processor import InputProcessor
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.request import RequestGroup
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.validate import BadRequest, must
from lessons_lib.serving.follower import LoadModel, RankedCore, engine_of, follow
from lessons_lib.serving.ranks import join_ranks


class LeadingCore(RankedCore):
    """The core of the first process, whose commands and steps the others repeat."""

    inputs: "SentInputs"
    is_settling = False

    def settle(self) -> None:
        with self.lock:
            self.is_settling = True
            try:
                super().settle()
            finally:
                self.is_settling = False

    def carry_out(self, added: list[RequestGroup], cancelled: list[RequestGroup]) -> None:
        self.ranks.check()
        sent = [
            self.inputs.arguments[group] | {"arrival": group.arrival, "is_streamed": group.is_streamed}
            for group in added
        ]
        ended = [(group.id, bool(group.error)) for group in cancelled if self.find(group.id) is group]
        if sent or ended or not self.is_settling:
            self.ranks.send("settle" if self.is_settling else "step", added=sent, cancelled=ended)
        super().carry_out(added, cancelled)


@dataclass(frozen=True)
class SentInputs(InputProcessor):
    """Makes requests that the other processes can make as well.

    Attributes:
        arguments: of `process`, for each request.
    """

    arguments: WeakKeyDictionary[RequestGroup, dict[str, Any]]

    def process(self, name: str, label: str, prompt: Any, params: Any, **options: Any) -> RequestGroup:
        """See `InputProcessor.process`.

        Raises:
            BadRequest: also if the parameters contain a function that other processes can't import.
        """
        if isinstance(params, SamplingParams | None):
            params = params or SamplingParams()
            params = replace(params, seed=random.getrandbits(63) if params.seed is None else params.seed)
        try:
            pickle.dumps(params)
        except Exception as error:
            raise BadRequest(
                f"params can't be sent to the other processes of this model: {error}. Use functions of a module, or "
                "none."
            ) from None
        group = super().process(name, label, prompt, params, **options)
        self.arguments[group] = dict(name=name, label=label, prompt=group.prompt_ids, params=params, **options)
        return group


class ParallelEngine(LLMEngine):
    """The engine of the first process; see `parallel_engine`. It is used as any LLMEngine.

    After an error in the model, or an interrupt in the middle of a step, every call but `close` raises RanksDiffer.

    Attributes:
        followers: the other processes.
        folder: meeting point of the processes.
    """

    core: LeadingCore
    followers: ListOf[Any] = ()
    folder: tempfile.TemporaryDirectory[str]

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.inputs = self.core.inputs = SentInputs(**vars(self.inputs), arguments=WeakKeyDictionary())

    def reset_prefix_cache(self) -> None:
        with self.core.lock:
            super().reset_prefix_cache()
            self.core.ranks.send("reset_prefix_cache")

    def close(self) -> None:
        """See `LLMEngine.close`. The other processes end."""
        if self._is_closed:
            return
        can_settle = self.core.is_whole and not self.core.ranks.error
        if can_settle:
            super().close()
            self.core.ranks.send("close")
        else:
            self.runner.close()
            self._is_closed = True
        leave(self.followers, patience=10 if can_settle else 0)
        self.folder.cleanup()


def parallel_engine(
    load: LoadModel, config: EngineConfig | None = None, world_size: int = 2, device: str = "cpu"
) -> ParallelEngine:
    """An engine over `world_size` processes: this one and others, which it starts. `close` ends them.

    Args:
        load: function from a device to (model, tokenizer), of a module: every process imports and calls it. The device
            is "cpu", since a model may be larger than one GPU.
        config: as an LLMEngine's. The other processes must be able to import its `make_runner`.
        device: "cpu" or "cuda": a GPU for each process.

    Raises:
        CannotCut: see `cut_model`.
        RuntimeError: this process already has such an engine.
        BadRequest: the config has floors below the pool.
    """
    if dist.is_initialized():
        raise RuntimeError("this process is part of another distributed model; close its engine first.")
    context, config = multiprocessing.get_context("spawn"), config or EngineConfig()
    # How long a copy takes, or that it fails, could make one process schedule another step than the others.
    must(not config.host_cache_bytes, "host_cache_bytes", config.host_cache_bytes, "0 for several processes")
    # It must exist as long as the processes work together: NCCL looks for it at the first sum, after all have met.
    folder = tempfile.TemporaryDirectory()
    store = str(Path(folder.name, "store"))
    followers = [
        context.Process(target=follow, args=(rank, world_size, store, device, load, config), daemon=True)
        for rank in range(1, world_size)
    ]
    for process in followers:
        process.start()
    try:
        ranks = join_ranks(0, world_size, store, device)
        engine: Any = engine_of(ParallelEngine, LeadingCore, ranks, load, config)
    except BaseException:
        leave(followers)
        folder.cleanup()
        raise
    engine.followers, engine.folder = followers, folder
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
