"""Judges the exercises of lesson 02: the request, the slots, the mask, one prefill chunk, and one step of the loop."""

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from types import SimpleNamespace

import torch

from lessons_lib.checks.exercise import Choice, Exercise, Mistake, Question, call, short
from lessons_lib.continuous_batching import SlotBatch, batch_generate
from lessons_lib.generate import greedy_with_cache
from lessons_lib.request import NEXT_STATES, IllegalTransition, Request, RequestState
from lessons_lib.slot_cache import SlotCache, cache_mask
from lessons_lib.slots import NoFreeSlot, SlotManager
from lessons_lib.tiny_models import VOCAB_SIZE, tiny_model

WAITING, PREFILLING, DECODING, FINISHED = RequestState


# 02.1 Request


def check_request(attempt) -> None:
    _check_allowed_moves(attempt)
    _check_refused_moves(attempt)
    _check_first_tokens(attempt)
    _check_endings(attempt)
    _check_refused_tokens(attempt)


def _request_in(attempt, state: RequestState, answer=(), cap: int = 4, eos: int | None = 9):
    request = attempt(id="A", prompt_ids=[5, 17, 42], max_new_tokens=cap, eos_token_id=eos)
    request.state, request.output_ids = state, list(answer)
    return request


def _check_allowed_moves(attempt) -> None:
    for before, nexts in NEXT_STATES.items():
        for after in sorted(nexts, key=lambda state: state.value):
            case = f"request A is {before.value}; `A.move_to(RequestState.{after.name})`."
            request = _request_in(attempt, before)
            try:
                call(request.move_to, after, case=case)
            except IllegalTransition:
                raise Mistake(
                    f"{before.value} → {after.value} is allowed; yours refused it.",
                    case=case,
                    idea="Look the present state up in `NEXT_STATES`: it gives the set of states that may follow.",
                ) from None
            if request.state is not after:
                raise Mistake(
                    f"after an allowed move the state should be {after.value}; yours is {short(request.state)}.",
                    case=case,
                    idea="`move_to` must store the new state in `self.state`.",
                )


def _check_refused_moves(attempt) -> None:
    pairs = [(before, after) for before in RequestState for after in RequestState if after not in NEXT_STATES[before]]
    # Moves to another state first: staying is the subtler mistake.
    for before, after in sorted(pairs, key=lambda pair: pair[0] is pair[1]):
        case = f"request A is {before.value}; `A.move_to(RequestState.{after.name})`."
        request = _request_in(attempt, before)
        try:
            call(request.move_to, after, case=case)
        except IllegalTransition:
            if request.state is not before:
                raise Mistake(
                    f"the move was refused, but the request is {short(request.state)} now; it should still be {before.value}.",
                    case=case,
                    idea="You seem to change the state before you decide. Ask first, then change.",
                ) from None
            continue
        except NotImplementedError:
            raise
        except (AssertionError, ValueError, RuntimeError, KeyError) as error:
            raise Mistake(
                f"an illegal move should raise IllegalTransition; yours raised {type(error).__name__}.",
                case=case,
                idea="The caller must be able to tell this refusal from every other error: `raise IllegalTransition(...)`.",
            ) from None
        if request.state is before:
            what, idea = "nothing happened", "A refusal that nobody hears hides the mistake in the caller. Raise `IllegalTransition`."
            if before is after:
                idea = "Staying where one is counts as a move too, and no state may follow itself. Raise `IllegalTransition`."
        else:
            what, idea = "yours made the move", "Every pair that `NEXT_STATES` does not hold must be refused, not only some of them."
        raise Mistake(f"{before.value} → {after.value} is illegal and should raise IllegalTransition; {what}.", case=case, idea=idea)


def _append(request, token: int, before: str):
    """append_token of a request that may take a token; returns the case."""
    case = f"{before}; `A.append_token({token})`."
    try:
        call(request.append_token, token, case=case)
    except IllegalTransition:
        idea = "Move on only when the state changes: from prefilling to decoding, or to finished."
        raise Mistake("`append_token` raised IllegalTransition on a request that may take a token.", case=case, idea=idea) from None
    return case


def _check_first_tokens(attempt) -> None:
    for state in (PREFILLING, DECODING):
        request = _request_in(attempt, state)
        case = _append(request, 7, f"request A is {state.value} with an empty answer, cap 4, end token 9")
        if list(request.output_ids) != [7]:
            raise Mistake(
                f"the answer should be [7]; yours is {short(request.output_ids)}.",
                case=case,
                idea="Every token goes to the end of `output_ids`, once.",
            )
        if request.state is not DECODING:
            idea = (
                "The first token comes from the prefill. With it the prompt is done, and the request goes on decoding."
                if state is PREFILLING
                else "Neither the end token nor the cap has come."
            )
            raise Mistake(f"A should be decoding; it is {short(request.state)}.", case=case, idea=idea)
        if request.finish_reason is not None:
            raise Mistake(f"A has not finished; its finish_reason should be None and is {request.finish_reason!r}.", case=case)


# (state, answer so far, cap, end token, token, reason)
ENDINGS = (
    (DECODING, [7, 7], 4, 9, 8, None),
    (DECODING, [7], 4, 9, 9, "stop"),
    (DECODING, [7, 7, 7], 4, 9, 7, "length"),
    (DECODING, [7, 7, 7], 4, None, 7, "length"),
    (DECODING, [7], 4, 0, 0, "stop"),
    (DECODING, [7, 7, 7], 4, 9, 9, "stop"),
    (PREFILLING, [], 1, 9, 7, "length"),
    (PREFILLING, [], 4, 9, 9, "stop"),
)


