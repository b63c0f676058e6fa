"""How long requests waited, and how they were served."""

from lessons_lib.measuring.simulator import SequenceTimes, Simulation, spread, times_of


def test_spread_of_known_numbers():
    found = spread(range(101))
    assert (found.mean, found.p99, found.worst) == (50, 99, 100)


def test_times_are_those_of_the_run():
    run = Simulation(
        times={
            "A": SequenceTimes(1.0, 2.0, 4.0, 10.0, answer_tokens=4),
            "B": SequenceTimes(3.0, 3.0, 5.0, 5.0, answer_tokens=1),
        }
    )
    assert times_of(run, "queue_time") == [1.0, 0.0]
    assert times_of(run, "ttft") == [3.0, 2.0]
    assert times_of(run, "latency") == [9.0, 2.0]
    assert times_of(run, "tpot") == [2.0, 0.0]
