"""Judges 02.2, `SlotManager`: a slot is free or held by one request, and a refusal changes nothing."""

from random import Random

from lessons_lib.batching.slots import NoFreeSlot
from lessons_lib.checks.exercise import Mistake, call, short


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
        manager.release,
        "A",
        manager,
        slots,
        twice,
        "releasing A a second time",
        "Its slot would stand in `free` twice, and two requests would get the same row. Look whether the request holds a slot.",
    )
    unknown = manager_case + '`manager.release("Z")`; Z never had a slot.'
    _expect_value_error(
        manager.release,
        "Z",
        manager,
        slots,
        unknown,
        "releasing a request without a slot",
        "Look it up in `slot_of` first.",
    )
    again = manager_case + '`manager.acquire("B")`; B has a slot already.'
    _expect_value_error(
        manager.acquire,
        "B",
        manager,
        slots,
        again,
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
