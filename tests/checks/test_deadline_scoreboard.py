"""The deadline scoreboard of lesson 12 counts what one counts with a pencil."""

from lessons_lib.checks.lesson_12.deadlines import (
    Waiting,
    deadline_scoreboard,
    nothing,
    served_in_time,
    too_late,
    workload,
)

# Eight requests fill the batch slots for ten steps; the ninth is computed in the steps 10 and 11.
EIGHT = [Waiting(0, 9, 4, 10) for _ in range(8)]


def test_served_in_time():
    assert served_in_time([*EIGHT, Waiting(0, 11, 3, 2)], nothing) == (9, 0)
    assert served_in_time([*EIGHT, Waiting(0, 10, 3, 2)], nothing) == (8, 4)
    assert served_in_time([*EIGHT, Waiting(0, 5, 3, 2)], too_late) == (8, 0)  # given up before it began


def test_what_a_rule_gets():
    seen = []
    served_in_time([Waiting(1, 4, 70, 2)], lambda requests: seen.extend(requests) or [])
    views = [(each.steps_left, each.prompt_left, each.answer_left, each.waited, each.is_running) for each in seen]
    assert views == [(4, 70, 2, 0, False), (3, 6, 2, 1, True), (2, 0, 1, 2, True)]


def test_giving_up_what_is_too_late_helps_and_an_error_is_told():
    requests = workload(31)
    assert served_in_time(requests, too_late)[0] > served_in_time(requests, nothing)[0]
    assert "raised ZeroDivisionError" in deadline_scoreboard(lambda requests: 1 // 0).verdict
