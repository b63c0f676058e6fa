"""Pictures of serving: lanes and arrows at their times, bars as long as the laps, and what a curve says in words."""

import re
from itertools import pairwise

import pytest
from picture_cases import DRAIN, LANES, MESSAGES, WORKS
from svg_reading import elements, texts

from lessons_lib.recording.served_requests import recorded_drain, recorded_path
from lessons_lib.viz.drawing.palette import SERIES, color_of
from lessons_lib.viz.serving import draw_drain, draw_path


def arrows(picture):
    """(x and y of both ends) of each arrow."""
    return [
        tuple(map(float, re.match(r"M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)", path.get("d")).groups()))
        for path in elements(picture, "path")
        if path.get("marker-end")
    ]


def test_arrows_and_work_stand_at_their_times_and_labels_of_a_kind_once():
    picture = draw_path(LANES, MESSAGES, WORKS)
    found = arrows(picture)
    assert len(found) == len(MESSAGES)
    first, last = found[0], found[-1]
    width = last[2] - first[0]  # from 0 s to 0.1 s
    for message, (x1, y1, x2, y2) in zip(MESSAGES, found):
        assert (x1 - first[0]) / width == pytest.approx(message.sent / 0.1, abs=0.001)
        assert (x2 - first[0]) / width == pytest.approx(message.received / 0.1, abs=0.001)
        assert (y2 > y1) == (LANES.index(message.target) > LANES.index(message.source))
    short, long = [float(rect.get("width")) for rect in elements(picture, "rect")][-2:]
    assert long / short == pytest.approx(1.5, abs=0.01)
    assert texts(picture).count("data") == 1 and texts(picture).count("NewTokens") == 1
    assert (
        "server has “POST” from client after 10 ms." in picture.alt and "5 messages in all, in 100 ms." in picture.alt
    )


def test_the_recording_is_a_whole_request():
    recording = recorded_path()
    kinds = [message.label for message in recording.messages]
    labels = ("POST /v1/completions", "AddRequest", "Accepted", "NewTokens")
    assert list(map(kinds.count, labels)) == [1, 1, 1, 8]
    assert all(0 <= message.sent <= message.received for message in recording.messages)
    steps = [work for work in recording.works if work.label == "step"]
    assert all(one.end <= other.start for one, other in pairwise(steps)), "one step at a time"


def test_a_drain_is_drawn_to_scale_and_told_in_words():
    picture = draw_drain(DRAIN)
    widths = {rect.get("fill"): float(rect.get("width")) for rect in elements(picture, "rect")}  # of a color, the last
    assert widths[color_of("B")] / widths[color_of("A")] == pytest.approx(8 / 6, abs=0.01)
    assert widths[SERIES[3]] / widths[SERIES[0]] == pytest.approx(6 / 4, abs=0.01), "drains, serves"
    words = {"SIGTERM", "the process ends", "40 of 40 tokens", "refused: 503", "no connection", "exit status 0"}
    assert words <= set(texts(picture))
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
