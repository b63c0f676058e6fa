"""Lesson 02: the slots of a batch, and who sits in them."""


class NoFreeSlot(RuntimeError):
    """Every slot has a request."""


class SlotManager:
    """Hands out the rows of a batch. A slot belongs to one request at a time, and a request has at most one slot.

    Attributes:
        num_slots: how many there are; they are numbered from 0.
        free: numbers of the free slots, in any order.
        slot_of: request id -> number of the slot it holds.
    """

    def __init__(self, num_slots):
        self.num_slots = num_slots
        self.free = list(reversed(range(num_slots)))
        self.slot_of = {}

    def acquire(self, request_id):
        """Give a free slot to a request, no matter which.

        Returns:
            The number of the slot.

        Raises:
            ValueError: the request has a slot already; nothing changes.
            NoFreeSlot: there is none; nothing changes.
        """
        if request_id in self.slot_of:
            raise ValueError(
                f"request {request_id!r} has slot {self.slot_of[request_id]} already; give every request an id of its own."
            )
        if not self.free:
            raise NoFreeSlot(f"request {request_id!r} needs a slot; all {self.num_slots} are taken. Release one first.")
        self.slot_of[request_id] = self.free.pop()
        return self.slot_of[request_id]

    def release(self, request_id):
        """Take the slot of a request back.

        Raises:
            ValueError: the request holds no slot, perhaps because it was released before; nothing changes.
        """
        if request_id not in self.slot_of:
            raise ValueError(
                f"request {request_id!r} holds no slot; holding one are {sorted(self.slot_of)}. Release a request once."
            )
        self.free.append(self.slot_of.pop(request_id))
