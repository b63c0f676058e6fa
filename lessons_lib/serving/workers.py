"""Lesson 16: workers that send each other tensors. Here each is a thread of this process; a real one is a process with
a GPU, and the tensors go over a link.

`send` doesn't wait and `receive` does, so workers can come to wait for each other in a circle. That is noticed at once:
every worker that hasn't returned waits, and nothing is on its way to any of them.
"""

import linecache
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

MAX_UNREAD = 1000  # tensors that one worker may have sent to another that doesn't receive them


class Deadlock(RuntimeError):
    """No worker can go on. The message has a line for each, which says where it waits."""


class Stopped(BaseException):
    """Raised in a worker when another one has failed. A BaseException, so that `except Exception` doesn't catch it."""


class Network:
    """Tensors on their way between the workers.

    Attributes:
        unread: (source, to) -> tensors that were sent and not yet received, oldest first.
        waiting: rank -> (the worker that it waits for, the file and line where it waits).
        ended: the workers that have returned or failed.
        error: the reason why the workers can't go on, or None.
    """

    def __init__(self, world_size: int):
        self.workers = [Worker(rank, world_size, self) for rank in range(world_size)]
        self.unread: dict[tuple[int, int], deque[torch.Tensor]] = defaultdict(deque)
        self.waiting: dict[int, tuple[int, str, int]] = {}
        self.ended: set[int] = set()
        self.error: BaseException | None = None
        self.changed = threading.Condition()

    def stop(self, error: BaseException) -> None:
        """End the workers. The first reason counts."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def end(self, rank: int) -> None:
        """Note that a worker has returned. Others may wait for it in vain."""
        with self.changed:
            self.ended.add(rank)
            self.stop_if_stuck()

    def stop_if_stuck(self) -> None:
        alive = [worker.rank for worker in self.workers if worker.rank not in self.ended]
        if alive and all(rank in self.waiting and not self.unread[self.waiting[rank][0], rank] for rank in alive):
            self.stop(Deadlock("\n".join(self.place(worker) for worker in self.workers)))

    def place(self, worker: "Worker") -> str:
        """The place of a worker, for the message of a Deadlock."""
        done = f"after {worker.num_sent} sent and {worker.num_received} received"
        if worker.rank in self.ended:
            return f"worker {worker.rank} has returned {done}"
        source, file, line = self.waiting[worker.rank]
        code = linecache.getline(file, line).strip()
        where = f" at `{code}`" if code else f" at line {line}"
        return f"worker {worker.rank} waits for worker {source} {done}{where}"


class Worker:
    """One of several workers.

    Attributes:
        rank: its index, from 0.
        world_size: the number of workers.
        sent_bytes, num_sent, num_received: so far. A tensor that a worker sends to itself has no bytes.
    """

    def __init__(self, rank: int, world_size: int, network: Network):
        self.rank, self.world_size, self.network = rank, world_size, network
        self.sent_bytes = self.num_sent = self.num_received = 0

    def send(self, to: int, tensor: torch.Tensor) -> None:
        """Send a copy of a tensor to a worker, without waiting for it.

        Raises:
            ValueError: there is no such worker, or it has a thousand tensors of this one to receive.
            TypeError: this is no tensor.
        """
        self._refuse_unknown("send to", to)
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"worker {self.rank} can send tensors only, and this is {str(tensor)[:60]!r}.")
        with self.network.changed:
            if self.network.error:
                raise Stopped
            unread = self.network.unread[self.rank, to]
            if len(unread) >= MAX_UNREAD:
                raise ValueError(f"worker {self.rank} has sent {len(unread)} tensors that worker {to} hasn't received.")
            unread.append(tensor.detach().clone())
            self.num_sent += 1
            self.sent_bytes += tensor.numel() * tensor.element_size() if to != self.rank else 0
            self.network.changed.notify_all()

    def receive(self, source: int) -> torch.Tensor:
        """Wait for the next tensor of a worker: they come in the order in which it sent them.

        Raises:
            ValueError: there is no such worker.
            Deadlock: every worker waits, and nothing was sent.
        """
        self._refuse_unknown("receive from", source)
        network, caller = self.network, sys._getframe(1)
        with network.changed:
            unread = network.unread[source, self.rank]
            network.waiting[self.rank] = source, caller.f_code.co_filename, caller.f_lineno
            if not unread:
                network.stop_if_stuck()
            while not unread:
                if network.error:
                    raise Stopped
                network.changed.wait()
            del network.waiting[self.rank]
            self.num_received += 1
            return unread.popleft()

    def _refuse_unknown(self, what: str, rank: Any) -> None:
        if not (isinstance(rank, int) and 0 <= rank < self.world_size):
            raise ValueError(
                f"worker {self.rank} can't {what} worker {rank!r}: there are workers 0 to {self.world_size - 1}. After "
                "the last one, `% world_size` leads back to the first."
            )


def run_workers(work: Callable[[Worker], Any], world_size: int) -> tuple[list[Any], list[Worker]]:
    """Call `work(worker)` in a thread for each worker, at the same time.

    Returns:
        (results, workers): what each call returned, and how much each worker has sent.

    Raises:
        Deadlock: the workers wait for each other.
        Exception: what the first of them to fail has raised.
    """
    network = Network(world_size)
    results: list[Any] = [None] * world_size

    def body(worker: Worker) -> None:
        try:
            results[worker.rank] = work(worker)
        except BaseException as error:
            network.stop(error)
        finally:
            network.end(worker.rank)

    threads = [threading.Thread(target=body, args=(worker,), daemon=True) for worker in network.workers]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)  # with a limit, so that an interrupt arrives
    except BaseException as error:
        network.stop(error)
        raise
    if network.error:
        raise network.error
    return results, network.workers