def _check_endings(attempt) -> None:
    for state, answer, cap, eos, token, reason in ENDINGS:
        request = _request_in(attempt, state, answer, cap, eos)
        case = _append(request, token, f"request A is {state.value} with the answer {answer}, cap {cap}, end token {eos}")
        if reason is None:
            if request.state is not DECODING:
                raise Mistake(
                    f"A has 3 of 4 tokens and no end token; it should be decoding and is {short(request.state)}.",
                    case=case,
                    idea="You seem to finish one token too early. Count the new token, then compare with the cap.",
                )
            continue
        _check_ending(request, answer, cap, eos, token, reason, case)


def _check_ending(request, answer, cap, eos, token, reason, case) -> None:
    if list(request.output_ids) != [*answer, token]:
        left_out = list(request.output_ids) == answer and token == eos
        idea = (
            "The end token is part of the answer, as in `generate`. Append it, then finish."
            if left_out
            else "The token that finishes a request goes into `output_ids` too, once."
        )
        raise Mistake(f"the answer should be {[*answer, token]}; yours is {short(request.output_ids)}.", case=case, idea=idea)
    if request.state is not FINISHED:
        if eos == 0 and token == 0:
            idea = "0 is a token id like any other, but Python takes it for False. Compare with `==`; do not ask `if self.eos_token_id`."
        elif request.finish_reason is not None:
            idea = f"You set finish_reason to {request.finish_reason!r} but left the state as it was. Only `move_to(RequestState.FINISHED)` frees the slot."
        elif reason == "length":
            idea = f"With this token the answer holds {cap} of {cap} tokens. If you ask whether there are more than the cap allows, the request runs one token too far."
        else:
            idea = "The token is the end token. Compare it with `self.eos_token_id`."
        raise Mistake(f"A should be finished; it is {short(request.state)}.", case=case, idea=idea)
    if request.finish_reason != reason:
        idea = (
            "When the last token that the cap allows is the end token, the model has stopped by itself: that comes first."
            if len(answer) + 1 == cap and token == eos
            else '"stop" is for the end token, "length" for the cap.'
        )
        raise Mistake(f"finish_reason should be {reason!r}; yours is {request.finish_reason!r}.", case=case, idea=idea)


def _check_refused_tokens(attempt) -> None:
    for state, answer, token in ((WAITING, [], 7), (WAITING, [], 9), (FINISHED, [7, 9], 7), (FINISHED, [7, 9], 9)):
        request = _request_in(attempt, state, answer)
        request.finish_reason = "stop" if state is FINISHED else None
        before = request.finish_reason
        case = f"request A is {state.value} with the answer {answer}, cap 4, end token 9; `A.append_token({token})`."
        try:
            call(request.append_token, token, case=case)
        except IllegalTransition:
            if list(request.output_ids) != answer or request.state is not state or request.finish_reason != before:
                raise Mistake(
                    f"the token was refused, but the request changed: answer {short(request.output_ids)}, {short(request.state)}, "
                    f"finish_reason {request.finish_reason!r}.",
                    case=case,
                    idea="Call `move_to` before you touch anything else. When it refuses, nothing has happened yet.",
                ) from None
            continue
        raise Mistake(
            f"a {state.value} request takes no token; `append_token` should raise IllegalTransition, and did not.",
            case=case,
            idea="A request that is not decoding yet must move to DECODING with its token. From here `move_to` refuses that by itself.",
        )


# 02.2 SlotManager


def check_slot_manager(attempt) -> None:
    _check_handing_out(attempt)
    _check_full(attempt)
    _check_taking_back(attempt)
    _check_refusals(attempt)
    _check_long_run(attempt)


def _acquire(manager, request_id: str, case: str) -> int:
    try:
        slot = call(manager.acquire, request_id, case=case)
    except (NoFreeSlot, ValueError, KeyError, IndexError) as error:
        raise Mistake(
            f"`acquire({request_id!r})` raised {type(error).__name__}; there is a free slot for it.",
            case=case,
            idea="A slot that was released goes back into `free`, and the request out of `slot_of`.",
        ) from None
    if isinstance(slot, bool) or not hasattr(slot, "__index__"):
        raise Mistake(
            f"`acquire({request_id!r})` should return the slot's number, an int; yours returned {short(slot)}.",
            case=case,
            idea="The caller needs the number: it is the row of the batch. Return it.",
        )
    return int(slot)


def _check_consistent(manager, slots: dict[str, int], num_slots: int, case: str) -> None:
    """`slot_of` and `free` agree with who holds what."""
    if dict(manager.slot_of) != slots:
        raise Mistake(
            f"`slot_of` should be {slots}; yours is {short(manager.slot_of)}.",
            case=case,
            idea="`slot_of` holds exactly the requests that have a slot now: acquire puts one in, release takes it out.",
        )
    free = sorted(set(range(num_slots)) - set(slots.values()))
    if sorted(manager.free) != free:
        raise Mistake(
            f"`free` should hold the slots {free}; yours holds {sorted(manager.free)}.",
            case=case,
            idea="A slot is either in `free` or held by one request, never both, never neither.",
        )


def _check_handing_out(attempt) -> None:
    case = 'manager = SlotManager(2); `manager.acquire("A")`, then `manager.acquire("B")`.'
    manager = attempt(2)
    slots = {name: _acquire(manager, name, case) for name in "AB"}
    if slots["A"] == slots["B"]:
        raise Mistake(
            f"A and B both got slot {slots['A']}; a slot belongs to one request at a time.",
            case=case,
            idea="A slot that is handed out must leave `free`. `list.pop()` gives one and removes it; `free[-1]` only looks.",
        )
    if not set(slots.values()) <= {0, 1}:
        raise Mistake(f"2 slots are numbered 0 and 1; yours gave {slots}.", case=case)
    _check_consistent(manager, slots, 2, case)


