"""Copies blocks between a GPU and host memory while the GPU computes."""

import weakref

import torch

from lessons_lib.floors.block_mover import BlockMover
from lessons_lib.floors.host_cache import HostCache
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

STAGED = 64  # blocks


class GPUMover(BlockMover):
    """A BlockMover with a stream for each way. A row crosses the bus as one piece, to or from a staging area on the
    GPU; there, one kernel per layer gathers or scatters many of them.

    Attributes:
        down, up: streams. Passes wait for neither; see `guard` and `is_loading`.
        loads: (event at its end, its slots, its blocks) of each load under way.
    """

    def __init__(self, cache: PagedKVCache, host: HostCache):
        super().__init__(cache, host)
        self.device = cache.keys[0].device
        self.down, self.up = (torch.cuda.Stream(self.device) for _ in range(2))  # type: ignore[no-untyped-call]
        self.leaving, self.arriving = (HostCache(cache, STAGED, self.device) for _ in range(2))
        self.loads: list[tuple[torch.cuda.Event, set[int], set[int]]] = []
        self.gathered = torch.cuda.Event()  # type: ignore[no-untyped-call]
        if host.rows.numel():  # `pin_memory` would take up to twice as much
            runtime, address = torch.cuda.cudart(), host.rows.data_ptr()
            torch.cuda.check_error(runtime.cudaHostRegister(address, host.rows.nbytes, 0))
            weakref.finalize(self, runtime.cudaHostUnregister, address)

    @torch.inference_mode()
    def store(self, blocks: list[int], slots: list[int]) -> None:
        """See BlockMover."""
        self.down.wait_stream(torch.cuda.current_stream())  # a pass in flight may still write to these blocks
        for event, read, _ in self.loads:
            if not read.isdisjoint(slots):
                self.down.wait_event(event)
        with torch.cuda.stream(self.down):
            for part in parts(len(blocks)):
                index = self.on_device(blocks[part])
                for staged, layer in self.layers(self.leaving):
                    staged[: len(index)] = layer[index]
                self.gathered.record()
                for row, slot in enumerate(slots[part]):
                    self.host.rows[slot].copy_(self.leaving.rows[row], non_blocking=True)

    def guard(self) -> None:
        """See BlockMover."""
        torch.cuda.current_stream().wait_event(self.gathered)

    @torch.inference_mode()
    def load(self, slots: list[int], blocks: list[int]) -> None:
        """See BlockMover."""
        self.up.wait_stream(torch.cuda.current_stream())  # a pass in flight may still read these blocks
        self.up.wait_stream(self.down)
        with torch.cuda.stream(self.up):
            for part in parts(len(blocks)):
                for row, slot in enumerate(slots[part]):
                    self.arriving.rows[row].copy_(self.host.rows[slot], non_blocking=True)
                index = self.on_device(blocks[part])
                for staged, layer in self.layers(self.arriving):
                    layer[index] = staged[: len(index)]
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self.loads.append((event, set(slots), set(blocks)))

    def is_loading(self, blocks: list[int]) -> bool:
        """See BlockMover."""
        self.loads = [load for load in self.loads if not load[0].query()]
        return any(not written.isdisjoint(blocks) for _, _, written in self.loads)

    def wait(self) -> None:
        """See BlockMover."""
        self.down.synchronize()
        self.up.synchronize()
        self.loads.clear()

    def on_device(self, blocks: list[int]) -> torch.Tensor:
        return torch.tensor(blocks).pin_memory().to(self.device, non_blocking=True)

    def layers(self, staged: HostCache) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each layer, what is staged and what is in the cache."""
        return list(zip([*staged.keys, *staged.values], [*self.cache.keys, *self.cache.values]))


def parts(count: int) -> list[slice]:
    """Cut a list of blocks into parts that can be staged."""
    return [slice(start, start + STAGED) for start in range(0, count, STAGED)]
