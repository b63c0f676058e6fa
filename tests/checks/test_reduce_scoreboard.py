"""The simulated times of an all-reduce are those that one gets with a pencil."""

import pytest
import torch

from lessons_lib.checks.lesson_16.scoreboard import (
    ARRIVE,
    BANDWIDTH,
    START,
    all_reduce_scoreboard,
    microseconds,
    straight_to_the_owner,
)
from lessons_lib.serving.all_reduce import all_reduce


def everything_to_everyone(tensor, worker):
    for to in range(worker.world_size):
        worker.send(to, tensor)
    return sum(worker.receive(source) for source in range(worker.world_size))


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_times_of_the_ring_and_of_one_round(world_size):
    size, others = 840, world_size - 1
    ring = 2 * others * (START + ARRIVE + 4 * size / world_size / BANDWIDTH)
    assert microseconds(all_reduce, size, world_size) == pytest.approx(ring)
    one_round = others * (START + 4 * size / BANDWIDTH) + ARRIVE
    assert microseconds(everything_to_everyone, size, world_size) == pytest.approx(one_round)


def test_neither_way_is_the_best_for_all_sizes():
    table = all_reduce_scoreboard(everything_to_everyone)
    ring, straight, yours = [[float(cell.split()[0]) for cell in row[1:]] for row in table.rows]
    assert yours[0] < min(ring[0], straight[0]) and yours[1] > max(ring[1], straight[1])
    assert "one decode, 8 KB: " in table.verdict


def test_the_task_is_not_solved_by_what_16_2_accepts():
    for answer in (all_reduce, straight_to_the_owner):
        assert float(all_reduce_scoreboard(answer).verdict.split("8 KB: ")[1].split()[0]) <= 1


@pytest.mark.parametrize(
    "function, says",
    [
        (lambda tensor, worker: tensor, "doesn't return the sum"),
        (lambda tensor, worker: everything_to_everyone(tensor, worker) * (1 + 1e-7 * worker.rank), "other bits"),
        (lambda tensor, worker: worker.receive(0), "Deadlock"),
        (lambda tensor, worker: torch.zeros(1), "doesn't return the sum"),
    ],
)
def test_what_is_wrong_is_said(function, says):
    assert says in all_reduce_scoreboard(function).verdict