def _check_full(attempt) -> None:
    case = 'manager = SlotManager(1); `manager.acquire("A")`, then `manager.acquire("B")`: no slot is free.'
    manager = attempt(1)
    slots = {"A": _acquire(manager, "A", case)}
    try:
        got = call(manager.acquire, "B", case=case)
    except NoFreeSlot:
        _check_unchanged(manager, slots, 1, case)
        return
    except (IndexError, ValueError, KeyError, AssertionError, StopIteration) as error:
        raise Mistake(
            f"with no slot free, acquire should raise NoFreeSlot; yours raised {type(error).__name__}: {error}.",
            case=case,
            idea="Ask whether `self.free` is empty before you take from it, and say what is wrong in your own words.",
        ) from None
    raise Mistake(
        f"with no slot free, acquire should raise NoFreeSlot; yours returned {short(got)}.",
        case=case,
        idea="A caller that gets no slot and no error goes on with a row that is not there, or that somebody else sits in.",
    )


def _check_unchanged(manager, slots: dict[str, int], num_slots: int, case: str) -> None:
    try:
        _check_consistent(manager, slots, num_slots, case)
    except Mistake as mistake:
        raise Mistake(
            f"the call was refused, but it changed something: {mistake.what}",
            case=case,
            idea="Do all your asking first. Change `free` and `slot_of` only when nothing can go wrong any more.",
        ) from None


def _check_taking_back(attempt) -> None:
    case = 'manager = SlotManager(2); acquire A and B; `manager.release("A")`; then acquire C.'
    manager = attempt(2)
    slots = {name: _acquire(manager, name, case) for name in "AB"}
    call(manager.release, "A", case=case)
    freed = slots.pop("A")
    _check_consistent(manager, slots, 2, case)
    got = _acquire(manager, "C", case)
    if got != freed:
        raise Mistake(f"A gave back slot {freed}, the only free one; C got slot {got}.", case=case)


def _check_refusals(attempt) -> None:
    manager = attempt(2)
    manager_case = "manager = SlotManager(2); acquire A and B; release A; "
    slots = {name: _acquire(manager, name, manager_case) for name in "AB"}
    call(manager.release, "A", case=manager_case)
    del slots["A"]
    twice = manager_case + '`manager.release("A")` once more.'
    _expect_value_error(
        manager.release, "A", manager, slots, twice,
        "releasing A a second time",
        "Its slot would stand in `free` twice, and two requests would get the same row. Look whether the request holds a slot.",
    )
    unknown = manager_case + '`manager.release("Z")`; Z never had a slot.'
    _expect_value_error(manager.release, "Z", manager, slots, unknown, "releasing a request without a slot", "Look it up in `slot_of` first.")
    again = manager_case + '`manager.acquire("B")`; B has a slot already.'
    _expect_value_error(
        manager.acquire, "B", manager, slots, again,
        "acquiring a slot for B, which has one,",
        "The entry of B's first slot in `slot_of` would be lost, and with it the slot: nobody could release it.",
    )


def _expect_value_error(method, request_id: str, manager, slots, case: str, doing: str, idea: str) -> None:
    try:
        call(method, request_id, case=case)
    except ValueError:
        _check_unchanged(manager, slots, 2, case)
    except NotImplementedError:
        raise
    except (LookupError, RuntimeError, AssertionError) as error:
        raise Mistake(
            f"{doing} should raise ValueError; yours raised {type(error).__name__}.",
            case=case,
            idea="Ask before you look up, and raise a ValueError that names the request. " + idea,
        ) from None
    else:
        raise Mistake(f"{doing} should raise ValueError; yours accepted it.", case=case, idea=idea)


def _check_long_run(attempt) -> None:
    rng, manager, slots = Random(2), attempt(5), {}
    for number in range(200):
        if slots and (len(slots) == 5 or rng.random() < 0.5):
            name = rng.choice(sorted(slots))
            case = f"turn {number} of a long run with 5 slots; held: {slots}; release {name!r}."
            call(manager.release, name, case=case)
            del slots[name]
        else:
            case = f"turn {number} of a long run with 5 slots; held: {slots}; acquire {str(number)!r}."
            slots[str(number)] = _acquire(manager, str(number), case)
        _check_consistent(manager, slots, 5, case)


# 02.3 cache_mask

# (positions, num_keys), smallest first. Row by row: what the row's new tokens are.
MASK_CASES = (
    ([[2]], 4),
    ([[0]], 1),
    ([[2], [0], [3]], 5),
    ([[0, 1, 2]], 4),
    ([[3, 4]], 5),
    ([[3, 4]], 7),
    ([[4, 5, 6], [0, 1, 2]], 9),
    ([[40], [7], [0], [25]], 41),
)


def check_cache_mask(attempt) -> None:
    for positions, num_keys in MASK_CASES:
        case = f"positions {positions}, num_keys {num_keys}."
        want = cache_mask(torch.tensor(positions), num_keys)
        got = call(attempt, torch.tensor(positions), num_keys, case=case)
        _check_mask_kind(got, want, case)
        if not torch.equal(got.cpu(), want):
            raise _name_wrong_mask(got.cpu(), torch.tensor(positions), num_keys, case)


def _check_mask_kind(got, want, case: str) -> None:
    if not isinstance(got, torch.Tensor):
        raise Mistake(f"the mask should be a torch tensor; yours is {type(got).__name__}.", case=case, idea="Attention takes tensors.")
    if got.shape != want.shape:
        idea = "The four sizes are [rows, 1, new tokens, num_keys]."
        if got.shape == want[:, 0].shape:
            idea = "The axis for the heads is missing. Put a 1 behind the rows: `mask[:, None]`."
        raise Mistake(f"the shape should be {list(want.shape)}; yours is {list(got.shape)}.", case=case, idea=idea)
    if got.dtype != torch.bool:
        idea = "With bool, True means may look. Numbers would be added to the attention scores instead, which hides nothing."
        raise Mistake(f"the mask should hold bool; yours holds {str(got.dtype).removeprefix('torch.')}.", case=case, idea=idea)


