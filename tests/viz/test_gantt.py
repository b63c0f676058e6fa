"""Gantt charts: who did what when, read off the steps of a run; and every rectangle where its times are."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from picture_cases import COST, SMALL_RUN, simulated
from scheduling_cases import POLICIES, a_scheduler
from svg_reading import SVG, elements, texts

from lessons_lib.measuring.arrivals import traffic
from lessons_lib.measuring.simulator import SequenceTimes, SimulatedStep, Simulation, simulate
from lessons_lib.scheduling.scheduler import optimistic
from lessons_lib.viz.charts.time_axis import say_seconds
from lessons_lib.viz.drawing.palette import color_of, tint
from lessons_lib.viz.timelines.gantt import draw_gantts
from lessons_lib.viz.timelines.gantt_rows import DECODE, HELD, PREFILL, STALLED, WAITING, gantt_rows

STALLED_RUN = simulated(("A", 0, 8, 3, 9), ("B", 0, 8, 3, 9), blocks=5, admission=optimistic)
HELD_RUN = Simulation(
    times={"A": SequenceTimes(0, 0, 3, 4, 2)},
    seconds=4,
    steps=[
        SimulatedStep(0, 1, {"A": 2}, {}),
        SimulatedStep(1, 1, {}, {"B": 1}),
        SimulatedStep(2, 1, {"A": 2}, {}, waiting=("B",)),
        SimulatedStep(3, 1, {}, {"A": 1, "B": 1}),
    ],
)


def small_traffic(count, seed=3):
    return [
        replace(request, id=chr(65 + n) if n < 26 else request.id)
        for n, request in enumerate(traffic(count, 0.05, most=40, seed=seed))
    ]


def spans_of(run, name):
    (row,) = [row for row in gantt_rows(run) if row.name == name]
    return [(span.state, span.start, span.end, span.tokens) for span in row.spans]


# --- what the steps say


def test_a_stall_is_no_wait():
    assert [(span[0], span[3]) for span in spans_of(STALLED_RUN, "B")] == [(PREFILL, 8), (STALLED, 0), (DECODE, 2)]
    assert [(span[0], span[3]) for span in spans_of(STALLED_RUN, "A")] == [(PREFILL, 8), (DECODE, 2)]


def test_who_runs_and_gets_nothing_is_held_and_who_lost_its_place_waits_again():
    assert spans_of(HELD_RUN, "A") == [(PREFILL, 0, 1, 2), (HELD, 1, 2, 0), (PREFILL, 2, 3, 2), (DECODE, 3, 4, 1)]
    assert spans_of(HELD_RUN, "B") == [(DECODE, 1, 2, 1), (WAITING, 2, 3, 0), (DECODE, 3, 4, 1)]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_from_arrival_to_end_there_is_no_gap_and_no_token_too_many(policy):
    requests = small_traffic(25)
    scheduler = a_scheduler(max_num_seqs=3, max_num_batched_tokens=16, policy=policy, admission=optimistic, watermark=2)
    run = simulate(scheduler, requests, COST, keep_steps=True)
    rows = gantt_rows(run)
    assert [row.name for row in rows] == [request.id for request in requests]
    for row, request in zip(rows, requests):
        times = run.times[row.name]
        assert (row.arrival, row.finished) == (times.arrival, times.finished)
        assert row.spans[0].start == times.arrival and row.spans[-1].end == times.finished
        assert all(one.end == other.start for one, other in pairwise(row.spans))
        assert sum(span.end - span.start for span in row.spans if span.state == WAITING) == pytest.approx(
            times.queue_time
        )
        assert sum(span.tokens for span in row.spans if span.state == PREFILL) == request.prompt_tokens
        assert sum(span.tokens for span in row.spans if span.state == DECODE) == request.answer_tokens - 1


def test_without_steps_the_times_say_enough():
    run = Simulation({"A": SequenceTimes(0, 0, 17, 28, 2), "B": SequenceTimes(5, 28, 40, 40, 1)}, seconds=40)
    a, b = run.times["A"], run.times["B"]
    assert spans_of(run, "A") == [(PREFILL, 0, a.first_token, 0), (DECODE, a.first_token, a.finished, 0)]
    assert spans_of(run, "B") == [(WAITING, 5, b.admitted, 0), (PREFILL, b.admitted, b.first_token, 0)]


def test_who_has_not_finished_is_said():
    assert draw_gantts({"Gantt": HELD_RUN}).alt.endswith("Finished in this order: A. Not finished: B.")
    assert "Gantt: 1 of 2 finished" in texts(draw_gantts({"Gantt": HELD_RUN}))


# --- what is drawn


def bars(picture):
    """name, what is said of it, x and width of everything drawn for a stretch of time."""
    found = []
    for rect in elements(picture, "rect"):
        said = re.fullmatch(r"(\w+): (.*)", rect.findtext(SVG + "title") or "")
        if said:
            found.append((said[1], said[2], float(rect.get("x")), float(rect.get("width")), rect.get("fill")))
    return found


def scale_of(picture, run):
    """x as a function of seconds, from where the whole picture begins A's first stretch and ends the last one."""
    drawn = [bar for bar in bars(picture) if bar[1] != "finished"]
    left, right = min(bar[2] for bar in drawn), max(bar[2] + bar[3] for bar in drawn)
    return lambda seconds: left + (right - left) * seconds / run.seconds


def test_every_stretch_lies_where_its_times_are():
    picture = draw_gantts({"": SMALL_RUN})
    x = scale_of(picture, SMALL_RUN)
    drawn = [bar for bar in bars(picture) if bar[1] != "finished"]
    expected = [(row.name, span) for row in gantt_rows(SMALL_RUN) for span in row.spans]
    assert len(drawn) == len(expected) == 7
    for (name, said, left, width, fill), (owner, span) in zip(drawn, expected):
        assert (
            name == owner
            and left == pytest.approx(x(span.start), abs=0.1)
            and left + width == pytest.approx(x(span.end), abs=0.1)
        )
        assert said.startswith(span.state) and said.endswith(f"{say_seconds(span.start)} to {say_seconds(span.end)}")
        assert fill == (tint(color_of(name)) if span.state == WAITING else color_of(name))
    ends = {name: left + width / 2 for name, said, left, width, _ in bars(picture) if said == "finished"}
    assert ends == pytest.approx({name: x(times.finished) for name, times in SMALL_RUN.times.items()}, abs=0.1)
