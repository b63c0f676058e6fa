"""Lesson 16: the sum of the tensors of several workers, in a ring.

Every worker is responsible for one part of the sum. In the first round of the ring, the parts are added up on their way
(reduce-scatter); in the second, the finished ones are passed on (all-gather).
"""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lessons_lib.serving.workers import Worker


def all_reduce(tensor: torch.Tensor, worker: "Worker") -> torch.Tensor:
    """The sum of the tensors of all workers. Each worker calls this with its own; all have the same shape and type.

    Args:
        tensor: of any shape; it is not changed.
        worker: this worker: its `rank` and the `world_size`; `send(to, tensor)`, which doesn't wait; `receive(source)`,
            which waits for the next tensor from that worker.

    Returns:
        the sum, a new tensor of the same shape and type, with the same bits in every worker. If each tensor has n
        elements, a worker sends at most 2 (N - 1) * ceil(n / N) of them.
    """
    rank, size = worker.rank, worker.world_size
    left, right = (rank - 1) % size, (rank + 1) % size
    parts = list(tensor.flatten().tensor_split(size))
    for step in range(size - 1):
        worker.send(right, parts[(rank - step) % size])
        own = (rank - step - 1) % size
        parts[own] = parts[own] + worker.receive(left)
    for step in range(size - 1):
        worker.send(right, parts[(rank + 1 - step) % size])
        parts[(rank - step) % size] = worker.receive(left)
    return torch.cat(parts).view(tensor.shape)