def _name_wrong_mask(got, positions, num_keys: int, case: str) -> Mistake:
    """Recognise a wrong mask by what it equals."""
    columns = torch.arange(num_keys)
    own = positions[:, :, None]
    new = positions.shape[1]
    recognised = (
        (~(columns <= own), "it is the right one turned round", "True means that the token may look."),
        (columns < own, "no token sees itself", "A token's own key lies in the column of its own position, and it reads that one too: `<=`, not `<`."),
        (
            torch.ones_like(columns <= own),
            "every token sees every column",
            "Columns beyond a row's own tokens hold keys of an earlier request, or nothing yet. Compare the column with the position.",
        ),
        (
            (columns <= positions.amax(dim=1)[:, None, None]).expand(len(positions), new, num_keys),
            "the first token of a chunk sees the tokens after it",
            "Within a chunk every token stops at its own position, not at the end of the chunk.",
        ),
        (
            (columns <= positions.max()).expand(len(positions), new, num_keys),
            "all rows see as much as the longest one",
            "Every row has a length of its own. Compare the columns with the positions of that row.",
        ),
        (
            (columns <= torch.arange(new)[:, None]).expand(len(positions), new, num_keys),
            "the tokens of this chunk see as little as if the sequence began with them",
            "A later chunk begins at a later position. Compare with `positions`, which count from the start of the sequence.",
        ),
        (
            (columns <= torch.arange(new)[:, None] + num_keys - new).expand(len(positions), new, num_keys),
            "the last token sees the last column, wherever it stands",
            "The pass may look at more columns than this row has tokens. Where a token stands, only `positions` says.",
        ),
        (
            (columns <= positions[0][:, None]).expand(len(positions), new, num_keys),
            "all rows have the mask of row 0",
            "Keep the axis of the rows: `positions[:, :, None]` has one line for each token of each row.",
        ),
        (
            (columns == own),
            "a token sees only itself",
            "It must read all the tokens before it as well.",
        ),
    )
    for wrong, what, idea in recognised:
        if torch.equal(got[:, 0], wrong):
            break
    else:
        what, idea = "it differs", "True where column <= position, with the position of that token in that row."
    row, token = next((r, t) for r, t in torch.cartesian_prod(torch.arange(len(positions)), torch.arange(new)).tolist()
                      if not torch.equal(got[r, 0, t], columns <= own[r, t]))  # fmt: skip
    return Mistake(
        f"in your mask {what}. Row {row}, token at position {int(positions[row, token])}: it should be "
        f"`{_drawn(columns <= own[row, token])}`; yours is `{_drawn(got[row, 0, token])}` (# may look, . may not).",
        case=case,
        idea=idea,
    )


def _drawn(line) -> str:
    text = "".join("#" if may else "." for may in line.tolist())
    return text if len(text) <= 48 else text[:45] + "..."


# 02.4 prefill_chunk


@dataclass(frozen=True)
class SeenPass:
    """What one forward pass was given."""

    tokens: list[list[int]]
    positions: list[list[int]]
    slots: list[int]
    num_keys: int


@contextmanager
def watch_slot_passes(batch: SlotBatch):
    """Records the forward passes over a batch, whoever makes them."""
    seen: list[SeenPass] = []

    def before(module, args, kwargs) -> None:
        view = batch.cache.layers[0].view
        tokens = args[0] if args else kwargs["input_ids"]
        positions = kwargs.get("position_ids")
        positions = view.positions if positions is None else positions
        seen.append(SeenPass(tokens.tolist(), positions.tolist(), list(range(view.rows.start, view.rows.stop)), view.num_keys))

    hook = batch.model.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


def make_batch(waiting=(), running=None, num_slots: int = 1, prefill_step: int = 4) -> SlotBatch:
    """A batch on a tiny model. Requests in `running` (slot -> request) get those slots."""
    model = tiny_model("qwen2")
    batch = SlotBatch(model, SlotCache(model, num_slots, 48), SlotManager(num_slots), prefill_step, deque(waiting))
    for slot, request in (running or {}).items():
        batch.slots.free.remove(slot)
        batch.slots.slot_of[request.id] = slot
        batch.running[slot] = request
        request.move_to(PREFILLING)
    return batch


def a_request(name: str, prompt_length: int, cap: int = 3) -> Request:
    rng = Random(ord(name))
    return Request(name, [rng.randrange(VOCAB_SIZE) for _ in range(prompt_length)], cap)


@lru_cache(maxsize=None)
def _answer(prompt: tuple[int, ...], cap: int) -> list[int]:
    return greedy_with_cache(tiny_model("qwen2"), list(prompt), cap)


def check_prefill_chunk(attempt) -> None:
    # (prompt tokens, prefill_step, cap)
    for prompt_length, prefill_step, cap in ((3, 8, 4), (5, 2, 4), (4, 2, 4), (3, 3, 4), (3, 8, 1), (9, 4, 4), (6, 1, 4)):
        _check_one_prompt(attempt, prompt_length, prefill_step, cap)
    _check_which_prompt(attempt)
    _check_nobody_prefills(attempt)


def _check_one_prompt(attempt, prompt_length: int, prefill_step: int, cap: int) -> None:
    request = a_request("A", prompt_length, cap)
    # Slot 1 of 2, so that a row that is taken for granted shows.
    batch = make_batch(running={1: request}, num_slots=2, prefill_step=prefill_step)
    first_token = _answer(tuple(request.prompt_ids), cap)[0]
    starts = range(0, prompt_length, prefill_step)
    for number, start in enumerate(starts, start=1):
        case = f"A sits in slot 1 with a prompt of {prompt_length} tokens, prefill_step {prefill_step}; call {number} of {len(starts)}."
        end = min(start + prefill_step, prompt_length)
        with watch_slot_passes(batch) as seen:
            call(attempt, batch, case=case)
        _check_chunk_pass(seen, request, start, end, number, case)
        _check_after_chunk(request, end, prompt_length, first_token, cap, case)


