"""Judges `key_of` of 13.1: the key changes whenever a replay would go wrong, and only then."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.checks.lesson_13.graph_captures import Recorder


@dataclass
class Tensors:
    """What a step reads. Everything it ever read stays alive, so that no address or `id` comes up again."""

    buffer: torch.Tensor = field(default_factory=lambda: torch.arange(8.0))
    settings: tuple = (True, [1, 64])

    def __post_init__(self) -> None:
        self.rows = torch.ones(4, 2)  # only the first two are an input
        self.inputs = [self.buffer[:4], self.rows[:2]]
        self.joined = torch.arange(8.0)  # as if one product computed both
        parts = self.joined[:2], self.joined[2:4]
        self.weights = [torch.nn.Parameter(part, requires_grad=False) for part in parts]
        self.gone: list[torch.Tensor] = []

    def put(self, tensors: list[torch.Tensor], index: int, new: torch.Tensor) -> None:
        self.gone.append(tensors[index])
        tensors[index] = new

    def move(self, tensor: torch.Tensor) -> None:
        self.gone.append(tensor.detach())
        tensor.data = tensor.data.clone()


@dataclass(frozen=True)
class KeyCase:
    """A change between two keys, and whether the graph may still be replayed."""

    told: str
    change: Callable[[Tensors], object]
    fits: bool
    idea: str


def _swap(tensors: list[torch.Tensor]) -> None:
    tensors.reverse()


def _set(tensors: Tensors, settings: tuple) -> None:
    tensors.settings = settings


MOVED = "A graph holds addresses. It would go on reading the old one. "
KEY_CASES = (
    KeyCase(
        "two keys of the same tensors; nothing has changed in between.",
        lambda tensors: None,
        True,
        "If the key of an unchanged step differs, each step is captured again. The lists are new at each call, the "
        "tensors in them are the same objects.",
    ),
    KeyCase(
        "new values were written to an input buffer, at the same address.",
        lambda tensors: tensors.inputs[0].fill_(7.0),
        True,
        "A replay reads the values that are there now, so it needs no new graph. (To compare values, the host would "
        "also have to wait for the GPU.)",
    ),
    KeyCase(
        "the cache, `inputs[1]`, was replaced by another tensor of the same shape.",
        lambda tensors: tensors.put(tensors.inputs, 1, torch.ones(2, 2)),
        False,
        MOVED + "Are all inputs in your key?",
    ),
    KeyCase(
        "the buffer `inputs[0]` was replaced by another tensor of the same shape.",
        lambda tensors: tensors.put(tensors.inputs, 0, torch.arange(4.0)),
        False,
        MOVED + "Are all inputs in your key?",
    ),
    KeyCase(
        "a weight was replaced by another Parameter.",
        lambda tensors: tensors.put(tensors.weights, 1, torch.nn.Parameter(torch.ones(2), requires_grad=False)),
        False,
        MOVED + "Are all weights in your key?",
    ),
    KeyCase(
        "a weight was moved: the same Parameter, with other memory.",
        lambda tensors: tensors.move(tensors.weights[1]),
        False,
        MOVED + "The Parameter is the same object as before, with the same shape. Only its `data_ptr()` has changed.",
    ),
    KeyCase(
        "an input was moved: the same tensor object, with other memory.",
        lambda tensors: tensors.move(tensors.inputs[1]),
        False,
        MOVED + "What in your key tells the old memory of a tensor from the new one?",
    ),
    KeyCase(
        "`inputs[0]` was `buffer[:4]`, and is now `buffer[4:]`, of the same shape, in the same storage.",
        lambda tensors: tensors.put(tensors.inputs, 0, tensors.buffer[4:]),
        False,
        MOVED + "A view begins somewhere in its storage; its `data_ptr()` says where.",
    ),
    KeyCase(
        "a weight was moved within the storage that it shares with others: the same Parameter, at another address.",
        lambda tensors: setattr(tensors.weights[1], "data", tensors.joined[4:6]),
        False,
        MOVED + "A view begins somewhere in its storage; its `data_ptr()` says where.",
    ),
    KeyCase(
        "`inputs[0]` was `buffer[:4]`, and is now `buffer[:2]`, another view at the same address.",
        lambda tensors: tensors.put(tensors.inputs, 0, tensors.buffer[:2]),
        False,
        "The address is the same, the shape isn't: the graph would read four elements. What in your key tells one "
        "input from another at the same address?",
    ),
    KeyCase(
        "the cache, `inputs[1]`, was replaced by its transpose: the same address and shape, other strides.",
        lambda tensors: tensors.put(tensors.inputs, 1, tensors.inputs[1].t()),
        False,
        "The elements are at other places now. If you compare shapes, strides and dtypes belong to them; the `id` of "
        "an input covers all three (as long as the graph holds on to that input).",
    ),
    KeyCase(
        "`inputs[1]` was `rows[:2]` of a tensor [4, 2], and is now `rows[:, :1]`: the same address and strides.",
        lambda tensors: tensors.put(tensors.inputs, 1, tensors.rows[:, :1]),
        False,
        "The shape was [2, 2], and is [4, 1] now: four elements again, but not the same ones. Is the shape itself in "
        "your key? (The `id` of an input covers it as well.)",
    ),
    KeyCase(
        "the cache, `inputs[1]`, was replaced by a view as int32: the same address and shape, another dtype.",
        lambda tensors: tensors.put(tensors.inputs, 1, tensors.inputs[1].view(torch.int32)),
        False,
        "The same bytes mean other numbers now. If you compare shapes, strides and dtypes belong to them; the `id` of "
        "an input covers all three (as long as the graph holds on to that input).",
    ),
    KeyCase(
        "a setting has changed, from (True, [1, 64]) to (True, [1, 128]).",
        lambda tensors: _set(tensors, (True, [1, 128])),
        False,
        "Settings decide which kernels run, and a graph always runs the same ones. Are they in your key?",
    ),
    KeyCase(
        "the settings are equal, and their list is another object.",
        lambda tensors: _set(tensors, (True, [1, 64])),
        True,
        "Settings are values: equal ones select the same kernels. Compare them with `==`.",
    ),
    KeyCase(
        "the two weights were swapped.",
        lambda tensors: _swap(tensors.weights),
        False,
        "The addresses are the same, their order isn't: the graph would use each weight in place of the other.",
    ),
    KeyCase(
        "the two inputs were swapped.",
        lambda tensors: _swap(tensors.inputs),
        False,
        "The addresses are the same, their order isn't: the graph would read each input in place of the other.",
    ),
    KeyCase(
        "one more weight, behind the others.",
        lambda tensors: tensors.weights.append(torch.ones(2)),
        False,
        "The graph doesn't read the new weight. A comparison that stops at the shorter list overlooks it.",
    ),
)


def check_key(attempt, case: KeyCase) -> None:
    current_case.text = case.told
    tensors, store = Tensors(), attempt(Recorder())
    keys = [_key(store, tensors, case.told)]
    case.change(tensors)
    keys.append(_key(store, tensors, case.told))
    if _equal(*keys, case.told) != case.fits:
        expected, came = ("equal", "differ") if case.fits else ("differ", "are equal")
        raise Mistake(f"the keys before and after should {'be ' * case.fits}{expected}; yours {came}.",
                      case=case.told, idea=case.idea)  # fmt: skip


def _key(store, tensors: Tensors, case: str):
    try:
        key = store.key_of(list(tensors.inputs), list(tensors.weights), tensors.settings)
    except TypeError as error:
        if "unhashable type: 'list'" not in str(error):
            raise
        idea = "`settings` may contain lists, and a list has no hash. A key only needs `==`, not a hash."
        raise Mistake(f"your code raised TypeError: {error}", case=case, idea=idea) from None
    if key is None:
        raise Mistake("`key_of` returned None.", case=case, idea="Return what `has` will compare, with `==`.")
    return key


def _equal(one, other, case: str) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, ValueError, TypeError) as error:
        raise Mistake(
            f"comparing two of your keys with `==` raised {type(error).__name__}: {str(error)[:80]}.",
            case=case,
            idea="Tensors compare their elements. A key says where a tensor is, not what is stored there.",
        ) from None
