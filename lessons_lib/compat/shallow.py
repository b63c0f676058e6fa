"""Lesson 12: temporarily reduce a deep model to its first layers, one of each kind.

The layers of a model repeat. If two differ only in their weights, the engine serves both correctly or neither, so the
probe needs only one of them. On a CPU, a pass of a model with a billion parameters takes seconds; one of its first two
layers takes milliseconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from lessons_lib.models.configuration import text_config

AT_LEAST = 2  # a mistake in a layer's index shows only with two layers
NO_SETTING = ("layer_idx", "layer_id", "training")


@contextmanager
def shallow(model: PreTrainedModel) -> Iterator[list[int] | None]:
    """Context manager: cut the model after the first layers that include each kind.

    Yields:
        for each layer of the whole model, the index of the first layer of its kind; None if the model stays whole,
        because its layers are not found or are all different.
    """
    found = decoder_layers(model)
    first = first_of_kind(model, found[2]) if found else []
    depth = max(AT_LEAST, max(first, default=0) + 1)
    if not found or depth >= len(first):
        yield None
        return
    owner, name, layers = found
    owner._modules[name] = torch.nn.ModuleList(list(layers)[:depth])
    try:
        yield first
    finally:
        owner._modules[name] = layers


def decoder_layers(model: PreTrainedModel) -> tuple[torch.nn.Module, str, torch.nn.ModuleList] | None:
    """Find the list of the model's layers: its owner, its attribute name, and the list. None unless there is one."""
    lists = [
        (owner, name, child)
        for owner in model.modules()
        for name, child in owner.named_children()
        if isinstance(child, torch.nn.ModuleList) and any(hasattr(each, "layer_idx") for each in child.modules())
    ]
    return lists[0] if len(lists) == 1 else None


def first_of_kind(model: PreTrainedModel, layers: torch.nn.ModuleList) -> list[int]:
    """For each layer, the index of the first one that differs only in its weights."""
    kinds: dict[str, int] = {}
    return [kinds.setdefault(kind_of(model, index, layer), index) for index, layer in enumerate(layers)]


def kind_of(model: PreTrainedModel, index: int, layer: torch.nn.Module) -> str:
    """Describe a layer except for its weights: its modules with their settings, the shapes of its weights, and its
    entries in the configuration."""
    depth = text_config(model.config).num_hidden_layers
    lists = {name: value for name, value in vars(text_config(model.config)).items() if isinstance(value, list | tuple)}
    of_config = [(name, value[index]) for name, value in lists.items() if len(value) == depth]
    modules = [(name, type(module).__name__, settings(module)) for name, module in layer.named_modules()]
    weights = [(name, tuple(weight.shape), weight.dtype) for name, weight in layer.named_parameters()]
    buffers = [(name, buffer.tolist()) for name, buffer in layer.named_buffers()]
    return repr((of_config, modules, weights, buffers))


def settings(module: torch.nn.Module) -> list[tuple[str, Any]]:
    """Attributes of a module except its index: plain values, and the names of all others."""
    plain = (bool, int, float, str, tuple, type(None))
    values = {name: value for name, value in vars(module).items() if name not in NO_SETTING and name[0] != "_"}
    return [
        (name, value if isinstance(value, plain) else getattr(value, "__qualname__", type(value).__name__))
        for name, value in values.items()
    ]