def _check_chunk_pass(seen: list[SeenPass], request: Request, start: int, end: int, number: int, case: str) -> None:
    prompt = request.prompt_ids
    if not seen:
        raise Mistake(
            "a prompt is not complete yet, but no forward pass was made.",
            case=case,
            idea="Take the next tokens of the prompt, call `forward` with them, and note in `num_computed_tokens` how far you came.",
        )
    if len(seen) > 1:
        raise Mistake(
            f"one call should make one forward pass; yours made {len(seen)}.",
            case=case,
            idea="One chunk a call. The next chunk comes in the next step, so that the decoding requests get their turn between.",
        )
    fed = seen[0]
    if fed.slots != [1]:
        raise Mistake(
            f"the pass should compute slot 1 alone, A's row of the cache; yours computed {_slots(fed.slots)}.",
            case=case,
            idea="Rows are slots: `range(slot, slot + 1)` is the one row in which this request sits.",
        )
    tokens, want = fed.tokens[0], prompt[start:end]
    if tokens != want:
        raise Mistake(f"call {number} should feed {len(want)} tokens, {short(want)}; yours fed {len(tokens)}, {short(tokens)}.", case, _why_tokens(tokens, request, start, end))
    positions = fed.positions[0]
    if positions != list(range(start, end)):
        restarted = start and positions == list(range(end - start))
        idea = (
            "The positions begin again at 0. This chunk is a later part of the same sequence, and its keys would be written over the first ones."
            if restarted
            else "A prompt's token number i has position i, counted from the start of the prompt."
        )
        raise Mistake(f"the chunk's positions should be {list(range(start, end))}; yours are {short(positions)}.", case, idea)
    if fed.num_keys < end:
        raise Mistake(
            f"the pass looks at {fed.num_keys} cache columns; this chunk must see {end}: all tokens of the prompt up to its own end.",
            case=case,
            idea="`num_keys` counts from column 0, so it is where the chunk ends, not how long it is.",
        )


def _why_tokens(tokens: list[int], request: Request, start: int, end: int) -> str:
    prompt = request.prompt_ids
    if tokens == prompt and (start, end) != (0, len(prompt)):
        return "That is the whole prompt. Feed at most `batch.prefill_step` tokens; the decoding requests wait for this pass."
    if start and tokens == prompt[: end - start] or start and tokens == prompt[:start]:
        return "That is the first chunk again. Begin at `request.num_computed_tokens`, and advance it after each chunk."
    if tokens == prompt[start:]:
        return "That is all the rest of the prompt. Feed at most `batch.prefill_step` tokens."
    return "The chunk begins at `num_computed_tokens` and is `prefill_step` long, or shorter at the end of the prompt."


def _slots(slots: list[int]) -> str:
    return "slot " + str(slots[0]) if len(slots) == 1 else "slots " + ", ".join(map(str, slots))


def _check_after_chunk(request: Request, end: int, prompt_length: int, first_token: int, cap: int, case: str) -> None:
    if end < prompt_length and (request.output_ids or request.state is not PREFILLING):
        raise Mistake(
            f"{end} of {prompt_length} prompt tokens are computed; A should have no token yet and be prefilling. "
            f"It has {short(request.output_ids)} and is {request.state.value}.",
            case=case,
            idea="What comes out after a part of the prompt is the model's guess at the next prompt token, which you know already. "
            "Only the chunk that completes the prompt gives a token.",
        )
    if request.num_computed_tokens != end:
        raise Mistake(
            f"num_computed_tokens should be {end}; it is {request.num_computed_tokens}.",
            case=case,
            idea="It counts the tokens whose keys and values are in the cache. A chunk adds its own length.",
        )
    if end < prompt_length:
        return
    if not request.output_ids:
        exact = end % prompt_length == 0 and "The chunk was exactly `prefill_step` long and still the last one. " or ""
        raise Mistake(
            f"all {prompt_length} prompt tokens are computed; A should have its first token. It has none.",
            case=case,
            idea=exact + "The prompt is complete when as many tokens are computed as it has; then append the token that the logits name.",
        )
    if list(request.output_ids) != [first_token]:
        raise Mistake(
            f"A's first token should be {first_token}; yours is {short(request.output_ids)}.",
            case=case,
            idea="The first token is the argmax of the logits of the prompt's last token: `forward` returns them, one row for its one slot.",
        )
    want = FINISHED if cap == 1 else DECODING
    if request.state is not want:
        raise Mistake(
            f"with its first token, of {cap} allowed, A should be {want.value}; it is {request.state.value}.",
            case=case,
            idea="`request.append_token(token)` takes the token and moves the request on. Use it in place of `output_ids.append`.",
        )


def _check_which_prompt(attempt) -> None:
    case = "A was admitted first, into slot 1; then B, into slot 0; then C, into slot 2. All prompts have 5 tokens, prefill_step is 2."
    first, second, third = (a_request(name, 5) for name in "ABC")
    batch = make_batch(running={1: first, 0: second, 2: third}, num_slots=3, prefill_step=2)
    with watch_slot_passes(batch) as seen:
        call(attempt, batch, case=case)
    done = {request.id: request.num_computed_tokens for request in (first, second, third)}
    if done == {"A": 2, "B": 2, "C": 2}:
        raise Mistake(
            "all three prompts got a chunk; one call computes a chunk of one prompt.",
            case=case,
            idea="Everybody who decodes waits for every chunk of this step. One a step keeps that wait short and known.",
        )
    if done != {"A": 2, "B": 0, "C": 0}:
        idea = "First come, first served. `batch.slots_in(RequestState.PREFILLING)` lists the slots in the order of admission, not by number."
        if done["C"]:
            idea = "You took the newest. If newcomers go first, a prompt may never be completed. The first of `batch.slots_in(RequestState.PREFILLING)` is the oldest."
        raise Mistake(f"A was admitted first and should get the chunk; computed tokens are {done}.", case=case, idea=idea)
    if any(fed.slots != [1] for fed in seen):
        raise Mistake(f"A sits in slot 1; the pass computed {_slots(seen[0].slots)}.", case=case)


