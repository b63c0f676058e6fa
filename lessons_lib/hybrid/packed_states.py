"""Lesson 19: layers that keep a state, computed over a packed row.

Such a layer of Hugging Face takes a batch of equally long sequences, and a cache that holds their states. So the row is
split: all sequences that compute one token go through the layer together, with their states stacked; each chunk of a
prompt goes alone. What the layer returns is put back into the row.
"""

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from transformers.cache_utils import Cache, LinearAttentionLayer

from lessons_lib.hybrid.sequence_states import Key, SequenceStates
from lessons_lib.scheduling.scheduler import SchedulerOutput

Forward = Callable[..., Any]
EMPTY: Mapping[Any, Forward] = MappingProxyType({})


@dataclass(frozen=True)
class Piece:
    """Neighboring tokens of one sequence in a packed row.

    Attributes:
        start, length: its rows.
        slot: of the sequence's state.
        is_fresh: the sequence has no state yet.
        is_decode: it is all that the sequence computes in this step, and one token.
        target: a slot that the state after it is copied to; None if there is none.
    """

    start: int
    length: int
    slot: int
    is_fresh: bool
    is_decode: bool
    target: int | None


def pieces_of(scheduler_output: SchedulerOutput, states: SequenceStates) -> list[Piece]:
    """Cut the row of a step that is launched now into pieces: one for each sequence, and several if a checkpoint is
    made in its midst."""
    scheduled = scheduler_output.num_scheduled_tokens
    slots = [states.slot_of(sequence) for sequence in scheduled]  # before checkpoints make room for others
    kept = states.new_checkpoints(scheduled)
    pieces = []
    row = 0
    for (sequence, count), slot in zip(scheduled.items(), slots):
        start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + count
        targets = kept.get(sequence, {})
        ends = sorted({*targets, *states.lone_tokens(sequence, end), end} - {start})
        for begin, until in zip([start, *ends], ends):
            at, is_decode = row + begin - start, count == 1 and start > 0
            pieces.append(Piece(at, until - begin, slot, begin == 0, is_decode, targets.get(until)))
        row += count
    states.note_computed(scheduled)
    return pieces


