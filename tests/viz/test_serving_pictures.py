"""Pictures of serving: lanes and arrows at their times, bars as long as the laps, and what a curve says in words."""

import re
from itertools import pairwise

import pytest
from svg_reading import elements, texts, titles

from lessons_lib.engine.metrics import EngineStep
from lessons_lib.recording.drain import ClientRequest, DrainRun, recorded_drain
from lessons_lib.recording.request_path import LANES, Message, Work, recorded_path
from lessons_lib.viz.charts.step_parts import COLOURS
from lessons_lib.viz.serving import LoadPoint, draw_drain, draw_laps, draw_load, draw_path
from lessons_lib.viz.serving.laps import BETWEEN, median_laps

MESSAGES = [
    Message(0.0, 0.01, "client", "server", "POST"),
    Message(0.03, 0.04, "engine", "server", "NewTokens"),
    Message(0.05, 0.06, "server", "client", "data"),
    Message(0.07, 0.08, "engine", "server", "NewTokens"),
    Message(0.09, 0.1, "server", "client", "data"),
]
WORKS = [Work("engine", 0.01, 0.03, "step"), Work("engine", 0.04, 0.07, "step")]


def arrows(picture):
    """(x and y of both ends) of each arrow."""
    return [
        tuple(map(float, re.match(r"M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)", path.get("d")).groups()))
        for path in elements(picture, "path")
        if path.get("marker-end")
    ]


def test_arrows_stand_at_their_times():
    picture = draw_path(LANES, MESSAGES, WORKS)
    found = arrows(picture)
    assert len(found) == len(MESSAGES)
    first, last = found[0], found[-1]
    width = last[2] - first[0]  # from 0 s to 0.1 s
    for message, (x1, y1, x2, y2) in zip(MESSAGES, found):
        assert (x1 - first[0]) / width == pytest.approx(message.sent / 0.1, abs=0.001)
        assert (x2 - first[0]) / width == pytest.approx(message.received / 0.1, abs=0.001)
        assert (y2 > y1) == (LANES.index(message.target) > LANES.index(message.source))


def test_work_is_as_long_as_it_took_and_labels_of_a_kind_stand_once():
    picture = draw_path(LANES, MESSAGES, WORKS)
    short, long = [float(rect.get("width")) for rect in elements(picture, "rect")][-2:]
    assert long / short == pytest.approx(1.5, abs=0.01)
    assert texts(picture).count("data") == 1 and texts(picture).count("NewTokens") == 1
    assert "engine: step, 20 ms" in titles(picture)
    assert (
        "After 10 ms, server has “POST” from client" in picture.alt and "step, 2 times, 50 ms together" in picture.alt
    )


def test_an_unknown_lane_is_refused():
    with pytest.raises(ValueError, match="no lane is called proxy"):
        draw_path(LANES, [Message(0, 1, "client", "proxy", "POST")])


def test_the_recording_is_a_whole_request():
    recording = recorded_path()
    kinds = [message.label for message in recording.messages]
    assert [kinds.count(label) for label in ("POST /v1/completions", "AddRequest", "Accepted", "NewTokens")] == [
        1,
        1,
        1,
        8,
    ]
    assert all(0 <= message.sent <= message.received for message in recording.messages)
    steps = [work for work in recording.works if work.label == "step"]
    assert all(one.end <= other.start for one, other in pairwise(steps)), "one step at a time"
    assert draw_path(recording.lanes, recording.messages, recording.works).alt


def a_step(start, **seconds):
    return EngineStep(start, seconds, 3, 1, 2, 2, 0, 5, 0, 0, 0)


QUICK = [a_step(0.01 * n, forward=0.006, update=0.002) for n in range(3)]
SLOW = [a_step(0.02 * n, forward=0.012, update=0.004) for n in range(3)]


def test_laps_are_medians_and_add_up_to_the_time_between_two_steps():
    laps = median_laps(QUICK)
    assert laps == pytest.approx({"forward": 0.006, "update": 0.002, BETWEEN: 0.002})
    slow = [*QUICK, a_step(0.03, forward=0.5, update=0.002), a_step(0.6, forward=0.006, update=0.002)]
    assert median_laps(slow)["forward"] == pytest.approx(0.006), "one slow step changes nothing"
    with pytest.raises(ValueError, match="needs at least 2"):
        median_laps(QUICK[:1])


def test_bars_are_as_long_as_the_laps():
    picture = draw_laps({"alone": QUICK, "beside a loop": SLOW})
    widths = [float(rect.get("width")) for rect in elements(picture, "rect") if rect.get("fill") == COLOURS["forward"]]
    assert widths[2] == pytest.approx(2 * widths[1], abs=0.02), "the first one is the legend"
    assert "10 ms" in texts(picture) and "20 ms" in texts(picture)
    assert "beside a loop: 20 ms from one step to the next, of which forward 12 ms, update 4 ms" in picture.alt


def test_load_is_told_in_words():
    points = [LoadPoint(10, 10, 0.2), LoadPoint(30, 2, 9.0)]
    picture = draw_load({"all are taken": points}, target=0.5, knee=20, title="Load")
    assert (
        "at most 10.0 requests per second within the target, at a rate of 10.0; at 30.0 per second 2.0" in picture.alt
    )
    assert "The target is 500 ms" in picture.alt and "The knee is at 20.0" in picture.alt
    assert draw_load({}).alt


DRAIN = DrainRun(
    (
        ClientRequest("A", 0.0, 6.0, 200, 40, 40),
        ClientRequest("B", 1.0, 9.0, 200, 70, 70),
        ClientRequest("C", 5.0, 5.1, 503, 0, 40),
        ClientRequest("D", 10.0, 10.0, 0, 0, 40),
    ),
    signaled=4.0,
    exited=10.0,
    exit_status=0,
)


def test_a_drain_is_drawn_to_scale_and_told_in_words():
    picture = draw_drain(DRAIN)
    widths = {
        title.split(",")[0]: float(rect.get("width"))
        for rect in elements(picture, "rect")
        for title in [next((child.text for child in rect), "")]
        if title
    }
    assert widths["B"] / widths["A"] == pytest.approx(8 / 6, abs=0.01)
    assert widths["the server drains"] / widths["the server serves"] == pytest.approx(6 / 4, abs=0.01)
    assert {"SIGTERM", "the process ends", "40 of 40 tokens", "refused: 503", "no connection", "exit status 0"} <= set(
        texts(picture)
    )
    assert "SIGTERM comes after 4 s; the process ends after 10 s, with exit status 0." in picture.alt
    assert "C, sent after 5 s: refused: 503. D, sent after 10 s: no connection." in picture.alt


def test_the_recorded_drain_finished_what_ran_and_refused_what_was_new():
    run = recorded_drain()
    early = [request for request in run.requests if request.sent < run.signaled]
    late = [request for request in run.requests if run.signaled <= request.sent < run.exited]
    last = run.requests[len(early) + len(late) :]
    assert len(early) == 3 and sum(request.ended > run.signaled for request in early) == 2
    assert all(request.status == 200 and request.num_tokens == request.asked for request in early)
    assert late and all(request.status == 503 and request.num_tokens == 0 for request in late)
    assert [request.status for request in last] == [0] and run.exit_status == 0
    assert run.exited >= max(request.ended for request in early)