def _check_nobody_prefills(attempt) -> None:
    case = "A, in slot 0, is decoding; slot 1 is free; nobody is prefilling."
    request = a_request("A", 3)
    batch = make_batch(running={0: request}, num_slots=2)
    request.num_computed_tokens = 3
    request.append_token(7)
    with watch_slot_passes(batch) as seen:
        try:
            call(attempt, batch, case=case)
        except (IndexError, StopIteration, ValueError, TypeError) as error:
            raise Mistake(
                f"nobody is prefilling, so there is nothing to do; yours raised {type(error).__name__}: {error}.",
                case=case,
                idea="Look whether the list of prefilling slots is empty, and return.",
            ) from None
    if seen or request.output_ids != [7] or request.num_computed_tokens != 3:
        raise Mistake(
            "nobody is prefilling; nothing should have happened, but something was computed or A changed.",
            case=case,
            idea="Choose among the slots whose request is in the state PREFILLING, and return when there are none.",
        )


# 02.5 step


def check_step(attempt) -> None:
    _check_first_step(attempt)
    _check_all_slots_filled(attempt)
    _check_slot_changes_hands(attempt)
    _check_slot_falls_free(attempt)
    _check_chunk_beside_decode(attempt)
    _check_no_barrier(attempt)
    _check_answers(attempt)


def _turn(attempt, batch: SlotBatch, case: str) -> list[SeenPass]:
    """One step; afterwards slots and running requests must agree."""
    with watch_slot_passes(batch) as seen:
        call(attempt, batch, case=case)
    seated = {request.id: slot for slot, request in batch.running.items()}
    if dict(batch.slots.slot_of) != seated:
        raise Mistake(
            f"`batch.running` seats {seated}, but the slot manager has {batch.slots.slot_of}.",
            case=case,
            idea="Both must change together: admitting is `acquire` and an entry in `batch.running`; releasing is `release` and taking that entry out.",
        )
    for request in batch.running.values():
        if request.state is WAITING:
            raise Mistake(
                f"{request.id} sits in slot {seated[request.id]} and is still waiting.",
                case=case,
                idea="A request that gets a slot begins to prefill: `request.move_to(RequestState.PREFILLING)`. Nothing else will ever pick it up.",
            )
    return seen


def _check_first_step(attempt) -> None:
    case = "one slot, A waits with a prompt of 3 tokens, prefill_step 4; the first step."
    request = a_request("A", 3)
    batch = make_batch([request], num_slots=1)
    _turn(attempt, batch, case)
    if not batch.running:
        raise Mistake(
            "a slot is free and A waits; after the step A should have it.",
            case=case,
            idea="As long as somebody waits and a slot is free: take the first of `batch.waiting`, and give it the slot.",
        )
    if len(request.output_ids) > 1:
        raise Mistake(
            f"A should have 1 token after the first step; it has {len(request.output_ids)}.",
            case=case,
            idea="You seem to decode after the chunk: a request whose prompt is completed gets two tokens in one step. Decode first, then compute the chunk.",
        )
    if not request.output_ids:
        raise Mistake(
            f"A's whole prompt fits in one chunk, so A should have its first token; it has none and {request.num_computed_tokens} computed tokens.",
            case=case,
            idea="End the step with `prefill_chunk(batch)`; a request that was admitted in this step already gets its chunk.",
        )


def _check_all_slots_filled(attempt) -> None:
    case = "three slots; A, B, C, D wait, in this order; the first step."
    batch = make_batch([a_request(name, 3) for name in "ABCD"], num_slots=3)
    _turn(attempt, batch, case)
    seated = [request.id for request in batch.running.values()]
    if len(seated) < 3:
        raise Mistake(
            f"three slots are free, and A, B and C should sit in them; yours seated {', '.join(seated)}.",
            case=case,
            idea="You seem to admit one request a step. Go on as long as there is a free slot and somebody waits.",
        )
    if sorted(seated) != ["A", "B", "C"]:
        raise Mistake(
            f"A, B and C came first; yours seated {', '.join(seated)}.",
            case=case,
            idea="First come, first served: `batch.waiting.popleft()` takes from the front of the queue; `pop()` takes from its end.",
        )
    if [request.id for request in batch.waiting] != ["D"]:
        raise Mistake(f"D alone should wait; yours has {[request.id for request in batch.waiting]} in the queue.", case=case)


def _check_slot_changes_hands(attempt) -> None:
    case = "one slot; A (cap 2) and B wait, prompts of 3 tokens. A has its second and last token after step 2; then step 3."
    first, second = a_request("A", 3, cap=2), a_request("B", 3)
    batch = make_batch([first, second], num_slots=1)
    _turn(attempt, batch, case)
    _turn(attempt, batch, case)
    if len(first.output_ids) != 2:
        raise Mistake(
            f"A was decoding before step 2 and should have 2 tokens; it has {len(first.output_ids)}.",
            case=case,
            idea="Every decoding request gets one token in every step: `decode_all(batch)`.",
        )
    if second.state is not WAITING:
        raise Mistake(
            "A decoded in step 2 and B took its slot in the same step.",
            case=case,
            idea="Settle who sits where before anything is computed: release and admit first, then decode and prefill. "
            "One row of the batch then belongs to one request in one step.",
        )
    _turn(attempt, batch, case)
    if second.state is WAITING:
        left = "A still sits in it." if batch.running else "It is empty."
        raise Mistake(
            f"A has finished; in step 3 its slot should go to B. {left}",
            case=case,
            idea="Release before you admit: for every slot in `batch.slots_in(RequestState.FINISHED)`, take the request out of `batch.running` and "
            "`batch.slots.release` its id.",
        )
    if not second.output_ids:
        raise Mistake(f"B took the slot in step 3 but got no chunk; it has {second.num_computed_tokens} computed tokens.", case=case)


