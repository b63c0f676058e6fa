"""Lesson 12: facts about a model that an engine needs before it serves it. `compat.fit` finds them out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from lessons_lib.engine.config import MakeRunner
from lessons_lib.engine.rules import Rules
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.configuration import KVShape
from lessons_lib.scheduling.kept_states import KeptStates


class RequestDefaults(Protocol):
    """Everything that a request takes from its model."""

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens that end a completion."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a completion."""

    def applied_to(self, params: SamplingParams, max_tokens: int) -> SamplingParams:
        """Put the rules of the model in front of the rules of a request."""


@dataclass(frozen=True)
class ModelFit:
    """Facts about a model that an engine serves.

    Attributes:
        defaults: taken by each request from the model.
        num_blocks: size of the engine's pool.
        make_rules: function (params, stop_token_ids) -> the rules of a request, in tokens of the model; None if it has
            none. It refuses rules that leave no token to begin with.
        context: the most tokens of a prompt and its completion together; None if there is no limit.
        layer_shapes: of each layer's keys and values, as measured; None for those of the configuration.
        make_runner: takes the place of the config's; None if the model needs no runner of its own.
        states: for the scheduler, see PreemptiveScheduler.
    """

    defaults: RequestDefaults
    num_blocks: int
    make_rules: Callable[[SamplingParams, frozenset[int]], Rules | None]
    context: int | None = None
    layer_shapes: list[KVShape] | None = None
    make_runner: MakeRunner | None = None
    states: KeptStates = field(default_factory=KeptStates)
