"""Lesson 19: find the modules of a model that keep a state, and learn how each continues from it, by running them.

No list of models or names says so: a model is run once with a cache that notes which module asks it for a state.
"""

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from lessons_lib.hybrid.packed_states import Group, GroupCache, PackedStates, StatefulLayer, in_tree, replaced_forwards
from lessons_lib.hybrid.sequence_states import Key, SequenceStates
from lessons_lib.models.configuration import UnsupportedModel, text_config

NUM_TOKENS = 6


class RecordingCache(GroupCache):
    """Notes which module asks for which state, while one sequence is computed. Keys and values only pass through."""

    def __init__(self, num_layers: int, num_states: int):
        super().__init__(num_layers, num_states, range(num_layers))
        self.running: list[Any] = []
        self.keys_of: dict[Any, set[Key]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        self.keys_of.setdefault(self.running[-1], set()).add((layer_idx, "conv", state_idx))
        return super().update_conv_state(conv_states, layer_idx, state_idx, **kwargs)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        self.keys_of.setdefault(self.running[-1], set()).add((layer_idx, "recurrent", state_idx))
        return super().update_recurrent_state(recurrent_states, layer_idx, state_idx, **kwargs)

    def update_indexer(self, keys: torch.Tensor, layer_idx: int) -> Any:
        raise UnsupportedModel("its layers keep index keys")


@torch.inference_mode()
def find_states(model: PreTrainedModel, block_size: int) -> PackedStates:
    """Find the stateful layers of a model, and the shapes of their states.

    Returns:
        PackedStates whose `states` have no slot for a sequence yet.

    Raises:
        UnsupportedModel: a layer doesn't continue from its state.
    """
    config = text_config(model.config)
    sizes = config.num_hidden_layers + 1, getattr(config, "number_of_conv_states", None) or 1
    layers, calls = recorded(model, RecordingCache(*sizes))
    packed = PackedStates(layers, SequenceStates(block_size), sizes)
    for layer in layers:
        check_continues(packed, layer, model.device, *calls[layer])
    return packed


def recorded(model: PreTrainedModel, cache: RecordingCache) -> tuple[list[StatefulLayer], dict[StatefulLayer, Any]]:
    """Run a model on one short sequence. Return its stateful layers, and the arguments that each was called with."""
    candidates = [
        StatefulLayer(module, module.forward, cache_name(module), attributes=own_states(module))
        for module in model.modules()
    ]
    candidates = [one for one in candidates if one.attributes or (one.cache_name and hasattr(one.module, "layer_idx"))]
    calls: dict[StatefulLayer, Any] = {}

    def recording(layer: StatefulLayer) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            calls[layer] = args, kwargs
            cache.running.append(layer)
            result = layer.call(cache, args, kwargs) if layer.cache_name else layer.forward(*args, **kwargs)
            cache.running.pop()
            return result

        return forward

    with replaced_forwards({layer.module: recording(layer) for layer in candidates}):
        call_with(model, torch.arange(3, 3 + NUM_TOKENS, device=model.device)[None], use_cache=False)
    for layer in candidates:
        layer.keys = cache.keys_of.get(layer, set())
    return [each for each in candidates if (each.keys or each.attributes) and each in calls], calls


def check_continues(packed: PackedStates, layer: StatefulLayer, device: torch.device, args: Any, kwargs: Any) -> None:
    """Give a layer its recorded input in one piece, in two, and token by token: the results must be the same. Sets
    `layer.is_one_by_one` and `states.decodes_differ`."""

    def run(start: int, end: int) -> torch.Tensor:
        group = Group(
            torch.arange(end - start, device=device), torch.zeros(1, dtype=torch.int64, device=device),
            end - start, is_fresh=start == 0,
        )  # fmt: skip
        own = in_tree((args, kwargs), (1, NUM_TOKENS), lambda x: x[:, start:end])
        with packed.split([group]):
            result = layer.module(*own[0], **own[1])
        return result[0] if isinstance(result, tuple) else result  # type: ignore[no-any-return]

    def is_right(*ends: int) -> bool:
        parts = [run(start, end) for start, end in zip((0, *ends), (*ends, NUM_TOKENS))]
        return torch.allclose(torch.cat(parts, dim=1), whole, rtol=1e-3, atol=1e-4)

    whole = run(0, NUM_TOKENS)
    layer.is_one_by_one = not is_right(NUM_TOKENS // 2)
    if not is_right(*range(2, NUM_TOKENS)):
        if layer.is_one_by_one:
            raise UnsupportedModel(f"{type(layer.module).__name__} doesn't continue from its state")
        packed.states.decodes_differ = True


def cache_name(module: Any) -> str | None:
    """The parameter by which a module takes the cache."""
    accepted = inspect.signature(module.forward).parameters
    return next((name for name in ("cache_params", "past_key_values") if name in accepted), None)


def own_states(module: Any) -> list[tuple[Any, str]]:
    """States in attributes: `conv1d_state` of a block, and `recurrent_states` of what is in it."""
    if not hasattr(module, "conv1d_state"):
        return []
    inside = [(each, "recurrent_states") for each in module.modules() if hasattr(each, "recurrent_states")]
    return [(module, "conv1d_state"), *inside]


def call_with(model: Any, input_ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """The logits of a model that is called with those of the arguments that it takes."""
    accepted = inspect.signature(type(model).forward).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in accepted.values())
    taken = {name: value for name, value in arguments.items() if takes_all or name in accepted}
    logits: torch.Tensor = model(input_ids, **taken).logits
    return logits
