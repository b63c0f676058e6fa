"""Lesson 02: the batch slots and their owners."""


class NoFreeSlot(RuntimeError):
    """Every slot belongs to a request."""


class SlotManager:
    """Manages the rows of a batch. A slot belongs to one request at a time, and a request has at most one slot.

    Attributes:
        num_slots: number of slots; indices start at 0.
        free: the free slots, in any order.
        slot_of: request id -> its slot.
    """

    def __init__(self, num_slots: int):
        self.num_slots = num_slots
        self.free = list(reversed(range(num_slots)))
        self.slot_of: dict[str, int] = {}

    def acquire(self, request_id: str) -> int:
        """Assign any free slot to a request.

        Returns:
            The index of the slot.

        Raises:
            ValueError: the request has a slot already; nothing changes.
            NoFreeSlot: no slot is free; nothing changes.
        """
        if request_id in self.slot_of:
            raise ValueError(
                f"request {request_id!r} has slot {self.slot_of[request_id]} already; give every request its own id."
            )
        if not self.free:
            raise NoFreeSlot(f"request {request_id!r} needs a slot; all {self.num_slots} are taken. Release one first.")
        self.slot_of[request_id] = self.free.pop()
        return self.slot_of[request_id]

    def release(self, request_id: str) -> None:
        """Free the slot of a request.

        Raises:
            ValueError: the request has no slot, perhaps because it was released before; nothing changes.
        """
        if request_id not in self.slot_of:
            raise ValueError(
                f"request {request_id!r} has no slot; these have one: {sorted(self.slot_of)}. Release a request once."
            )
        self.free.append(self.slot_of.pop(request_id))