def _check_slot_falls_free(attempt) -> None:
    case = "two slots; A (cap 1) and B (cap 9) wait, prompts of 3 tokens. A ends with step 1; then step 2. Nobody else comes."
    batch = make_batch([a_request("A", 3, cap=1), a_request("B", 3, cap=9)], num_slots=2)
    _turn(attempt, batch, case)
    _turn(attempt, batch, case)
    seated = [request.id for request in batch.running.values()]
    if seated != ["B"]:
        raise Mistake(f"B alone should sit in a slot; yours has {', '.join(seated) or 'nobody'}.", case=case, idea="A finished request leaves, whether somebody waits or not.")


def _check_no_barrier(attempt) -> None:
    case = "two slots; A (cap 9), B (cap 2) and C wait, prompts of 3 tokens. B ends after step 3; then step 4, with A in the middle of its answer."
    requests = [a_request("A", 3, cap=9), a_request("B", 3, cap=2), a_request("C", 3)]
    batch = make_batch(requests, num_slots=2)
    for _ in range(4):
        _turn(attempt, batch, case)
    if requests[2].state is WAITING:
        raise Mistake(
            "B's slot is free from step 4 on, and C waits; C should be in it while A goes on. It still waits.",
            case=case,
            idea="That is the batch barrier of static batching. Admit whenever a slot is free, not when all are.",
        )
    if len(requests[0].output_ids) != 4:
        raise Mistake(f"A should have 4 tokens after 4 steps; it has {len(requests[0].output_ids)}.", case=case)


def _check_chunk_beside_decode(attempt) -> None:
    case = "two slots, prefill_step 2; A (prompt of 2 tokens) and B (prompt of 6) wait. After step 1 A decodes; then step 2."
    first, second = a_request("A", 2, cap=9), a_request("B", 6)
    batch = make_batch([first, second], num_slots=2, prefill_step=2)
    _turn(attempt, batch, case)
    if (first.num_computed_tokens, second.num_computed_tokens) != (2, 0):
        raise Mistake(
            f"step 1 should compute A's prompt and nothing of B's; computed tokens are {first.num_computed_tokens} and {second.num_computed_tokens}.",
            case=case,
            idea="One chunk a step: call `prefill_chunk` once, without a loop round it.",
        )
    _turn(attempt, batch, case)
    if len(first.output_ids) != 2:
        raise Mistake(
            f"A decodes while B prefills; after step 2 A should have 2 tokens. It has {len(first.output_ids)}.",
            case=case,
            idea="Decode in every step, whether somebody prefills or not. Otherwise a long prompt stops all the others.",
        )
    if second.num_computed_tokens == 0:
        raise Mistake(
            "step 2 should compute 2 tokens of B's prompt beside A's decoding; it computed none.",
            case=case,
            idea="Compute a chunk in every step, whether somebody decodes or not. Otherwise a newcomer waits until all the others are done.",
        )
    if second.num_computed_tokens != 2:
        raise Mistake(
            f"step 2 should compute 2 tokens of B's prompt; {second.num_computed_tokens} are computed.",
            case=case,
            idea="You seem to go on until the prompt is complete. One chunk a step: A waits for every one of them.",
        )


def _check_answers(attempt) -> None:
    rng = Random(5)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 3, 8, 9)))] for _ in range(7)]
    caps = [rng.choice((1, 2, 5, 9)) for _ in prompts]
    model, tokenizer = tiny_model("qwen2"), SimpleNamespace(pad_token_id=0, eos_token_id=None)
    case = f"seven requests with caps {caps} in three slots, prefill_step 4."
    settings = dict(max_seq_len=32, batch_size=3, prefill_step=4, max_new_tokens=caps)
    got = call(batch_generate, model, tokenizer, prompts, case=case, step=attempt, **settings)
    for name, (prompt, cap, answer) in enumerate(zip(prompts, caps, got.outputs)):
        want = _answer(tuple(prompt), cap)
        if answer != want:
            raise Mistake(
                f"request {name} should get {short(want)}, as it does alone; it got {short(answer)}.",
                case=case,
                idea="Batching changes when a token is computed, never which one. Did a request lose its slot before it had finished?",
            )
    expected = len(batch_generate(model, tokenizer, prompts, **settings).trace.steps)
    if len(got.trace.steps) > expected:
        what = f"all answers are right, after {len(got.trace.steps)} steps; {expected} are enough."
        raise Mistake(what, case=case, idea="Is a slot left empty while somebody waits?")


