"""Judges 07.5, `write_kernel`: every new token in its cache slot, with all its heads, and nothing else touched."""

from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import LIMIT_32, compiled_too, ranges, refuse_wrong_tensors, run, touched, values_text


def check_write_kernel(attempt) -> None:
    rows, slots = torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64)
    compiled_too(lambda: _check_results(attempt), attempt, ((rows, rows, slots, 8, 8, 8), dict(BLOCK=8)))


def _check_results(attempt) -> None:
    _check_case(attempt, [5])
    _check_case(attempt, [6, 1])
    _check_case(attempt, [2], heads=3, head_dim=2)
    _check_case(attempt, [3, 4, 0], heads=3, head_dim=2)
    _check_case(attempt, [7, 2], heads=3, head_dim=2, gap=5, interleaved=True)
    _check_case(attempt, [7, 0, 5], heads=2, head_dim=4, interleaved=True)
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
    _check_large_cache(attempt)


def _check_large_cache(attempt) -> None:
    """A slot so far back in the cache that its offset doesn't fit into 32 bits.

    Only this slot of the tensor is touched.
    """
    n_elements = 256
    slot = LIMIT_32 // n_elements + 2
    try:
        cache = torch.empty(slot + 1, 1, 1, n_elements, dtype=torch.float16)
    except RuntimeError:
        return  # not enough address space on this machine
    new = torch.arange(n_elements, dtype=torch.float16)[None]
    case = f"a cache with {cache.numel():,} elements; slot_mapping [{slot}], stride_slot = {n_elements}."
    idea = (
        f"Slot × stride is {slot * n_elements:,} here, and a 32-bit integer goes up to {LIMIT_32 - 1:,}. slot_mapping "
        "holds 64-bit integers, so that the product has 64 bits too: don't convert the slot."
    )
    try:
        run(attempt, (1,), new, cache, torch.tensor([slot]), n_elements, n_elements, n_elements, BLOCK=256, case=case)
    except Mistake as mistake:
        raise Mistake(mistake.what, case=case, idea=idea) from None
    got = cache[slot].flatten()
    if not torch.equal(got, new[0]):
        what = f"slot {slot} should hold {values_text(new[0])}; yours holds {values_text(got)}."
        first_wrong = int((got != new[0]).nonzero()[0])
        if first_wrong > 1:
            what = f"only the first {first_wrong} of the token's {n_elements} elements are in slot {slot}."
            idea = "The tile has BLOCK elements, 256 here. Is another length in your code?"
        raise Mistake(what, case=case, idea=idea)


