"""The threads that stand for workers. The check of exercise 16.2 tests the sum itself."""

import pytest
import torch

from lessons_lib.serving.workers import MAX_UNREAD, Deadlock, run_workers


def test_what_is_sent_is_a_copy_and_comes_in_order():
    def work(worker):
        if worker.rank == 1:
            return [worker.receive(0).item(), worker.receive(0).item(), worker.receive(1).item()]
        tensor = torch.tensor(1.0)
        worker.send(1, tensor)
        worker.send(1, tensor.fill_(2))

    def with_its_own(worker):
        if worker.rank == 1:
            worker.send(1, torch.tensor(3.0))
        return work(worker)

    results, workers = run_workers(with_its_own, 2)
    assert results == [None, [1, 2, 3]]
    assert [(worker.sent_bytes, worker.num_sent, worker.num_received) for worker in workers] == [(8, 2, 0), (0, 1, 3)]


def test_a_deadlock_names_the_place_of_each_worker():
    def work(worker):
        if worker.rank == 2:
            return worker.send(0, torch.ones(1))
        if worker.rank == 0:
            worker.receive(2)
        worker.receive(1 - worker.rank)

    with pytest.raises(Deadlock) as caught:
        run_workers(work, 3)
    assert str(caught.value).splitlines() == [
        "worker 0 waits for worker 1 after 0 sent and 1 received at `worker.receive(1 - worker.rank)`",
        "worker 1 waits for worker 0 after 0 sent and 0 received at `worker.receive(1 - worker.rank)`",
        "worker 2 has returned after 1 sent and 0 received",
    ]


def test_a_worker_that_fails_ends_the_others():
    def work(worker):
        if worker.rank == 1:
            raise ZeroDivisionError("one of them")
        try:
            worker.receive(1)
        except Exception:
            return "caught"

    with pytest.raises(ZeroDivisionError, match="one of them"):
        run_workers(work, 3)


def test_what_cannot_be_sent_or_received_is_refused():
    def refused(call):
        return lambda worker: call(worker) if worker.rank == 0 else None

    with pytest.raises(ValueError, match="worker 0 can't send to worker 2: there are workers 0 to 1"):
        run_workers(refused(lambda worker: worker.send(2, torch.ones(1))), 2)
    with pytest.raises(ValueError, match="worker 0 can't receive from worker -1"):
        run_workers(refused(lambda worker: worker.receive(-1)), 2)
    with pytest.raises(TypeError, match=r"can send tensors only, and this is '\[1\]'"):
        run_workers(refused(lambda worker: worker.send(1, [1])), 2)
    with pytest.raises(ValueError, match="has sent 1000 tensors that worker 1 hasn't received"):
        run_workers(refused(lambda worker: [worker.send(1, torch.ones(1)) for _ in range(MAX_UNREAD + 1)]), 2)
