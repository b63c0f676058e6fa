"""Checks 06.1: several writes to one cache, and keys and caches of other kinds than in the first cases."""

import torch

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.models.configuration import KVShape, kv_head_size
from lessons_lib.models.tiny_models import tiny_model

NUM_BLOCKS, BLOCK_SIZE = 3, 4
EMPTY = -1.0
NOT_CONTIGUOUS = (
    "Some models, such as GPT-2, hand over keys whose heads and tokens were transposed: in memory they don't lie in "
    "the order of the axes, and `view` refuses them. `tensor[slot_mapping] = keys` takes them as they are, "
    "`reshape` copies them where it must."
)
OTHER_SHAPE = (
    "A model may have another number of KV heads in each layer, also a single one. The shape of a row is that of this "
    "layer's tensor, `self.keys[layer].shape[2:]`."
)


def check_uses(attempt) -> None:
    _check_two_writes(attempt)
    _check_not_contiguous(attempt)
    _check_other_shapes(attempt)
    _check_other_dtype(attempt)


def _rows(count: int, kv_heads: int, head_dim: int, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, every element different."""
    keys = torch.arange(1, count * kv_heads * head_dim + 1, dtype=dtype).reshape(count, kv_heads, head_dim)
    return keys, keys + 500


def _cache(attempt, **options):
    cache = attempt(tiny_model("qwen2").config, NUM_BLOCKS, BLOCK_SIZE, **options)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(EMPTY)
    return cache


def _write(cache, layer: int, rows, slots: list[int], case: str, idea: str) -> None:
    try:
        call(cache.write, layer, *rows, torch.tensor(slots), case=case)
    except (RuntimeError, IndexError, ValueError) as error:
        what = f"writing raised {type(error).__name__}: {str(error)[:160].rstrip('.')}."
        raise Mistake(what, case=case, idea=idea) from None


def _misplaced(cache, layer: int, rows, slots: list[int]) -> tuple[str, list[int]]:
    """What is wrong with the first row that isn't in its slot, and the slots that hold it; "" if all are right."""
    for name, tensor, new in (("key", cache.keys[layer], rows[0]), ("value", cache.values[layer], rows[1])):
        stored = tensor.flatten(0, 1)
        for token, slot in enumerate(slots):
            if torch.equal(stored[slot], new[token]):
                continue
            found = [index for index, row in enumerate(stored) if torch.equal(row, new[token])]
            yours = f"that slot contains {short(stored[slot].flatten()[:4])}"
            if found:
                yours = "it is in slot" + ("s " if found[1:] else " ") + " and ".join(map(str, found))
            elif not bool((stored[slot] != EMPTY).any()):
                yours = "nothing was written there"
            return f"the {name} of token {token} should be in slot {slot}; {yours}.", found
    return "", []


def _require(cache, layer: int, rows, slots: list[int], case: str, idea: str) -> None:
    what, _ = _misplaced(cache, layer, rows, slots)
    if what:
        raise Mistake(what, case=case, idea=idea)


def _second_write(attempt, layer: int, slots: list[int], case: str) -> str:
    """Write to layer 0, slot 5, then to this layer; what is wrong with the second write, or ""."""
    cache, shape = _cache(attempt), kv_head_size(tiny_model("qwen2").config)
    call(cache.write, 0, *_rows(1, *shape), torch.tensor([5]), case=case)
    rows = tuple(new + 100 for new in _rows(len(slots), *shape))
    try:
        call(cache.write, layer, *rows, torch.tensor(slots), case=case)
    except (RuntimeError, IndexError, ValueError) as error:
        return f"the second write raised {type(error).__name__}: {str(error)[:160].rstrip('.')}."
    what, _ = _misplaced(cache, layer, rows, slots)
    return f"second write: {what}" if what else ""


def _check_two_writes(attempt) -> None:
    start = "3 blocks of 4; one cache: write to layer 0 with slot_mapping [5], then "
    cases = [
        (layer, slots, f"{start}to layer {layer} with {slots}.") for layer, slots in ((0, [6]), (1, [6]), (0, [6, 7]))
    ]
    wrong = [_second_write(attempt, layer, slots, case) for layer, slots, case in cases]
    if not any(wrong):
        return
    idea = "Every call has its own `slot_mapping`. Work out the index in each call, and keep nothing of it in `self`."
    same_layer, other_layer, more_tokens = (bool(what) for what in wrong)
    if same_layer and other_layer and more_tokens:
        idea = f"The first write's slots are used for all later ones. {idea}"
    elif same_layer and not more_tokens:
        idea = f"The slots of an earlier write with as many tokens are used again. {idea}"
    elif other_layer and not same_layer:
        idea = f"Layer 1 was written with the slots that an earlier call had for layer 0. {idea}"
    first = next(index for index, what in enumerate(wrong) if what)
    raise Mistake(wrong[first], case=cases[first][2], idea=idea)


def _check_not_contiguous(attempt) -> None:
    case = "3 blocks of 4; write to layer 0 with slot_mapping [5, 6]; keys and values aren't contiguous."
    cache = _cache(attempt)
    contiguous = _rows(2, *kv_head_size(tiny_model("qwen2").config))
    rows = tuple(new.transpose(0, 1).contiguous().transpose(0, 1) for new in contiguous)
    _write(cache, 0, rows, [5, 6], case, NOT_CONTIGUOUS)
    _require(cache, 0, rows, [5, 6], case, NOT_CONTIGUOUS)


def _check_other_shapes(attempt) -> None:
    for slots in ([5], [5, 6]):
        case = f"3 blocks of 4; layer 0 has 2 KV heads, layer 1 has 1; write to layer 1 with slot_mapping {slots}."
        cache = _cache(attempt, layer_shapes=[KVShape(2, 8, 8), KVShape(1, 8, 8)])
        rows = _rows(len(slots), 1, 8)
        squeezed = (
            "Does your code drop axes of length 1, as `squeeze()` does? A row has its axis of KV heads, also if there "
            "is only one."
        )
        _write(cache, 1, rows, slots, case, squeezed if len(slots) > 1 else OTHER_SHAPE)
        _require(cache, 1, rows, slots, case, OTHER_SHAPE)


def _check_other_dtype(attempt) -> None:
    case = "3 blocks of 4; cache, keys and values in float16; write to layer 0 with slot_mapping [5, 6]."
    idea = (
        "Does your code convert keys or values to float32? The cache may have any dtype; write the rows as they come."
    )
    cache = _cache(attempt, dtype=torch.float16)
    rows = _rows(2, *kv_head_size(tiny_model("qwen2").config), dtype=torch.float16)
    _write(cache, 0, rows, [5, 6], case, idea)
    _require(cache, 0, rows, [5, 6], case, idea)
