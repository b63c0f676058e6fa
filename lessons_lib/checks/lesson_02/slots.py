"""Judges 02.2, `SlotManager`: a slot is free or belongs to one request, and a refusal changes nothing."""

from random import Random

from lessons_lib.batching.slots import NoFreeSlot
from lessons_lib.checks.exercise import Mistake, call, short


def check_slot_manager(attempt) -> None:
    _check_acquire(attempt)
    _check_full(attempt)
    _check_release(attempt)
    _check_refusals(attempt)
    _check_long_run(attempt)


def _acquire(manager, request_id: str, case: str) -> int:
    try:
        slot = call(manager.acquire, request_id, case=case)
    except (NoFreeSlot, ValueError, KeyError, IndexError) as error:
        raise Mistake(
            f"`acquire({request_id!r})` raised {type(error).__name__}, although a slot is free.",
            case=case,
            idea=_ZERO if _refuses_only_slot_0(manager) else _why_refused(error, "release" in case),
        ) from None
    if isinstance(slot, bool) or not hasattr(slot, "__index__"):
        raise Mistake(
            f"`acquire({request_id!r})` should return the slot, an int; yours returned {short(slot)}.",
            case=case,
            idea="The caller needs the slot: it is the request's row in the batch. Return it.",
        )
    return int(slot)


_ZERO = (
    "Your code takes slot 1 but not slot 0. 0 is a slot like any other, although it counts as False in Python: don't "
    "test a slot with `if slot` or `if not slot`."
)


def _why_refused(error: Exception, after_release: bool) -> str:
    if after_release:
        return "`release` puts the slot back into `free` and removes the request from `slot_of`."
    if isinstance(error, NoFreeSlot):
        return "Raise NoFreeSlot only if `self.free` is empty. The last free slot can be acquired too."
    return "A request that isn't in `slot_of` gets one of the slots in `free`."


def _refuses_only_slot_0(manager) -> bool:
    """Whether a new manager of this class refuses a request if slot 0 is the free one, and not if it is slot 1."""
    refused = []
    for slot in (0, 1):
        probe = type(manager)(2)
        probe.free = [slot]
        try:
            probe.acquire("A")
            probe.release("A")
        except Exception:  # noqa: BLE001 - the attempt is already known to be wrong
            refused.append(slot)
    return refused == [0]


def _release(manager, request_id: str, case: str) -> None:
    try:
        call(manager.release, request_id, case=case)
    except (ValueError, LookupError) as error:
        slot = manager.slot_of.get(request_id)
        raise Mistake(
            f"`release({request_id!r})` raised {type(error).__name__}, although {request_id} has slot {slot}.",
            case=case,
            idea=_ZERO if slot == 0 and _refuses_only_slot_0(manager) else "`slot_of` maps a request's id to its slot.",
        ) from None


def _check_consistent(manager, slots: dict[str, int], num_slots: int, case: str) -> None:
    """`slot_of` and `free` agree with `slots`, request id -> slot."""
    if dict(manager.slot_of) != slots:
        swapped = slots and dict(manager.slot_of) == {slot: name for name, slot in slots.items()}
        raise Mistake(
            f"`slot_of` should be {slots}; yours is {short(manager.slot_of)}.",
            case=case,
            idea="It maps each request's id to its slot: the id is the key, and the slot is the value."
            if swapped
            else "`slot_of` contains exactly the requests that have a slot now: `acquire` adds one, `release` removes "
            "it.",
        )
    free = sorted(set(range(num_slots)) - set(slots.values()))
    if sorted(manager.free, key=str) != free:  # fewer than ten slots, so their order is the same
        raise Mistake(
            f"`free` should contain the slots {free}; yours contains {short(sorted(manager.free, key=str))}.",
            case=case,
            idea="A slot is either in `free` or assigned to one request in `slot_of`, never both, never neither.",
        )


def _check_acquire(attempt) -> None:
    case = 'manager = SlotManager(2); `manager.acquire("A")`, then `manager.acquire("B")`.'
    manager = attempt(2)
    slots = {name: _acquire(manager, name, case) for name in "AB"}
    if slots["A"] == slots["B"]:
        raise Mistake(
            f"A and B both got slot {slots['A']}; a slot belongs to one request at a time.",
            case=case,
            idea="An acquired slot must leave `free`. `list.pop()` returns a slot and removes it; `free[-1]` only "
            "reads it.",
        )
    if not set(slots.values()) <= {0, 1}:
        raise Mistake(f"the two slots are 0 and 1; yours returned {slots}.", case=case)
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
            f"with no free slot, `acquire` should raise NoFreeSlot; yours raised {type(error).__name__}: {error}.",
            case=case,
            idea="Check whether `self.free` is empty before you take a slot from it, and raise NoFreeSlot yourself.",
        ) from None
    raise Mistake(
        f"with no free slot, `acquire` should raise NoFreeSlot; yours returned {short(got)}.",
        case=case,
        idea="A caller that gets neither a slot nor an error goes on with a row that doesn't exist, or with another "
        "request's row.",
    )