@dataclass(frozen=True)
class Group:
    """N sequences that a layer computes in one call.

    Attributes:
        rows: of their tokens in the packed row, int64 [N x length].
        slots: of their states, int64 [N].
        length: tokens of each.
        is_fresh: they have no state yet.
        target: a slot that the state of the only one is copied to afterwards; None if there is none.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    length: int
    is_fresh: bool = False
    target: int | None = None

    def take(self, row: torch.Tensor) -> torch.Tensor:
        """The tokens of the group, [N, length, ...], from a packed row [1, T, ...]."""
        return row[0, self.rows].view(len(self.slots), self.length, *row.shape[2:])


def groups_of(pieces: list[Piece], device: torch.device) -> list[Group]:
    """Group the pieces of a row: the decodes together, each other one alone, in order."""
    place = partial(torch.tensor, dtype=torch.int64, device=device)
    decodes = [piece for piece in pieces if piece.is_decode]
    groups = [Group(place([each.start for each in decodes]), place([each.slot for each in decodes]), 1)]
    for piece in pieces:
        if not piece.is_decode:
            rows = range(piece.start, piece.start + piece.length)
            groups.append(Group(place(rows), place([piece.slot]), piece.length, piece.is_fresh, piece.target))
    return groups if decodes else groups[1:]


class GroupCache(Cache):
    """A Hugging Face cache that holds the states of one group."""

    def __init__(self, num_layers: int, num_states: int, layers: Iterable[Any]):
        # Only those layers that are asked for: making all of them takes longer than computing a small one.
        kept: list[Any] = [None] * num_layers
        for layer in layers:
            kept[layer] = LinearAttentionLayer(num_states)
        super().__init__(layers=kept)

    def load(self, key: Key, states: torch.Tensor) -> None:
        """Begin with these states, [N, ...]."""
        layer, kind, index = self.layers[key[0]], key[1], key[2]  # type: ignore[call-overload]
        getattr(layer, f"{kind}_states")[index] = states
        getattr(layer, f"is_{kind}_states_initialized")[index] = layer.has_previous_state[index] = True
        if kind == "conv":
            layer.conv_kernel_size[index] = states.shape[-1]

    def states(self, key: Key) -> Any:
        """The states now."""
        return getattr(self.layers[key[0]], f"{key[1]}_states")[key[2]]  # type: ignore[call-overload]

    def get_linear_cache(self, layer_idx: int) -> torch.Tensor | None:  # MiniMax's names for the same
        return self.states((layer_idx, "recurrent", 0))  # type: ignore[no-any-return]

    def set_linear_cache(self, layer_idx: int, states: torch.Tensor) -> None:
        self.update_recurrent_state(states, layer_idx)


@dataclass(eq=False)
class StatefulLayer:
    """A module that keeps states between calls, and its own `forward`.

    Attributes:
        cache_name: the parameter that takes the cache; None if the module keeps its states in attributes.
        keys: the states that it keeps in the cache.
        attributes: the states that it keeps itself (RecurrentGemma): module, name.
        is_one_by_one: given several tokens, it drops its state (Mamba 1), so a prompt that continues is fed to it token
            by token.
    """

    module: Any
    forward: Forward
    cache_name: str | None
    keys: set[Key] = field(default_factory=set)
    attributes: list[tuple[Any, str]] = field(default_factory=list)
    is_one_by_one: bool = False

    def __post_init__(self) -> None:
        names = list(inspect.signature(self.forward).parameters)
        self.place = names.index(self.cache_name) if self.cache_name else 0

    def call(self, cache: Cache, args: Any, kwargs: Any) -> Any:
        """Call its own forward with another cache, whether it was passed by position or by name."""
        if self.place < len(args):
            return self.forward(*args[: self.place], cache, *args[self.place + 1 :], **kwargs)
        return self.forward(*args, **{**kwargs, str(self.cache_name): cache})

    def compute(self, group: Group, states: SequenceStates, cache: Cache, args: Any, kwargs: Any) -> Any:
        """Call its own forward on the tokens of a group, with its states loaded before and stored after."""
        if self.attributes:
            for owner, name in self.attributes:
                setattr(owner, name, None if group.is_fresh else states.tensors[owner, name, 0][group.slots])
            result = self.forward(*args, **{**kwargs, "use_cache": True})
            found = {(owner, name, 0): getattr(owner, name) for owner, name in self.attributes}
            for owner, name in self.attributes:
                setattr(owner, name, None)
        else:
            assert isinstance(cache, GroupCache)
            for key in () if group.is_fresh else self.keys:
                cache.load(key, states.tensors[key][group.slots])
            result = self.call(cache, args, kwargs)
            found = {key: cache.states(key) for key in self.keys}
        for key, new in found.items():
            states.write(key, group.slots, new)
            if group.target is not None:
                states.tensors[key][group.target] = states.tensors[key][group.slots[0]]
        return result


class PackedStates:
    """Takes the place of the forward of each stateful layer of a model, while a packed row is computed.

    Attributes:
        cache_sizes: layers of a cache, and states of each kind in a layer.
        groups: of the row that is computed now. Together, they have all of its tokens.
    """

    def __init__(self, layers: list[StatefulLayer], states: SequenceStates, cache_sizes: tuple[int, int]):
        self.layers, self.states, self.cache_sizes = layers, states, cache_sizes
        self.groups: list[Group] = []
        self.inside: tuple[Group, Cache] | None = None  # while a layer computes this group

    @contextmanager
    def split(self, groups: list[Group], own_forwards: Mapping[Any, Forward] = EMPTY) -> Iterator[None]:
        """Context manager: the model is called with a packed row of these groups. Some modules may have a forward of
        their own that takes such a row."""
        self.groups = groups
        forwards = {layer.module: self.forward_of(layer) for layer in self.layers}
        with replaced_forwards(forwards | {**own_forwards}):
            try:
                yield
            finally:
                self.inside = None

    def reset(self) -> None:
        """Forget all states, and give the layers their own forward back after an interrupt."""
        self.states.reset()
        for layer in self.layers:
            vars(layer.module).pop("forward", None)

    def forward_of(self, layer: StatefulLayer) -> Forward:
        """The forward that takes the place of a layer's own."""
        return lambda *args, **kwargs: self.forward(layer, args, kwargs)

    def forward(self, layer: StatefulLayer, args: Any, kwargs: Any) -> Any:
        """Call a layer on each group of the row."""
        if self.inside is not None:  # part of another stateful layer, which has split the row already
            group, cache = self.inside
            return layer.compute(group, self.states, cache, args, kwargs)
        num_tokens = sum(group.length * len(group.slots) for group in self.groups)
        whole: Any = None
        for group in self.groups:
            own = in_tree((args, kwargs), (1, num_tokens), group.take)
            parts = [self.compute(layer, group, part) for part in self.parts(layer, group, own)]
            whole = put_back(whole, parts, num_tokens, group)
        return whole

    def parts(self, layer: StatefulLayer, group: Group, own: Any) -> Iterator[Any]:
        """The arguments of each call for a group: one call, unless the layer takes a continued prompt one by one."""
        if group.is_fresh or not layer.is_one_by_one:
            yield own
            return
        shape = (len(group.slots), group.length)
        for place in range(group.length):
            yield in_tree(own, shape, operator.itemgetter((slice(None), slice(place, place + 1))))

    def compute(self, layer: StatefulLayer, group: Group, arguments: Any) -> Any:
        """Call a layer once."""
        cache = GroupCache(*self.cache_sizes, {key[0] for key in layer.keys})
        self.inside = group, cache
        try:
            return layer.compute(group, self.states, cache, *arguments)
        finally:
            self.inside = None


def put_back(whole: Any, parts: list[Any], num_tokens: int, group: Group) -> Any:
    """Put what a layer returned for a group into the row, [1, num_tokens, ...]. Of a tuple, values that aren't one per
    token become None."""
    if isinstance(parts[0], tuple):
        wholes = whole or [None] * len(parts[0])
        return tuple(put_back(each, list(own), num_tokens, group) for each, own in zip(wholes, zip(*parts)))
    if not isinstance(parts[0], torch.Tensor):
        return None
    part = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    if part.shape[:2] != (len(group.slots), group.length):
        return None
    if whole is None:
        whole = part.new_empty((1, num_tokens, *part.shape[2:]))
    whole[0, group.rows] = part.flatten(0, 1)
    return whole


def in_tree(value: Any, shape: tuple[int, ...], change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Change the tensors whose first sizes are these, in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return change(value) if value.shape[: len(shape)] == shape else value
    if type(value) in (tuple, list):
        return type(value)(in_tree(each, shape, change) for each in value)
    return {name: in_tree(each, shape, change) for name, each in value.items()} if type(value) is dict else value


@contextmanager
def replaced_forwards(forwards: dict[Any, Forward]) -> Iterator[None]:
    """Context manager: these modules have another forward."""
    before = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.forward = forward
        yield
    finally:
        for module, own in before.items():
            vars(module).pop("forward", None)
            if own is not None:
                module.forward = own
