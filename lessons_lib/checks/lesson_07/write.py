"""Judges 07.4, `write_kernel`: every new token in its slot, with all its heads, and nothing else touched."""

from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import compiled_too, numbers_text, places, refuse_wrong_tensors, run, touched


def check_write_kernel(attempt) -> None:
    lines, slots = torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64)
    compiled_too(lambda: _check_results(attempt), attempt, ((lines, lines, slots, 8, 8, 8), dict(NUMBERS=8)))


def _check_results(attempt) -> None:
    _check_case(attempt, [5])
    _check_case(attempt, [6, 1])
    _check_case(attempt, [3, 4, 0], heads=3, head_dim=2)
    _check_case(attempt, [7, 2], heads=3, head_dim=2, gap=5)
    _check_case(attempt, [7, 0, 5], heads=2, head_dim=4, beside=True)
    rng = Random(4)
    for _ in range(4):
        blocks, block_size = rng.randint(1, 5), rng.choice((1, 4, 5))
        slots = rng.sample(range(blocks * block_size), rng.randint(1, min(5, blocks * block_size)))
        _check_case(
            attempt,
            slots,
            rng.randint(1, 3),
            rng.choice((3, 4, 8)),
            blocks,
            block_size,
            rng.choice((0, 2)),
            rng.random() < 0.5,
        )


def _check_case(attempt, slots, heads=1, head_dim=4, blocks=2, block_size=4, gap=0, beside=False) -> None:
    """`gap`: unused numbers behind every new token. `beside`: keys and values of a slot lie side by side in one tensor, and this is the half of the keys."""
    numbers, count = heads * head_dim, len(slots)
    size = 1 << (numbers - 1).bit_length()
    new = torch.full((count, numbers + gap), float("nan"))[:, :numbers]
    new.copy_(100.0 * (torch.arange(count)[:, None] + 1) + torch.arange(numbers))
    pool = torch.full((blocks, block_size, 2 if beside else 1, heads, head_dim), float("nan"))
    cache = pool[:, :, 0]
    stride = cache.stride(1)
    case = f"slot_mapping {slots}, {blocks} blocks of {block_size}; numbers = {numbers}, NUMBERS = {size}, stride_new = {new.stride(0)}, stride_slot = {stride}."
    arguments = (new, cache, torch.tensor(slots), numbers, new.stride(0), stride)
    facts = dict(slots=slots, numbers=numbers, size=size, block_size=block_size, stride=stride)
    recording = run(attempt, (count,), *arguments, NUMBERS=size, case=case, wild=lambda error: _wild(error, **facts))
    refuse_wrong_tensors(recording, "cache", case)
    for token, program in enumerate(recording.programs):
        stored = touched(recording, program, "store", "cache")
        want = [slots[token] * stride + number for number in range(numbers)]
        if stored != want:
            raise _wrong_places(recording, token, want, stored, case, **facts)
    expected = torch.full_like(pool, float("nan"))
    for token, slot in enumerate(slots):
        expected[slot // block_size, slot % block_size, 0] = new[token].reshape(heads, head_dim)
        got = cache[slot // block_size, slot % block_size].flatten()
        if not torch.equal(got, new[token]):
            raise _wrong_line(recording, token, got, new, case)
    if not torch.equal(pool.nan_to_num(), expected.nan_to_num()):
        raise Mistake(
            "a cell of the cache was changed that belongs to no new token.",
            case=case,
            idea="Every program stores to its own slot, and to no other.",
        )


def _wild(error, slots, numbers: int, size: int, block_size: int, stride: int) -> str:
    if error.tensor == "slot_mapping":
        return "slot_mapping has one entry for each new token: `tl.load(slot_mapping + token)`, one number."
    if error.tensor == "new":
        if error.number < error.count + size - numbers:
            return f"The tile has {size} places, a token {numbers} numbers. Give `tl.load` the mask `number < numbers`."
        return "Program i reads line i of `new`: `new + token * stride_new + number`. The slot says where to write, not what to read."
    if error.number < error.count + size - numbers:
        return f"The tile has {size} places, a token {numbers} numbers. Give `tl.store` the mask `number < numbers`."
    slot = slots[error.ids[0]]
    if error.number >= slot * block_size * stride:
        return "The slot is not a block. Slots are counted through the whole pool, block × block_size + offset, so one factor is enough: `slot * stride_slot`."
    return "The slot is counted through the whole pool: its numbers begin `slot * stride_slot` behind the first."


def _wrong_places(
    recording, token: int, want, stored, case: str, slots, numbers: int, size: int, block_size: int, stride: int
) -> Mistake:
    slot = slots[token]

    def line(slot: int, step: int = stride) -> list[int]:
        return [slot * step + number for number in range(numbers)]

    what = f"program {token} should store the numbers {places(want)} of the cache, which is slot {slot}; yours stores {places(stored)}."
    idea = "`cache + slot * stride_slot + number`, with the mask `number < numbers`."
    if len(slots) > 1 and set(stored) == {place for other in slots for place in line(other)}:
        idea = "One program writes all tokens. Each has one: there are as many programs as new tokens, and no loop is needed."
    elif token and stored == touched(recording, recording.programs[0], "store", "cache"):
        idea = "Every program stores the same token. `tl.program_id(0)` is the number of its own."
    elif stored == line(token):
        idea = f"This is slot {token}: you used the number of the token. Its slot is what lies in slot_mapping: `tl.load(slot_mapping + token)`."
    elif stored == line(slot * block_size):
        idea = "The slot is not a block. Slots are counted through the whole pool, so `slot * stride_slot` is where it begins."
    elif stored == line(slot // block_size) or stored == line(slot % block_size):
        idea = "You took the slot apart into block and offset. That is not needed: the slots of all blocks lie one behind the other, `stride_slot` apart."
    elif stored == line(slot, numbers):
        idea = (
            "That would be right if the slots lay without gaps. What parts two slots is `stride_slot`, not `numbers`."
        )
    elif stored and stored[0] == slot:
        idea = f"You began at number {slot} of the cache. A slot has many numbers: multiply by `stride_slot`."
    elif set(stored) > set(want):
        idea = (
            "What lies behind a token's numbers belongs to the next slot. Give `tl.store` the mask `number < numbers`."
        )
    elif set(stored) < set(want):
        idea = "Part of the token is missing: a token has all its KV heads, numbers 0 to `numbers` − 1."
    return Mistake(what, case=case, idea=idea)


def _wrong_line(recording, token: int, got, new, case: str) -> Mistake:
    what = f"in token {token}'s slot should be {numbers_text(new[token])}; yours holds {numbers_text(got)}."
    loaded = touched(recording, recording.programs[token], "load", "new")
    idea = "Program i reads line i of `new`: `new + token * stride_new + number`."
    others = [other for other in range(len(new)) if other != token and torch.equal(got, new[other])]
    if others:
        idea = f"Those are the numbers of token {others[0]}. Program i reads line i of `new`: `new + token * stride_new + number`."
    elif loaded == [token * new.shape[1] + number for number in range(new.shape[1])]:
        idea = "That would be right if the lines of `new` lay without gaps. What parts two of them is `stride_new`, not `numbers`."
    elif not loaded:
        idea = "Nothing was loaded from `new`."
    return Mistake(what, case=case, idea=idea)
