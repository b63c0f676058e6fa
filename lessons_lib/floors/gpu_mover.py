"""Copies blocks between a GPU and host memory while the GPU computes."""

import weakref
from itertools import accumulate, pairwise

import torch

from lessons_lib.floors.block_mover import BlockMover
from lessons_lib.floors.host_cache import HostCache
from lessons_lib.kernels.staged_blocks import move_kernel
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

STAGED = 64  # blocks


class GPUMover(BlockMover):
    """A BlockMover with a stream for each way. Rows that follow each other cross the bus in one piece, to or from a
    staging area on the GPU; there, one kernel gathers or scatters all layers of many blocks.

    Attributes:
        down, up: streams. Passes wait for neither; see `guard` and `is_loading`.
        leaving, arriving: the staging areas.
        loads: (event at its end, its slots, its blocks) of each load under way.
    """

    def __init__(self, cache: PagedKVCache, host: HostCache):
        super().__init__(cache, host)
        self.device = cache.keys[0].device
        self.down, self.up = (torch.cuda.Stream(self.device) for _ in range(2))  # type: ignore[no-untyped-call]
        layers = [*cache.keys, *cache.values]
        sizes = [layer[0].nbytes for layer in layers]
        unit = torch.int64 if all(size % 8 == 0 for size in sizes) else torch.uint8
        self.leaving, self.arriving = (
            torch.empty(STAGED, sum(sizes), dtype=torch.uint8, device=self.device).view(unit) for _ in range(2)
        )
        self.rows = host.rows.view(unit)
        self.addresses = torch.tensor([layer.data_ptr() for layer in layers], device=self.device)
        self.starts = torch.tensor([0, *accumulate(sizes)], device=self.device) // unit.itemsize
        self.loads: list[tuple[torch.cuda.Event, set[int], set[int]]] = []
        self.gathered = torch.cuda.Event()  # type: ignore[no-untyped-call]
        if host.rows.numel():  # `pin_memory` would take up to twice as much
            runtime, address = torch.cuda.cudart(), host.rows.data_ptr()
            torch.cuda.check_error(runtime.cudaHostRegister(address, host.rows.nbytes, 0))
            weakref.finalize(self, runtime.cudaHostUnregister, address)

    def store(self, blocks: list[int], slots: list[int]) -> None:
        """See BlockMover."""
        self.down.wait_stream(torch.cuda.current_stream())  # a pass in flight may still write to these blocks
        for event, read, _ in self.loads:
            if not read.isdisjoint(slots):
                self.down.wait_event(event)
        with torch.cuda.stream(self.down):
            for part_of_slots, part in parts(slots, blocks):
                self.move(self.leaving, part, is_store=True)
                self.gathered.record()
                for row, slot, length in neighbors(part_of_slots):
                    self.rows[slot : slot + length].copy_(self.leaving[row : row + length], non_blocking=True)

    def guard(self) -> None:
        """See BlockMover."""
        torch.cuda.current_stream().wait_event(self.gathered)

    def load(self, slots: list[int], blocks: list[int]) -> None:
        """See BlockMover."""
        self.up.wait_stream(torch.cuda.current_stream())  # a pass in flight may still read these blocks
        self.up.wait_stream(self.down)
        with torch.cuda.stream(self.up):
            for part_of_slots, part in parts(slots, blocks):
                for row, slot, length in neighbors(part_of_slots):
                    self.arriving[row : row + length].copy_(self.rows[slot : slot + length], non_blocking=True)
                self.move(self.arriving, part, is_store=False)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self.loads.append((event, set(slots), set(blocks)))

    def move(self, staged: torch.Tensor, blocks: list[int], is_store: bool) -> None:
        """Gather blocks in rows that are staged, or scatter these."""
        index = torch.tensor(blocks).pin_memory().to(self.device, non_blocking=True)
        grid = len(blocks), len(self.addresses)
        move_kernel[grid](staged, index, self.addresses, self.starts, staged.shape[1], is_store, BLOCK=1024)

    def is_loading(self, blocks: list[int]) -> bool:
        """See BlockMover."""
        self.loads = [load for load in self.loads if not load[0].query()]
        return any(not written.isdisjoint(blocks) for _, _, written in self.loads)

    def wait(self) -> None:
        """See BlockMover."""
        self.down.synchronize()
        self.up.synchronize()
        self.loads.clear()


def parts(slots: list[int], blocks: list[int]) -> list[tuple[list[int], list[int]]]:
    """Cut pairs of slots and blocks into parts that can be staged, sorted by slot, so that neighbors meet."""
    pairs = sorted(zip(slots, blocks))
    rows = [pairs[start : start + STAGED] for start in range(0, len(pairs), STAGED)]
    return [([slot for slot, _ in part], [block for _, block in part]) for part in rows]


def neighbors(slots: list[int]) -> list[tuple[int, int, int]]:
    """Cut sorted slots into runs without a gap: (index of its first, its first, length) of each."""
    starts = [index for index, slot in enumerate(slots) if not index or slot != slots[index - 1] + 1]
    return [(start, slots[start], end - start) for start, end in pairwise([*starts, len(slots)])]