EXERCISES = [
    Exercise(
        id="02.1",
        title="a request and its states",
        reference="lessons_lib.request:Request",
        test=check_request,
        hints=(
            "`move_to` asks one question: does the set `NEXT_STATES[self.state]` hold the new state? `append_token` asks two: is it the "
            "end token, and is it the last one that the cap allows?",
            "`move_to`: if the new state is not in the set, raise `IllegalTransition`; otherwise store it. `append_token`: answer both "
            "questions first, while the token is not in the answer yet. Then move (to FINISHED, or to DECODING when the request is not "
            "decoding already). The token goes into `output_ids` last.",
            "`is_last = len(self.output_ids) + 1 == self.max_new_tokens`. If `is_end or is_last`: `self.move_to(RequestState.FINISHED)` and set "
            "`finish_reason`. Otherwise, if `self.state is not RequestState.DECODING`: `self.move_to(RequestState.DECODING)`. A waiting or "
            "finished request is refused by `move_to` without a line of yours.",
        ),
    ),
    Exercise(
        id="02.2",
        title="the slot manager",
        reference="lessons_lib.slots:SlotManager",
        test=check_slot_manager,
        hints=(
            "Every slot is in one of two places: in `free`, or in `slot_of` under the request that holds it. Both methods move it from one "
            "place to the other.",
            "`acquire`: refuse a request that is in `slot_of`; refuse when `free` is empty; then take a slot out of `free`, note it, return it. "
            "`release`: refuse a request that is not in `slot_of`; then the same way back.",
            "`self.slot_of[request_id] = self.free.pop()` moves a slot one way; `self.free.append(self.slot_of.pop(request_id))` moves it back. "
            "Before each: `if ...: raise`.",
        ),
    ),
    Exercise(
        id="02.3",
        title="the mask of every row",
        reference="lessons_lib.slot_cache:cache_mask",
        test=check_cache_mask,
        hints=(
            "Column c of a row holds the token at position c of that row's request. A new token at position p may see the columns 0 to p. "
            "That is the whole rule, for decode and for every chunk.",
            "Compare two tensors that broadcast: the column numbers, [num_keys], and the positions with a last axis of size 1, [rows, new tokens, 1]. "
            "The result is [rows, new tokens, num_keys]. Then put in the axis for the heads.",
            "`torch.arange(num_keys) <= positions[:, :, None]`, and `[:, None]` on the result.",
        ),
        points=1,
    ),
    Exercise(
        id="02.4",
        title="one chunk of a prompt",
        reference="lessons_lib.continuous_batching:prefill_chunk",
        test=check_prefill_chunk,
        hints=(
            "`request.num_computed_tokens` is a bookmark in the prompt: the chunk begins there, and you move it to where the chunk ends.",
            "Find the first prefilling slot, or return. Cut the chunk out of the prompt: at most `batch.prefill_step` tokens from the bookmark. "
            "Call `forward` for that one slot. Move the bookmark. If it has reached the end of the prompt, append the token.",
            "`start = request.num_computed_tokens`, `end = start + len(chunk)`, then `logits = forward(batch, range(slot, slot + 1), [chunk], "
            "[list(range(start, end))], num_keys=end)`. The first token is `int(logits[0].argmax())`, when `end == len(request.prompt_ids)`.",
        ),
    ),
    Exercise(
        id="02.5",
        title="one step of continuous batching",
        reference="lessons_lib.continuous_batching:step",
        test=check_step,
        hints=(
            "Four things, in this order: release, admit, decode, one chunk. The last two are a call each.",
            "Release: for every slot whose request has finished, take the request out of `batch.running` and release its id. Admit: as long as "
            "there is a free slot and somebody waits, take the first of the queue, acquire a slot, enter it in `batch.running`, move it to PREFILLING.",
            "`for slot in batch.slots_in(RequestState.FINISHED): batch.slots.release(batch.running.pop(slot).id)`. Then `while batch.waiting and "
            "batch.slots.free:` with `request = batch.waiting.popleft()` and `batch.running[batch.slots.acquire(request.id)] = request`.",
        ),
        points=3,
    ),
]

QUIZ = [
    Question(
        text="Two slots, requests with answers of 10, 2 and 8 tokens, prompts that fit in one chunk. When does the third request get its slot?",
        choices=(
            Choice("After step 10, when both have ended.", "That is static batching: the free slot waits for the longest answer of the wave."),
            Choice(
                "In the step after the second request's last token.",
                "The slot is released at the start of the next step and given away at once, while the first request goes on.",
                right=True,
            ),
            Choice("In step 1; the batch grows.", "The cache has two rows. A third request needs one of them, and both are taken."),
        ),
    ),
    Question(
        text="A slot is given to a new request. Why need the old keys and values in its row not be erased?",
        choices=(
            Choice("They are zero by then.", "Nothing sets them to zero. They are there until something is written over them."),
            Choice(
                "The mask shows a token only the columns up to its own position, and those have been written over.",
                "A row's own tokens fill the columns 0, 1, 2, ... in order. Whatever lies beyond belongs to nobody and is never read.",
                right=True,
            ),
            Choice("They are similar to the new ones, so they do little harm.", "They are keys of another text. Without the mask they change the answer, as the lesson shows."),
        ),
    ),
    Question(
        text="A prompt of 300 tokens arrives while three requests decode. What does a smaller `prefill_step` change?",
        choices=(
            Choice("The prompt's first token comes sooner.", "It comes later: the same tokens take more steps, and every step decodes as well."),
            Choice(
                "Each step is shorter, so the three requests wait less for each of their tokens; the prompt takes more steps.",
                "A step lasts as long as its decode pass and its chunk. Chunking trades the newcomer's wait against everybody else's.",
                right=True,
            ),
            Choice("The answers change slightly.", "Each token sees the same earlier tokens whichever chunk it is in. The lesson compares the answers token for token."),
        ),
    ),
    Question(
        text="Which input does a chunk that starts at position 64 need, beside its tokens?",
        choices=(
            Choice("The positions 0, 1, 2, ..., and the mask of its own tokens.", "Then its keys are written over those of the first chunk, and it does not see them."),
            Choice("The first 64 tokens once more.", "Their keys and values are in the cache. Computing them again is what the cache saves."),
            Choice(
                "The positions 64, 65, ..., and a mask that lets it see columns 0 to its own position.",
                "Positions count from the start of the sequence. The mask `column <= position` is then right for every chunk.",
                right=True,
            ),
        ),
    ),
    Question(
        text="Continuous batching computes an empty slot in every decode pass. What does that cost?",
        choices=(
            Choice("Nothing; an empty row is skipped.", "The batch is a rectangle. The model computes all of its rows."),
            Choice(
                "As much as a row in use; only the result is thrown away.",
                "The timeline hatches it. Lesson 05 packs only the tokens that are needed into one row, so that an empty slot costs nothing.",
                right=True,
            ),
            Choice("A wrong token in the other rows.", "Rows never see each other. An idle row wastes work and disturbs nobody."),
        ),
    ),
    Question(
        text="Every slot reserves `max_seq_len` places of cache. You double `max_seq_len` for one long request. What happens?",
        choices=(
            Choice("All slots take twice the memory, and most of it lies empty.", "The reservation is the same for every slot, whoever sits in it. Lesson 03 reserves a small block at a time.", right=True),
            Choice("Only the slot of the long request grows.", "All rows of one tensor are equally long. A slot of its own length needs another layout."),
            Choice("Every decode step takes twice as long.", "A step looks only at as many columns as its longest running request has. It is memory that is lost here, not time."),
        ),
    ),
]