def _check_case(attempt, slots, heads=1, head_dim=4, blocks=2, block_size=4, gap=0, interleaved=False) -> None:
    """`gap`: unused elements after each new token.

    `interleaved`: one tensor holds each slot's keys and values next to each other, and this is the half with the keys.
    """
    n_elements, count = heads * head_dim, len(slots)
    size = 1 << (n_elements - 1).bit_length()
    new = torch.full((count, n_elements + gap), float("nan"))[:, :n_elements]
    new.copy_(100.0 * (torch.arange(count)[:, None] + 1) + torch.arange(n_elements))
    pool = torch.full((blocks, block_size, 2 if interleaved else 1, heads, head_dim), float("nan"))
    cache = pool[:, :, 0]
    stride = cache.stride(1)
    case = (
        f"slot_mapping {slots}, {blocks} blocks of {block_size}; n_elements = {n_elements}, BLOCK = {size}, stride_new "
        f"= {new.stride(0)}, stride_slot = {stride}."
    )
    arguments = (new, cache, torch.tensor(slots), n_elements, new.stride(0), stride)
    facts = dict(slots=slots, n_elements=n_elements, size=size, block_size=block_size, stride=stride)
    explain = lambda error: _out_of_bounds(error, **facts)  # noqa: E731
    recording = run(attempt, (count,), *arguments, BLOCK=size, case=case, explain=explain)
    refuse_wrong_tensors(recording, "cache", case)
    for token, program in enumerate(recording.programs):
        stored = touched(recording, program, "store", "cache")
        want = [slots[token] * stride + offset for offset in range(n_elements)]
        if stored != want:
            raise _wrong_offsets(recording, token, want, stored, case, **facts)
    expected = torch.full_like(pool, float("nan"))
    for token, slot in enumerate(slots):
        expected[slot // block_size, slot % block_size, 0] = new[token].reshape(heads, head_dim)
        got = cache[slot // block_size, slot % block_size].flatten()
        if not torch.equal(got, new[token]):
            raise _wrong_values(recording, token, got, new, case)
    if not torch.equal(pool.nan_to_num(), expected.nan_to_num()):
        raise Mistake(
            "a cache slot that belongs to no new token has changed.",
            case=case,
            idea="Each program stores to its own slot, and to no other.",
        )


def _out_of_bounds(error, slots, n_elements: int, size: int, block_size: int, stride: int) -> str:
    if error.tensor == "slot_mapping":
        return "slot_mapping has one entry per new token: `tl.load(slot_mapping + token)`, a scalar."
    if error.tensor == "new":
        if error.ids[0] == 0 and n_elements <= error.number < size:  # a missing mask fails in the first program already
            return (
                f"The tile has {size} elements, but a token has {n_elements}. Give `tl.load` the mask "
                "`offsets < n_elements`."
            )
        return (
            "Program i reads token i of `new`: `new + token * stride_new + offsets`. Two tokens are `stride_new` "
            "apart, and the slot says where to write, not what to read."
        )
    slot = slots[error.ids[0]]
    if slot * stride + n_elements <= error.number < slot * stride + size:
        return (
            f"The slot's start is right, but the tile has {size} elements, and a token has {n_elements}. Give "
            "`tl.store` the mask `offsets < n_elements`."
        )
    if error.number >= slot * block_size * stride:
        return (
            "The slot isn't a block. Slots are numbered across the whole pool, block × block_size + offset in the "
            "block, so one factor is enough: `slot * stride_slot`."
        )
    return "Slots are numbered across the whole pool: a slot starts at `slot * stride_slot`."


def _wrong_offsets(
    recording, token: int, want, stored, case: str, slots, n_elements: int, size: int, block_size: int, stride: int
) -> Mistake:
    slot = slots[token]

    def elements(slot: int, step: int = stride) -> list[int]:
        return [slot * step + offset for offset in range(n_elements)]

    what = (
        f"program {token} should store elements {ranges(want)} of the cache, which is slot {slot}; yours stores "
        f"{ranges(stored)}."
    )
    idea = "`cache + slot * stride_slot + offsets`, with the mask `offsets < n_elements`."
    if len(slots) > 1 and set(stored) == {offset for other in slots for offset in elements(other)}:
        idea = (
            "One program writes all tokens. Each program has one token: there are as many programs as new tokens, and "
            "no loop is needed."
        )
    elif token and stored == touched(recording, recording.programs[0], "store", "cache"):
        idea = "Every program stores the same token. `tl.program_id(0)` is the index of its own."
        first, own = (touched(recording, recording.programs[index], "load", "new") for index in (0, token))
        if first != own:
            idea = "Every program writes to the same slot. Its own is `tl.load(slot_mapping + token)`."
    elif stored == elements(token):
        idea = (
            f"That's slot {token}: you used the index of the token. Its slot is in slot_mapping: "
            "`tl.load(slot_mapping + token)`."
        )
    elif stored == elements(slot * block_size):
        idea = (
            "The slot isn't a block. Slots are numbered across the whole pool, so the slot starts at "
            "`slot * stride_slot`."
        )
    elif stored == elements(slot // block_size) or stored == elements(slot % block_size):
        idea = (
            "You split the slot into block and offset. There's no need to: the slots of all blocks follow each other, "
            "`stride_slot` apart."
        )
    elif stored == elements(slot, n_elements):
        idea = (
            "That would be right if there were no gaps between slots. Two slots are `stride_slot` apart, not "
            "`n_elements`."
        )
    elif stored == elements(slot, size):
        idea = "Two slots are `stride_slot` apart. BLOCK is the length of the tile, which may be more than a token has."
    elif stored in (elements(slot - 1), elements(slot + 1)):
        idea = "That's a neighboring slot. Slots count from 0, so slot s starts at `s * stride_slot`."
    elif stored and stored[0] == slot:
        idea = f"You started at element {slot} of the cache. A slot has many elements: multiply by `stride_slot`."
    elif set(stored) > set(want):
        idea = (
            "What follows a token's elements belongs to the next slot. Give `tl.store` the mask `offsets < n_elements`."
        )
    elif not stored:
        idea = (
            f"This program stored nothing. Slot {slot} is a slot like any other; the mask only leaves out what follows "
            "the token: `offsets < n_elements`."
        )
    elif set(stored) < set(want):
        idea = "Part of the token is missing: store all its KV heads, elements 0 to `n_elements` − 1."
    return Mistake(what, case=case, idea=idea)


def _wrong_values(recording, token: int, got, new, case: str) -> Mistake:
    what = f"token {token}'s slot should hold {values_text(new[token])}; yours holds {values_text(got)}."
    loaded = touched(recording, recording.programs[token], "load", "new")
    idea = "Program i reads token i of `new`: `new + token * stride_new + offsets`."
    others = [other for other in range(len(new)) if other != token and torch.equal(got, new[other])]
    if touched(recording, recording.programs[token], "load", "cache"):
        idea = "Your program also loads from the cache. What the slot held before doesn't matter: it is overwritten."
    elif others:
        idea = (
            f"Those are the elements of token {others[0]}. Program i reads token i of `new`: "
            "`new + token * stride_new + offsets`."
        )
    elif loaded == [token * new.shape[1] + offset for offset in range(new.shape[1])]:
        idea = (
            "That would be right if there were no gaps between the tokens of `new`. Two tokens are `stride_new` apart, "
            f"{recording.tensors['new'].strides[0]} here, not {new.shape[1]}."
        )
    elif not loaded:
        idea = "Nothing was loaded from `new`."
    return Mistake(what, case=case, idea=idea)