def _check_unchanged(manager, slots: dict[str, int], num_slots: int, case: str) -> None:
    try:
        _check_consistent(manager, slots, num_slots, case)
    except Mistake as mistake:
        raise Mistake(
            f"the call was refused, but it changed something: {mistake.what}",
            case=case,
            idea="Do all checks first. Change `free` and `slot_of` only once the call can no longer be refused.",
        ) from None


def _check_release(attempt) -> None:
    case = 'manager = SlotManager(2); acquire A and B; `manager.release("A")`; then acquire C.'
    manager = attempt(2)
    slots = {name: _acquire(manager, name, case) for name in "AB"}
    _release(manager, "A", case)
    freed = slots.pop("A")
    _check_consistent(manager, slots, 2, case)
    got = _acquire(manager, "C", case)
    if got != freed:
        raise Mistake(
            f"A released slot {freed}, the only free one, so C should get it; C got slot {got}.",
            case=case,
            idea="Take the slot from `free`: which slots are free doesn't follow from how many are in use.",
        )


def _check_refusals(attempt) -> None:
    manager = attempt(2)
    manager_case = "manager = SlotManager(2); acquire A and B; release A; "
    slots = {name: _acquire(manager, name, manager_case) for name in "AB"}
    _release(manager, "A", manager_case)
    del slots["A"]
    twice = manager_case + '`manager.release("A")` once more.'
    _expect_value_error(
        manager.release,
        "A",
        manager,
        slots,
        twice,
        "releasing A a second time",
        "Its slot would be in `free` twice, and two requests would get the same row. Check whether the request has a "
        "slot.",
    )
    unknown = manager_case + '`manager.release("Z")`; Z never had a slot.'
    _expect_value_error(
        manager.release,
        "Z",
        manager,
        slots,
        unknown,
        "releasing a request without a slot",
        "Check `slot_of` first.",
    )
    _check_second_slot(attempt)


def _check_second_slot(attempt) -> None:
    """Both for the request in slot 1 and, after it, for the one in slot 0."""
    for owned in (1, 0):
        manager = attempt(2)
        slots = {name: _acquire(manager, name, "manager = SlotManager(2); acquire A and B.") for name in "AB"}
        name, other = sorted(slots, key=lambda name: slots[name] != owned)
        manager_case = f"manager = SlotManager(2); acquire A and B; release {other}; "
        _release(manager, other, manager_case)
        del slots[other]
        _check_consistent(manager, slots, 2, manager_case.removesuffix("; ") + ".")
        idea = (
            f"It would overwrite the entry of {name}'s first slot in `slot_of`, and that slot could never be released."
        )
        if owned == 0:
            idea = (
                "Your code refuses it for slot 1 but not for slot 0. 0 counts as False in Python: test "
                "`request_id in self.slot_of`, not the slot. " + idea
            )
        _expect_value_error(
            manager.acquire,
            name,
            manager,
            slots,
            manager_case + f'`manager.acquire("{name}")`; {name} has slot {owned} already.',
            f"acquiring a second slot for {name}",
            idea,
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
            idea="Test for this case before you look anything up, and raise a ValueError that names the request. "
            + idea,
        ) from None
    else:
        try:
            _check_consistent(manager, slots, 2, case)
        except Mistake:
            pass
        else:
            idea = "Nothing changed, but the caller doesn't notice its mistake. Raise ValueError."
        raise Mistake(f"{doing} should raise ValueError; yours accepted it.", case=case, idea=idea)


def _check_long_run(attempt) -> None:
    rng, manager, slots = Random(2), attempt(5), {}
    for index in range(200):
        if slots and (len(slots) == 5 or rng.random() < 0.5):
            name = rng.choice(sorted(slots))
            case = f"call {index} of a long run with 5 slots; in use: {slots}; release {name!r}."
            _release(manager, name, case)
            del slots[name]
        else:
            case = f"call {index} of a long run with 5 slots; in use: {slots}; acquire {str(index)!r}."
            slots[str(index)] = _acquire(manager, str(index), case)
        _check_consistent(manager, slots, 5, case)
